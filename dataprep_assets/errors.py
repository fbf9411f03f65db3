"""Every error that this project raises on purpose, in one tree, and the words of its messages.

Each message says what broke, the value, where (file, row, byte), and what to do next::

    DataprepError
    ├── ConfigError          a declaration (YAML, environment) that cannot work
    ├── SourceError          the source of documents cannot be listed or read
    │   ├── CorruptSourceError   bytes are there and wrong (truncated, flipped, undecodable)
    │   └── TransferError        bytes could not be fetched within the retry budget
    ├── BadRecordError       a record breaks the bad-record policy, or its budget
    ├── TokenizerError       the tokenizer bundle or an engine cannot be used
    │   └── CertificateError     a fast engine disagrees with the reference
    ├── FormatError          an artifact's bytes do not follow their format
    ├── IntegrityError       an artifact and its receipt disagree, or a ledger does not balance
    │   ├── DriftError            a dataset is not as its lock says
    │   └── MissingArtifactError  an input artifact is not there (or not complete)
    ├── DiskFullError        a disk has no room for what is written to it
    ├── OutOfMemoryError     this machine has no memory left for what is read
    ├── NotFoundError        a document, row or token that was asked for does not exist
    ├── RunFailedError       a run of a dataset in which steps failed
    ├── BoundError           a process took more memory or time than one may
    └── WorkerDiedError      a worker process ended without an answer
"""

from collections.abc import Sequence
from typing import NoReturn, TypedDict, Unpack


def count_of(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun: `1 note`, `2 notes`, `1,000 notes`.

    `one` takes an `s`, unless `many` has another plural, or a verb: `count_of(3, "row is", "rows are")`.
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


MOST_NAMED = 20


class RowPosition(TypedDict, total=False):
    """Where a row is in its file."""

    row: int
    byte: int


class Position(RowPosition, total=False):
    """Where something is. For sensitive data, only this and the error's class are shown."""

    file: str
    line: int
    shard: str
    month: str
    split: str
    task: str
    field: str
    code: str


class DataprepError(Exception):
    """The root: catch it to tell this project's refusals from bugs.

    Its text may quote the data; `at` says where the error is without doing so.
    """

    def __init__(self, message: str = "", **at: Unpack[Position]) -> None:
        super().__init__(message)
        self.at = at


class ConfigError(DataprepError):
    """A declaration that cannot work; names the file, the key, the value and what is allowed.

    Its text repeats what the user wrote and nothing of the data: also of a sensitive dataset it is shown.
    """


class SourceError(DataprepError):
    """The source of documents cannot be listed or read; `relpath` is the file's path in it, where one file is at fault.

    A name may be that of a patient: who may not show the message says by the path which part of the data it is about.
    """

    def __init__(self, message: str = "", *, relpath: str | None = None, **at: Unpack[Position]) -> None:
        super().__init__(message, **at)
        self.relpath = relpath


class CorruptSourceError(SourceError):
    """A source file whose bytes are wrong; names the file and the byte."""


class TransferError(SourceError):
    """Bytes could not be fetched within the retry budget; names the object and the last cause."""


class BadRecordError(DataprepError):
    """A record that the bad-record policy refuses; names file, row and byte."""


class TokenizerError(DataprepError):
    """A tokenizer bundle or engine that cannot be used."""


class CertificateError(TokenizerError):
    """A fast engine that disagrees with the reference engine."""


class FormatError(DataprepError):
    """Bytes that do not follow the format they are declared to have."""


class IntegrityError(DataprepError):
    """An artifact that its receipt does not describe, or a ledger that does not balance."""


class DriftError(IntegrityError):
    """A dataset that is not, or would not be, as its lock says."""


class MissingArtifactError(IntegrityError):
    """An input artifact that is not there, or has no receipt."""


class DiskFullError(DataprepError):
    """A disk, or a quota, has no room for what is written; names the path, the bytes needed if known and those free."""


class OutOfMemoryError(DataprepError):
    """The machine, or a limit on the process, has no memory left; names what was read, which need not be damaged."""


class NotFoundError(DataprepError):
    """A document, row, token or sample that was asked for and does not exist; names what there is."""


class RunFailedError(DataprepError):
    """A run in which steps failed: a line for each, with the artifact and the reason."""


class BoundError(DataprepError):
    """A process that took more than its bound; names what it read (file and row), what it took, and the limit."""


class WorkerDiedError(DataprepError):
    """A worker process that ended without an answer; names the work it held."""


def out_of_memory(where: str) -> OutOfMemoryError:
    """An error that says that memory ran out; `where` names the work that needed it."""
    return OutOfMemoryError(
        f"{where}: out of memory. The file is not necessarily damaged. Give the process more memory, or run fewer "
        "workers at once"
    )


def together(errors: Sequence[DataprepError]) -> DataprepError:
    """One error with the messages of all of them (at least one). Of more than 20 it counts the rest."""
    if len(errors) == 1:
        return errors[0]
    told = [str(error) for error in errors[:MOST_NAMED]]
    if len(errors) > MOST_NAMED:
        told.append(f"and {len(errors) - MOST_NAMED:,} more")
    return type(errors[0])(f"{count_of(len(errors), 'file')}: " + " | ".join(told))


def raise_alone(error: BaseException) -> NoReturn:
    """Raise an error without a trace of the one that is being handled, which may hold a signed URL or somebody's text.

    `raise … from None` only hides it: it stays in `__context__`, where whoever reports errors may look.
    """
    try:
        raise error
    except BaseException:
        error.__cause__ = error.__context__ = None
        raise
