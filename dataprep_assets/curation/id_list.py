"""The list of ids that `dataprep retract` reads: declared ids, hashes, and rows of source files.

Entry points: `read_ids`, `IdLine`; `MatchedLines`, `match_lines`.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.curation.retractions import Retraction, read_id_lines
from dataprep_assets.engine.trace.retraction import UnmatchedLine
from dataprep_assets.errors import ConfigError, SourceError
from dataprep_assets.planning.manifest import file_format


@dataclass(frozen=True, kw_only=True)
class IdLine:
    """A line of a list of ids: a declared id, a hash of the index, or a row of a source file.

    `line` counts from 1.
    """

    line: int
    text: str
    id: str | None = None
    hash: str | None = None
    file: str | None = None
    row: int = 0


@dataclass(frozen=True, kw_only=True)
class MatchedLines:
    """The lines of a list of ids after a look-up.

    Attributes:
        found: Ids of existing rows, in a finished shard or elsewhere, that are not on the retraction list yet.
        listed: Entries for the retraction list: the found ids, and ids without a row, for future rows.
        already: Lines whose ids are already on the list.
        unknown: Lines that match no row.
    """

    found: tuple[Retraction, ...]
    listed: tuple[Retraction, ...]
    already: tuple[IdLine, ...]
    unknown: tuple[IdLine, ...]

    def not_found(self, *, sensitive: bool) -> tuple[UnmatchedLine, ...]:
        """Return the unknown lines for the result.

        They have no text if `sensitive`, because an id of a sensitive dataset is secret even if no row has it.
        """
        return tuple(
            UnmatchedLine(line=id_line.line, is_row=id_line.file is not None, text=None if sensitive else id_line.text)
            for id_line in self.unknown
        )


def match_lines(
    id_lines: Sequence[IdLine], hashes: Sequence[str | None], *, known_hashes: Set[str], listed_before: Set[str]
) -> MatchedLines:
    """Group the lines of a list of ids by the result of their look-up.

    Args:
        id_lines: The lines of the list of ids.
        hashes: The hash of each line's id; None for a row that does not exist.
        known_hashes: Hashes of the ids of existing rows.
        listed_before: Hashes that are already on the retraction list.
    """
    pairs = list(zip(id_lines, hashes, strict=True))
    retraction_of = {h: Retraction(hash=h, given=line.id or line.text) for line, h in pairs if h is not None}
    new_hashes = known_hashes - listed_before
    return MatchedLines(
        found=tuple(retraction for h, retraction in retraction_of.items() if h in new_hashes),
        listed=tuple(retraction_of.values()),
        already=tuple(line for line, h in pairs if h in listed_before),
        unknown=tuple(line for line, h in pairs if h not in new_hashes and h not in listed_before),
    )


def read_ids(path: Path) -> list[IdLine]:
    """Read a list of ids: one per line, as JSON (`{"id": …}`, `{"hash": …}`, `{"file": …, "row": …}`) or as plain text.

    A plain line is a hash if it is 16 hex digits, a row if it is `file:row`, else a declared id. Raises ConfigError for
    an empty list. Raises ConfigError, with the line, for any other form, and for a data file without a valid row
    number.
    """
    return [_parse_line(path, number, line) for number, line in read_id_lines(path)]


def _parse_line(path: Path, number: int, line: bytes) -> IdLine:
    try:
        text = line.decode().strip()
        if not text.startswith("{"):
            return _parse_plain_line(path, number, text)
        value: dict[str, Any] = load_untrusted_json(text)
        # Exclude `bool`, because `true` is an int in Python, but neither an id nor a row.
        match value:
            case {"hash": str(found)} if _is_hash(found):
                return IdLine(line=number, text=text, hash=found.lower())
            case {"id": str() | int() as found} if not isinstance(found, bool):
                return IdLine(line=number, text=text, id=str(found))
            case {"file": str(file), "row": int(row)} if row > 0 and not isinstance(row, bool):
                return IdLine(line=number, text=text, file=file, row=row)
    # Report a line that is not UTF-8 or not JSON like a line with wrong keys, because the remedy is the same.
    except ValueError:
        pass
    raise ConfigError(
        f'--ids {path}: line {number}: must be an id, 16 hex digits of a hash, file:row, or one of {{"id": …}}, '
        '{"hash": …}, {"file": …, "row": …}'
    )


def _parse_plain_line(path: Path, number: int, text: str) -> IdLine:
    file, colon, row = text.rpartition(":")
    if _is_hash(text):
        return IdLine(line=number, text=text, hash=text.lower())
    # Read a row number only after a name that contains a period and is not a URL, because `doc:17` and
    # `https://example.org:80` are ids.
    if colon and "." in file and "://" not in file and row.isdecimal() and int(row):
        return IdLine(line=number, text=text, file=file, row=int(row))
    if colon and _is_data_file(file) and "://" not in file:
        raise ConfigError(
            f"--ids {path}: line {number}: the text after the file name is not a row number (counted from 1). Write "
            'file:row, or {"id": …} for an id that looks like this'
        )
    return IdLine(line=number, text=text, id=text)


def _is_data_file(name: str) -> bool:
    try:
        return bool(file_format(name))
    except SourceError:
        return False


def _is_hash(text: str) -> bool:
    return len(text) == 16 and all(c in "0123456789abcdefABCDEF" for c in text)
