"""All errors that this project raises on purpose, in one hierarchy, and the wording of their messages.

Each message gives the problem, the value, the location (file, row, byte) and the remedy::

    DataprepError
    ├── ConfigError          a declaration (YAML, environment) that cannot work
    ├── SourceError          the source of documents cannot be listed or read
    │   ├── CorruptSourceError   the bytes of the source are wrong (truncated, flipped, undecodable)
    │   └── TransferError        bytes could not be fetched within the retry budget
    ├── BadRecordError       a record breaks the bad-record policy, or its budget
    ├── TokenizerError       the tokenizer bundle or an engine cannot be used
    │   └── CertificateError     a fast engine disagrees with the reference
    ├── FormatError          an artifact's bytes do not follow their format
    ├── IntegrityError       an artifact and its receipt disagree, or a ledger does not balance
    │   ├── DriftError            a dataset differs from its lock
    │   └── MissingArtifactError  an input artifact is missing or incomplete
    ├── DiskFullError        a disk has no space left for a write
    ├── OutOfMemoryError     this machine has no memory left for the read data
    ├── NotFoundError        a requested document, row or token does not exist
    ├── RunFailedError       a run of a dataset in which steps failed
    ├── BoundError           a process exceeded its limit of memory or time
    └── WorkerDiedError      a worker process ended without an answer
"""

import errno
from collections.abc import Sequence
from typing import NoReturn, TypedDict, Unpack


def count_of(count: int, noun: str, many: str | None = None) -> str:
    """Return a count with its noun: `1 note`, `2 notes`, `1,000 notes`.

    The plural is `noun` with an `s`, unless `many` is given: `count_of(3, "row is", "rows are")`.
    """
    return f"{count:,} {noun if count == 1 else many or f'{noun}s'}"


def os_error_reason(error: OSError) -> str:
    """Return the system's reason for an error, without the file's name. If access is denied, add the remedy."""
    reason = error.strerror or str(error)
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{reason}. Give your user access to the file and its folders (`ls -l` shows their permissions)"
    return reason


MAX_NAMED = 20


class RowPosition(TypedDict, total=False):
    """Location of a row in its file."""

    row: int
    byte: int


class Position(RowPosition, total=False):
    """Location of an error. For sensitive data, only the location and the error's class are shown."""

    file: str
    line: int
    shard: str
    month: str
    split: str
    task: str
    field: str
    code: str


class DataprepError(Exception):
    """The base class of all errors that this project raises on purpose; other exceptions are bugs.

    The message may quote the data; `at` contains the location without any data.
    """

    def __init__(self, message: str = "", **at: Unpack[Position]) -> None:
        super().__init__(message)
        self.at = at


class ConfigError(DataprepError):
    """Error for a declaration that cannot work. It names the file, the key, the value and the allowed values.

    The message repeats only the user's input and no data, so it is also shown for a sensitive dataset.
    """


class SourceError(DataprepError):
    """Error for a source of documents that cannot be listed or read. `relpath` is the faulty file's path, if any.

    A file name may contain a patient's name. Where the message must not be shown, the path still identifies the
    affected part of the data.
    """

    def __init__(self, message: str = "", *, relpath: str | None = None, **at: Unpack[Position]) -> None:
        super().__init__(message, **at)
        self.relpath = relpath


class CorruptSourceError(SourceError):
    """Error for a source file with wrong bytes. It names the file and the byte."""


class TransferError(SourceError):
    """Error for a transfer that failed within the retry budget. It names the object and the last cause."""


class BadRecordError(DataprepError):
    """Error for a record that the bad-record policy rejects. It names the file, the row and the byte."""


class TokenizerError(DataprepError):
    """Error for a tokenizer bundle or an engine that cannot be used."""


class CertificateError(TokenizerError):
    """Error for a fast engine that disagrees with the reference engine."""


class FormatError(DataprepError):
    """Error for bytes that do not follow their declared format."""


class IntegrityError(DataprepError):
    """Error for an artifact that differs from its receipt, or a ledger that does not balance."""


class DriftError(IntegrityError):
    """Error for a dataset that differs, or would differ, from its lock."""


class MissingArtifactError(IntegrityError):
    """Error for an input artifact that does not exist or has no receipt."""


class DiskFullError(DataprepError):
    """Error for a write that exceeds the space of a disk or quota.

    It names the path, the free bytes and, if known, the required bytes.
    """


class OutOfMemoryError(DataprepError):
    """Error for memory that is exhausted on the machine or within a limit.

    It names the file that was being read, which is not necessarily damaged.
    """


class NotFoundError(DataprepError):
    """Error for a requested document, row, token or sample that does not exist. It names the available ones."""


class RunFailedError(DataprepError):
    """Error for a run in which steps failed. It has a line per failed step, with its artifact and the reason."""


class BoundError(DataprepError):
    """Error for a process that exceeded its bound. It names its position (file and row), its usage and the limit."""


class WorkerDiedError(DataprepError):
    """Error for a worker process that ended without an answer. It names its task."""


def build_missing_extra_error(location: str, package: str, extra: str) -> ConfigError:
    """Return the error for a package that is not installed, and that an extra of this package installs.

    Args:
        location: What needs the package, such as a key.
        package: The missing package.
        extra: The extra.
    """
    return ConfigError(
        f"{location}: {package} is not installed. Install the extra: pip install 'dataprep-assets[{extra}]'"
    )


def build_memory_error(location: str) -> OutOfMemoryError:
    """Return an error for exhausted memory; `location` names the work that needed it."""
    return OutOfMemoryError(
        f"{location}: out of memory. The file is not necessarily damaged. Give the process more memory, or run fewer "
        "workers at once"
    )


def combine_errors(errors: Sequence[DataprepError]) -> DataprepError:
    """Combine errors (at least one) into one error with their messages; only the first 20 messages are listed."""
    if len(errors) == 1:
        return errors[0]
    messages = [str(error) for error in errors[:MAX_NAMED]]
    if len(errors) > MAX_NAMED:
        messages.append(f"and {len(errors) - MAX_NAMED:,} more")
    return type(errors[0])(f"{count_of(len(errors), 'file')}: " + " | ".join(messages))


def raise_detached(error: BaseException) -> NoReturn:
    """Raise an error without a reference to the handled error, which may contain a signed URL or private text.

    `raise … from None` only hides the handled error in tracebacks. It remains in `__context__`, which error reporters
    may read.
    """
    try:
        raise error
    except BaseException:
        error.__cause__ = error.__context__ = None
        raise
