"""Decide whether a contender made the requested stream: the same ids as the reference contender, file by file.

Streams are compared by SHA-256 of each file's slice. The reference is the first judged contender that uses the
`tokenizers` library (the script, when it runs); each further one is compared with the known digests.
"""

import hashlib
import json
import mmap
from collections.abc import Sequence
from pathlib import Path

import numpy as np

WIDTH = {"uint16": 2, "uint32": 4}


class Judge:
    """The token count of each input file and, once a contender was judged, the digest of its ids."""

    def __init__(self, tokens: Sequence[int], dtype: str) -> None:
        self.tokens = tuple(tokens)
        self._width = WIDTH[dtype]
        self._digests: dict[int, tuple[str, str]] = {}

    def faults(self, contender: str, out: Path, *, ids: bool) -> list[str]:
        """Return the mistakes in a run's output; `ids` is false for the floor, whose bytes have no meaning."""
        found: list[str] = []
        for name, files in json.loads((out / "streams.json").read_text()):
            expected = sum(self.tokens[file] for file in files) * self._width
            size = Path(name).stat().st_size
            if size != expected:
                found.append(f"{Path(name).name}: {size // self._width} tokens, expected {expected // self._width}")
            elif ids and size:
                found += self._wrong_ids(contender, Path(name), files)
        return found

    def _wrong_ids(self, contender: str, path: Path, files: Sequence[int]) -> list[str]:
        ends = np.cumsum([self.tokens[file] * self._width for file in files]).tolist()
        found = []
        seen: set[int] = set()
        with path.open("rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for file, stop in zip(files, ends, strict=True):
                if file in seen:
                    continue
                seen.add(file)
                with memoryview(data) as view, view[stop - self.tokens[file] * self._width : stop] as part:
                    digest = hashlib.sha256(part).hexdigest()
                by, known = self._digests.setdefault(file, (contender, digest))
                if digest != known:
                    found.append(f"{path.name}: ids of file {file} differ from those of ({by})")
        return found
