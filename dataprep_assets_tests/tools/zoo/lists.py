"""Lists and claims of a hundred megabytes: receipts, manifests, plans, blend JSON, retraction lists."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

from dataprep_assets_tests.tools.zoo.lines import MIB

OF_ARTIFACTS = (
    "manifest/receipt.json",
    "manifest/manifest.jsonl",
    "manifest/manifest_summary.json",
    "manifest/shard_plan.json",
    "engine_certificate/certificate.json",
    "token_bins/train-00000/receipt.json",
    "combined_bins/train/receipt.json",
)
"""Files of a finished corpus that are replaced before it is run again."""


def large(path: Path, random: Random) -> str:
    """Write a file of JSON, of up to 100 MiB."""
    mib = random.choice((1, 20, 100))
    kind = random.choice(("values", "keys", "a string", "lines", "brackets", "entries"))
    with open(path, "wb") as file:
        file.writelines(_pieces(kind, mib))
    return f"{kind} of {mib} MiB"


def _pieces(kind: str, mib: int) -> Iterator[bytes]:
    if kind == "values":
        yield b'{"schema_version": 1, "files": ['
        yield from [b"0," * (MIB // 2)] * mib
        yield b"0]}"
    elif kind == "keys":
        yield b"{"
        yield from (b"".join(b'"%08d":[0,1],' % n for n in range(k << 16, (k << 16) + MIB // 17)) for k in range(mib))
        yield b'"train-00000": [0, 1]}'
    elif kind == "a string":
        yield b'{"text": "'
        yield from [b"a" * MIB] * mib
        yield b'"}'
    elif kind == "lines":
        yield from [b"{}\n" * (MIB // 3)] * mib
    elif kind == "brackets":
        yield from [b"[" * MIB] * mib
    else:
        line = b'{"relpath":"train/a.jsonl","size_bytes":1,"ordinal":0,"split":"train","format":"jsonl"}\n'
        yield from [line * (MIB // len(line))] * mib
