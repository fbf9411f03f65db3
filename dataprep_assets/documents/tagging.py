"""Taggers: what looks at the texts of documents and says columns of them. They decide nothing; rules do (`rules`).

A tagger is one of four: built in, or of another package by its entry point in the group `dataprep_assets.taggers` (a
`TextTagger`); a function of the user's project, called with a batch of documents; a command, which is given a Parquet
file of a whole shard and writes another one; or a Dagster asset (`asset_tagger`). What each gives is checked: its
columns and their types, a value a document, no NaN.

Entry points: `Tagger` and its kinds, `tags_of`.
"""

import ast
import importlib
import math
import os
import shlex
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dataprep_assets.documents.table import (
    Columns,
    ColumnType,
    DocumentBatch,
    ParquetRows,
    is_of,
    schema_of,
    side_by_side,
)
from dataprep_assets.documents.taggers import TAGGERS
from dataprep_assets.documents.text_tagger import TextTagger
from dataprep_assets.errors import ConfigError, DataprepError
from dataprep_assets.execution.tasks import keep_for_this_pool_only
from dataprep_assets.integrity.digest import sha256_file
from dataprep_assets.sentences import safe, sentence, typed

KEYS = ("file", "row")
"""The columns by which the output of a command names its rows."""


class TaggingError(DataprepError):
    """A tagger that failed, or gave something else than it has to; names the file and the row."""


def order_of(names: Iterable[str]) -> list[list[str]]:
    """What enters a key for the order of names: nothing for that of the alphabet, as before orders were in keys."""
    given = list(names)
    return [] if given == sorted(given) else [given]


@dataclass(frozen=True, kw_only=True)
class Tagger(ABC):
    """A tagger of a dataset. Picklable; `name` is that of its file in the artifact."""

    name: str
    columns: Columns

    @property
    @abstractmethod
    def version(self) -> str:
        """What decides its output beside the documents: part of the key of what it gave."""

    def absent(self) -> str | None:
        """What is not found before it is called, in a sentence; another machine, or the module itself, may have it."""
        return None

    def located(self) -> "Tagger":
        """The same with whatever has to be looked for where Dagster is known."""
        return self

    @property
    def key_parts(self) -> list[Any]:
        """What enters the key of its output: columns in their order, which is that of its file."""
        return [self.name, dict(self.columns), self.version, *order_of(self.columns)]


class BatchTagger(Tagger):
    """A tagger that is called with a batch of documents in this process."""

    @abstractmethod
    def look(self, batch: DocumentBatch) -> Mapping[str, Sequence[Any]]:
        """Column → a value for each text of the batch."""


class VersionedTagger(BatchTagger):
    """A tagger whose columns, and their order, are decided by its version."""

    @property
    def key_parts(self) -> list[Any]:
        return [self.name, dict(self.columns), self.version]


class BuiltInTagger(VersionedTagger):
    """A tagger of this package or another, by its name."""

    @property
    def version(self) -> str:
        return named_tagger(self.name).version()

    def look(self, batch: DocumentBatch) -> Mapping[str, Sequence[Any]]:
        return named_tagger(self.name).tag(batch.texts)


def named_tagger(name: str) -> TextTagger:
    """The tagger with this name, of this package or of another.

    Raises ConfigError if there is none, several packages have one, or it cannot be imported.
    """
    extension = TAGGERS[name]
    found = extension.load()
    if not isinstance(found, TextTagger):
        raise extension.unfit("is not a TextTagger")
    return found


