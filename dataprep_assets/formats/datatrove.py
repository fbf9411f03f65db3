"""datatrove's sidecars: ``<name>.ds.index`` and ``<name>.ds.metadata`` next to a token stream named ``<name>.ds``.

With the sidecars, the stream is a datatrove ``TokenizedFile`` for ``DatatroveFileDataset`` (used by nanotron, among
others). The index is a byte-for-byte copy of the file of document ends. The metadata consists of three lines without a
final newline: ``<tokenizer>|<bytes per token>``, the number of tokens, and the number in readable form
(``humanize.metric``: ``64.1 kT``). The source is datatrove, ``pipeline/tokens/tokenizer.py``,
``TokenizedFile.write_final_metadata``.

datatrove's merger splits the first line at ``|`` and requires exactly two pieces, but datatrove itself writes three if
the tokenizer has no name. This module writes ``Unknown Tokenizer`` for an unnamed tokenizer and refuses a name with
``|``.

datatrove's reader ignores the metadata and gets the token size from its caller, so only `validate` finds a wrong size.
With ``return_positions=True`` the reader also misreads documents without tokens: if two ends are equal, the position
continues across the boundary. Streams with a separator after each document have no such documents.

Entry points: `write_sidecars`, `validate`, `build_index_path`, `build_metadata_path`.
"""

from pathlib import Path

from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.formats import document_ends, flat_bins

UNNAMED = "Unknown Tokenizer"
"""datatrove's name for a tokenizer without a name."""


def build_index_path(tokens_path: Path) -> Path:
    """Return the path of ``<name>.ds.index``.

    Raises FormatError if the token file is not named ``*.ds``, which datatrove's globs require.
    """
    return _build_sidecar_path(tokens_path, ".index")


def build_metadata_path(tokens_path: Path) -> Path:
    """Return the path of ``<name>.ds.metadata``. Raises FormatError if the token file is not named ``*.ds``."""
    return _build_sidecar_path(tokens_path, ".metadata")


def _build_sidecar_path(tokens_path: Path, suffix: str) -> Path:
    if tokens_path.suffix != ".ds":
        raise FormatError(
            f"{tokens_path}: the name of a token file must end in .ds for datatrove. Link or rename the file"
        )
    return tokens_path.with_name(tokens_path.name + suffix)


def write_sidecars(tokens_path: Path, ends_path: Path, *, tokens: int, dtype: str, tokenizer: str | None) -> None:
    """Write the two sidecars of the stream ``tokens_path``, which must be named ``<name>.ds``, as new files next to it.

    The stream has ``tokens`` ids of ``dtype`` (``"uint16"`` or ``"uint32"``). ``ends_path`` is its file of document
    ends, which is hard-linked where possible and copied otherwise. ``tokenizer`` is the name that datatrove shows, or
    None for a tokenizer without a name. Raises FormatError if the ends do not fit the stream, or if the tokenizer's
    name would break the metadata. Raises FileExistsError if a sidecar exists.
    """
    # Validate the arguments before the first write, so that an invalid argument leaves no file behind.
    content = encode_metadata(tokens, dtype, tokenizer)
    document_ends.validate(ends_path, tokens)
    with flat_bins.create_file(build_metadata_path(tokens_path)) as handle:
        handle.write(content)
    flat_bins.concatenate([ends_path], build_index_path(tokens_path))


def encode_metadata(tokens: int, dtype: str, tokenizer: str | None) -> bytes:
    """Return datatrove's metadata for a stream of ``tokens`` ids.

    Raises FormatError if the tokenizer's name contains ``|`` or a line break.
    """
    name = tokenizer or UNNAMED
    if "|" in name or name.splitlines() != [name]:
        raise FormatError(
            f"tokenizer name {name!r} must not contain '|' or a line break, because datatrove's metadata cannot "
            "represent them. Rename the tokenizer"
        )
    return f"{name}|{flat_bins.token_dtype(dtype).itemsize}\n{tokens}\n{format_count(tokens)}".encode()


def validate(tokens_path: Path, *, dtype: str) -> None:
    """Raise FormatError unless index and metadata match the stream's tokens and this dtype.

    The third line is for people and is not compared, because its rounding differs between versions of humanize.
    """
    tokens = flat_bins.open_tokens(tokens_path, dtype).size
    document_ends.validate(build_index_path(tokens_path), tokens)
    path = build_metadata_path(tokens_path)
    try:
        lines = path.read_bytes().decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not valid UTF-8 at byte {error.start}. Rebuild the view") from error
    if len(lines) != 3:
        raise FormatError(f"{path}: has {count_of(len(lines), 'line')}, expected 3. Rebuild the view")
    if lines[0].count("|") != 1 or lines[0].startswith("|"):
        raise FormatError(
            f"{path}: line 1 is {lines[0]!r}, expected one name, one '|' and the bytes per token. Rebuild the view"
        )
    bytes_per_token = lines[0].rpartition("|")[2]
    if bytes_per_token != str(flat_bins.token_dtype(dtype).itemsize):
        raise FormatError(
            f"{path}: line 1 has {bytes_per_token} bytes per token, but the stream is {dtype}. Rebuild the view"
        )
    if lines[1] != str(tokens):
        raise FormatError(f"{path}: line 2 has {lines[1]} tokens, but the stream has {tokens}. Rebuild the view")


def format_count(tokens: int) -> str:
    """Return a token count in three digits with an SI prefix and the unit ``T``: ``12.0 T``, ``64.1 kT``, ``1.00 MT``.

    The text equals ``humanize.metric(tokens, unit="T")`` of humanize 4.17 for counts that fit in 64 bits.
    """
    exponent = len(str(tokens)) - 1
    text = _format_three_digits(tokens, exponent)
    # Rounding turns 999,500 into 1,000 k, which has four digits, so use the next prefix.
    if len(text.replace(".", "")) > 3:
        exponent += 1
        text = _format_three_digits(tokens, exponent)
    return f"{text} {('', 'k', 'M', 'G', 'T', 'P', 'E')[exponent // 3]}T"


def _format_three_digits(tokens: int, exponent: int) -> str:
    return f"{tokens / 10 ** (exponent // 3 * 3):.{2 - exponent % 3}f}"
