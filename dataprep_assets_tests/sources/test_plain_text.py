"""Plain text: a document is a file or the text between separators, independent of block sizes."""

import gzip
import random
import tracemalloc
from pathlib import Path

import pytest

from dataprep_assets.sources.readers import blocks
from dataprep_assets.sources.readers.plain_text import cut_pieces
from dataprep_assets.sources.readers.read_options import MAX_RECORD_BYTES, ReadOptions, RowRange
from dataprep_assets.sources.readers.records import Block, RecordFields, read_records
from dataprep_assets.stores.files import sha256_file


def _read(
    path: Path, separator: str | None = None, most: int = MAX_RECORD_BYTES, id: str | None = None, **given: object
) -> list[Block]:
    reader = read_records(
        path,
        fields=RecordFields("text", id, most),
        format="txt",
        compression="gzip" if path.suffix == ".gz" else None,
        label=f"folder/{path.name}",
        reading=ReadOptions(text_separator=separator),
        **given,  # type: ignore[arg-type]
    )
    found = list(reader)
    assert reader.sha256 == sha256_file(path)
    return found


def _texts(found: list[Block]) -> list[str]:
    return [text for block in found for text in block.texts]


def test_a_file_is_one_unchanged_document(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf  one\r\n\r\ntwo \n")
    (block,) = _read(path, id="path")
    assert (block.texts, block.rows, block.ids) == (["  one\r\n\r\ntwo \n"], [1], ["folder/a.txt"])
    path.write_bytes(b" \n\n")
    assert [(b.texts, b.bad, b.blank_lines) for b in _read(path)] == [([], [], 1)]
    path.write_bytes(b"")
    assert _read(path) == []


@pytest.mark.parametrize("separator", ["\n\n", "<|endoftext|>", "aab", "aa", "\n", "é"])
@pytest.mark.parametrize("block", [1, 3, 7, 1 << 20])
def test_documents_equal_a_split_of_the_whole_file(separator: str, block: int) -> None:
    drawn = random.Random(block)
    text = "".join(drawn.choice([separator, separator[:-1], "a", "b", "\n", "é", "x " * 9]) for _ in range(3000))
    data, mark = text.encode(), separator.encode()
    found = list(cut_pieces((data[at : at + block] for at in range(0, len(data), block)), mark, 1 << 20))
    expected = data.split(mark)
    if not expected[-1]:
        expected.pop()
    assert [piece for _, _, piece in found] == expected
    assert all(data[byte : byte + size] == piece for byte, size, piece in found)


def test_bad_and_blank_documents_have_positions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_BLOCK", 5)
    parts = [b"one", b"\xff\xfe", b" \n ", b"x" * 50, b"five"]
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"--\n".join(parts)))
    found = _read(path, "--\n", 20)
    assert _texts(found) == ["one", "five"]
    assert [row for block in found for row in block.rows or ()] == [1, 4]
    bad = [(b.row, b.reason) for block in found for b in block.bad]
    assert bad == [(2, "invalid_utf8"), (3, "too_large")]
    data = gzip.decompress(path.read_bytes())
    assert [data[b.byte :].split(b"--\n")[0] for block in found for b in block.bad] == [parts[1], parts[3]]
    assert sum(block.blank_lines for block in found) == 1
    assert _texts(_read(path, "--\n", 20, rows=RowRange(4, 5))) == ["five"]


def test_a_document_above_the_limit_is_not_buffered(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with path.open("wb") as file:
        for _ in range(128):
            file.write(b"x" * (1 << 20))
        file.write(b"\n\nafter")
    tracemalloc.start()
    found = _read(path, "\n\n", 1 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert _texts(found) == ["after"]
    assert [(bad.row, bad.reason) for block in found for bad in block.bad] == [(1, "too_large")]
    assert peak < 32 << 20, "the file has 128 MiB"
