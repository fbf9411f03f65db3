"""A small corpus whose whole state is known, and the ways in which it changes."""

import json
import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.retract import document_ids_of, locate, read_ids
from dataprep_assets.pipelines.corpus.retractions import add_retractions
from dataprep_assets_tests.bench.invented_text import SEPARATORS, sentence, train_tokenizer, vocabulary

DATASET = "sample_corpus"
SPLITS = ("train", "val", "test")
VIEWS = ("nanogpt", "olmo")
SHARDS, DOCUMENTS = 3, 4
FILES = {"train": 9, "val": 3, "test": 3}


@dataclass
class File:
    """A source file: its documents, id and text, and whether its JSON is written with spaces."""

    documents: list[tuple[str, str]]
    spaced: bool = False

    def render(self) -> bytes:
        """As it lies on the disk."""
        separators = None if self.spaced else (",", ":")
        lines = (json.dumps({"id": i, "text": t}, separators=separators) + "\n" for i, t in self.documents)
        return "".join(lines).encode()


@dataclass
class State:
    """All that decides the artifacts. `plan` is partition → paths; `settings` are dotted names of the YAML."""

    files: dict[str, File] = field(default_factory=dict)
    plan: dict[str, list[str]] = field(default_factory=dict)
    tokenizer: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    retracted: set[str] = field(default_factory=set)


CHOICES: dict[str, tuple[Any, Any]] = {
    "document.separator": SEPARATORS,
    "document.bos": ("none", SEPARATORS[1]),
    "document.special_tokens": ("text", "match"),
    "dtype": ("uint16", "uint32"),
    "bad_records.policy": ("fail", "drop"),
    "bad_records.budget": (0.001, 0.01),
    "sample_rate": (0.1, 0.2),
    "olmo_sequence_length": (64, 128),
    "tokenizer.name": ("bench", "bench-renamed"),
    "tokenizer.refuse": ((), ("east_asian",)),
}
"""Every setting that a round may turn from one value to the other."""


class Corpus:
    """The corpus in a folder: sources, two tokenizers, a retraction list, artifacts."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.data, self.root = folder, folder / "data", folder / "root"
        self.list = folder / "retracted.jsonl"
        self.store = LocalArtifacts(self.root)
        self.rng = random.Random(seed)
        self._words = vocabulary(seed)
        self._made = 0
        self.state = State(settings={name: values[0] for name, values in CHOICES.items()})
        for split, files in FILES.items():
            for _ in range(files):
                self.write(self.new_path(split), File([self.document() for _ in range(DOCUMENTS)]))
        for number in range(2):  # of one size, so that ids of special tokens and the vocabulary's size stay
            texts = [sentence(self.rng, self._words, 40) for _ in range(200)]
            train_tokenizer(folder / f"tokenizer-{number}", texts)

    def declared(self) -> CorpusDeclaration:
        """As its YAML would declare it now."""
        value: dict[str, Any] = {
            "dataset": DATASET,
            "source": {"kind": "local", "path": self.data},
            "include": ["**/*.jsonl"],
            "splits": {split: [f"{split}/**"] for split in SPLITS},
            "tokenizer": {"path": self.folder / f"tokenizer-{self.state.tokenizer}"},
            "document": {"id_field": "id"},
            "bad_records": {},
            "shards": {"count": SHARDS},
            "views": list(VIEWS),
            "retractions": self.list,
        }
        for name, setting in self.state.settings.items():
            section, _, key = name.rpartition(".")
            (value[section] if section else value)[key] = setting
        return CorpusDeclaration.model_validate(value)

    def document(self) -> tuple[str, str]:
        """A new one, of an id that no other has; now and then with a separator in its text."""
        self._made += 1
        text = sentence(self.rng, self._words, self.rng.randint(5, 40))
        return f"d{self._made}", text + (f" {SEPARATORS[0]}" if self.rng.random() < 0.1 else "")

    def new_path(self, split: str) -> str:
        """A path that was never used, anywhere among the split's in order."""
        self._made += 1
        return f"{split}/{self.rng.randrange(10**6):06d}-{self._made:06d}.jsonl"

    def write(self, path: str, file: File) -> None:
        """Put a file into the source."""
        self.state.files[path] = file
        (self.data / path).parent.mkdir(parents=True, exist_ok=True)
        (self.data / path).write_bytes(file.render())

    def delete(self, path: str) -> File:
        """Take a file out of the source."""
        (self.data / path).unlink()
        return self.state.files.pop(path)

    def some_file(self, *, least: int = 1) -> str:
        """A path of a file with at least so many documents."""
        return self.rng.choice([p for p, f in sorted(self.state.files.items()) if len(f.documents) >= least])

    def spare_file(self) -> str:
        """A path of a file whose split has others."""
        counts = {s: sum(p.startswith(f"{s}/") for p in self.state.files) for s in SPLITS}
        return self.rng.choice([p for p in sorted(self.state.files) if counts[p.split("/")[0]] > 2])

    def touch(self, path: str) -> None:
        """Another modification time."""
        os.utime(self.data / path, (0, self.rng.randrange(10**9)))

    def retract(self, given: list[str]) -> None:
        """As `dataprep retract` does it."""
        ids = self.folder / "ids"
        ids.write_text("".join(f"{one}\n" for one in given))
        found = locate(self.declared(), self.store, read_ids(ids))
        add_retractions(self.list, document_ids_of(self.declared()), found.listed)

    def take_back(self, given: str) -> None:
        """Remove an id's line from the list."""
        lines = self.list.read_text().splitlines(keepends=True)
        self.list.write_text("".join(line for line in lines if json.loads(line).get("id") != given))
