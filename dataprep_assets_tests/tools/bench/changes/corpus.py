"""A small corpus whose whole state is known: its files, on a disk or on a hub, its tokenizers, its declaration."""

import json
import os
import random
import shutil
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets_tests.fakes.hub_server import HubServer
from dataprep_assets_tests.tools.bench.invented_text import SEPARATORS, sentence, train_tokenizer, vocabulary

SPLITS = ("train", "val", "test")
VIEWS = ("nanogpt", "olmo")
DOCUMENTS = 4
FILES = {"train": 9, "val": 3, "test": 3}

SELECTS = {
    "tag": ["gopher"],
    "drop": {"long": "characters > 480"},
    # Use a column, because `oldest` sees different ages of the files in a build from scratch than in a build after many
    # appends.
    "duplicates": {"priority": {"column": "bytes", "order": "lowest"}, "across_splits": "ignore"},
    "budget": {"per_source": 0.99},
}
"""The part of a corpus's declaration that decides which documents are kept."""

Document = tuple[str, str, str]
"""Id, text, and a remark that only the setting `text_field` can select."""


@dataclass
class File:
    """A source file: its documents, whether its JSON is written with spaces, and how often it was compressed."""

    documents: list[Document]
    spaced: bool = False
    compressed: int = 0

    def render(self, path: str) -> bytes:
        """Return the bytes of the file on the disk under this name."""
        separators = None if self.spaced else (",", ":")
        lines = (
            json.dumps({"id": i, "text": t, "remark": r}, separators=separators) + "\n" for i, t, r in self.documents
        )
        data = "".join(lines).encode()
        if not path.endswith(".zst"):
            return data
        # Vary the checksum as well as the level, because the bytes of a small file are equal at every level.
        level, checksum = 1 + self.compressed, bool(self.compressed % 2)
        return zstandard.ZstdCompressor(level=level, write_checksum=checksum).compress(data)


@dataclass
class State:
    """The state that a change may alter: files by path, the tokenizer's number, dotted keys of the YAML,
    retracted ids.
    """

    files: dict[str, File] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    retracted: set[str] = field(default_factory=set)
    moves: int = 0


