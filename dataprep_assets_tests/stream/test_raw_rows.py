"""Rows are found as their file has them, in each format, with their byte offset."""

import gzip
from pathlib import Path

from dataprep_assets.sources.readers.raw_rows import MAX_LINE_BYTES, RawRow
from dataprep_assets.stream.token_stream import SourcePart


def find_rows(path: Path, kind: str, numbers: list[int], compression: str | None = None) -> list[RawRow | None]:
    part = SourcePart(label=path.name, path=path, format=kind, compression=compression, sha256="", ordinal=0)
    raw_rows = part.open_raw_rows()
    return [raw_rows.find(number) for number in numbers]


def test_unreadable_rows_have_the_start_of_their_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    lines = [b'{"text": "a"}', b"", b"[1]", b'{"text": "' + b"x" * 200_000, b'{"text": 5}']
    with gzip.open(path, "wb") as file:
        file.write(b"\n".join(lines))
    listed, long, last, missing = find_rows(path, "jsonl", [3, 4, 5, 6], "gzip")
    assert listed == RawRow(byte=15, text="[1]", values=None, reason="not_an_object")
    assert long == RawRow(byte=19, text=lines[3][:MAX_LINE_BYTES].decode(), values=None, reason="bad_json")
    assert last == RawRow(byte=19 + len(lines[3]) + 1, text='{"text": 5}', values={"text": 5}, reason="")
    assert missing is None


def test_rows_of_other_formats_have_a_line_if_the_format_has_lines(tmp_path: Path) -> None:
    table, array, wide = tmp_path / "a.csv", tmp_path / "a.json", tmp_path / "a.jsonl"
    table.write_text('text,x\n"good",1\n"bad",1,2\n"two\nlines",4,5\n')
    array.write_text('[{"text": "a"}, 5, {"text": "ä"}]')
    wide.write_bytes('{"text": "ä"}\n{"text: 1}\n'.encode("utf-16"))
    rows = find_rows(table, "csv", [2, 3])
    assert [(row.byte, row.text, row.reason) for row in rows if row is not None] == [
        (16, '"bad",1,2', "bad_csv"),
        (26, '"two', "bad_csv"),
    ]
    number, element = find_rows(array, "json", [2, 3])
    assert number == RawRow(byte=None, text=None, values=None, reason="not_an_object")
    assert element == RawRow(byte=None, text='{"text": "ä"}', values={"text": "ä"}, reason="")
    assert find_rows(wide, "jsonl", [2]) == [RawRow(byte=15, text='{"text: 1}', values=None, reason="bad_json")]
