"""The lock of a dataset: everything that decides its bytes, and the digest of every artifact made from it.

A lock is made of receipts only, so it can be read from a folder or a bucket as well as from its file, and two locks can
be compared without the data. It has no local path, host or time in it: the same dataset built on two machines has the
same lock, byte for byte, if the same libraries built it.

The source files of a sensitive dataset are named by digests. `lock_file.py` reads and writes the file.

Entry points: `Lock.of_receipts`, `lock_dataset`.
"""

import hashlib
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from dataprep_assets.errors import IntegrityError, MissingArtifactError
from dataprep_assets.graph.privacy import Privacy
from dataprep_assets.graph.recipe import Change, Ingredients, flat
from dataprep_assets.graph.spec import ArtifactSpec
from dataprep_assets.graph.status import stale
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Content, Receipt

# the name of a file has a dot or a slash; what has neither (`tokenizer`, `listing`) tells nothing, and stays readable
_FILE_NAME = re.compile(r"[./]")
_UNRELATED = ("dataprep-assets", "python")
"""Versions in a receipt that do not affect bytes: within this project, only a step's version does."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Rows of a source, the documents made from them, and their tokens."""

    rows: int = 0
    documents: int = 0
    tokens: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            rows=self.rows + other.rows, documents=self.documents + other.documents, tokens=self.tokens + other.tokens
        )


@dataclass(frozen=True, kw_only=True)
class SourceLine:
    """One source file of a shard, or some of its rows: `file[first:stop]`."""

    name: str
    sha256: str
    counts: Counts

    @property
    def file(self) -> str:
        """The file's name without the rows."""
        return re.sub(r"\[\d+:(\d+|None)\]$", "", self.name)


@dataclass(frozen=True, kw_only=True)
class Locked(Ingredients):
    """One artifact of a lock: its ingredients, but for places, and for inputs of its own dataset, which the lock has.

    Attributes:
        key: Digest of its recipe; None if the recipe names a place (`ArtifactSpec.names_places`).
        content: Digest of its files; None if `key` is.
        bytes: Size of its files.
        is_derived: Whether it has inputs from its own dataset, not only sources.
        libraries: Versions of the libraries that made it; reported if bytes differ, but not compared.
        counts: The counts of its ledger; None without a ledger.
        files: Its source files, if its receipt counts them.
    """

    key: str | None
    content: Content | None
    bytes: int
    is_derived: bool = False
    libraries: Mapping[str, str] = field(default_factory=dict)
    counts: Counts | None = None
    files: tuple[SourceLine, ...] = ()

    @property
    def is_placed(self) -> bool:
        """Whether its bytes contain a place: they differ elsewhere, so only its recipe is compared."""
        return self.content is None

    @classmethod
    def of(cls, receipt: Receipt) -> "Locked":
        """The entry of a finished artifact."""
        recipe, ledger = receipt.recipe, receipt.ledger
        upstream = recipe.get("upstream", {})
        return cls(
            key=receipt.key,
            content=receipt.content,
            bytes=receipt.total_bytes,
            version=recipe.get("version", 1),
            settings=recipe.get("settings", {}),
            sources=recipe.get("sources", {}),
            # `dataset:artifact` is an input of another dataset
            upstream={name: content for name, content in upstream.items() if ":" in name},
            is_derived=any(":" not in name for name in upstream),
            # what was not installed had no part in it
            libraries={
                name: version
                for name, version in receipt.measured.get("versions", {}).items()
                if name not in _UNRELATED and version != "not installed"
            },
            counts=None
            if ledger is None
            else Counts(rows=ledger.rows_in, documents=ledger.documents, tokens=ledger.tokens),
            files=tuple(_source_lines(receipt)),
        )

    def at_any_place(self, places: Container[str]) -> "Locked":
        """A copy without what depends on its location: key, content, size, and the sources whose names are in `places`.

        The size depends on it because the files contain paths.
        """
        sources = {name: digest for name, digest in self.sources.items() if name not in places}
        return replace(self, key=None, content=None, bytes=0, sources=sources)

    def hidden(self) -> "Locked":
        """A copy with digests instead of the names of source files."""
        return replace(
            self,
            sources={hidden_name(name): digest for name, digest in self.sources.items()},
            files=tuple(replace(line, name=hidden_name(line.name)) for line in self.files),
        )


def hidden_name(name: str) -> str:
    """The digest that replaces the name of a source file in the lock of a sensitive dataset; other names are kept."""
    return f"#{hashlib.sha256(name.encode()).hexdigest()[:16]}" if _FILE_NAME.search(name) else name


