"""The JSON lines of a packed cohort, as its proofs look at them: all are counted, a sample is parsed.

A line that is, byte for byte, what the build writes for the row in the columnar file has that row's values: it is not
parsed to know them. Parsing takes ten times as long.

Entry points: `SampledLines`, `sampled_lines`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from dataprep_assets.errors import FormatError
from dataprep_assets.pipelines.notes.packed_rows import PackedRowsFile

SAMPLED_ROWS = 64
"""Number of JSON lines that are looked at, spread over the file; the digests of `files_intact` cover the others."""

Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class SampledLines:
    """How many lines a file has, the columns of sampled ones by line (from 0), and which of these are verbatim the rows
    of the columnar file. A column: int32 where verbatim, else int64; shape ``(1, values)``."""

    count: int
    columns: Mapping[int, Columns]
    verbatim: frozenset[int]


def sampled_lines(path: Path, rows: PackedRowsFile, remedy: str) -> SampledLines:
    """Look at the lines of the file ``path``: the first, the last, and some between, as far as ``rows`` go.

    Raises FormatError, ending with the ``remedy``, for a last line that was cut and for one that is not a row.
    """
    wanted = set(np.linspace(0, max(len(rows) - 1, 0), min(len(rows), SAMPLED_ROWS)).astype(int).tolist())
    count, found = 0, dict[int, Columns]()
    verbatim = set[int]()
    with open(path, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                raise FormatError(f"{path}: line {count + 1} has no end; the file was cut. {remedy}")
            if count in wanted:
                columns = _if_verbatim(line, rows, count)
                if columns is not None:
                    verbatim.add(count)
                try:
                    found[count] = columns or _parsed(line)
                except (ValueError, TypeError, AttributeError, OverflowError):
                    # no JSON, no object, lists of something else, or an integer beyond int64
                    raise FormatError(f"{path}: line {count + 1} is not a row of integers. {remedy}") from None
            count += 1
    return SampledLines(count=count, columns=found, verbatim=frozenset(verbatim))


def _if_verbatim(line: bytes, rows: PackedRowsFile, at: int) -> Columns | None:
    try:
        block = rows.block(at, at + 1)
        if next(block.json_lines(rows.shape)) != line:
            return None
    except FormatError:  # of the columnar file, whose proofs name it
        return None
    stop = block.stored_lengths(rows.shape)[0]
    return {name: column[:, :stop] for name, column in block.columns(rows.shape).items()}


def _parsed(line: bytes) -> dict[str, NDArray[Any]]:
    return {name: np.array([values], np.int64) for name, values in orjson.loads(line).items()}
