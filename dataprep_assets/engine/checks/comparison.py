"""Comparison of a stored artifact, or a drawn part of it, with a rebuild by its own current builder.

A difference is damage, or a bug that lets a build depend on something that is not in its key. The builder itself is
verified by tests.

Entry points: `compare_rebuild` for a whole artifact; `compare_files`, `compare_rows` and `find_first_difference` for
files.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from filecmp import cmp
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.artifact.build import WrittenFiles
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.formats.parquet_extent import require_no_gaps
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.integrity.scratch import create_scratch

if TYPE_CHECKING:
    import pyarrow as pa

_LINES = (".json", ".jsonl", ".txt")
_BLOCK = 1 << 20


def compare_rebuild(
    recipe: Recipe, store: ArtifactStore, receipt: Receipt, directory: Path, write: Callable[[Path], WrittenFiles]
) -> Iterator[str]:
    """Rebuild an artifact, and yield a sentence for each of its files and claims that differs.

    Args:
        recipe: The artifact's current recipe. If its key differs from the receipt's, only that is reported.
        store: Where the artifact is stored.
        receipt: Its receipt.
        directory: The folder with its files.
        write: The builder, which writes into an empty folder.
    """
    if (change := recipe.find_change(receipt)) is not None:
        yield f"was not built from its current inputs: {change.reason}"
        return
    with create_scratch(store.root / receipt.dataset) as folder:
        written_files = write(folder)
        names = [record.path for record in receipt.files]
        yield from (sentence for _, sentence in compare_files(folder, directory, names))
    yield from compare_claims(written_files, receipt)


def compare_claims(files: WrittenFiles, receipt: Receipt) -> Iterator[str]:
    """Yield a sentence for each claim of a receipt that differs from its builder's claim."""
    facts = {} if files.facts is None else files.facts.to_json()
    for name, built_claim, stored_claim in (
        ("facts", facts, receipt.facts),
        ("ledger", files.ledger, receipt.ledger),
        ("inputs", dict(files.inputs), dict(receipt.inputs)),
        ("sources", list(files.sources), list(receipt.sources)),
    ):
        if built_claim != stored_claim:
            yield f"`{name}` in its receipt differs from a rebuild"


def compare_files(rebuilt_path: Path, stored_path: Path, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the name of each file that differs, with a sentence that describes the difference.

    Args:
        rebuilt_path: The folder that the builder wrote.
        stored_path: The artifact's folder.
        names: The artifact's files.
    """
    built_names = {str(path.relative_to(rebuilt_path)) for path in rebuilt_path.rglob("*") if path.is_file()}
    for name in sorted(built_names | set(names)):
        if name not in built_names:
            yield name, f"{name} exists, but a rebuild does not write it"
        elif name not in names:
            yield name, f"{name} is missing"
        elif (difference := _find_difference(rebuilt_path / name, stored_path / name)) is not None:
            yield name, f"{name}: {difference}"


def _find_difference(rebuilt_path: Path, stored_path: Path) -> str | None:
    """Return a sentence about the first difference between two files; None if they are equal."""
    if cmp(rebuilt_path, stored_path, shallow=False):
        return None
    if rebuilt_path.suffix == ".parquet":
        difference = compare_rows(rebuilt_path, stored_path)
        # Also compare the bytes, because the comparison of values ignores the statistics that readers use to skip rows.
        # Skip this if the files have different writers, because these may write equal values as different bytes.
        return (
            _describe_first_byte(rebuilt_path, stored_path)
            if difference is None and _have_same_writer(rebuilt_path, stored_path)
            else difference
        )
    if rebuilt_path.suffix in _LINES:
        with open(rebuilt_path, "rb") as made_file, open(stored_path, "rb") as stored_file:
            return next(
                f"line {n} differs from a rebuild"
                for n, (a, b) in enumerate(zip_longest(made_file, stored_file), 1)
                if a != b
            )
    return _describe_first_byte(rebuilt_path, stored_path)


def _have_same_writer(rebuilt_path: Path, stored_path: Path) -> bool:
    """Return whether two Parquet files with equal values should have equal bytes."""
    import pyarrow.parquet as pq

    writers = [pq.read_metadata(path).created_by for path in (rebuilt_path, stored_path)]
    return writers[0] == writers[1] and rebuilt_path.stat().st_size == stored_path.stat().st_size


def _describe_first_byte(rebuilt_path: Path, stored_path: Path) -> str | None:
    position = find_first_difference(rebuilt_path, stored_path)
    return None if position is None else f"byte {position} differs from a rebuild"


def find_first_difference(first_path: Path, second_path: Path) -> int | None:
    """Return the position, from 0, of the first byte that differs or at which one file ends; None if equal."""
    with open(first_path, "rb") as first_file, open(second_path, "rb") as second_file:
        position = 0
        while (a := first_file.read(_BLOCK)) == (b := second_file.read(_BLOCK)):
            if not a:
                return None
            position += len(a)
    shared = min(len(a), len(b))
    positions = np.flatnonzero(np.frombuffer(a[:shared], np.uint8) != np.frombuffer(b[:shared], np.uint8))
    return position + (int(positions[0]) if len(positions) else shared)


def compare_rows(
    rebuilt_path: Path,
    stored_path: Path,
    rows: NDArray[np.int64] | None = None,
    *,
    columns: Collection[str] | None = None,
) -> str | None:
    """Return the first row and column of a Parquet file that differ; None if all values are equal.

    Args:
        rebuilt_path: The file that the builder wrote.
        stored_path: The artifact's file.
        rows: The row numbers of `stored_path` that `rebuilt_path` contains, from 0 and ascending; None for all rows.
        columns: The columns to compare; None for all columns.
    """
    made_table, stored_table = _read_table(rebuilt_path), _read_table(stored_path)
    if not made_table.schema.equals(stored_table.schema):
        return "the columns differ from a rebuild"
    if rows is not None:
        if len(rows) and rows[-1] >= stored_table.num_rows:
            return f"row {int(rows[-1]) + 1} is missing"
        stored_table = stored_table.take(rows)
    elif made_table.num_rows != stored_table.num_rows:
        return f"has {count_of(stored_table.num_rows, 'row')}, but a rebuild has {made_table.num_rows:,}"
    differences = [
        (row, name)
        for name in made_table.column_names
        if (columns is None or name in columns)
        and (row := _find_first_difference(made_table[name], stored_table[name])) is not None
    ]
    if not differences:
        return None
    row, name = min(differences, key=lambda difference: difference[0])
    # If the file records the row's position in the source, report this position, because the user can look up the row
    # there.
    if {"file", "row"} <= set(made_table.column_names):
        return f"{made_table['file'][row]}, row {made_table['row'][row]}: column {name} differs from a rebuild"
    return f"row {(row if rows is None else int(rows[row])) + 1}: column {name} differs from a rebuild"


def _read_table(path: Path) -> "pa.Table":
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            # Read the table before its metadata, because reading raises an error for a damaged footer, but access to
            # the metadata makes pyarrow abort the process.
            table = file.read()
            # Check for gaps, because the comparison of values cannot detect that two columns use the same byte range.
            require_no_gaps(path, file.metadata)
            return table
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"{path}: cannot be read as Parquet: {error}. Rebuild the artifact") from error


def _find_first_difference(value: Any, other_value: Any) -> int | None:
    """Return the first position at which two columns differ."""
    if value.equals(other_value):
        return None
    pairs = zip(value.to_pylist(), other_value.to_pylist(), strict=True)
    return next(row for row, (a, b) in enumerate(pairs) if a != b)
