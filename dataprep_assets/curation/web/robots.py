"""A tagger that looks up whether `robots.txt` of a document's host allows its URL, as read by Protego.

This tagger needs the extra `robots`. The user supplies the texts, because a build must not depend on today's answer of
a host. Each worker keeps all texts in memory. `robots_allowed` is true if each of the declared agents may read the URL.
It is null for a document without a URL, and for a host without a text. A text is for its host only, not for subdomains
(RFC 9309).

With a column of crawl dates, the text for a document is the latest one that is not later than its crawl date. Without
such a column, it is the latest text of the host.

Entry points: `RobotsTagger`, `RobotsFiles`.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from dataprep_assets.curation.project_function import digest_files, list_files
from dataprep_assets.curation.table import Columns, DocumentBatch
from dataprep_assets.curation.tagging import VersionedTagger
from dataprep_assets.curation.web.addresses import parse_address, parse_url
from dataprep_assets.errors import ConfigError, build_missing_extra_error
from dataprep_assets.integrity.receipt import require_installed_version
from dataprep_assets.stores.files import cache_by_file, digest_value

VERSION = 2
COLUMNS: Columns = {"robots_allowed": "boolean"}
NO_DATE = date.min
"""The date of a file without a date."""
_FIELDS = ("host", "text")
_DATE = re.compile(r"([0-9]{4})(?P<dash>-?)([0-9]{2})(?P=dash)([0-9]{2})(?:[0-9]{6})?(?![0-9])")
"""The date at the beginning of a time, such as `2024-05-01T10:00:00Z` or `20240501100000`."""
_LIBRARY = ("tag: robots", "protego", "robots")
DatedText = tuple[date, str]


def parse_date(text: str) -> date | None:
    """Return the date with which a text begins; None if there is none."""
    if (match := _DATE.match(text.strip())) is None:
        return None
    try:
        return date(*map(int, match.group(1, 3, 4)))
    except ValueError:
        return None


def _read_file(path: str) -> Mapping[str, Sequence[DatedText]]:
    """Return host → its texts with their dates. Raises ConfigError, with the row, for an invalid row."""
    texts: dict[str, list[DatedText]] = {}
    for location, host, day, text in _read_rows(Path(path)):
        address = parse_address(host) if isinstance(host, str) else None
        if address is None:
            raise ConfigError(f"{location}: {host!r} is not a host. Write a host, e.g., `www.example.com`")
        if not isinstance(text, str):
            raise ConfigError(f"{location}: has no text. Write the text of `robots.txt`, or remove the row")
        parsed_date = NO_DATE if day is None else parse_date(day)
        if parsed_date is None:
            raise ConfigError(f"{location}: {day!r} is not a date. Write a date, e.g., `2024-05-01`")
        texts.setdefault(address.host, []).append((parsed_date, text))
    return texts


def _read_rows(path: Path) -> Iterator[tuple[str, Any, str | None, Any]]:
    """Yield the location of each row for messages, its host, its date and its text."""
    import pyarrow as pa
    import pyarrow.json as pj
    import pyarrow.parquet as pq

    if path.suffix == ".txt":
        yield str(path), path.stem, None, path.read_text(encoding="utf-8", errors="replace")
        return
    try:
        if path.suffix == ".parquet":
            table = pq.ParquetFile(path).read()
        elif path.suffix == ".jsonl":
            # Declare the types, because Arrow would convert dates to times.
            schema = pa.schema([(name, pa.string()) for name in ("host", "date", "text")])
            options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
            table = pj.read_json(path, parse_options=options)
        else:
            raise ConfigError(
                f"{path}: the format is not known. Use .parquet or .jsonl with the columns host, date and text, or "
                "HOST.txt"
            )
        if missing := [name for name in _FIELDS if name not in table.column_names]:
            raise ConfigError(
                f"{path}: no column {missing[0]!r} (found {', '.join(table.column_names)}). Add the column"
            )
        days = table["date"].cast("string").to_pylist() if "date" in table.column_names else [None] * len(table)
        hosts, texts = (table[name].to_pylist() for name in _FIELDS)
    except (pa.ArrowException, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {str(error).splitlines()[0]}. Write a valid file") from error
    for number, row in enumerate(zip(hosts, days, texts, strict=True), 1):
        yield (f"{path}: row {number}", *row)


_read_cached_file = cache_by_file(_read_file)


@dataclass(frozen=True)
class RobotsFiles:
    """The texts of `robots.txt` by host, in the order of their dates."""

    texts: Mapping[str, Sequence[DatedText]]

    @classmethod
    def read(cls, paths: Iterable[Path], *, dated: bool) -> Self:
        """Read files.

        Args:
            paths: The files.
            dated: Whether every text must have a date.

        Raises ConfigError for an invalid row, and for two texts of a host with the same date.
        """
        texts: dict[str, dict[date, str]] = {}
        for path in paths:
            for host, dated_texts in _read_cached_file(str(path)).items():
                for day, text in dated_texts:
                    if dated and day == NO_DATE:
                        raise ConfigError(
                            f"{path}: {host} has no date, which `date_column` needs. Add a column `date`, or remove "
                            "`date_column`"
                        )
                    if texts.setdefault(host, {}).setdefault(day, text) != text:
                        when = "without a date" if day == NO_DATE else f"of {day}"
                        raise ConfigError(f"{path}: {host} has two different texts {when}. Remove one")
        return cls({host: sorted(texts_of_host.items()) for host, texts_of_host in texts.items()})

    def find_text(self, host: str, day: date) -> DatedText | None:
        """Return the latest text of a host that is not later than a day; None if there is none."""
        texts = self.texts.get(host, ())
        position = bisect_right(texts, day, key=lambda dated_text: dated_text[0])
        return texts[position - 1] if position else None


@dataclass(frozen=True, kw_only=True)
class RobotsTagger(VersionedTagger):
    """A tagger that reads `robots.txt`.

    Attributes:
        column: The column with the URL.
        date_column: The column with the crawl date; None to use the latest texts.
        agents: The user agents that must be allowed.
        files: Patterns of the files, as absolute paths.
    """

    column: str
    date_column: str | None
    agents: tuple[str, ...]
    files: tuple[str, ...]

    @property
    def descriptions(self) -> Mapping[str, str]:
        agents = ", ".join(self.agents)
        return {"robots_allowed": f"Whether `robots.txt` of the URL's host allows it for {agents}; null if unknown."}

    @property
    def version(self) -> str:
        library = require_installed_version(*_LIBRARY)
        settings = [self.column, self.date_column, list(self.agents)]
        return digest_value([VERSION, library, settings, digest_files(f"tag: {self.name}", self.files)])

    @property
    def reads(self) -> Columns:
        return {self.column: "string", **({} if self.date_column is None else {self.date_column: "string"})}

    @property
    def missing(self) -> Mapping[str, str]:
        return {"robots_allowed": "robots.txt" if self.date_column is None else "robots.txt before their crawl date"}

    @cached_property
    def _robots(self) -> RobotsFiles:
        return RobotsFiles.read(list_files(f"tag: {self.name}", self.files), dated=self.date_column is not None)

    def __getstate__(self) -> dict[str, Any]:
        # Leave out the texts, because each worker reads them from the files.
        return {name: value for name, value in vars(self).items() if name != "_robots"}

    def tag_batch(self, batch: DocumentBatch) -> Mapping[str, Sequence[Any]]:
        try:
            from protego import Protego
        except ImportError as error:
            raise build_missing_extra_error(*_LIBRARY) from error
        rows, parsers, allowed = batch.good_rows, dict[tuple[str, date], Any](), list[bool | None]()
        days = [date.max] * len(batch.texts) if self.date_column is None else map(_read_day, rows[self.date_column])
        for url, day in zip(rows[self.column], days, strict=True):
            address = parse_url(url)
            dated_text = None if address is None or day is None else self._robots.find_text(address.host, day)
            if address is None or dated_text is None:
                allowed.append(None)
                continue
            # Parse each text once per batch, because the documents of a host often follow each other.
            key = (address.host, dated_text[0])
            if (parser := parsers.get(key)) is None:
                parser = parsers[key] = Protego.parse(dated_text[1])
            full_url = f"https://{address.host}{address.path}"
            allowed.append(all(parser.can_fetch(full_url, agent) for agent in self.agents))
        return {"robots_allowed": allowed}


def _read_day(text: str | None) -> date | None:
    return None if text is None else parse_date(text)
