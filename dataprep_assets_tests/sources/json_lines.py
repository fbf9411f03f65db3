"""Good and bad lines of JSON, files with them, and their records as the product reads them.

`GOOD` has the text of each line, `BAD` the reason for refusing it.
"""

import gzip
from pathlib import Path

import zstandard

from dataprep_assets.planning.manifest import file_format
from dataprep_assets.sources.readers.records import Block, RecordFields, RecordReader, read_records

GOOD = {
    "a surrogate pair": (rb'{"text": "pair \ud83d\ude00"}', "pair 😀"),
    "an integer beyond 64 bits": (b'{"text": "big", "n": 123456789012345678901234567890}', "big"),
    "a number beyond a double": (b'{"text": "large", "n": 1e400, "m": [-1E+999, 1.5]}', "large"),
    "an integer beyond a double": (b'{"text": "long", "n": 1' + b"0" * 5000 + b"}", "long"),
    "a number in the text beside one beyond a double": (rb'{"n": 1e400, "text": "\"1e400, \\"}', '"1e400, \\'),
    "duplicate keys": (b'{"text": "first", "text": "last"}', "last"),
    "duplicate keys of other types": (b'{"text": null, "text": "last"}', "last"),
    "a carriage return before the line feed": (b'{"text": "crlf"}\r', "crlf"),
    "spaces around the object": (b'  {"text": "spaced"}  ', "spaced"),
    "a nested key of the same name": (b'{"meta": {"text": "nested"}, "text": "outer"}', "outer"),
    "an escaped key": (rb'{"te\u0078t": "escaped key"}', "escaped key"),
    "an escaped NUL": (rb'{"text": "nul \u0000 x"}', "nul \0 x"),
    "a raw U+2028": ('{"text": "a\u2028b"}'.encode(), "a\u2028b"),
    "a raw U+0085": ('{"text": "a\u0085b"}'.encode(), "a\u0085b"),
    "a raw U+FEFF inside the text": ('{"text": "\ufeffa"}'.encode(), "\ufeffa"),
    "every short escape": (rb'{"text": "\/ \b\f\n\r\t \" \\"}', '/ \b\f\n\r\t " \\'),
    "a tab between the members": (b'{"text": "tab",\t"a": 1}', "tab"),
    "deep nesting": (b'{"text": "deep", "d": ' + b"[" * 500 + b"]" * 500 + b"}", "deep"),
    "an empty text": (b'{"text": ""}', ""),
    "a byte order mark, as of a file that was appended": (b'\xef\xbb\xbf{"text": "marked"}', "marked"),
    "a literal special token": (b'{"text": "a<|endoftext|>b"}', "a<|endoftext|>b"),
}