def _source_lines(receipt: Receipt) -> Iterator[SourceLine]:
    """The source files of a shard. Some receipts list them in the fact `sources`, which may also be something else."""
    found = receipt.sources or receipt.facts.get("sources", ())
    for line in found:
        if not isinstance(line, Mapping) or not {"file", "sha256", "rows_in"} <= line.keys():
            return
        rows = line.get("rows")
        documents = line["documents"] if "documents" in line else line.get("conversations", 0)
        yield SourceLine(
            name=line["file"] if rows is None else f"{line['file']}[{rows[0]}:{rows[1]}]",
            sha256=line["sha256"],
            counts=Counts(rows=line["rows_in"], documents=documents, tokens=line.get("tokens", 0)),
        )


@dataclass(frozen=True, kw_only=True)
class Lock:
    """The lock of a dataset, see the module.

    Attributes:
        dataset: The dataset's name.
        artifacts: `name[/partition]` → artifact, sorted by name.
        commits: Input that is pinned to a commit → that commit.
        is_hidden: Whether source files are named by digests.
    """

    dataset: str
    artifacts: Mapping[str, Locked]
    commits: Mapping[str, str] = field(default_factory=dict)
    is_hidden: bool = False

    @classmethod
    def of_receipts(cls, dataset: str, receipts: Iterable[Receipt]) -> "Lock":
        """The lock of a dataset from the receipts of its artifacts, each paired with its content."""
        found = {name_of(r.artifact, r.partition): r for r in receipts}
        commits = {
            f"{name}.{fact}".removesuffix(".commit"): value
            for name, receipt in found.items()
            if receipt.partition is None
            for fact, value in flat(receipt.facts).items()
            if fact.rpartition(".")[2] == "commit" and value is not None
        }
        return cls(
            dataset=dataset,
            artifacts={name: Locked.of(found[name]) for name in sorted(found)},
            commits=dict(sorted(commits.items())),
        )

    @property
    def privacy(self) -> Privacy:
        """What leaves of what differs from it."""
        return Privacy(closed=self.is_hidden, dataset=self.dataset)

    @cached_property
    def tokenizers(self) -> list[str]:
        """Digests of all tokenizers that were used."""
        return sorted({one.sources["tokenizer"] for one in self.artifacts.values() if "tokenizer" in one.sources})

    @property
    def files(self) -> int:
        """Number of source files (or ranges of rows) whose documents are counted."""
        return sum(len(one.files) for one in self.artifacts.values())

    def hidden(self) -> "Lock":
        """A copy with digests instead of the names of source files."""
        if self.is_hidden:
            return self
        return replace(self, is_hidden=True, artifacts={name: one.hidden() for name, one in self.artifacts.items()})

    def change(self, name: str, now: Ingredients) -> Change | None:
        """How present ingredients of an artifact of the lock differ from its own; inputs are compared by the lock's
        content, where it has one."""
        one = self.artifacts[name]
        own = {
            other: self.artifacts[other].content or content
            for other, content in now.upstream.items()
            if other in self.artifacts
        }
        return replace(one.ingredients, upstream={**own, **one.upstream}).change(now)


def name_of(artifact: str, partition: str | None) -> str:
    """An artifact's name in its dataset's lock."""
    return f"{artifact}/{partition}" if partition else artifact


def lock_name(artifact: Artifact) -> str:
    """An artifact's name in its dataset's lock."""
    return name_of(artifact.name, artifact.partition)


def lock_dataset(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> Lock:
    """The lock of a finished dataset.

    Args:
        specs: The specs of the dataset.
        store: Where its artifacts are; they are verified as thoroughly as by `dataprep status`.

    Raises IntegrityError if an artifact is missing, damaged or out of date, or failed its own blocking check.
    Raises MissingArtifactError if an artifact is removed meanwhile.
    """
    declaration = specs[0].declaration
    if (late := next(stale(specs, store), None)) is not None:
        raise IntegrityError(
            f"{declaration.dataset}: cannot be locked: {late}. `dataprep run {declaration.dataset}` builds what is out "
            "of date, then lock it"
        )
    receipts: list[Receipt] = []
    places: dict[str, Container[str]] = {}
    for spec in specs:
        artifacts = spec.artifacts(store)
        for artifact, receipt in zip(artifacts, store.receipts(artifacts), strict=True):
            if receipt is None:
                raise MissingArtifactError(f"{artifact}: gone while the dataset was locked. Build it, then lock it")
            receipts.append(receipt)
            if spec.names_places is not None:
                places[lock_name(artifact)] = spec.names_places
    lock = Lock.of_receipts(declaration.dataset, receipts)
    # before names are hidden: places are looked up by their names
    artifacts_of = {
        name: one.at_any_place(places[name]) if name in places else one for name, one in lock.artifacts.items()
    }
    lock = replace(lock, artifacts=artifacts_of)
    return lock.hidden() if declaration.sensitive else lock
