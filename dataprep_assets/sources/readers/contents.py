"""Detection of file contents by their first bytes, with the only table of magic numbers and shapes.

Names can be wrong: a download may have saved an error page, a checkout without Git LFS leaves pointers, and tools omit
suffixes. A file that can still be read correctly is read (`detect_compression`, `detect_encoding`, `is_array`). For any
other file, messages name its content and the command that converts it (`detect_foreign`, `detect_shape`); FILE in a
command is that file.

Messages never contain file content, because files may contain patient data.
"""

import codecs
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import orjson

BOM = b"\xef\xbb\xbf"
HEAD = 4096
"""Number of stored bytes of a file that determine its compression, and of content bytes that determine its shape."""


@dataclass(frozen=True, slots=True)
class ContentKind:
    """The content of a file, such as `a Parquet file`, and instructions for getting rows from it."""

    name: str
    remedy: str

    def __str__(self) -> str:
        return f"the file is {self.name}. {self.remedy}"


_DOWNLOAD = "Download the file again, and check the URL and the login"
_EXTRACT = "Extract the files from it"
_CONVERT = "Convert it with `iconv -f {} -t UTF-8 FILE > NEW`"

POINTER = ContentKind("a Git LFS pointer instead of the file itself", "Run `git lfs pull` in its repository")
_ANNEX = ContentKind("a git-annex pointer instead of the file itself", "Run `git annex get` in its repository")
HTML = ContentKind("an HTML page", f"{_DOWNLOAD}. If the pages are your documents, write them as JSON Lines")
_STORE_ERROR = ContentKind("the error message of an object store", _DOWNLOAD)
EMPTY = ContentKind("empty (0 bytes)", "Download it again, or remove it from the source")
_PARQUET = ContentKind("a Parquet file", "Rename it to `….parquet`")
_ARROW = ContentKind("an Arrow file", "Rename it to `….arrow`")

