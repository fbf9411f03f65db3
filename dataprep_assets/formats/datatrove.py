"""datatrove's sidecars: ``<name>.ds.index`` and ``<name>.ds.metadata`` beside a token stream named ``<name>.ds``.

With them the stream is a datatrove ``TokenizedFile``, read by ``DatatroveFileDataset`` (nanotron among others). The
index is the file of document ends, byte for byte. The metadata are three lines without a final newline (datatrove,
``pipeline/tokens/tokenizer.py``, ``TokenizedFile.write_final_metadata``): ``<tokenizer>|<bytes a token>``, the number
of tokens, the same number for people (``humanize.metric``: ``64.1 kT``).

datatrove's merger splits the first line at ``|`` and takes exactly two pieces, yet datatrove itself writes three when
the tokenizer has no name. Here an unnamed tokenizer is written as ``Unknown Tokenizer``, and a name with ``|`` is
refused.

The reader takes the token size from its caller, never from the metadata, so `validate` is where a wrong one is found.
With ``return_positions=True`` it also misreads documents without any token: with two equal ends the position runs on
across the boundary. Streams with a separator after each document have no such documents.

Entry points: `write_sidecars`, `validate`, `index_path`, `metadata_path`.
"""

from pathlib import Path

from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.formats import document_ends, flat_bins

UNNAMED = "Unknown Tokenizer"
"""What datatrove calls a tokenizer without a name."""


def index_path(tokens_path: Path) -> Path:
    """``<name>.ds.index``.

    Raises FormatError when the token file is not called ``*.ds``, as datatrove's globs demand.
    """
    return _sidecar(tokens_path, ".index")


def metadata_path(tokens_path: Path) -> Path:
    """``<name>.ds.metadata``; raises FormatError when the token file is not called ``*.ds``."""
    return _sidecar(tokens_path, ".metadata")


def _sidecar(tokens_path: Path, suffix: str) -> Path:
    if tokens_path.suffix != ".ds":
        raise FormatError(
            f"{tokens_path}: datatrove requires file names that end in .ds. Link or rename the token file"
        )
    return tokens_path.with_name(tokens_path.name + suffix)


def write_sidecars(tokens_path: Path, ends_path: Path, *, tokens: int, dtype: str, tokenizer: str | None) -> None:
    """Write the two sidecars of the stream ``tokens_path``, called ``<name>.ds``, as new files beside it.

    The stream has ``tokens`` ids of ``dtype`` (``"uint16"`` or ``"uint32"``); ``ends_path`` is its file of document
    ends, which is hard-linked where possible and copied otherwise. ``tokenizer`` is the name that datatrove shows,
    None for one without a name. Raises FormatError
    when the ends do not fit the stream, or the tokenizer's name would break the metadata; raises FileExistsError when a
    sidecar exists.
    """
    # what can be refused comes first, and leaves no file behind
    content = metadata(tokens, dtype, tokenizer)
    document_ends.validate(ends_path, tokens)
    with flat_bins.create(metadata_path(tokens_path)) as handle:
        handle.write(content)
    flat_bins.concatenate([ends_path], index_path(tokens_path))


def metadata(tokens: int, dtype: str, tokenizer: str | None) -> bytes:
    """Return datatrove's metadata for a stream of ``tokens`` ids. Raises FormatError if the tokenizer's name contains
    ``|`` or a line break.
    """
    name = tokenizer or UNNAMED
    if "|" in name or name.splitlines() != [name]:
        raise FormatError(
            f"tokenizer name {name!r} has a '|' or a line break, which datatrove's metadata does not allow"
        )
    return f"{name}|{flat_bins.token_dtype(dtype).itemsize}\n{tokens}\n{human_count(tokens)}".encode()


def validate(tokens_path: Path, *, dtype: str) -> None:
    """Raise FormatError unless index and metadata describe the stream as it is, of this dtype.

    The third line, for people, is not compared: its rounding differs between versions of humanize.
    """
    tokens = flat_bins.open_tokens(tokens_path, dtype).size
    document_ends.validate(index_path(tokens_path), tokens)
    path = metadata_path(tokens_path)
    try:
        lines = path.read_bytes().decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: byte {error.start} is not UTF-8") from error
    if len(lines) != 3:
        raise FormatError(f"{path}: {count_of(len(lines), 'line')}, expected 3")
    if lines[0].count("|") != 1 or lines[0].startswith("|"):
        raise FormatError(f"{path}: line 1 is {lines[0]!r}, expected one name, one '|' and the bytes per token")
    bytes_per_token = lines[0].rpartition("|")[2]
    if bytes_per_token != str(flat_bins.token_dtype(dtype).itemsize):
        raise FormatError(f"{path}: line 1 has {bytes_per_token} bytes per token, but the stream is {dtype}")
    if lines[1] != str(tokens):
        raise FormatError(f"{path}: line 2 has {lines[1]} tokens, but the stream has {tokens}")


def human_count(tokens: int) -> str:
    """A token count in three digits with an SI prefix and the unit ``T``: ``12.0 T``, ``64.1 kT``, ``1.00 MT``.

    The same text as ``humanize.metric(tokens, unit="T")`` of humanize 4.17, for counts that fit in 64 bits.
    """
    exponent = len(str(tokens)) - 1
    text = _three_digits(tokens, exponent)
    # 999,500 rounds to 1,000 k, which has four digits: it takes the next prefix.
    if len(text.replace(".", "")) > 3:
        exponent += 1
        text = _three_digits(tokens, exponent)
    return f"{text} {('', 'k', 'M', 'G', 'T', 'P', 'E')[exponent // 3]}T"


def _three_digits(tokens: int, exponent: int) -> str:
    return f"{tokens / 10 ** (exponent // 3 * 3):.{2 - exponent % 3}f}"