BAD = {
    "a lone high surrogate": (rb'{"text": "\ud800 x"}', "bad_json"),
    "a lone low surrogate": (rb'{"text": "x \udc00"}', "bad_json"),
    "a reversed surrogate pair": (rb'{"text": "\udc00\ud800"}', "bad_json"),
    "a lone surrogate in another field": (rb'{"text": "x", "y": "\ud800"}', "bad_json"),
    "a stray byte": (b'{"text": "\xff\xfe x"}', "invalid_utf8"),
    "an overlong encoding": (b'{"text": "\xc0\x80 x"}', "invalid_utf8"),
    "a surrogate in UTF-8": (b'{"text": "\xed\xa0\x80 x"}', "invalid_utf8"),
    "a cut character": (b'{"text": "\xe4\xb8"}', "invalid_utf8"),
    "a stray byte in another field": (b'{"text": "x", "y": "\xff"}', "invalid_utf8"),
    "a raw control character": (b'{"text": "raw \x01 x"}', "bad_json"),
    "a raw tab": (b'{"text": "raw \t x"}', "bad_json"),
    "NaN": (b'{"text": "nan", "score": NaN}', "bad_json"),
    "Infinity": (b'{"text": "inf", "score": Infinity}', "bad_json"),
    "minus Infinity": (b'{"text": "inf", "score": -Infinity}', "bad_json"),
    "Infinity beside a number beyond a double": (b'{"text": "x", "n": 1e400, "m": Infinity}', "bad_json"),
    "a number with two exponents": (b'{"text": "x", "n": 1e400e5}', "bad_json"),
    "a number with two signs": (b'{"text": "x", "n": --1e400}', "bad_json"),
    "a leading zero": (b'{"text": "x", "n": 01e400}', "bad_json"),
    "a fraction after the exponent": (b'{"text": "x", "n": 1e400.5}', "bad_json"),
    "a lone surrogate beside a number beyond a double": (rb'{"text": "\ud800", "n": 1e400}', "bad_json"),
    "a raw tab beside a number beyond a double": (b'{"text": "a\tb", "n": 1e400}', "bad_json"),
    "a stray byte beside a number beyond a double": (b'{"text": "\xff", "n": 1e400}', "invalid_utf8"),
    "nesting beyond 1,024 levels of a number": (
        b'{"text": "", "d": ' + b"[" * 1030 + b"1e400" + b"]" * 1030 + b"}",
        "bad_json",
    ),
    "a text that is a number beyond a double": (b'{"text": 1e400}', "text_not_a_string"),
    "a null text": (b'{"text": null}', "null_text"),
    "a number": (b'{"text": 5}', "text_not_a_string"),
    "a list": (b'{"text": ["a"]}', "text_not_a_string"),
    "an object": (b'{"text": {"text": "a"}}', "text_not_a_string"),
    "a boolean": (b'{"text": true}', "text_not_a_string"),
    "no text": (b'{"nottext": "x"}', "missing_text"),
    "an empty object": (b"{}", "missing_text"),
    "trailing garbage": (b'{"text": "x"} xyz', "bad_json"),
    "two objects": (b'{"text": "x"}{"text": "y"}', "bad_json"),
    "an unterminated string": (b'{"text": "unterminated', "bad_json"),
    "an unterminated object": (b'{"text": "x"', "bad_json"),
    "an array": (b"[]", "not_an_object"),
    "an array that holds the key": (b'["text"]', "not_an_object"),
    "a string": (b'"text"', "not_an_object"),
    "a bare number": (b"5", "not_an_object"),
    "a bare null": (b"null", "not_an_object"),
    "a byte order mark within the line": (b'{\xef\xbb\xbf"text": "bom"}', "bad_json"),
    "a bad escape": (rb'{"text": "bad esc \x41"}', "bad_json"),
    "a trailing comma": (b'{"text": "x",}', "bad_json"),
    "single quotes": (b"{'text': 'x'}", "bad_json"),
    "nesting beyond 1,024 levels": (b'{"text": "deep", "d": ' + b"[" * 1030 + b"]" * 1030 + b"}", "bad_json"),
    "a NUL": (b"\0", "bad_json"),
}


BLANK = {"nothing": b"", "spaces": b"   ", "a carriage return": b"\r", "a tab": b"\t"}


def reader(path: Path, text_field: str = "text") -> RecordReader:
    kind, compression = file_format(path.name)
    return read_records(path, fields=RecordFields(text_field), format=kind, compression=compression, label=path.name)


def read(path: Path, text_field: str = "text") -> Block:
    """Return all blocks of a file as one."""
    whole = Block([], 1, rows=[])
    assert whole.rows is not None
    for block in reader(path, text_field):
        whole.rows += [block.row(i) for i in range(len(block.texts))]
        whole.texts += block.texts
        whole.bad += block.bad
        whole.blank_lines += block.blank_lines
    return whole


def write(path: Path, raw: bytes) -> Path:
    path.write_bytes(
        zstandard.compress(raw) if path.suffix == ".zst" else gzip.compress(raw) if path.suffix == ".gz" else raw
    )
    return path


def between_good_rows(line: bytes) -> bytes:
    return b'{"text": "before"}\n' + line + b'\n{"text": "after"}\n'