_COMPRESSED: tuple[tuple[str, re.Pattern[bytes]], ...] = (
    ("gzip", re.compile(rb"\x1f\x8b\x08")),
    ("zstd", re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")),
    ("xz", re.compile(rb"\xfd7zXZ\0")),
    # Require the magic number of a block, or of the end of an empty file, because a text may begin with `BZh`.
    ("bzip2", re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")),
)
# Longer marks come first, because UTF-32's mark begins with UTF-16's.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

_POINTERS: tuple[tuple[ContentKind, re.Pattern[bytes]], ...] = (
    (
        POINTER,
        re.compile(rb"version https?://[\w./-]+/spec/v1\r?\n(?:ext-[^\n]*\n)*oid sha256:[0-9a-f]{64}\r?\n"),
    ),
    (_ANNEX, re.compile(rb"/annex/objects/\S+\s*\Z")),
)
_BEFORE = rb"(?:\xef\xbb\xbf)?(?:\s++|<\?xml[^>]*+>|<!--.{0,2000}?-->)*"
_FOREIGN: tuple[tuple[ContentKind, re.Pattern[bytes]], ...] = (
    (HTML, re.compile(_BEFORE + rb"<(?:!doctype\s+html|html|head)[\s>]", re.IGNORECASE | re.DOTALL)),
    (_STORE_ERROR, re.compile(_BEFORE + rb"<Error>\s*<Code>", re.DOTALL)),
    (_PARQUET, re.compile(rb"PAR1[\x00-\x1f]")),
    (ContentKind("an encrypted Parquet file", "Write it again without encryption"), re.compile(rb"PARE(?!\w)")),
    (_ARROW, re.compile(rb"ARROW1\0\0|\xff\xff\xff\xff[^\0]..\0", re.DOTALL)),
    (ContentKind("a zip archive", _EXTRACT), re.compile(rb"PK(?:\x03\x04|\x05\x06|\x07\x08)")),
    (ContentKind("a 7z archive", _EXTRACT), re.compile(rb"7z\xbc\xaf\x27\x1c")),
    (ContentKind("a RAR archive", _EXTRACT), re.compile(rb"Rar!\x1a\x07")),
    (ContentKind("a tar archive", _EXTRACT), re.compile(rb"[^\0].{256}ustar[\0 ]", re.DOTALL)),
    (
        ContentKind("an ARC archive, the predecessor of WARC", "Convert it with `warcio recompress FILE NEW.warc.gz`"),
        re.compile(rb"filedesc://\S* \S+ \d{8,14} \S+ \d+\r?\n"),
    ),
    (ContentKind("a PDF document", "Extract its text first"), re.compile(rb"%PDF-\d")),
    (ContentKind("an SQLite database", "Write its rows as JSON Lines"), re.compile(rb"SQLite format 3\0")),
    (ContentKind("a Python pickle", "Write its rows as JSON Lines"), re.compile(rb"\x80[\x02-\x05](?:\x95|\}|\]|c)")),
    (ContentKind("a NumPy array", "Write its rows as JSON Lines"), re.compile(rb"\x93NUMPY")),
)
_MAX_PARSED = 1 << 20
_LEAST = 16
"""Minimum size of a file for detecting its content. A shorter file may be the truncated beginning of a magic number."""
_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f\x7f]")


def detect_compression(head: bytes, declared_name: str | None) -> str | None:
    """Return the compression for the first bytes of a file: `gzip`, `zstd`, `xz`, `bzip2` or None.

    `declared_name` is the compression by its name.
    """
    for name, magic in _COMPRESSED:
        if magic.match(head):
            return name
    return None if declared_name is not None and len(head) >= _LEAST and _is_text(head) else declared_name


def _is_text(head: bytes) -> bool:
    """Return whether the first bytes of a file are text, which compressed data never are."""
    if detect_encoding(head) is not None:
        return True
    # Also accept other content of a known kind (a page, a pointer or an archive), because such content is not
    # compressed data either.
    return detect_foreign(head) is not None or (_CONTROLS.search(head) is None and _is_utf8(head))


def _is_utf8(head: bytes) -> bool:
    """Return whether the beginning of a file is UTF-8. Its last character may be incomplete."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return True


def detect_encoding(head: bytes) -> str | None:
    """Return `utf-16` or `utf-32` if the file begins with its byte order mark, else None (UTF-8 or unknown)."""
    return next((name for mark, name in _MARKS if head.startswith(mark)), None)


def detect_pointer(head: bytes) -> ContentKind | None:
    """Return the kind of a pointer to a file that must be downloaded first; None if the file is not a pointer."""
    return next((kind for kind, magic in _POINTERS if magic.match(head)), None)


def detect_foreign(head: bytes) -> ContentKind | None:
    """Return the kind of a file that has no rows for a text reader; None if it may have rows."""
    head = head[:HEAD]
    for kind, magic in (*_POINTERS, *_FOREIGN):
        if magic.match(head):
            return kind
    # A match means data that was compressed twice, because the outer compression is already removed here.
    if (compression := detect_compression(head, None)) is not None:
        return ContentKind(f"{compression} data", "Decompress it")
    return _detect_utf16_without_mark(head)


def _detect_utf16_without_mark(head: bytes) -> ContentKind | None:
    even, odd_bytes = head[: len(head) // 2 * 2 : 2], head[1::2]
    if len(head) < _LEAST:
        return None
    # In UTF-16 text in the Latin script, almost every second byte is 0, and the bytes in between are not. Holes of
    # zeros and binary numbers have zeros in both places.
    for name, zeros, text_bytes in (("UTF-16BE", even, odd_bytes), ("UTF-16LE", odd_bytes, even)):
        if zeros.count(0) > 0.9 * len(zeros) and text_bytes.count(0) == 0:
            return ContentKind(f"text in {name} without a byte order mark", _CONVERT.format(name))
    return None


def detect_non_text(path: Path) -> ContentKind | None:
    """Return the kind of a file that should be UTF-8 text, such as JSON, but is not; None if it may be UTF-8 text.

    Raises OSError if it cannot be read.
    """
    with open(path, "rb") as file:
        head = file.read(HEAD)
    if (encoding := detect_encoding(head)) is not None:
        return ContentKind(f"text in {encoding.upper()}", _CONVERT.format(encoding.upper()))
    return detect_foreign(head)


def detect_non_table(path: Path, own_kind: str) -> ContentKind | None:
    """Return the kind of a file with the suffix `own_kind`, `.parquet` or `.arrow`, but different content; else None.

    Raises OSError if it cannot be read.
    """
    with open(path, "rb") as file:
        head = file.read(HEAD)
    if not head:
        return EMPTY
    if (kind := detect_foreign(head)) is not None:
        return None if own_kind in kind.remedy else kind
    return ContentKind("text", "Rename it after its format, e.g., to `….jsonl`") if _is_text(head) else None


def is_array(data: bytes) -> bool:
    """Return whether the first block of a file begins one JSON array, instead of lines whose first one is an array."""
    data = data.removeprefix(BOM).lstrip()
    if data[:1] != b"[":
        return False
    first_line, _, other_lines = data.partition(b"\n")
    return not (other_lines.strip() and _parse_value(first_line) is not None)


def detect_shape(head: bytes) -> ContentKind | None:
    """Return the kind of content that has no readable rows; None if it is unknown.

    `head` is the beginning of the decompressed content: a block, or all of a small file.
    """
    # Parse only part of a block, because parsed values can take forty times as much memory.
    body = head[:_MAX_PARSED].removeprefix(BOM).strip()
    return detect_foreign(head) or next((kind for kind in (look(body) for look in _SHAPES) if kind is not None), None)


def _detect_rows_under_a_key(body: bytes) -> ContentKind | None:
    """Return the kind of JSON with rows in a list under a key, as in SQuAD, or with columns, as written by pandas."""
    value = _parse_value(body)
    if isinstance(value, dict):
        if any(isinstance(rows, list) and rows and isinstance(rows[0], dict) for rows in value.values()):
            return ContentKind(
                "one JSON object with the rows in a list under a key",
                "Write one row per line with `jq -c '.KEY[]' FILE > NEW.jsonl`, where KEY is that key, e.g., data",
            )
        if value and all(isinstance(column, dict) for column in value.values()):
            return ContentKind(
                "one JSON object of columns", 'Write rows instead: `to_json(orient="records", lines=True)` of pandas'
            )
    elif value is None and re.match(rb'\{[^{}\[\]\n]{0,1000}"(?:[^"\\\n]|\\.){1,200}"\s*:\s*\[\s*\{', body):
        return ContentKind(
            "one JSON object with the rows in a list under a key, or objects of several lines",
            "Write one row per line with `jq -c '.KEY[]' FILE > NEW.jsonl`, or with `jq -c . FILE > NEW.jsonl`",
        )
    return None


def _detect_pretty_printed(body: bytes) -> ContentKind | None:
    if re.match(rb'\{\s*\n\s*"', body) is None:
        return None
    return ContentKind(
        "JSON with objects of several lines each", "Write one object per line with `jq -c . FILE > NEW.jsonl`"
    )


def detect_carriage_returns(data: bytes) -> ContentKind | None:
    """Return the kind of a text whose lines end only with a carriage return, by its first block; None otherwise."""
    return _detect_carriage_returns(data) if data.count(b"\r") > 1 else None


def _detect_side_by_side(body: bytes) -> ContentKind | None:
    if b"\n" in body or re.search(rb"\}\s*\{", body) is None or _parse_value(body) is not None:
        return None
    return ContentKind("JSON with all objects on one line", "Write one object per line with `jq -c . FILE > NEW.jsonl`")


def _detect_carriage_returns(body: bytes) -> ContentKind | None:
    if b"\n" in body or b"\r" not in body:
        return None
    return ContentKind(
        "text whose lines end with a carriage return only", r"Convert it with `tr '\r' '\n' < FILE > NEW`"
    )


def _detect_binary(body: bytes) -> ContentKind | None:
    return ContentKind("binary data, with NUL bytes", _DOWNLOAD) if b"\0" in body else None


def _detect_single_byte_kind(body: bytes) -> ContentKind | None:
    if _is_utf8(body):
        return None
    try:
        body.decode("cp1252")
    except UnicodeDecodeError:
        return ContentKind("text that is not UTF-8", _CONVERT.format("ITS_ENCODING"))
    return ContentKind("text that is not UTF-8, perhaps Windows-1252", _CONVERT.format("CP1252"))


def _detect_array(body: bytes) -> ContentKind | None:
    first_value = _parse_value(body.partition(b"\n")[0])
    if isinstance(first_value, str) or (
        isinstance(first_value, list) and first_value and isinstance(first_value[0], str)
    ):
        query = "." if isinstance(first_value, str) else ".[]"
        return ContentKind(
            "JSON values without a field name", f"Write rows instead: `jq -c '{query} | {{text: .}}' FILE > NEW`"
        )
    if not is_array(body):
        return None
    return ContentKind(
        "one JSON array", "Write one row per line with `jq -c '.[]' FILE > NEW.jsonl`, or declare its format"
    )


_SHAPES: tuple[Callable[[bytes], ContentKind | None], ...] = (
    _detect_binary,
    _detect_single_byte_kind,
    _detect_carriage_returns,
    _detect_array,
    _detect_rows_under_a_key,
    _detect_pretty_printed,
    _detect_side_by_side,
)


def _parse_value(data: bytes) -> object:
    """Return the value of a JSON text; None if it is not JSON."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
