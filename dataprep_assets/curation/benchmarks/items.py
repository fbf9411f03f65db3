"""The items of benchmarks: sets of items in files, and the texts of each item.

A text is a field of an item, or one of the texts in its lists and objects (choices). Identifiers, such as a label, a
subject or a URL, are not texts. A field is an identifier if its value is ASCII without white space in every item.

If texts are rewritten before items are searched for in them, the items are rewritten too, because an item with, e.g., a
replaced e-mail address would otherwise be in no text.

Entry points: `BenchmarkSet`, `BenchmarkItem`, `ItemText`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from dataprep_assets.errors import ConfigError, DataprepError, SourceError
from dataprep_assets.planning.manifest import NARROW, file_format
from dataprep_assets.sources.readers.read_options import AS_NAMED, TOO_LARGE, ReadOptions
from dataprep_assets.sources.readers.rows import read_rows

if TYPE_CHECKING:
    from dataprep_assets.curation.rewriters.rewriting import Rewriting

MAX_BYTES = 16 << 20
"""Maximum size of an item. The longest items, questions about whole books, have a tenth of this size."""
MAX_CHARACTERS = 64 << 20
"""Maximum number of characters of all items of a set. A worker needs ten bytes of memory per character for hashes."""
_MAX_CHOICES = 10
"""Maximum number of choices in a list. A longer list of texts without white space is one tokenized text."""
_IDENTIFIER = re.compile(r"[!-~]*")


@dataclass(frozen=True, slots=True)
class ItemText:
    """A text of an item.

    Attributes:
        field: The field of the item that contains it.
        place: Its path in the item, equal for all texts of a list.
        text: The text.
        alternative: Whether it is one of several texts, such as a choice.
    """

    field: str
    place: str
    text: str
    alternative: bool = False


@dataclass(frozen=True, slots=True)
class BenchmarkItem:
    """An item of a set: its row in the file, from 1, and its texts in order."""

    row: int
    parts: Sequence[ItemText]


@dataclass(frozen=True, kw_only=True)
class BenchmarkSet:
    """A file with one item per row, in any source format.

    Attributes:
        name: The set's name.
        path: The file, or its URL in object storage.
        cache_dir: The download folder for a file in object storage.
        fields: The fields to search for; empty for all fields that contain texts.
        reading: The declared options for reading the file.
        rewriting: The rewriters of the texts in which the items are searched for, if any.
    """

    name: str
    path: Path | str
    cache_dir: Path | None = None
    fields: tuple[str, ...] = ()
    reading: ReadOptions = AS_NAMED
    # Leave out of comparisons, because rewriters have no hash. `settings` has their version.
    rewriting: "Rewriting | None" = field(default=None, compare=False)

    @property
    def settings(self) -> dict[str, str]:
        """The declared reading options, and the version of the rewriters, for artifact keys; empty by default."""
        reading = self.reading.settings(self._format[0])
        return reading if self.rewriting is None else {**reading, "rewrite": self.rewriting.version}

    @property
    def _format(self) -> tuple[str, str | None]:
        try:
            return file_format(PurePosixPath(str(self.path)).name)
        except SourceError as error:
            raise ConfigError(f"{self.key}: {str(error).removesuffix(NARROW)}. Convert the file") from error

    @property
    def key(self) -> str:
        """The set's key in the YAML, for messages."""
        return f"decontaminate.sets.{self.name}"

    @property
    def file(self) -> Path:
        """The local file; a remote file is downloaded. Raises ConfigError if it does not exist."""
        if isinstance(self.path, Path):
            return self.path
        from dataprep_assets.curation.benchmarks.files import fetch_file

        try:
            return fetch_file(self.path, self.cache_dir)
        except DataprepError as error:
            raise ConfigError(f"{self.key}: {error}") from error

    def read_items(self, first: int | None = None) -> list[BenchmarkItem]:
        """Return the items without identifiers, or only the `first` ones, with rewritten texts.

        Raises ConfigError for a file or a row that cannot be read or is too large, and for a field that no item has.
        """
        missing, items, characters = set(self.fields), list[BenchmarkItem](), 0
        for row, value in islice(self._read_rows(), first):
            parts = []
            for name in self.fields or value:
                if value.get(name) is not None:
                    missing.discard(name)
                parts += [ItemText(name, *text_and_place) for text_and_place in _find_texts(value.get(name), name)]
            characters += sum(len(part.text) for part in parts)
            if characters > MAX_CHARACTERS:
                raise ConfigError(
                    f"{self.key}: {self.path}: the items up to row {row} have more than {MAX_CHARACTERS:,} "
                    "characters. Remove rows or fields, or use `duplicates.against` to compare with a whole dataset"
                )
            items.append(BenchmarkItem(row, parts))
        if missing and items:
            raise ConfigError(f"{self.key}: no item in {self.path} has the field {min(missing)!r}. Correct `fields`")
        return self._rewrite(_remove_identifiers(items))

    def _rewrite(self, items: Sequence[BenchmarkItem]) -> list[BenchmarkItem]:
        """Return the items as the texts in which they are searched for would be rewritten."""
        if self.rewriting is None:
            return list(items)
        try:
            rewritten_texts = iter(self.rewriting.rewrite_texts([part.text for item in items for part in item.parts]))
        except DataprepError as error:
            raise ConfigError(f"{self.key}: {self.path}: {error}") from error
        return [
            replace(item, parts=[replace(part, text=next(rewritten_texts)) for part in item.parts]) for item in items
        ]

    def _read_rows(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        try:
            format, compression = self._format
            reader = read_rows(
                self.file,
                format=format,
                compression=compression,
                label=f"{self.key}: {self.path}",
                max_record_bytes=MAX_BYTES,
                reading=self.reading,
            )
            for block in reader:
                for bad_row in block.bad:
                    reason = f"more than {MAX_BYTES:,} bytes" if bad_row.reason == TOO_LARGE else str(bad_row)
                    raise ConfigError(
                        f"{self.key}: {self.path}: row {bad_row.row} is not an item: {reason}. Correct or "
                        "remove the row"
                    )
                yield from zip(block.numbers, block.rows, strict=True)
        except ConfigError:
            raise
        except DataprepError as error:
            raise ConfigError(f"{self.key}: {error}") from error
        except OSError as error:
            raise ConfigError(f"{self.key}: {self.path}: {error.strerror or error}. Correct the path") from error


def find_item(sets: Iterable[BenchmarkSet], name: str) -> dict[str, str]:
    """Return the texts of an item by their places in it, given a value of the column `benchmark`; empty if unknown."""
    set_name, _, row = name.partition(":")
    row = row.partition(":")[0]
    for benchmark_set in sets:
        if benchmark_set.name == set_name and row.isdecimal():
            for item in benchmark_set.read_items(int(row)):
                if item.row == int(row):
                    return {part.place: part.text for part in item.parts}
    return {}


def _find_texts(value: Any, place: str, *, alternative: bool = False) -> Iterator[tuple[str, str, bool]]:
    """Yield each text of a field with its place, and with whether it is one of several texts."""
    if isinstance(value, str):
        if value.strip():
            yield place, value, alternative
    elif isinstance(value, Mapping):
        for name, element in value.items():
            yield from _find_texts(element, f"{place}.{name}", alternative=alternative)
    elif isinstance(value, list | tuple):
        if len(value) > _MAX_CHOICES and all(
            isinstance(element, str) and len(element.split()) < 2 for element in value
        ):
            yield from _find_texts(" ".join(value), place)
            return
        for element in value:
            yield from _find_texts(element, place, alternative=alternative or len(value) > 1)


def _remove_identifiers(items: Sequence[BenchmarkItem]) -> list[BenchmarkItem]:
    """Remove identifiers, and mark fields whose names differ only in the last character (A, B, C) as alternatives."""
    texts = {part.place for item in items for part in item.parts if not _IDENTIFIER.fullmatch(part.text)}
    cleaned_items = []
    for item in items:
        parts = [part for part in item.parts if part.place in texts]
        stems = [part.place[:-1] for part in parts]
        cleaned_items.append(
            BenchmarkItem(
                item.row,
                [
                    ItemText(
                        part.field, part.place, part.text, part.alternative or _is_one_of(part.place, parts, stems)
                    )
                    for part in parts
                ],
            )
        )
    return cleaned_items


def _is_one_of(place: str, parts: Sequence[ItemText], stems: Sequence[str]) -> bool:
    """Return whether another field's name differs only in its last character: `sol1` and `sol2`, `A` and `B`."""
    return any(stem == place[:-1] and part.place != place for part, stem in zip(parts, stems, strict=True))