@dataclass(frozen=True, kw_only=True)
class FunctionTagger(BatchTagger):
    """A function of the user's project, `module:function`.

    It is called with a `pyarrow.Table` of `text` and the carried fields, and returns column → values. Its version is
    what is declared, else the digest of the module's file.
    """

    function: str
    declared: str | None = None

    @property
    def version(self) -> str:
        return self.declared if self.declared is not None else sha256_file(self._file())

    def absent(self) -> str | None:
        module, _, attribute = self.function.partition(":")
        try:
            # Read, not imported: that would run the user's code here, and this process would keep that version of it.
            names = set(_defined(self._file().read_text(encoding="utf-8")))
        except (ConfigError, OSError, SyntaxError, ValueError):  # told by `version`, or when it is imported
            return None
        # a star's names, and those that a module makes when it is asked, are known to the import alone
        if names & {attribute, "*", "__getattr__"}:
            return None
        from dataprep_assets.graph.declared_keys import nearest

        near = nearest(attribute, sorted(names))
        meant = f"; did you mean {near!r}?" if near else ""
        return f"tag: {self.function}: there is no {attribute!r} in {module}{meant}"

    def _file(self) -> Path:
        """The module's file; raises ConfigError if there is none."""
        name = self.function.partition(":")[0]
        try:
            spec = find_spec(name)
        except Exception as error:  # whatever the package above it raises
            raise self._refused(f"{type(error).__name__}: {error}") from error
        if spec is None or spec.origin is None or not Path(spec.origin).is_file():
            raise self._refused("there is no such module. It is looked for in the project's folder and on PYTHONPATH")
        return Path(spec.origin)

    @cached_property
    def _called(self) -> Any:
        keep_for_this_pool_only()  # Python imports a module once, and the user may change it
        module, _, attribute = self.function.partition(":")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except Exception as error:  # whatever a module of the user's raises
            raise self._refused(f"{type(error).__name__}: {error}") from error
        if not callable(found):
            raise self._refused("it is no function")
        return found

    def look(self, batch: DocumentBatch) -> Mapping[str, Sequence[Any]]:
        import pyarrow as pa

        # a field that no row of a batch has is of its type, too
        schema = schema_of({"text": "string", **{name: kind for name, kind in batch.types.items() if name != "bad"}})
        rows = {"text": batch.texts, **batch.good_rows}
        found: Mapping[str, Sequence[Any]] = self._called(
            pa.table({name: rows[name] for name in schema.names}, schema=schema)
        )
        return found

    def _refused(self, why: str) -> ConfigError:
        return ConfigError(f"tag: {self.function}: cannot be imported: {why}")


@dataclass(frozen=True, kw_only=True)
class CommandTagger(Tagger):
    """A command, in whose words `{input}` and `{output}` are the Parquet files that it reads and writes.

    The input has `file`, `row`, `text` and the carried fields of every document of a shard; the output has `file`,
    `row` and the columns, in any order.
    """

    command: tuple[str, ...]
    declared: str
    folder: Path

    @property
    def version(self) -> str:
        return f"{self.declared} {shlex.join(self.command)}"

    def absent(self) -> str | None:
        program = self.command[0]
        there = (self.folder / program).is_file() if os.sep in program else shutil.which(program)
        return None if there or "{" in program else f"tag: {self.name}: there is no program {program} here"

    def run(self, given: Path, made: Path, shard: str, *, sensitive: bool) -> None:
        """Run it on the documents of a shard; raises TaggingError if it fails or writes nothing."""
        # No shell reads the words: a path with blanks or quotes stays one word.
        words = [word.replace("{input}", str(given)).replace("{output}", str(made)) for word in self.command]
        try:
            done = subprocess.run(
                words, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
            )
        except OSError as error:
            raise TaggingError(f"tag: {self.name}: {words[0]}: {error.strerror or error}") from error
        if done.returncode or not made.is_file():
            # the end, where programs say why they stopped; of sensitive data nothing, because texts may be in it
            said = "" if sensitive else " ".join(done.stderr.split())[-300:]
            how = sentence(f"ended with exit code {safe(done.returncode)}") if done.returncode else "wrote no {output}"
            raise TaggingError(f"tag: {self.name}: {shard}: the command {typed(how)}" + (f": {said}" if said else ""))


