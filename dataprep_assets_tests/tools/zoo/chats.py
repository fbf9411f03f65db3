"""Chats that are wide or deep, records of RL with millions of objects, and templates that never end."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import zstandard

from dataprep_assets_tests.tools.zoo.lines import MIB, chat_line


def _turns(random: Random, count: int, content: str) -> Iterator[bytes]:
    for n in range(count):
        role = b"user" if n % 2 == 0 else b"assistant"
        yield b'%s{"role":"%s","content":%s}' % (b"," if n else b"", role, json.dumps(content).encode())


def chat(path: Path, random: Random) -> str:
    """Write valid conversations, then one with very many turns, with very deep content, or with very many tools."""
    kind = random.choice(("turns", "deep content", "parts", "tools", "reasoning", "roles"))
    good = b"".join(chat_line(random, n) for n in range(random.choice((1, 50, 2_000))))
    with open(path, "wb") as file:
        file.write(good)
        if kind == "turns":
            count = random.choice((2_000, 2_000, 2_000, 30_000, 30_000, 300_000))
            file.write(b'{"messages":[')
            file.writelines(_turns(random, count, random.choice(("a", "a longer sentence.", "é\n" * 20))))
            file.write(b"]}\n")
        elif kind == "deep content":
            depth = random.choice((100, 2_000, 500_000))
            file.write(b'{"messages":[{"role":"user","content":' + b"[" * depth + b"]" * depth + b"}]}\n")
        elif kind == "parts":
            part = b'{"type":"text","text":"a"},'
            count = random.choice((1_000, 500_000))
            file.write(b'{"messages":[{"role":"user","content":[' + part * count + part[:-1] + b"]}]}\n")
        elif kind == "tools":
            tool: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
            for _ in range(random.choice((1, 200))):
                tool["function"]["parameters"] = {"type": "object", "properties": {"a": tool["function"]["parameters"]}}
            one = json.dumps(tool).encode()
            count = min(random.choice((100, 100_000)), 40 * MIB // len(one))
            file.write(b'{"tools":[' + b",".join([one] * count) + b"]," + chat_line(random, 0)[1:])
        elif kind == "reasoning":
            text = "<think>" * random.choice((10, 100_000)) + "x" + "</think>" * random.choice((0, 10, 100_000))
            turns = [
                {"role": "user", "content": "?"},
                {"role": "assistant", "content": text, "reasoning_content": text},
            ]
            file.write(json.dumps({"messages": turns}).encode() + b"\n")
        else:
            role = random.choice(("x" * MIB, "", "system", "tool", "assistant\n<|im_start|>"))
            file.write(json.dumps({"messages": [{"role": role, "content": "a"}] * 1_000}).encode() + b"\n")
    return kind


def records(path: Path, random: Random) -> str:
    """Write a JSON array, or lines, of records with very many objects in each."""
    one = random.choice((b"{},", b"[],", b'{"a":[{}]},', b"0,", b'"",'))
    count, rows = random.choice((1_000, 1_000, 300_000, 1_400_000)), random.choice((2, 2, 40))
    row = b'{"prompt":[{"role":"user","content":"a"}],"x":[' + one * count + b"0]}"
    as_array = ".json." in f"{path.name}."
    pieces = [b"[" * as_array, *[row + (b"," if as_array else b"\n")] * (rows - 1), row, b"]" * as_array, b"\n"]
    with open(path, "wb") as raw:
        if path.suffix == ".zst":
            with zstandard.ZstdCompressor(level=1).stream_writer(raw) as writer:
                for piece in pieces:
                    writer.write(piece)
        else:
            raw.writelines(pieces[:20])
    return f"{rows} of {count}"


TEMPLATES = (
    "{{ 'x' * 8589934592 }}",
    "{{ 'x' * 99999999 }}{{ messages }}",
    "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3,
    "{% for a in range(99999999) %}x{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% set n = namespace(x='x') %}{% for i in range(64) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ messages[0].__class__ }}",
    "{{ '%999999999d' % 1 }}",
    "{{ 'x'.ljust(4294967296) }}",
    "{{ '{:>4294967296}'.format('x') }}",
    "{{ 9 ** 9 ** 9 }}",
    "{{ (range(9999999) | list) | tojson }}",
    "{{ 'a,' * 9999999 | length }}{{ ('a,' * 9999999).split(',') | join('b' * 1000) }}",
    "{% for m in messages %}{{ m.role }}{% endfor %}{{ raise_exception('no') }}",
    "{{ cycler(1).next.__globals__ }}",
    "{{ lipsum(n=9999999) }}",
    "{{ messages | map(attribute='content') | join | wordwrap(1) | indent(999999) }}",
    "{% include '/etc/passwd' %}",
    "{{ 'x' | center(2147483648) }}",
    "{" * 100_000,
    "{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}",
    "{{ " + "+".join(["1"] * 50_000) + " }}",
    "{% if a %}" * 500 + "{% endif %}" * 500,
)
