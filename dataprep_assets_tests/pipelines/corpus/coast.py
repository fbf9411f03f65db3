"""A `dataprep init` project with a corpus that has a document table, for tests that run it."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from dataprep_assets.integrity.receipt import Receipt, read_receipt
from dataprep_assets_tests.cli.commands import dataprep

TAGGER = """
from pathlib import Path

def quality(documents):
    Path({log!r}).open("a").write(f"{{documents.num_rows}}\\n")
    return {{"quality": [len(set(text)) / len(text) for text in documents["text"].to_pylist()]}}
"""
SENTENCE = "The lighthouse keeper wrote that the sea was calm and that nobody had to be afraid of it. "


def record(number: int, source: str, *, words: int = 60, host: str = "harbour.example") -> dict[str, Any]:
    """Return a record with a text of about this many words, all of which are unique by its number."""
    text = " ".join((SENTENCE * (words // 10 + 1)).split()[:words]) + f" Page {number}."
    return {"text": text, "url": f"https://{host}/{number}", "meta": {"set": source, "score": number / 10}}


def records(first: int, source: str, count: int = 20) -> list[dict[str, Any]]:
    """Return the records of one file: every fifth is short, every seventh has another host."""
    return [
        record(n, source, words=8 if n % 5 == 0 else 60, host="spam.example" if n % 7 == 0 else "harbour.example")
        for n in range(first, first + count)
    ]


def write_lines(path: Path, lines: list[Any]) -> None:
    """Write a file of JSON lines; values that are texts are written unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines))


DECLARED: dict[str, Any] = {
    "dataset": "pages",
    "source": {"kind": "local", "path": "./data"},
    "include": ["**/*.jsonl"],
    "splits": {"train": ["train/**"]},
    "tokenizer": {"path": "../sample_corpus/tokenizer", "name": "sample"},
    "document": {
        "separator": "<|endoftext|>",
        "url_field": "url",
        "source_field": "meta.set",
        "keep_fields": {"meta.score": "number"},
    },
    "bad_records": {"policy": "drop", "budget": 0.5},
    "tag": ["gopher", {"function": "coast.taggers:quality", "columns": {"quality": "number"}}],
    "keep": {"ours": "host == 'harbour.example'"},
    "drop": {"short": "words < 20"},
    "shards": {"target_bytes": 1},
    "views": ["nanogpt"],
    "workers": 2,
}


class Coast:
    """A `dataprep init` project with a corpus of three files, one shard each, and its own tagger."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / "coast" / "defs" / "pages"
        self.log = root / "called.txt"
        self.say(self.root.parent, "init", str(root), project=root.parent)
        write_lines(self.folder / "data/train/a.jsonl", records(1, "books"))
        write_lines(self.folder / "data/train/b.jsonl", [*records(101, "news"), "{not json", "", {"url": "x"}])
        write_lines(self.folder / "data/train/c.jsonl", records(201, "news"))
        self.tagger(TAGGER.format(log=str(self.log)))
        self.declare()

    def say(self, folder: Path, *line: str, project: Path | None = None, code: int = 0) -> str:
        """Run a command, assert its exit code, and return its output."""
        done = dataprep(folder, *line, project=project or self.root)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        return done.stdout + done.stderr

    def __call__(self, *line: str, code: int = 0) -> str:
        return self.say(self.root.parent, *line, code=code)

    def declare(self, **changes: Any) -> None:
        """Write the declaration; `changes` replace top-level keys, and None removes one."""
        value = {name: one for name, one in {**DECLARED, **changes}.items() if one is not None}
        text = yaml.safe_dump(
            {"type": "dataprep_assets.components.TokenizedCorpus", "attributes": value}, sort_keys=False
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "defs.yaml").write_text(text)

    def tagger(self, source: str) -> None:
        """Write the module of the project's own tagger."""
        (self.root / "coast" / "taggers.py").write_text(source)

    def receipt(self, artifact: str, partition: str) -> Receipt:
        """Return the receipt of an artifact."""
        found = read_receipt(self.root.parent / "artifacts" / "pages" / artifact / partition)
        assert found is not None
        return found

    def made(self, artifact: str) -> dict[str, str]:
        """Return the time at which each partition of an artifact was built."""
        folder = self.root.parent / "artifacts" / "pages" / artifact
        return {
            one.name: self.receipt(artifact, one.name).measured["created"]
            for one in sorted(folder.iterdir())
            if one.name[0] != "."
        }

    def table(self) -> pa.Table:
        """Return the document tables of all shards."""
        folder = self.root.parent / "artifacts" / "pages" / "documents"
        return pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("train-*/documents.parquet"))])