def _defined(source: str) -> Iterator[str]:
    """The names that a module's text defines at its top; `*` if it takes some of another module."""
    left: list[ast.AST] = [ast.parse(source)]
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            # what is inside is its own, but for names that it says are the module's
            yield from (name for inner in ast.walk(node) if isinstance(inner, ast.Global) for name in inner.names)
            continue
        left += ast.iter_child_nodes(node)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (one.asname or one.name.partition(".")[0] for one in node.names)


def _column(table: Any, name: str, where: str) -> list[Any]:
    """The values of a column; raises TaggingError where one has no value in Python, without showing it."""
    try:
        values: list[Any] = table[name].to_pylist()
    except (ValueError, OverflowError):  # text that is not UTF-8, a date beyond the year 9999
        raise TaggingError(f"{where}: {name} has a value that is no UTF-8, or no date that there is") from None
    return values


def align(tagger: Tagger, made: Path, rows: Path, target: Path, shard: str, *, sensitive: bool) -> None:
    """Write the file of an external tagger's columns from what it wrote, in the order of the table's rows.

    Args:
        tagger: A command, or an asset.
        made: What it wrote, a Parquet file.
        rows: The rows of the table.
        target: The file to write.
        shard: The shard, for messages.
        sensitive: No message shows anything of `made`.

    Raises TaggingError if a row is missing, is there twice, is none of the shard's, or has a value of a wrong type.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    by = "the command" if isinstance(tagger, CommandTagger) else "the asset"
    where = f"tag: {tagger.name}: {shard}: the Parquet file of {by}"
    try:
        table = pq.ParquetFile(made, page_checksum_verification=True).read()
    except (pa.ArrowException, OSError) as error:
        raise TaggingError(f"{where} cannot be read: {error}. It has to be whole when {by} ends") from error
    if missing := [name for name in (*KEYS, *tagger.columns) if name not in table.column_names]:
        only = "" if sensitive else f", only {', '.join(table.column_names)}"
        raise TaggingError(f"{where} has no column {missing[0]!r}{only}")
    if doubled := [name for name in (*KEYS, *tagger.columns) if table.column_names.count(name) > 1]:
        raise TaggingError(f"{where} has two columns {doubled[0]!r}")
    # A tool may write its rows in any order: by file and row each value goes back to its place.
    keys = list(zip(*(_column(table, name, where) for name in KEYS), strict=True))
    if not all(isinstance(file, str) and isinstance(row, int | float) for file, row in keys):
        raise TaggingError(f"{where}: `file` has to be a text in every row, and `row` a number")
    place = {key: at for at, key in enumerate(keys)}
    if len(place) < len(keys):
        twice = next(key for at, key in enumerate(keys) if place[key] != at)
        raise TaggingError(f"{where} has {'a row' if sensitive else f'{twice[0]}, row {twice[1]}'} more than once")
    columns = {}
    for name, kind in tagger.columns.items():
        values = _column(table, name, where)
        if (wrong := first_wrong(values, kind)) is not None:
            file, row = keys[wrong[0]]
            raise TaggingError(f"{where}: {'' if sensitive else f'{file}: row {row}: '}{name} is {wrong[1]}")
        columns[name] = values
    wanted = 0
    with ParquetRows(target, tagger.columns) as writer:
        for piece in side_by_side([rows], [*KEYS, "bad"]):
            taken: list[int | None] = []
            for file, row, bad in zip(*(piece[name].to_pylist() for name in (*KEYS, "bad")), strict=True):
                if (at := place.get((file, row))) is None and bad is None:
                    raise TaggingError(
                        f"{where} has no {file}, row {safe(row)}: it has to have every row that it was given"
                    )
                # a refused row has no text: it was not given, and has no values
                taken.append(at if bad is None else None)
            wanted += sum(at is not None for at in taken)
            writer.add({name: [None if at is None else v[at] for at in taken] for name, v in columns.items()})
    # rows that were not taken are none of the shard's
    if wanted < len(keys):
        raise TaggingError(f"{where} has {len(keys):,} rows, but it was given {wanted:,}")


def tags_of(tagger: BatchTagger, batch: DocumentBatch, *, sensitive: bool) -> dict[str, list[Any]]:
    """What a tagger says of the texts of a batch: column → values, checked.

    Raises TaggingError, naming the row, if it raises or gives something else than its columns.
    """
    try:
        found = _listed(tagger, batch)
    # an error of this project's, as of a module that cannot be imported, is not one of a row
    except DataprepError:
        raise
    except Exception as error:  # whatever a function of the user's raises
        # asked once more, text by text, to name the row
        at = _culprit(tagger, batch)
        why = type(error).__name__ + ("" if sensitive else f": {error}")
        where = (
            sentence(f"row {safe(batch.row(at))}")
            if at is not None
            else sentence(f"rows {safe(batch.row(0))} and after")
        )
        raise TaggingError(f"{batch.label}: {typed(where)}: tagger {tagger.name!r} raised {why}") from error
    if not isinstance(found, Mapping) or set(found) != set(tagger.columns):
        if sensitive:  # what it gave may be the text
            given = "something else"
        else:
            given = ", ".join(map(str, found)) if isinstance(found, Mapping) else type(found).__name__
        raise TaggingError(
            f"{batch.label}: tagger {tagger.name!r} gave {given}; its columns are {', '.join(tagger.columns)}"
        )
    return {name: _values(tagger, name, found[name], batch, sensitive=sensitive) for name in tagger.columns}


def _listed(tagger: BatchTagger, batch: DocumentBatch) -> Any:
    """What a tagger gives, with its columns as lists; where it gives no columns, as it is."""
    found = tagger.look(batch)
    return {name: _list(one) for name, one in found.items()} if isinstance(found, Mapping) else found


def _list(values: Any) -> list[Any]:
    # columns of Arrow have the first, arrays of NumPy and series of pandas the second
    plain = getattr(values, "to_pylist", None) or getattr(values, "tolist", None)
    return list(values if plain is None else plain())


def _culprit(tagger: BatchTagger, batch: DocumentBatch) -> int | None:
    """The first text that a tagger cannot look at alone; None if it can look at each."""
    for at in range(len(batch.texts)):
        try:
            _listed(tagger, batch.only(slice(at, at + 1)))
        except Exception:
            return at
    return None


def _values(tagger: Tagger, name: str, values: list[Any], batch: DocumentBatch, *, sensitive: bool) -> list[Any]:
    if len(values) != len(batch.texts):
        raise TaggingError(
            f"{batch.label}: rows {safe(batch.row(0))} and after: tagger {tagger.name!r} gave {len(values)} values of "
            f"{name} for {len(batch.texts)} documents: it has to give one for each"
        )
    if (wrong := first_wrong(values, tagger.columns[name])) is not None:
        at, why = wrong
        shown = "" if sensitive else f" {values[at]!r:.60}"
        raise TaggingError(f"{batch.label}: row {safe(batch.row(at))}: tagger {tagger.name!r}: {name}{shown} is {why}")
    return values


# Of numbers floats alone: a whole number may be larger than any of them, and is judged by itself.
_PLAIN: Mapping[ColumnType, set[type]] = {"string": {str}, "integer": {int}, "number": {float}, "boolean": {bool}}


def first_wrong(values: Sequence[Any], kind: ColumnType) -> tuple[int, str] | None:
    """The first value that is not of a column's type, and why; null is of every type."""
    # most columns are of one type, and these are judged without a Python step for each value
    if set(map(type, values)) <= _PLAIN[kind]:
        # whole numbers fit 64 bits if the least and the largest do
        ends = (min(values), max(values)) if values and kind == "integer" else ()
        if all(is_of(one, kind) for one in ends) and (kind != "number" or all(map(math.isfinite, values))):
            return None
    for at, value in enumerate(values):
        if value is None:
            continue
        if not is_of(value, kind):
            return at, f"no {kind}" + (" of 64 bits" if type(value) is int and kind == "integer" else "")
        if isinstance(value, float) and not math.isfinite(value):
            return at, "no finite number; null stands for one that is not known"
    return None
