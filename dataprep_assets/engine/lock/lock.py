"""The lock of a dataset: the key and the content of every artifact, sorted by name, and the recipes behind the keys.

A lock is built only from receipts. It can therefore be read from a folder or a bucket as well as from its file, and two
locks can be compared without the data. It contains no local path, host or time. If a dataset is built on two machines
with the same libraries, the two locks are equal byte for byte. A sensitive dataset's lock has digests instead of the
names of source files.

An artifact in a folder is identified by its folder, so a second copy under a different name is a separate artifact.

Entry points: `lock_dataset`, `gather_lock`, `build_lock`, `read_lock`, `encode_lock`, `Lock.describe_difference`.
"""

import hashlib
import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from typing_extensions import TypedDict  # pydantic requires this `TypedDict` before Python 3.12

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.engine.artifact.recipe import RecipeInputs
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.privacy import SMALL_CELL, Privacy
from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.errors import ConfigError, FormatError, IntegrityError, MissingArtifactError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Content, Receipt
from dataprep_assets.planning.manifest import split_name
from dataprep_assets.project import validate_json
from dataprep_assets.stores.files import digest_value, explain_invalid_name

LOCK = "dataset.lock"
SCHEMA = 2
_FILE_NAME = re.compile(r"[./]")
"""Matches file names. Names without `.` and `/` (`tokenizer`, `listing`) reveal nothing and are not hidden."""
_UNRELATED_PACKAGES = ("dataprep-assets", "python")
"""Versions in a receipt that do not affect bytes. A change to this package that affects bytes changes a step's
version."""


