"""The receipt of an artifact: its inputs, its ledger of rows and its files, and how to verify it.

A receipt is written last into the artifact's directory as `receipt.json`; without it, the artifact does not exist. It
contains no host, absolute path or number of workers. The same work therefore gives the same receipt anywhere, except
for the `measured` block (times, versions).

Entry points: `Receipt`, `read_receipt`, `find_damage` (the defects of an artifact). `ArtifactStore.current` decides
whether an artifact can be reused.
"""

import errno
import json
import os
import platform
import stat
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NewType, Self

from dataprep_assets.bounds import parse_json
from dataprep_assets.errors import IntegrityError, MissingArtifactError, build_missing_extra_error, count_of
from dataprep_assets.stores.files import cache_by_file, digest_value, explain_invalid_name, open_regular, sha256_file

# The ledger: every row that was read became a document, or was dropped for a reason.
#
# `rows_in = documents + Σ dropped[reason]` must be true for each source file, each shard and each dataset. Ledgers are
# additive: a shard's ledger is the sum of its files' ledgers, and a dataset's ledger is the sum of its shards'.

LOSSES = ("unknown_tokens", "dropped_characters", "changed_characters")
"""The counts of a tokenizer's losses. A source file's line has them if they are not 0."""
RETRACTED = "retracted"
"""The reason in a ledger for dropping documents on the dataset's retraction list."""
SELECTED = "selection"
"""The reason in a stream's ledger for dropping rows that the dataset's selection drops.

The selection records the specific reason of each row (a rule, `duplicate`, `retracted`). So a stream depends only on
the set of dropped rows. `with_named_drops` combines the two.
"""


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Counts for one unit of work.

    - `rows_in`: records found in the source; blank lines are not records and are counted separately.
    - `tokens`: ids written, separators and BOS included; `separators`: document-end ids appended.
    - `literal_separators`: ids equal to the separator that were encoded from text (0 with the default policy).
    - `special_literals`: documents whose text contains a special token of the tokenizer.
    - `unknown_tokens`: ids of the unknown token; `dropped_characters`: characters other than white space that the
      tokenizer drops; `changed_characters`: characters that its normalizer replaces with others.
    - `min_id`, `max_id`: range of the ids written; None for an empty stream.
    """

    rows_in: int = 0
    documents: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    blank_lines: int = 0
    empty_documents: int = 0
    tokens: int = 0
    separators: int = 0
    literal_separators: int = 0
    special_literals: int = 0
    reference_documents: int = 0
    sampled_documents: int = 0
    source_bytes: int = 0
    text_characters: int = 0
    unknown_tokens: int = 0
    dropped_characters: int = 0
    changed_characters: int = 0
    min_id: int | None = None
    max_id: int | None = None

    @property
    def of_documents(self) -> "Ledger":
        """This ledger without the counts that describe only how the documents were read and encoded.

        Derived artifacts record this ledger. A source file that is compressed again, or a different sample for
        comparing the engines, does not affect them, so they are not rebuilt.
        """
        return replace(self, reference_documents=0, sampled_documents=0, source_bytes=0)

    def require_balance(self, location: str) -> None:
        """Raise IntegrityError unless every row is accounted for."""
        accounted = self.documents + sum(self.dropped.values())
        if self.rows_in != accounted:
            raise IntegrityError(
                f"{location}: the ledger does not balance: {count_of(self.rows_in, 'row')} in, but "
                f"{count_of(self.documents, 'document')} + {sum(self.dropped.values())} dropped = {accounted}. The "
                "receipt is damaged or was written by a faulty version. Rebuild the artifact"
            )

    def __add__(self, other: "Ledger") -> "Ledger":
        return Ledger.total((self, other))

    @classmethod
    def total(cls, ledgers: Iterable["Ledger"]) -> "Ledger":
        """Return the sum of many ledgers; an empty ledger if there are none."""
        # Build a list, because each field iterates over all ledgers and the caller may pass a generator.
        all_ledgers = list(ledgers)
        drops: Counter[str] = Counter()
        for ledger in all_ledgers:
            drops.update(ledger.dropped)
        return cls(
            **{name: sum(getattr(ledger, name) for ledger in all_ledgers) for name in _COUNTS},
            dropped=dict(sorted(drops.items())),
            min_id=min((ledger.min_id for ledger in all_ledgers if ledger.min_id is not None), default=None),
            max_id=max((ledger.max_id for ledger in all_ledgers if ledger.max_id is not None), default=None),
        )

    def with_named_drops(self, reasons: Mapping[str, int]) -> Self:
        """Return the ledger with the selection's counts per reason instead of its total number of dropped rows."""
        if not self.dropped.get(SELECTED):
            return self
        other_drops = {reason: count for reason, count in self.dropped.items() if reason != SELECTED}
        return replace(self, dropped=dict(sorted((Counter(other_drops) + Counter(reasons)).items())))

    def to_json(self) -> dict[str, Any]:
        """Return the ledger as plain builtins, for a receipt."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the ledger of a JSON value; raise IntegrityError for unknown keys (a newer or damaged receipt)."""
        try:
            return cls(**value)
        except TypeError as error:
            raise IntegrityError(f"its ledger does not match this version: {error}") from error


