"""Sampled documents have the same tokens in every trainer's file, read from that file."""

import numpy as np
import pytest

from dataprep_assets.engine.trace.sample import SampledRow
from dataprep_assets.engine.trace.trace import TraceQuery
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.corpus.source.source_rows import build_corpus_tracer
from dataprep_assets.stream.stream_tracer import StreamTracer
from dataprep_assets_tests.engine.building import build_all, find_sample, shrink_corpus
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.corpus.shards import bundle

pytestmark = pytest.mark.slow

VIEWS = ["nanogpt", "megatron", "datatrove", "olmo", "hf_parquet", "mds"]


@pytest.fixture(scope="module")
def tracer(tmp_path_factory: pytest.TempPathFactory) -> StreamTracer:
    corpus = shrink_corpus(find_sample("sample_corpus"), views=VIEWS, mds_sequence_length=64)
    store = LocalArtifacts(tmp_path_factory.mktemp("views"))
    build_all(corpus.specs, store)
    return build_corpus_tracer(corpus.declaration, store, corpus.specs)  # type: ignore[arg-type]


def read_rows(tracer: StreamTracer, view: str, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, int], SampledRow]:
    monkeypatch.setattr(tracer, "_trainer_names", [f"{view}_bins"])
    return {(row.file, row.row): row for row in tracer.sample(60, "0")}


def test_a_trainer_reads_the_artifacts_that_no_other_one_is_built_from(tracer: StreamTracer) -> None:
    assert tracer._trainer_names == [f"{view}_bins" for view in VIEWS]


@pytest.mark.parametrize("view", VIEWS)
def test_a_document_has_the_same_tokens_in_every_view(
    tracer: StreamTracer, view: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = read_rows(tracer, view, monkeypatch)
    assert len(rows) > 40
    decode = bundle().decode
    for (file, number), row in rows.items():
        (expected,) = tracer.find(TraceQuery(file=file, row=number))
        (part,) = row.parts
        shown = "".join(part.tokens)
        if row.notes:
            assert view == "mds"  # the last document ends after the last sample of the split
            continue
        assert {place.artifact for place in row.locations} == {f"sample_corpus/{view}_bins"}
        assert len(part.tokens) + part.omitted_tokens == expected.tokens
        assert expected.text is not None
        assert f"{expected.text}{decode(np.array([4094]))}".startswith(shown)
        assert shown


def test_a_document_that_is_in_no_file_of_the_trainer_is_read_from_the_shard(
    tracer: StreamTracer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for row in read_rows(tracer, "other", monkeypatch).values():
        assert row.locations[0].artifact.startswith("sample_corpus/token_bins/")
        (note,) = row.notes
        assert_names(note, "trainer's file", "the shard")
