"""`robots.txt` is looked up by host and crawl date; a document without a text is neither allowed nor refused."""

import json
import pickle
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep_assets.curation.declaration import ConfiguredTagger, build_taggers
from dataprep_assets.curation.table import DocumentBatch
from dataprep_assets.curation.tagging import BatchTagger, compute_tags
from dataprep_assets.curation.web.robots import parse_date
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity import receipt
from dataprep_assets_tests.messages import raises

OPEN, CLOSED = "User-agent: *\nDisallow:\n", "User-agent: *\nDisallow: /\n"
NO_BOTS = "User-agent: GPTBot\nDisallow: /\n\nUser-agent: *\nDisallow: /private\n"


def build(folder: Path, **keys: Any) -> BatchTagger:
    """Return a tagger with these settings."""
    declared = ConfiguredTagger.model_validate({"robots": {"agent": "GPTBot", **keys}})
    (tagger,) = build_taggers([declared], folder)
    assert isinstance(tagger, BatchTagger)
    return tagger


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def find_allowed(tagger: BatchTagger, urls: Sequence[str | None], dates: Sequence[str | None] = ()) -> list[Any]:
    """Return the values of the column for documents with these URLs and crawl dates."""
    rows: dict[str, list[Any]] = {"row": list(range(1, len(urls) + 1)), "url": [*urls], "date": [*dates]}
    batch = DocumentBatch(rows, list(range(len(urls))), ["text"] * len(urls), "a.jsonl")
    return compute_tags(tagger, batch, sensitive=False)["robots_allowed"]


def test_the_text_of_the_host_allows_or_refuses_the_path_for_the_agent(tmp_path: Path) -> None:
    (tmp_path / "robots").mkdir()
    (tmp_path / "robots" / "A.com.txt").write_text(NO_BOTS)
    (tmp_path / "robots" / "empty.com.txt").write_text("")
    urls = ["https://a.com/x", "http://A.com:80/private/y", "https://www.a.com/x", "empty.com", None, "no url"]
    unknown = [None, True, None, None]
    assert find_allowed(build(tmp_path, files="robots/*.txt"), urls) == [False, False, *unknown]
    assert find_allowed(build(tmp_path, files="robots/*.txt", agent="CCBot"), urls) == [True, False, *unknown]
    both = build(tmp_path, files=["robots/*.txt"], agent=["CCBot", "GPTBot"])
    assert find_allowed(both, urls) == [False, False, *unknown]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_the_latest_text_that_is_not_later_than_the_crawl_decides(tmp_path: Path, suffix: str) -> None:
    rows = [
        {"host": "a.com", "date": "2024-06-01", "text": CLOSED, "status": 200},
        {"host": "A.com", "date": "2023-01-01T10:00:00Z", "text": OPEN, "status": 200},
    ]
    if suffix == "jsonl":
        write_lines(tmp_path / "robots.jsonl", rows)
    else:
        typed = [{**row, "date": date.fromisoformat(str(row["date"])[:10])} for row in rows]
        pq.write_table(pa.Table.from_pylist(typed), tmp_path / "robots.parquet")
    dates = ["2024-05-31", "2024-06-01T00:00:00Z", "20240601093000", "2022-12-31", None, "yesterday"]
    tagger = build(tmp_path, files=f"robots.{suffix}", date_column="date")
    assert find_allowed(tagger, ["a.com/x"] * 6, dates) == [True, False, False, None, None, None]
    assert find_allowed(build(tmp_path, files=f"robots.{suffix}"), ["a.com"]) == [False]
    assert dict(tagger.reads) == {"url": "string", "date": "string"}


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("2024-05-01", date(2024, 5, 1)),
        (" 2024-05-01T10:00:00Z", date(2024, 5, 1)),
        ("20240501100000", date(2024, 5, 1)),
        ("2024-13-01", None),
        ("1704010100", None),
        ("Wed, 01 May 2024", None),
    ],
)
def test_a_date_is_at_the_beginning_of_a_time(text: str, day: date | None) -> None:
    assert parse_date(text) == day


@pytest.mark.parametrize(
    ("row", "values"),
    [
        ({"host": "no host", "text": ""}, ("row 2", "no host")),
        ({"host": "b.com"}, ("row 2", "text")),
        ({"host": "b.com", "text": "", "date": "May"}, ("row 2", "May")),
        ({"host": "a.com", "text": CLOSED}, ("a.com", "without a date")),
    ],
)
def test_an_invalid_row_is_refused_with_its_number(tmp_path: Path, row: dict[str, str], values: tuple[str]) -> None:
    write_lines(tmp_path / "r.jsonl", [{"host": "a.com", "text": OPEN}, row])
    with raises(ConfigError, str(tmp_path / "r.jsonl"), *values):
        find_allowed(build(tmp_path, files="r.jsonl"), ["a.com"])


def test_a_file_of_another_form_is_refused_with_its_name(tmp_path: Path) -> None:
    for name, content in (("a.csv", "host,text"), ("b.parquet", "x"), ("c.jsonl", '{"host": 3}'), ("d.jsonl", "{}")):
        (tmp_path / name).write_text(content)
        with raises(ConfigError, str(tmp_path / name)):
            find_allowed(build(tmp_path, files=name), ["a.com"])


def test_crawl_dates_need_texts_with_dates(tmp_path: Path) -> None:
    (tmp_path / "a.com.txt").write_text(OPEN)
    with raises(ConfigError, "a.com", "date_column"):
        find_allowed(build(tmp_path, files="*.txt", date_column="date"), ["a.com"], ["2024-05-01"])


def test_the_version_depends_on_the_texts_and_the_agents(tmp_path: Path) -> None:
    (tmp_path / "a.com.txt").write_text(OPEN)
    versions = {build(tmp_path, files="*.txt", agent=agent).version for agent in ("GPTBot", "CCBot")}
    (tmp_path / "b.com.txt").write_text(OPEN)
    assert len({*versions, build(tmp_path, files="*.txt").version}) == 3


def test_a_worker_reads_the_texts_itself(tmp_path: Path) -> None:
    (tmp_path / "a.com.txt").write_text(CLOSED + "#" * 10_000)
    tagger = build(tmp_path, files="*.txt")
    assert find_allowed(tagger, ["a.com"]) == [False]
    pickled = pickle.dumps(tagger)
    assert len(pickled) < 5_000
    assert find_allowed(pickle.loads(pickled), ["a.com"]) == [False]


def test_a_missing_library_is_an_error_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.com.txt").write_text(OPEN)
    monkeypatch.setattr(receipt, "find_installed_version", lambda _: None)
    with raises(ConfigError, "protego", "dataprep-assets[robots]"):
        _ = build(tmp_path, files="*.txt").version