_COUNTS = tuple(each.name for each in fields(Ledger) if each.name not in ("dropped", "min_id", "max_id"))
"""The fields of ledgers that are simply added."""


NAME = "receipt.json"
SCHEMA_VERSION = 1
_LARGEST = 64 << 20
"""Maximum size of a receipt in bytes. A receipt for a shard with 100,000 source files has half of that."""
Content = NewType("Content", str)
"""The digest of an artifact's files, as in its receipt. It is a separate type, because a recipe's input artifacts are
looked up by it. The digest of a file, or of a part of an artifact, must not be used for that."""
Verification = Literal["full", "size"]
"""Verification of an artifact: `full` reads every byte, `size` compares only the sizes."""


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """One data file of an artifact: path relative to its directory, size in bytes, SHA-256 (hex)."""

    path: str
    bytes: int
    sha256: str

    def describe_size_defect(self, size: int) -> str:
        """Return the sentence about a file with a different size, in bytes."""
        return f"{self.path}: has {count_of(size, 'byte')}, but had {self.bytes:,} when it was built"

    def describe_digest_defect(self, digest: str) -> str:
        """Return the sentence about a file of the right size with a different SHA-256 (hex)."""
        return f"{self.path}: changed after it was built (sha256 {digest[:12]}… instead of {self.sha256[:12]}…)"


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """Receipt of an artifact; the module docstring describes it.

    Attributes:
        key: Digest of inputs, configuration, tokenizer and step version.
        recipe: Named ingredients of the key (`artifact.recipe`): version, settings, sources, upstream artifacts.
    """

    dataset: str
    artifact: str
    partition: str | None
    key: str
    inputs: Mapping[str, str]
    files: tuple[FileRecord, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    ledger: Ledger | None = None
    sources: tuple[Mapping[str, Any], ...] = ()
    measured: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    @property
    def content(self) -> Content:
        """Digest of the data files' names and digests. It identifies the content."""
        return Content(digest_value([[f.path, f.bytes, f.sha256] for f in self.files]))

    @property
    def total_bytes(self) -> int:
        """Size of all data files in bytes."""
        return sum(f.bytes for f in self.files)

    def file(self, path: str) -> FileRecord:
        """Return the record of one data file; raise MissingArtifactError if the artifact has no file of that name."""
        for record in self.files:
            if record.path == path:
                return record
        raise MissingArtifactError(f"{self.artifact} {self.partition or ''}: its receipt has no file {path!r}")

    def write(self, directory: Path) -> None:
        """Write `receipt.json` into the staged directory. The commit makes it durable."""
        value = {attribute.name: getattr(self, attribute.name) for attribute in fields(self)} | {
            "content": self.content,
            "files": [asdict(record) for record in self.files],
            "ledger": self.ledger.to_json() if self.ledger else None,
        }
        value["digest"] = _compute_digest(value)
        text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
        (directory / NAME).write_text(text + "\n", encoding="utf-8")


def _compute_digest(value: Mapping[str, Any]) -> str:
    """Return the digest of a receipt's JSON without its `digest`, so that a flipped bit in a ledger is detected."""
    # Convert to JSON and back, because JSON turns numeric keys into strings, which sort differently.
    plain = json.loads(json.dumps({k: v for k, v in value.items() if k != "digest"}, allow_nan=False))
    return digest_value(plain)


def record_files(directory: Path, digests: Mapping[str, str] | None = None) -> tuple[FileRecord, ...]:
    """Return records of every file in a staged directory, in name order. Files with known `digests` are not read."""
    known_digests = digests or {}
    return tuple(
        FileRecord(path=name, bytes=path.stat().st_size, sha256=known_digests.get(name) or sha256_file(path))
        for path in sorted(directory.rglob("*"))
        if path.is_file() and (name := path.relative_to(directory).as_posix()) != NAME
    )


def read_receipt(directory: Path) -> Receipt | None:
    """Return the artifact's receipt; None if the artifact does not exist.

    Raises IntegrityError for an unreadable receipt, because that is damage and not absence.
    """
    path = f"{directory}/{NAME}"
    try:
        return _read_receipt(path)
    except FileNotFoundError:
        # The `os.stat` of `cache_by_file` follows links, so a broken link also raises FileNotFoundError.
        if not os.path.islink(path):
            return None
        raise IntegrityError(f"{path}: is a broken link. Rebuild the artifact") from None
    except OSError as error:
        # A bad sector damages only this artifact, which is rebuilt, so the error must not fail the run.
        if error.errno == errno.EIO:
            raise IntegrityError(f"{path}: cannot be read: {error.strerror}. Rebuild the artifact") from None
        # Opening the receipt raises ELOOP for a link, EINVAL for a folder or a FIFO, and ENXIO for a socket. Any other
        # error does not concern the receipt.
        if error.errno not in (errno.ELOOP, errno.EINVAL, errno.ENXIO):
            raise
        kind = "a link, a folder, a FIFO or a socket"
        raise IntegrityError(f"{path}: is {kind}, not a regular file. Rebuild the artifact") from None


@cache_by_file
def _read_receipt(path: str) -> Receipt:
    with open(path, "rb", opener=open_regular) as file:
        # One byte above the maximum is enough to detect an oversized file.
        return parse_receipt(file.read(_LARGEST + 1), path)


def parse_receipt(data: bytes, location: str) -> Receipt:
    """Return the receipt in the bytes of a file; raise IntegrityError with `location` if they are not a receipt."""
    try:
        value = parse_json(data, _LARGEST)
        # Remove the digest before hashing, because it covers only the other fields (including `content`).
        digest = value.pop("digest")
        actual, content = digest_value(value), value.pop("content")
        value["files"] = tuple(_parse_file_record(f) for f in value["files"])
        value["sources"] = tuple(value["sources"])
        value["ledger"] = Ledger.from_json(value["ledger"]) if value["ledger"] else None
        receipt = Receipt(**value)
        _require_types(receipt)
    except (IntegrityError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise IntegrityError(
            f"{location}: not a receipt: {error}. Delete the artifact's folder, then rebuild the artifact"
        ) from error
    if receipt.schema_version != SCHEMA_VERSION:
        raise IntegrityError(
            f"{location}: receipt schema {receipt.schema_version} is not supported; this version reads "
            f"{SCHEMA_VERSION}. Use the version of dataprep-assets that wrote the receipt, or rebuild the artifact"
        )
    # Compare the content first for a more specific message, because the digest also changes with the file list.
    if receipt.content != content:
        raise IntegrityError(
            f"{location}: the receipt's file list was changed (content {receipt.content} instead of {content}). "
            "Rebuild the artifact"
        )
    if actual != digest:
        raise IntegrityError(
            f"{location}: the receipt was changed or is damaged (digest {actual} instead of {digest}). Rebuild the "
            "artifact"
        )
    return receipt


def _require_types(receipt: Receipt) -> None:
    """Raise TypeError unless every field has its declared type, because readers do not check the types again.

    The checks are manual, because receipts are also read in trainers' environments, where pydantic may be missing.
    """
    partition, ledger = receipt.partition, receipt.ledger
    texts = {
        "dataset": receipt.dataset,
        "artifact": receipt.artifact,
        "partition": "" if partition is None else partition,
        "key": receipt.key,
        **{f"inputs.{name}": digest for name, digest in receipt.inputs.items()},
        **{f"files.{file.path}": file.sha256 for file in receipt.files},
    }
    objects = {"facts": receipt.facts, "measured": receipt.measured, "recipe": receipt.recipe}
    objects |= {f"sources.{number}": source for number, source in enumerate(receipt.sources)}
    objects |= {f"recipe.{name}": receipt.recipe.get(name, {}) for name in ("settings", "sources", "upstream")}
    numbers = {f"files.{file.path}.bytes": file.bytes for file in receipt.files}
    if ledger is not None:
        values = {field.name: getattr(ledger, field.name) for field in fields(ledger)}
        objects["ledger.dropped"] = drops = values.pop("dropped")
        # Accept None as the range of ids, because an empty stream has no ids.
        values = {
            name: value for name, value in values.items() if value is not None or name not in ("min_id", "max_id")
        }
        numbers |= {f"ledger.{name}": value for name, value in values.items()}
        numbers |= {f"ledger.dropped.{reason}": count for reason, count in dict(drops).items()}
    for kind, word, values_by_name in (
        (str, "text", texts),
        (dict, "an object", objects),
        (int, "a whole number", numbers),
    ):
        for name, value in values_by_name.items():
            if not isinstance(value, kind) or isinstance(value, bool):
                raise TypeError(f"{name} must be {word}, not {value!r:.40}")


def _parse_file_record(value: Mapping[str, Any]) -> FileRecord:
    record = FileRecord(**value)
    # Check the path, because every reader joins it to the artifact's directory and trusts the resulting file.
    if reason := explain_invalid_name(record.path):
        raise ValueError(f"{record.path!r} is not a valid file name in an artifact: {reason}")
    return record


def find_damage(directory: Path, receipt: Receipt, verification: Verification = "full") -> list[str]:
    """Return the defects of an artifact's files, one sentence each; empty if they are intact.

    `verification` "full" reads every byte, "size" only the sizes. A file that the receipt does not list is also
    a defect, because readers would take it for part of the artifact. Special files and files of other owners are
    defects as well.
    """
    defects, statuses = [], _list_contents(directory)
    # Accept only files of the directory's owner, of this user and of root, because any other owner could change a file
    # after it was verified.
    owners = {statuses.pop("").st_uid, os.geteuid(), 0}
    folders = {str(parent) for record in receipt.files for parent in PurePosixPath(record.path).parents}
    for record in receipt.files:
        status = statuses.pop(record.path, None)
        if status is None:
            defects.append(f"{record.path}: missing")
        elif reason := _explain_unexpected_entry(status, owners):
            defects.append(f"{record.path}: {reason}")
        elif status.st_size != record.bytes:
            defects.append(record.describe_size_defect(status.st_size))
        elif verification == "full" and (defect := _find_digest_defect(directory, record)):
            defects.append(defect)
    # The remaining entries are unlisted. Only the receipt itself and folders above listed files are allowed.
    for name, status in sorted(statuses.items()):
        is_folder = stat.S_ISDIR(status.st_mode)
        reason = _explain_unexpected_entry(status, owners, is_folder=is_folder and name != NAME)
        if reason or (name != NAME and not (is_folder and name in folders)):
            defects.append(f"{name}: {reason or ('a folder that is ' if is_folder else '') + 'not in the receipt'}")
    return defects


def _find_digest_defect(directory: Path, record: FileRecord) -> str:
    """Return the defect of a file's bytes, such as a read error of the disk; "" if the file is intact."""
    try:
        digest = sha256_file(directory / record.path, opener=open_regular)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return f"{record.path}: cannot be read: {error.strerror}"
    return "" if digest == record.sha256 else record.describe_digest_defect(digest)


_KINDS = {stat.S_IFLNK: "a link", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}


def _explain_unexpected_entry(status: os.stat_result, owners: Set[int], *, is_folder: bool = False) -> str:
    """Return why an entry is not a regular file (or folder) of one of the `owners`; "" if it is."""
    kind = stat.S_IFMT(status.st_mode)
    if kind != (stat.S_IFDIR if is_folder else stat.S_IFREG):
        return f"is {_KINDS.get(kind, 'a device')}, not a regular file, and was not read. Rebuild the artifact"
    if status.st_uid not in owners:
        return f"belongs to user {status.st_uid}, not to the owner of the artifact. Rebuild the artifact"
    return ""


def _list_contents(directory: Path) -> dict[str, os.stat_result]:
    """Return path → status of all entries below a directory and, as "", of the directory. Links are not followed."""
    statuses, remaining = {"": os.stat(directory)}, [""]
    while remaining:
        folder = remaining.pop()
        with os.scandir(directory / folder) as entries:
            for entry in entries:
                name = f"{folder}/{entry.name}" if folder else entry.name
                statuses[name] = entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    remaining.append(name)
    return statuses


@cache
def find_installed_version(name: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return metadata.version(name)
    except (metadata.PackageNotFoundError, ValueError):  # a certificate may contain an invalid name
        return None


def require_installed_version(location: str, package: str, extra: str) -> str:
    """Return the version of a package of an extra. Raises the error of `build_missing_extra_error`."""
    if (version := find_installed_version(package)) is None:
        raise build_missing_extra_error(location, package, extra)
    return version


def read_versions(
    packages: Iterable[str] = ("fastokens", "tokenizers", "numpy", "orjson", "pyarrow", "zstandard"),
) -> dict[str, str]:
    """Return versions of the libraries that can affect the bytes. They are recorded, but not part of any key."""
    version_by_name = {"python": platform.python_version(), "unicode": unicodedata.unidata_version}
    for name in (*packages, "dataprep-assets"):
        version_by_name[name] = find_installed_version(name) or "not installed"
    return version_by_name


def format_current_time() -> str:
    """Return the current time as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
