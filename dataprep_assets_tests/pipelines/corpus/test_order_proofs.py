"""Runs of source files in combined bins: reported, and named where documents do not sum up."""

from dataclasses import replace
from pathlib import Path

from dataprep_assets.formats import document_ends
from dataprep_assets.pipelines.corpus.combined_bins import shuffle_quality, source_run_length
from dataprep_assets_tests.pipelines.corpus.sample_shards import Combined, Sample


def test_runs_of_files_and_chunks_are_reported(combined: Combined, sample: Sample) -> None:
    lines = [line for receipt in sample.receipts() for line in receipt.sources]
    found = shuffle_quality(sample.receipts())
    assert found.passed
    assert found.facts["file_runs"] == len(lines)
    assert found.facts["chunk_runs"] == len({str(Path(line["file"]).parent) for line in lines})
    assert source_run_length(document_ends.open_ends(combined.ends), lines).facts == found.facts


def test_totals_of_files_that_do_not_sum_up_fail(sample: Sample) -> None:
    first, second = sample.receipts()
    line, *rest = first.sources
    wrong = replace(first, sources=({**line, "documents": line["documents"] + 1}, *rest))
    found = shuffle_quality([wrong, second])
    assert f"sample/token_bins/train-00000: documents of its {len(first.sources)} files sum to" in found.summary


def test_a_file_whose_documents_end_elsewhere_is_named(combined: Combined, sample: Sample) -> None:
    ends = document_ends.open_ends(combined.ends)
    lines = [dict(line) for receipt in sample.receipts() for line in receipt.sources]
    lines[2]["documents"] += 1
    assert source_run_length(ends, lines).summary.startswith(lines[2]["file"])
    lines[2]["documents"] -= 1
    assert "the sources sum to" in source_run_length(ends, lines[:-1]).summary
    assert "is beyond the last" in source_run_length(ends[:5], lines).summary
