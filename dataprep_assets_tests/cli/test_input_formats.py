"""A corpus with files of every input format, declared and run in a user's own project."""

import csv
import gzip
import io
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard

from dataprep_assets_tests.cli.commands import dataprep
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.samples import SAMPLE

pytestmark = pytest.mark.slow
pytest.importorskip("fastwarc")
TEXTS = [f'document {at}, with a comma, a "quote"\nand a second line: {"é漢 " * (at % 5)}' for at in range(40)]
SEPARATOR = "<|cut here|>"
YAML = f"""type: dataprep_assets.components.TokenizedCorpus
attributes:
  dataset: everything
  source: {{kind: local, path: ./texts}}
  include: ["**/*"]
  splits: {{train: ["train/*"], val: ["val/*"]}}
  text_separator: "{SEPARATOR}"
  csv_delimiter: ";"
  tokenizer: {{path: {SAMPLE / "tokenizer"}}}
  document: {{separator: "<|endoftext|>"}}
  shards: {{target_bytes: 1}}
  views: [nanogpt]
"""
OWN_FORMAT = '''"""A format of somebody else's: the text of each line reversed."""

from dataprep_assets.sources.readers.input_format import FoundRow, InputFormat, SequentialReader


class Reversed(SequentialReader):
    def _find_rows(self):
        data, byte = b"".join(self._under), 0
        for row, line in enumerate(data.split(b"\\x00"), 1):
            yield FoundRow(row, byte, len(line), {"text": line.decode()[::-1]})
            byte += len(line) + 1


FORMAT = InputFormat(rows=Reversed)
'''


def _csv(texts: Sequence[str]) -> bytes:
    made = io.StringIO()
    csv.writer(made, delimiter=";").writerows([["id", "text"], *enumerate(texts)])
    return b"\xef\xbb\xbf" + made.getvalue().encode()


def _arrow(texts: Sequence[str]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema({"id": pa.int64(), "text": pa.string()})) as writer:
        writer.write_table(pa.table({"id": [*range(len(texts))], "text": [*texts]}), max_chunksize=7)
    return sink.getvalue().to_pybytes()


def _wet(texts: Sequence[str]) -> bytes:
    """Return records that are each compressed separately, as in crawls."""
    records = []
    for text in texts:
        body = text.encode()
        head = f"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n"
        records.append(gzip.compress(head.encode() + body + b"\r\n\r\n"))
    return b"".join(records)


FORMS: dict[str, Callable[[Sequence[str]], bytes]] = {
    "a.jsonl": lambda texts: "".join(json.dumps({"text": text}) + "\n" for text in texts).encode(),
    "b.csv": _csv,
    "c.csv.gz": lambda texts: gzip.compress(_csv(texts)),
    "d.tsv.zst": lambda texts: zstandard.compress(_csv(texts)),
    "e.txt": lambda texts: SEPARATOR.join(texts).encode(),
    "f.txt.zst": lambda texts: zstandard.compress(SEPARATOR.join(texts).encode()),
    "g.arrow": _arrow,
    "h.arrow.gz": lambda texts: gzip.compress(_arrow(texts)),
    "i.warc.wet.gz": _wet,
    "j.backwards.gz": lambda texts: gzip.compress("\0".join(text[::-1] for text in texts).encode()),
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project with the corpus and with a third-party input format installed."""
    root = tmp_path_factory.mktemp("formats")
    done = dataprep(root, "init", str(root / "My-Texts"))
    assert done.returncode == 0, done.stderr
    found = root / "My-Texts"
    shutil.rmtree(found / "my_texts" / "defs" / "sample_corpus")
    (found / "backwards.py").write_text(OWN_FORMAT)
    installed = found / "backwards-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: backwards\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[dataprep_assets.inputs]\nbackwards = backwards:FORMAT\n")
    folder = _defs(found)
    for split in ("train", "val"):
        (folder / "texts" / split).mkdir(parents=True)
    (folder / "defs.yaml").write_text(YAML)
    for name, form in FORMS.items():
        (folder / "texts" / "train" / name).write_bytes(form(TEXTS))
    (folder / "texts" / "val" / "a.jsonl").write_bytes(FORMS["a.jsonl"](TEXTS[:3]))
    return found


def _defs(project: Path) -> Path:
    return project / "my_texts" / "defs" / "everything"


def test_equal_texts_give_equal_tokens_in_every_format_and_can_be_traced(project: Path) -> None:
    done = dataprep(project, "check", "everything", project=project)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    done = dataprep(project, "run", "everything", project=project)
    assert done.returncode == 0, done.stderr + done.stdout
    shards = sorted((project / "artifacts" / "everything" / "token_bins").glob("train-*/tokens.bin"))
    assert len(shards) == len(FORMS)
    assert len({path.read_bytes() for path in shards}) == 1
    for number, name in enumerate(FORMS):
        asked = ("--split", "train", "--document", str(number * len(TEXTS) + 11))
        told = dataprep(project, "trace", "everything", *asked, "--json", project=project)
        assert told.returncode == 0, told.stderr
        found = json.loads(told.stdout)
        assert (found["source"], found["text"]) == (f"train/{name}:12", TEXTS[11])
    again = dataprep(project, "run", "everything", project=project)
    assert "everything is up to date" in again.stdout


def test_invalid_records_are_named_with_file_and_row_or_dropped_and_traced(project: Path) -> None:
    path, yaml = _defs(project) / "texts" / "train" / "b.csv", _defs(project) / "defs.yaml"
    whole, declared = path.read_bytes(), yaml.read_text()
    try:
        path.write_bytes(whole.replace(b'39;"document', b'39;more;"document'))
        done = dataprep(project, "run", "everything", project=project)
        assert done.returncode == 1
        said = "train/b.csv: row 40, byte "
        assert said in done.stderr, done.stderr
        assert_names(done.stderr, "bad_csv", 3, 2)
        yaml.write_text(declared + "  bad_records: {policy: drop, budget: 0.1}\n")
        done = dataprep(project, "run", "everything", project=project)
        assert done.returncode == 0, done.stderr + done.stdout
        told = dataprep(project, "trace", "everything", "--file", "train/b.csv", "--row", "40", project=project)
        assert_names(told.stderr + told.stdout, "bad_csv", 3, 2)
        whole_again = dataprep(project, "verify", project=project)
        assert whole_again.returncode == 0, whole_again.stdout
    finally:
        path.write_bytes(whole)
        yaml.write_text(declared)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("  csv", "  text_field: body\n  csv", "`text_field: body`: split train (first file: "),
        ('csv_delimiter: ";"', 'csv_delimiter: ";;"', "csv_delimiter"),
    ],
)
def test_a_missing_column_is_reported_before_a_build(project: Path, before: str, after: str, told: str) -> None:
    yaml = _defs(project) / "defs.yaml"
    declared = yaml.read_text()
    try:
        yaml.write_text(declared.replace(before, after, 1))
        done = dataprep(project, "check", "everything", project=project)
        assert done.returncode == 2
        assert told.replace("403", str(len(TEXTS) * len(FORMS))) in done.stderr + done.stdout
        assert "Traceback" not in done.stderr
    finally:
        yaml.write_text(declared)
