"""The committed sample blends equal their generator's output, are small, and are clearly fiction."""

import json
from pathlib import Path

import dataprep_assets
from dataprep_assets.sources.readers.rows import read_rows
from dataprep_assets_tests.tools.sample.make_sample_blends import sample_rows, write_tokenizer

SAMPLES = Path(dataprep_assets.__file__).parent / "defs" / "samples"


def test_the_committed_rows_equal_the_generators_and_say_that_they_are_fiction() -> None:
    total = 0
    for name, expected in sample_rows():
        path = SAMPLES / name
        suffixes = path.suffixes
        compression = {".zst": "zstd", ".gz": "gzip"}.get(suffixes[-1])
        kind = "parquet" if suffixes[-1] == ".parquet" else "jsonl"
        # Compare rows, because the bytes of Parquet and compressed files depend on library versions.
        found = [
            row for block in read_rows(path, format=kind, compression=compression, label=name) for row in block.rows
        ]
        assert found == expected
        assert all("FICTION" in json.dumps(row) for row in found)
        total += path.stat().st_size
    assert total < 110_000


def test_the_committed_tokenizer_equals_the_generators(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    for name in ("sample_blend_sft", "sample_blend_pairs"):
        committed = SAMPLES / name / "tokenizer"
        files = {p.name: p.read_bytes() for p in committed.iterdir()}
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == files