class Corpus:
    """A corpus in a folder with sources and two tokenizers; its declaration and its retraction list are in `home`.

    With a `hub` the files are on its branch, which `publish` moves; `data` then has the files of the next commit. A
    corpus that `selects` has a document table, a rule, and deduplication, with occasional duplicates.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        name: str = "harvest",
        home: Path | None = None,
        root: Path | None = None,
        hub: HubServer | None = None,
        selects: bool = False,
    ) -> None:
        self.name, self.folder, self.data, self.hub = name, folder, folder / "data", hub
        self.selects = selects
        self.home, self.root = home or folder, root or folder / "root"
        self.list = self.home / "retracted.jsonl"
        self.store = LocalArtifacts(self.root)
        self.rng = random.Random(seed)
        self._words = vocabulary(seed)
        self._made = 0
        self.state = State()
        for split, files in FILES.items():
            for _ in range(files):
                self.write(self.new_path(split), File([self.document() for _ in range(DOCUMENTS)]))
        # Train two tokenizers of the same size, so that the vocabulary's size and the ids of special tokens stay the
        # same when the tokenizer changes.
        for number in range(2):
            texts = [sentence(self.rng, self._words, 40) for _ in range(200)]
            train_tokenizer(folder / f"tokenizer-{number}", texts)
        self.publish()

    def attributes(self) -> dict[str, Any]:
        """Return the current attributes of its YAML."""
        source = {"kind": "local", "path": str(self.data)}
        if self.hub is not None:
            source = {"kind": "hub", "repo": self.hub.repo_id, "revision": "main", "endpoint": self.hub.endpoint}
        value: dict[str, Any] = {
            "dataset": self.name,
            "source": source,
            "include": ["**/*.jsonl", "**/*.jsonl.zst"],
            "splits": {split: [f"{split}/**"] for split in SPLITS},
            "tokenizer": {"path": str(self.folder / "tokenizer-0"), "name": "bench"},
            "document": {"id_field": "id", "separator": SEPARATORS[0]},
            "dtype": "uint16",
            "shards": {"count": 3},
            "views": list(VIEWS),
            "olmo_sequence_length": 64,
            "mds_sequence_length": 64,
            "sample_rate": 0.5,
        }
        if self.selects:
            value |= deepcopy(SELECTS)
        for name, setting in self.state.settings.items():
            *sections, key = name.split(".")
            inner = value
            for section in sections:
                inner = inner.setdefault(section, {})
            inner[key] = setting
        if "target_bytes" in value["shards"]:  # the two keys exclude each other
            del value["shards"]["count"]
        return value

    def declared(self) -> CorpusDeclaration:
        """Return its current declaration."""
        return validate_declaration(CorpusDeclaration, self.attributes(), self.home / "defs.yaml")

    def declare(self) -> None:
        """Write the current YAML."""
        body = {"type": "dataprep_assets.components.TokenizedCorpus", "attributes": self.attributes()}
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "defs.yaml").write_text(json.dumps(body, indent=1) + "\n")  # JSON is valid YAML

    def publish(self) -> None:
        """Move the hub's branch to the current files; do nothing for files on the disk."""
        if self.hub is not None:
            files = {p.relative_to(self.data).as_posix(): p.read_bytes() for p in self.data.rglob("*") if p.is_file()}
            self.hub.move_branch({**files, "README.md": f"# edition {self.state.moves}\n".encode()})

    def document(self) -> Document:
        """Return a new document with a unique id, occasionally with a separator in its text."""
        self._made += 1
        text = sentence(self.rng, self._words, self.rng.randint(30, 90))
        others = [one for file in self.state.files.values() for _, one, _ in file.documents]
        if self.selects and others and self.rng.random() < 0.2:
            return f"d{self._made}", self.rng.choice(others), sentence(self.rng, self._words, 6)
        marked = f" {SEPARATORS[0]}" if self.rng.random() < 0.1 else ""
        return f"d{self._made}", text + marked, sentence(self.rng, self._words, 6)

    def new_path(self, split: str) -> str:
        """Return an unused path, at any position in the order of the split."""
        self._made += 1
        suffix = self.rng.choice([".jsonl", ".jsonl.zst"])
        return f"{split}/{self.rng.randrange(10**6):06d}-{self._made:06d}{suffix}"

    def write(self, path: str, file: File) -> None:
        """Add a file to the source."""
        self.state.files[path] = file
        (self.data / path).parent.mkdir(parents=True, exist_ok=True)
        (self.data / path).write_bytes(file.render(path))

    def delete(self, path: str) -> File:
        """Remove a file from the source."""
        (self.data / path).unlink()
        return self.state.files.pop(path)

    def some_file(self, suffix: str = "", *, least: int = 1) -> str:
        """Return the path of a file with at least this many documents."""
        files = sorted(self.state.files.items())
        return self.rng.choice([p for p, f in files if len(f.documents) >= least and p.endswith(suffix)])

    def spare_file(self) -> str:
        """Return the path of a file whose split has others."""
        counts = {s: sum(p.startswith(f"{s}/") for p in self.state.files) for s in SPLITS}
        return self.rng.choice([p for p in sorted(self.state.files) if counts[p.split("/")[0]] > 2])

    def touch(self, path: str) -> None:
        """Change the modification time."""
        os.utime(self.data / path, (0, self.rng.randrange(10**9)))

    def copy_of(self, folder: Path) -> Path:
        """Copy a file or folder next to itself, and return the path."""
        copy = folder.with_name(f"{folder.name}-copied")
        if folder.is_dir():
            shutil.rmtree(copy, ignore_errors=True)
            return Path(shutil.copytree(folder, copy))
        if folder.exists():
            shutil.copy(folder, copy)
        return copy

    def splits(self) -> list[str]:
        """Return the currently declared splits."""
        return list(self.attributes()["splits"])

    def plan(self) -> dict[str, list[str]]:
        """Return shard → its files in the manifest; empty if the manifest is missing or unreadable."""
        folder = self.root / self.name / "manifest"
        try:
            listed = [json.loads(line)["relpath"] for line in (folder / "manifest.jsonl").read_text().splitlines()]
            cut = json.loads((folder / "shard_plan.json").read_text())
            return {key: listed[first:last] for key, (first, last) in cut.items()}
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return {}
