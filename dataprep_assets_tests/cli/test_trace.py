"""`dataprep trace` as a user types it, over artifacts of the shipped sample."""

import json
from pathlib import Path

import pytest

from dataprep_assets.cli.support import project
from dataprep_assets_tests.cli.commands import dataprep, environment
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.corpus.pipeline import run_pipeline

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("traced")
    declared = project.use_dataset("sample_corpus").declaration
    assert not run_pipeline(declared, Path(environment(found)["DATAPREP_ROOT"])).failed  # type: ignore[arg-type]
    return found


def test_the_printed_location_leads_back_to_the_same_document(folder: Path, tmp_path: Path) -> None:
    told = dataprep(folder, "trace", "sample_corpus", "--split", "train", "--token", "12345")
    assert (told.returncode, told.stderr) == (0, "")
    lines = told.stdout.splitlines()
    file, _, row = lines[0].rpartition(":")
    assert lines[1] == "  no byte range: the source file is compressed (zstd)"
    assert lines[2].startswith("  sample_corpus/train: document ")
    assert any(line.startswith("  sample_corpus/megatron_bins: train.bin: tokens [") for line in lines)
    assert lines[-1].startswith("  text: ")

    back = dataprep(folder, "trace", "sample_corpus", "--file", file, "--row", row, "--json")
    value = json.loads(back.stdout)
    assert value["source"] == lines[0]
    start, stop = next(p["tokens"] for p in value["places"] if "/combined_bins/" in p["artifact"])
    assert start <= 12345 < stop

    (tmp_path / "text").write_bytes(value["text"].encode())
    by_text = dataprep(folder, "trace", "sample_corpus", "--text-file", str(tmp_path / "text"), "--json", "--no-text")
    found = [json.loads(line) for line in by_text.stdout.splitlines()]
    assert value["source"] in [one["source"] for one in found]
    assert all("text" not in one for one in found)


def test_a_number_is_looked_up_in_each_given_split(folder: Path) -> None:
    asked = ("trace", "sample_corpus", "--document", "0", "--no-text", "--json")
    one_by_one = [dataprep(folder, *asked, "--split", split).stdout for split in ("val", "train")]
    assert all(one_by_one)
    assert dataprep(folder, *asked, "--split", "val,train").stdout == "".join(one_by_one)


def test_a_missing_document_is_reported_in_one_line(folder: Path) -> None:
    told = dataprep(folder, "trace", "sample_corpus", "--split", "train", "--token", "999999999")
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr.startswith("dataprep: trace: token 999999999 is out of range: train has ")
    assert len(told.stderr.splitlines()) == 1
    told = dataprep(folder, "trace", "sample_tasks", "--document", "0")
    assert told.returncode == 2
    assert_names(told.stderr, "corpora", "releases", "notes", "blends")
