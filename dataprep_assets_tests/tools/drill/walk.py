"""Change a byte at the beginning, in the middle and at the end of every file of every artifact, and see what detects
it.

As damage, `verify_path` must report it. With a matching receipt, a blocking check of the artifact must report it, for a
sample or for every document, or the file is one of `EXCEPTIONS`, with the reason.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch

from dataprep_assets.integrity.verify import verify_path
from dataprep_assets_tests.tools.drill.box import Box, Target, reseal, write
from dataprep_assets_tests.tools.drill.bytes_of_files import files_of
from dataprep_assets_tests.tools.drill.real_size import LEVELS, said_at

_WHEN_LAID_OUT = (
    "it says where the sources were and how the same shards were made: the run stays when they move, or are made again"
)
EXCEPTIONS: Mapping[str, str] = {
    "*/manifest/shard_plan.json": "the number in a shard's name is free; `status` tells that no shard has it",
    "*/blend/datasets/*/plan.json": _WHEN_LAID_OUT,
    "*/blend/datasets/*/receipts/*.json": _WHEN_LAID_OUT,
    "*.array_record*": "no reader looks at the bytes beside the records: signature, block headers and padding",
}
"""Artifact and file, as patterns → the reason why no check reports a changed byte."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A changed byte of a file: its place, and what reported the damage (`verify_path`) and the change with a matching
    receipt.
    """

    file: str
    at: int
    verify: str
    proof: str
    crash: str = ""

    @property
    def excepted(self) -> bool:
        """Whether a known exception, with its reason, explains why no check reports it."""
        return any(fnmatch(self.file, pattern) for pattern in EXCEPTIONS)


def walk(box: Box, *, alike_once: bool = False) -> Iterator[Step]:
    """Change a byte of every file of a box, three times, and record the reports.

    With `alike_once` only the middle byte is changed, and of files that differ only in numbers, such as those of other
    partitions, only the first.
    """
    seen: set[tuple[str, str]] = set()
    for target in box.targets():
        folder = box.folder(target)
        for name in sorted(str(path.relative_to(folder)) for path in files_of(folder)):
            kind = target.spec.name, re.sub(r"[0-9]+", "0", name)
            if alike_once and kind in seen:
                continue
            seen.add(kind)
            size = (folder / name).stat().st_size
            for at in sorted({size // 2} if alike_once else {0, size // 2, size - 1}):
                yield _changed(box, target, name, at)
    if not box.unharmed:
        raise AssertionError("a change reached the originals")


def _changed(box: Box, target: Target, name: str, at: int) -> Step:
    folder = box.folder(target)
    path = folder / name
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    write(path, bytes(data))
    damaged = next((defect for one in verify_path(folder) for defect in one.defects if name in defect), "")
    reseal(folder)
    proof = crash = ""
    try:
        proof = next((f"{level}: {': '.join(told)}" for level in LEVELS for told in said_at(box, target, level)), "")
    except Exception as error:  # an error in a check is a bug, which the step records
        crash = f"{type(error).__name__}: {error}"
    box.restore()
    label = "/".join([target.spec.declaration.dataset, target.spec.name, *([target.slot] if target.slot else []), name])
    return Step(file=label, at=at, verify=damaged, proof=proof, crash=crash)