@dataclass(frozen=True, kw_only=True)
class LockCounts:
    """Numbers of rows, documents and tokens.

    Attributes:
        rows: Number of rows in the source.
        documents: Number of documents built from these rows.
        tokens: Number of tokens of these documents.
    """

    rows: int = 0
    documents: int = 0
    tokens: int = 0

    def __add__(self, other: "LockCounts") -> "LockCounts":
        return LockCounts(
            rows=self.rows + other.rows, documents=self.documents + other.documents, tokens=self.tokens + other.tokens
        )

    def round_counts(self) -> "LockCounts":
        """Return a copy that reveals no small count.

        1 to 10 become 1; larger numbers keep their first digit (11 to 19 become 11).
        """

        def round_count(number: int) -> int:
            unit = 10 ** (len(str(number)) - 1)
            return min(number, 1) if number < SMALL_CELL else max(SMALL_CELL, number // unit * unit)

        return LockCounts(**{name: round_count(number) for name, number in asdict(self).items()})


@dataclass(frozen=True, kw_only=True)
class LockedFile:
    """One source file of a shard, or a range of its rows if the name is `file[first:stop]`.

    Attributes:
        sha256: SHA-256 of the file.
        counts: The counts of the file or range.
    """

    sha256: str
    counts: LockCounts


@dataclass(frozen=True, kw_only=True)
class LockEntry(RecipeInputs):
    """One artifact of a lock. Its ingredients omit inputs of its own dataset, because these have their own entries.

    Attributes:
        key: Digest of its recipe; None if its bytes contain a location (`ArtifactSpec.names_places`). These bytes
            differ between locations, so only the ingredients are compared.
        content: Digest of its files; None if `key` is None.
        bytes: Size of its files; 0 if `key` is None.
        libraries: Versions of the libraries that built it; reported if bytes differ, but not compared.
        counts: The counts of its ledger; None if it has no ledger.
        files: Source file, or range of its rows as `file[first:stop]` → its digest and counts, if the receipt has them.
    """

    key: str | None
    content: Content | None
    bytes: int = 0
    libraries: Mapping[str, str] = field(default_factory=dict)
    counts: LockCounts | None = None
    files: Mapping[str, LockedFile] = field(default_factory=dict)

    @classmethod
    def from_receipt(cls, receipt: Receipt) -> "LockEntry":
        """Return the entry of a finished artifact."""
        ledger = receipt.ledger
        entry = cls(
            key=receipt.key,
            content=receipt.content,
            bytes=receipt.total_bytes,
            libraries={
                name: version
                for name, version in receipt.measured.get("versions", {}).items()
                # Omit unrelated packages and libraries that were not installed, because neither explains a difference
                # in bytes.
                if name not in _UNRELATED_PACKAGES and version != "not installed"
            },
            counts=None
            if ledger is None
            else LockCounts(rows=ledger.rows_in, documents=ledger.documents, tokens=ledger.tokens),
            files=dict(_list_source_files(receipt)),
        )
        return entry.with_ingredients(RecipeInputs.extract_from(receipt) or RecipeInputs())

    def with_ingredients(self, ingredients: RecipeInputs) -> "LockEntry":
        """Return a copy with different ingredients."""
        # Keep only inputs from other datasets (`dataset:artifact`), because the inputs from this dataset have their own
        # entries in the lock.
        upstream = {name: content for name, content in ingredients.upstream.items() if ":" in name}
        return replace(self, **{**vars(ingredients.ingredients), "upstream": upstream})

    def without_location(self, locations: Container[str]) -> "LockEntry":
        """Return a copy without the parts that depend on its location.

        These are the key, the content, the size, and the sources whose names are in `locations`. The size depends on
        the location because the files contain paths.
        """
        sources = {name: digest for name, digest in self.sources.items() if name not in locations}
        return replace(self, key=None, content=None, bytes=0, sources=sources)

    def hide_names(self) -> "LockEntry":
        """Return a copy with digests instead of the names of source files, and with rounded counts."""
        return replace(
            self,
            sources={hide_name(name): digest for name, digest in self.sources.items()},
            counts=None if self.counts is None else self.counts.round_counts(),
            files={hide_name(n): replace(file, counts=file.counts.round_counts()) for n, file in self.files.items()},
        )

    def describe_difference(self, now: "LockEntry") -> str | None:
        """Return how the entry `now` differs from this one, in one sentence; None if they are equal."""
        if self.content is None or now.content is None:  # one entry lacks its location-dependent parts
            shared = {name: digest for name, digest in now.sources.items() if name in self.sources}
            change = self.describe_change(replace(now, sources=shared))
            return change.reason if change is not None else None
        if self.key != now.key:
            change = self.describe_change(now)
            return change.reason if change is not None else "built from different inputs or settings"
        if self.content == now.content:
            return None
        library_changes = [
            f"{name} was {self.libraries.get(name, 'not installed')}, now {now.libraries.get(name, 'not installed')}"
            for name in sorted({*self.libraries, *now.libraries})
            if self.libraries.get(name) != now.libraries.get(name)
        ]
        reason = f"; it was built with different libraries: {', '.join(library_changes)}" if library_changes else ""
        return f"its content is {now.content[:12]}…, but the lock has {self.content[:12]}…{reason}"


def hide_name(name: str) -> str:
    """Return the digest that replaces a source file's name in a sensitive dataset's lock; other names are kept."""
    return f"#{hashlib.sha256(name.encode()).hexdigest()[:16]}" if _FILE_NAME.search(name) else name


def strip_row_range(name: str) -> str:
    """Return the name of a source file without its range of rows."""
    return re.sub(r"\[\d+:(\d+|None)\]$", "", name)


def _list_source_files(receipt: Receipt) -> Iterator[tuple[str, LockedFile]]:
    """Yield the source files of a shard; nothing if its receipt's fact `sources` does not list files."""
    lines = receipt.sources or receipt.facts.get("sources", ())
    for line in lines:
        if not isinstance(line, Mapping) or not {"file", "sha256", "rows_in"} <= line.keys():
            return
        rows = line.get("rows")
        documents = line["documents"] if "documents" in line else line.get("conversations", 0)
        counts = LockCounts(rows=line["rows_in"], documents=documents, tokens=line.get("tokens", 0))
        name = line["file"] if rows is None else f"{line['file']}[{rows[0]}:{rows[1]}]"
        yield name, LockedFile(sha256=line["sha256"], counts=counts)


@dataclass(frozen=True, kw_only=True)
class Lock:
    """The lock of a dataset.

    Attributes:
        dataset: The dataset's name.
        artifacts: `name[/partition]` → artifact, sorted by name.
        is_hidden: Whether source files are named by digests and counts are rounded, as for a sensitive dataset.
        obsolete: Names of artifacts that exist but are no longer planned or declared. A lock's file never has any.
    """

    dataset: str
    artifacts: Mapping[str, LockEntry]
    is_hidden: bool = False
    obsolete: frozenset[str] = frozenset()

    @classmethod
    def from_receipts(cls, dataset: str, receipts: Mapping[str, Receipt]) -> "Lock":
        """Return the lock of a dataset from the receipts of its artifacts, by `name[/partition]`."""
        artifacts = {name: LockEntry.from_receipt(receipts[name]) for name in sorted(receipts)}
        return cls(dataset=dataset, artifacts=artifacts, obsolete=frozenset(_find_obsolete(receipts)))

    @property
    def privacy(self) -> Privacy:
        """Privacy rules for differences from this lock."""
        return Privacy(closed=self.is_hidden, dataset=self.dataset)

    @property
    def files(self) -> int:
        """Number of source files (or ranges of rows) whose documents are counted."""
        return sum(len(entry.files) for entry in self.artifacts.values())

    def hide_names(self) -> "Lock":
        """Return a copy with digests instead of the names of source files, and with rounded counts."""
        if self.is_hidden:
            return self
        return replace(
            self, is_hidden=True, artifacts={name: entry.hide_names() for name, entry in self.artifacts.items()}
        )

    def describe_difference(self, name: str, now: LockEntry) -> str | None:
        """Return how `now` differs from the entry with this name, in one sentence; None if they are equal."""
        return self.artifacts[name].describe_difference(now.hide_names() if self.is_hidden else now)


def join_lock_name(artifact: str, partition: str | None) -> str:
    """Return `artifact[/partition]`, the form of names in a lock."""
    return f"{artifact}/{partition}" if partition else artifact


def format_lock_name(artifact: Artifact) -> str:
    """Return an artifact's name in its dataset's lock: `name[/partition]`."""
    return join_lock_name(artifact.name, artifact.partition)


def lock_dataset(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> Lock:
    """Return the lock of a finished dataset.

    Args:
        specs: The specs of the dataset.
        store: Where its artifacts are stored. They are verified as thoroughly as by `dataprep status`.

    Raises IntegrityError if an artifact is missing, damaged or out of date, or failed its own blocking check.
    Raises MissingArtifactError if an artifact is removed meanwhile.
    """
    declaration = specs[0].declaration
    if (stale := next(find_stale(specs, store), None)) is not None:
        raise IntegrityError(
            f"{declaration.dataset}: cannot be locked: {stale}. Run `dataprep run {declaration.dataset}`, then lock it"
        )
    return gather_lock(specs, store)


def gather_lock(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> Lock:
    """Return the lock of artifacts that exist, without verifying that they are up to date.

    Raises MissingArtifactError if one of them is missing.
    """
    declaration = specs[0].declaration
    entries: dict[str, LockEntry] = {}
    for spec in specs:
        artifacts = spec.artifacts(store)
        for artifact, receipt in zip(artifacts, store.receipts(artifacts), strict=True):
            if receipt is None:
                raise MissingArtifactError(
                    f"{artifact}: removed while the dataset was being locked. Build it, then lock the dataset"
                )
            entry = LockEntry.from_receipt(receipt)
            # Remove the sources that are locations before names are hidden, because these sources are found by their
            # names.
            entry = entry if spec.names_places is None else entry.without_location(spec.names_places)
            entries[format_lock_name(artifact)] = entry
    lock = Lock(dataset=declaration.dataset, artifacts={name: entries[name] for name in sorted(entries)})
    return lock.hide_names() if declaration.sensitive else lock


def build_lock(receipts: Iterable[tuple[str, Receipt]], location: str, dataset: str | None = None) -> Lock:
    """Return the lock of one dataset among receipts. The dataset need not be declared.

    Args:
        receipts: All receipts at the location, each with the name that its folder gives it.
        location: Name of the location for errors.
        dataset: Name of the dataset; None if there is only one.

    Raises MissingArtifactError if the dataset is not found. Raises ConfigError if there are several datasets and none
    is chosen, or if an artifact exists twice.
    """
    by_dataset: dict[str, dict[str, Receipt]] = {}
    for name, receipt in receipts:
        dataset_receipts = by_dataset.setdefault(receipt.dataset, {})
        if name in dataset_receipts:
            raise ConfigError(
                f"{location}: contains two copies of {receipt.dataset}/{name}. Pass the folder of one of them"
            )
        dataset_receipts[name] = receipt
    if not by_dataset:
        raise MissingArtifactError(f"{location}: no finished artifact found. Correct the path, or build the dataset")
    if dataset is None and len(by_dataset) > 1:
        raise ConfigError(
            f"{location}: contains several datasets, {', '.join(sorted(by_dataset))}. Select one with --dataset"
        )
    dataset_name = dataset or next(iter(by_dataset))
    if dataset_name not in by_dataset:
        names = ", ".join(sorted(by_dataset))
        raise MissingArtifactError(f"{location}: no artifact of {dataset_name} found. Available: {names}")
    return Lock.from_receipts(dataset_name, by_dataset[dataset_name])


# --- Obsolete artifacts, found from receipts


def _find_obsolete(receipts: Mapping[str, Receipt]) -> set[str]:
    """Return the artifacts of a dataset that no run would build, except copies under a different name.

    Partitions are judged by their consumers: if a finished artifact is built from some partitions of a split, the
    other partitions are obsolete. A name is obsolete if the dataset's card is newer and does not list it. A blend's
    runs are obsolete if its plan does not name them.
    """
    own_receipts = {
        name: own_receipt
        for name, own_receipt in receipts.items()
        if join_lock_name(own_receipt.artifact, own_receipt.partition) == name
    }
    card = next((receipt for receipt in own_receipts.values() if "planned" in receipt.facts), None)
    planned_names = frozenset(card.facts["planned"] if card is not None else ())

    def find_artifact_name(name: str) -> str:
        """Return the artifact's name and split. Months and tasks have no split, so the card lists only their names."""
        kind, _, partition = name.partition("/")
        return kind if kind in planned_names else join_lock_name(kind, split_name(partition))

    def is_undeclared(name: str) -> bool:
        created, card_time = (
            own_receipt.measured.get("created", "")
            for own_receipt in (own_receipts[name], card)
            if own_receipt is not None
        )
        return created < card_time and planned_names.isdisjoint((name, find_artifact_name(name)))

    obsolete = _find_artifacts_of_earlier_plans(own_receipts) | (
        set() if card is None else set(filter(is_undeclared, own_receipts))
    )
    used_names: set[str] = set()
    for receipt in (receipt for name, receipt in own_receipts.items() if name not in obsolete):
        upstream = {n: c for n, c in receipt.recipe.get("upstream", {}).items() if ":" not in n and "/" in n}
        # Skip an artifact that is out of date, because its inputs may be partitions of an earlier plan.
        if all(name in own_receipts and own_receipts[name].content == content for name, content in upstream.items()):
            used_names |= upstream.keys()
    splits = {find_artifact_name(name) for name in used_names}
    # If some partitions of an artifact's split are read and others are not, the unread partitions are obsolete, and so
    # are the partitions of the same name of all other artifacts.
    partitions = {
        name.partition("/")[2]
        for name in own_receipts
        if "/" in name and find_artifact_name(name) in splits and name not in used_names
    }
    return obsolete | {name for name in own_receipts if name.partition("/")[2] in partitions}


def _find_artifacts_of_earlier_plans(own_receipts: Mapping[str, Receipt]) -> set[str]:
    """Return the artifacts of runs that the blend's plan does not name."""
    planned_runs = {
        own_receipt.facts["run_hash"]
        for name, own_receipt in own_receipts.items()
        if "/" not in name and "run_hash" in own_receipt.facts
    }
    runs = {name: receipt.recipe.get("settings", {}).get("run_hash") for name, receipt in own_receipts.items()}
    return {name for name, run in runs.items() if planned_runs and run is not None and run not in planned_runs}


# --- Lock file


def encode_lock(lock: Lock) -> bytes:
    """Return the bytes of a lock's file; equal locks give equal bytes.

    Settings and library versions are stored once, because many artifacts share them. Values of an artifact that are
    empty or None are omitted, except `key` and `content`.

    Keys:
        dataprep_lock: Version of the schema.
        dataset: Name of the dataset.
        hidden_names: Whether the dataset is sensitive. File names are then digests, and counts are rounded.
        artifacts: Artifact, as `name[/partition]` → its entry.
        artifacts.NAME.key: Digest of its recipe; null if its files contain a path. Comparisons then use only the
            artifact's recipe.
        artifacts.NAME.content: Digest of its files; null if `key` is null.
        artifacts.NAME.settings: Name of its settings in `shared`.
        artifacts.NAME.libraries: Name of its library versions in `shared`. Comparisons report them only if bytes
            differ.
        artifacts.NAME.sources: Name → digest of each input that is not an artifact, such as a tokenizer. Files with the
            same name and digest in `files` are omitted.
        artifacts.NAME.upstream: `dataset:name[/partition]` of each input from another dataset → its content.
        artifacts.NAME.counts: The counts of its ledger; missing if it has no ledger.
        shared: Name → settings or library versions, to which artifacts refer.
    """
    shared: dict[str, Any] = {}

    def encode_entry(lock_entry: LockEntry) -> dict[str, Any]:
        value = {**asdict(lock_entry), "sources": {**lock_entry.sources}}
        for part in ("settings", "libraries"):
            name = digest_value(value[part])[:12]
            shared[name], value[part] = value[part], name
        for name, file in lock_entry.files.items():
            if value["sources"].get(name) == file.sha256:
                del value["sources"][name]
        return {name: inner for name, inner in value.items() if inner not in ({}, None) or name in ("key", "content")}

    value = {
        "dataprep_lock": SCHEMA,
        "dataset": lock.dataset,
        "hidden_names": lock.is_hidden,
        "artifacts": {name: encode_entry(lock_entry) for name, lock_entry in lock.artifacts.items()},
        "shared": shared,
    }
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n").encode()


class _LockJson(TypedDict):
    """The JSON object of a lock file."""

    dataprep_lock: int
    dataset: str
    hidden_names: bool
    artifacts: dict[str, dict[str, Any]]
    shared: dict[str, dict[str, Any]]


def read_lock(path: Path) -> Lock:
    """Read a lock; raise FormatError with a one-line message if the file is not a lock."""
    try:
        return parse_lock(path.read_bytes(), str(path))
    except OSError as error:
        raise FormatError(f"{path}: cannot read the lock: {error.strerror or error}. Correct the path") from error


def parse_lock(data: bytes, location: str) -> Lock:
    """Parse the bytes of a lock file.

    Raises FormatError with `location` if they are not a lock or have a different schema version.
    """
    try:
        schema = load_untrusted_json(data)["dataprep_lock"]
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"{location}: not a lock file ({type(error).__name__}: {str(error)[:80]}). Run `dataprep lock` to write one"
        ) from None
    if schema != SCHEMA:
        raise FormatError(
            f"{location}: unsupported schema {schema!r}; this version reads {SCHEMA}. Run `dataprep lock` again"
        )
    try:
        value = validate_json(data, _LockJson)
        for entry in value["artifacts"].values():
            entry |= {part: value["shared"][entry[part]] for part in ("settings", "libraries")}
        entries = validate_json(json.dumps(value["artifacts"]).encode(), dict[str, LockEntry])
        artifacts = {_check_name(name): _with_file_sources(entries[name]) for name in sorted(entries)}
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"{location}: damaged lock file ({_describe_fault(error)}). Restore it from version control, or lock "
            "the dataset again"
        ) from None
    return Lock(dataset=value["dataset"], artifacts=artifacts, is_hidden=value["hidden_names"])


def _with_file_sources(entry: LockEntry) -> LockEntry:
    files = {_check_name(name): file.sha256 for name, file in entry.files.items()}
    return replace(entry, sources={**files, **entry.sources})


def _describe_fault(error: Exception) -> str:
    """Return the error on one line; for pydantic, the location and message of the first error."""
    if isinstance(error, ValidationError):
        first_fault = error.errors()[0]
        return f"{'.'.join(map(str, first_fault['loc']))}: {first_fault['msg']}"
    return f"{type(error).__name__}: {str(error)[:80]}"


def _check_name(value: str) -> str:
    """Return the name of an artifact or a source file; raise ValueError if it is not a valid file name.

    Names are printed and looked up on disk, and a lock's author may be malicious.
    """
    if reason := explain_invalid_name(value):
        raise ValueError(f"{value!r} is not a valid file name: {reason}")
    return value
