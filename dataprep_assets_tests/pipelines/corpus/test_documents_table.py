"""The document table in a `dataprep init` project: rules by name, a custom tagger, and the effects of changes."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets import ConfigError, open_project
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.corpus.coast import DECLARED, Coast, record, records, write_lines

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[3] / "docs" / "documents.md"


@pytest.fixture(scope="module")
def coast(tmp_path_factory: pytest.TempPathFactory) -> Coast:
    found = Coast(tmp_path_factory.mktemp("sea") / "coast")
    assert "no errors found" in found("check", "pages")
    found("run", "pages")
    return found


def test_the_table_has_every_row_of_the_source_and_its_sums_equal_the_ledgers(coast: Coast) -> None:
    rows = coast.table().to_pylist()
    assert [row["row"] for row in rows] == [*range(1, 21), *range(1, 22), 23, *range(1, 21)]
    reasons = Counter(row["reason"] for row in rows)
    dropped: Counter[str] = Counter()
    documents = tokens = 0
    for partition in coast.made("token_bins"):
        ledger = coast.receipt("token_bins", partition).ledger
        assert ledger is not None
        dropped.update(ledger.dropped)
        documents, tokens = documents + ledger.documents, tokens + ledger.tokens
    assert (reasons["ours"], reasons["short"]) == (8, 10)
    # The receipt of the stream counts the dropped rows, but only the selection has the reason for each row.
    assert dropped == {"selection": 18, "bad_json": reasons["bad_json"], "missing_text": reasons["missing_text"]}
    kept = [row for row in rows if row["kept"]]
    assert (len(kept), sum(row["tokens"] for row in kept)) == (documents, tokens)
    for row in rows:
        if row["reason"] in ("bad_json", "missing_text"):
            assert row["words"] is None
            continue
        number = row["row"] + {"a": 0, "b": 100, "c": 200}[Path(row["file"]).stem]
        assert row["host"] == ("spam.example" if number % 7 == 0 else "harbour.example")
        assert row["source"] == ("books" if number < 100 else "news")
        assert row["meta_score"] == number / 10
        assert row["reason"] == ("ours" if number % 7 == 0 else "short" if number % 5 == 0 else None)
        assert row["bytes"] == row["characters"] > 0


def test_documents_shows_the_dropped_rows_of_each_rule_and_the_rows_that_match(coast: Coast) -> None:
    told = json.loads(coast("documents", "pages", "--json"))
    assert {one["rule"]: one["documents"] for one in told["rules"]} == {"ours": 8, "short": 10}
    assert told["documents"] == 60
    assert told["rules"][1]["by_source"] == {"news": 6, "books": 4}
    assert (
        "data/train/a.jsonl:5" in " ".join(told["rules"][1]["examples"])
        or "train/a.jsonl:5" in told["rules"][1]["examples"]
    )
    lines = coast("documents", "pages", "--where", "quality > 0 and host = 'spam.example'", "--json").splitlines()
    assert [json.loads(line)["reason"] for line in lines] == ["ours"] * 8
    assert len(coast("documents", "pages", "--reason", "short", "--csv").splitlines()) == 11
    assert "--where: unknown column 'wrds" in coast("documents", "pages", "--where", "wrds < 3", code=2)
    assert "--reason: unknown reason 'shrt" in coast("documents", "pages", "--reason", "shrt", code=2)


def test_documents_prints_a_limited_number_of_rows_and_the_number_of_others(coast: Coast) -> None:
    every = coast("documents", "pages", "--csv").splitlines()
    *lines, more = coast("documents", "pages", "--csv", "--limit", "3").splitlines()
    assert lines == every[:4]
    assert more.startswith(f"and {len(every) - 4} more rows")
    assert len(coast("documents", "pages", "--json", "--limit", "3").splitlines()) == 3 + 1
    shown = coast("documents", "pages", "--limit", "2").splitlines()
    assert [line for line in shown if ".jsonl:" in line] == [shown[0], shown[2]]
    assert shown[-1].startswith(f"and {len(every) - 3} more rows")
    assert "and 7 more rows" in coast("documents", "pages", "--reason", "short", "--limit", "3")
    assert "more" not in coast("documents", "pages", "--reason", "short", "--limit", "10").splitlines()[-1]


def test_the_python_api_returns_the_rows_of_the_command(coast: Coast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATAPREP_ROOT", str(coast.root.parent / "artifacts"))
    pages = open_project(coast.root).dataset("pages")
    rows = pages.documents(where="words < 20", split="train")
    lines = coast("documents", "pages", "--where", "words < 20", "--json", "--split", "train").splitlines()
    assert list(rows) == [json.loads(line) for line in lines]
    assert rows.count() == len(list(rows)) == sum(table.num_rows for table in rows.tables())
    (first, *_) = pages.documents(columns=["reason", "row"], kept=False)
    assert list(first) == ["reason", "row"]
    assert first["reason"] is not None
    with raises(ConfigError, "'val'", "train"):
        pages.documents(split=["train", "val"])
    with raises(ConfigError, "'wrds'", "'words'"):
        pages.documents(columns=["wrds"])
    assert "unknown split 'val'" in coast("documents", "pages", "--split", "train,val", code=2)


def test_the_table_answers_the_questions_of_the_page(coast: Coast, monkeypatch: pytest.MonkeyPatch) -> None:
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    page = PAGE.read_text(encoding="utf-8")
    (block,) = re.findall(r"^```sql\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(coast.root.parent / "artifacts")
    asked = [line for line in block.splitlines() if not line.startswith("--")]
    dropped, shares, hosts, other, twice = (duckdb.sql(line).fetchall() for line in asked)
    rows = coast.table().to_pylist()
    kept = [row for row in rows if row["kept"]]
    counted = Counter(row["reason"] for row in rows)
    assert {reason: count for reason, count, _ in dropped} == counted
    assert sum(size or 0 for *_, size in dropped) == sum(row["bytes"] or 0 for row in rows)
    tokens = sum(row["tokens"] for row in kept)
    of_books = sum(row["tokens"] for row in kept if row["source"] == "books")
    assert dict(shares)["books"] == pytest.approx(of_books / tokens)
    assert sum(share for _, share in shares) == pytest.approx(1)
    assert hosts == [("harbour.example", len(kept), tokens)]
    assert other == [(sum(50 <= row["words"] < 100 for row in rows if row["words"] is not None),)]
    assert twice == []
    (expression,) = re.findall(r"`(pl\..*?)`", page)
    found = eval(expression, {"pl": polars})  # the expression is from this project's own documentation
    assert dict(zip(found["reason"], found["len"], strict=True)) == counted


def test_trace_shows_the_rule_that_dropped_a_row_and_the_values_it_read(coast: Coast) -> None:
    said = coast("trace", "pages", "--file", "train/a.jsonl", "--row", "5", code=1)
    assert_names(said, "'short'", "words < 20", 10)
    said = coast("trace", "pages", "--file", "train/a.jsonl", "--row", "7", code=1)
    assert_names(said, "'ours'", "not (host == 'harbour.example')", "'spam.example'")
    assert "bad_json" in coast("trace", "pages", "--file", "train/b.jsonl", "--row", "21", code=1)
    text = coast.root / "text.txt"
    text.write_text(record(5, "books", words=8)["text"])
    assert_names(coast("trace", "pages", "--text-file", str(text), code=1), 5, "train/a.jsonl")
    assert "train/a.jsonl:1" in coast("trace", "pages", "--file", "train/a.jsonl", "--row", "1")


def test_a_changed_threshold_runs_no_tagger_and_affects_only_shards_with_another_selection(tmp_path: Path) -> None:
    coast = Coast(tmp_path / "coast")
    write_lines(coast.folder / "data/train/b.jsonl", [record(n, "news", words=40) for n in range(30)])
    coast("run", "pages")
    calls, tags, bins = coast.log.read_text(), coast.made("tags"), coast.made("token_bins")
    coast.declare(drop={"short": "words < 50"})
    said = coast("run", "pages", "--dry-run", code=1)
    assert re.search(r"^rule short (changed|added): .*words < 50", said, re.MULTILINE)
    assert "token_bins_train           1  train-00001" in " ".join(said.split("\n")) or "train-00001" in said
    coast("run", "pages")
    assert coast.log.read_text() == calls
    assert coast.made("tags") == tags
    changed = {name for name, when in coast.made("token_bins").items() if bins[name] != when}
    assert changed == {"train-00001"}
    # A rule with the same meaning in other words and a rule that drops nothing rebuild no stream.
    bins = coast.made("token_bins")
    coast.declare(drop={"short": "not (words >= 50)", "none": "words > 100000"})
    coast("run", "pages")
    assert coast.made("token_bins") == bins


def test_a_new_tagger_and_new_files_are_the_only_ones_that_run(tmp_path: Path) -> None:
    coast = Coast(tmp_path / "coast")
    coast("run", "pages")
    seen = len(coast.log.read_text().splitlines())
    tags = coast.made("tags")
    write_lines(coast.folder / "data/train/d.jsonl", records(301, "books"))
    coast("run", "pages")
    assert len(coast.log.read_text().splitlines()) > seen
    assert {name: when for name, when in coast.made("tags").items() if name in tags} == tags
    calls = coast.log.read_text()
    coast.declare(tag=[*DECLARED["tag"], "repetition"])
    coast("run", "pages")
    # The rebuilt tags reuse the values of the tagger that was declared before. Only its check runs that tagger again,
    # on samples.
    assert sum(map(int, coast.log.read_text()[len(calls) :].split())) <= 4 * 32
    assert "top_2gram" in coast.table().column_names


def test_retract_where_drops_documents_of_a_host_and_reports_it_afterwards(tmp_path: Path) -> None:
    coast = Coast(tmp_path / "coast")
    coast.declare(keep=None)
    coast("run", "pages")
    said = coast("retract", "pages", "--where", "host = 'spam.example' and words > 20")
    assert "found 6" in said
    coast("run", "pages")
    reasons = Counter(row["reason"] for row in coast.table().to_pylist())
    assert reasons["retracted"] == 6
    assert "matched no document" in coast("retract", "pages", "--where", "host = 'spam.example' and kept", code=2)
    assert "pass exactly one of --ids FILE and --where" in coast("retract", "pages", code=2)


def test_drops_above_the_budget_block_before_tokenization(tmp_path: Path) -> None:
    coast = Coast(tmp_path / "coast")
    coast.declare(budget={"per_source": 0.2, "per_rule": {"short": 0.5}})
    assert "Run `dataprep run pages`" in coast("documents", "pages", code=1)
    said = coast("run", "pages", code=1)
    assert_names(said, "6 of 20", "30.0%", "books", "train", "short")
    assert not (coast.root.parent / "artifacts" / "pages" / "token_bins").exists()
    for line in (("documents", "pages"), ("run", "pages", "--dry-run")):
        told = coast(*line, code=int("--dry-run" in line))
        assert_names(told, "`within_budget`", "6 of 20")
    coast.declare(budget={"per_rule": {"short": 0.1}})
    assert_names(coast("documents", "pages"), "short", "10 of 60", "16.7%", "10.0%")
    coast.declare(budget={"per_source": 0.4, "per_rule": {"short": 0.2}})
    assert "not run yet" not in coast("run", "pages"), "what only warned of snapshots before says so still"


# Other invalid results of a tagger are tested in `test_trial.py`, because the trial rejects them.
@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "def quality(documents):\n    if 'Page 3.' in str(documents['text'].to_pylist()): raise KeyError('x')\n"
            "    return {'quality': [1.0] * documents.num_rows}\n",
            "train/a.jsonl: row 3: tagger 'quality' raised KeyError: 'x' (coast/taggers.py:2 in quality)",
        ),
        ("import nothing_like_this\n", "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_a_tagger_that_fails_or_returns_another_type_is_reported_with_its_row(
    tmp_path: Path, source: str, said: str
) -> None:
    coast = Coast(tmp_path / "coast")
    coast.tagger(source)
    assert said in coast("run", "pages", code=2)
    assert not (coast.root.parent / "artifacts" / "pages" / "token_bins").exists()


@pytest.mark.parametrize("level", ["sample", "every_document"])
def test_a_tagger_with_changing_values_gives_a_warning_with_the_row(tmp_path: Path, level: str) -> None:
    coast = Coast(tmp_path / "coast")
    coast.declare(prove={"level": level})
    coast.tagger(
        "import random\ndef quality(documents):\n"
        "    return {'quality': [random.random() for _ in range(documents.num_rows)]}\n"
    )
    assert "rebuild_matches" in coast("run", "pages")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"drop": {"short": "wrds < 3"}}, "drop.short: unknown column 'wrds'; did you mean 'words'?"),
    ({"drop": {"bad_json": "words < 3"}}, "reserved as a drop reason in the ledger. Rename the rule"),
    ({"drop": {"ours": "words < 3"}}, "`keep` has a rule with the same name"),
    ({"tag": ["gophr"]}, "unknown tagger 'gophr'"),
    ({"tag": ["gopher", "gopher"]}, "'gopher' is listed twice. Remove one, or set a different `name`"),
    (
        {"tag": [{"function": "coast.taggers:rows", "columns": {"n": "integer"}}]},
        "'rows' is reserved for the carried fields",
    ),
    (
        {"tag": ["coast.taggers:quality"]},
        "the columns of your own function are missing. Declare them, e.g., `- {function",
    ),
    ({"budget": {"per_rule": {"shrt": 0.1}}}, "budget.per_rule: unknown rule 'shrt"),
    ({"tag": ["gophr"]}, "defs.yaml:24: tag: unknown tagger 'gophr'"),
    ({"drop": {"Short": "words < 20"}}, "drop.Short: invalid value 'Short'"),
    ({"drop": {"short": " "}}, "drop.short: the expression is empty"),
    (
        {"tag": [{"function": "coast.taggers", "columns": {"quality": "number"}}]},
        "defs.yaml:25: tag.0.function: invalid value 'coast.taggers'",
    ),
    (
        {"text_field": {"a": 1}, "storage": {"b": 1}},
        "text_field: must be text, not {'a': 1}",
    ),
    ({"budget": {"per_rule": {"short": 1.5}}}, "budget.per_rule.short: must be at most 1, not 1.5"),
    (
        {"document": {"separator": "<|endoftext|>", "url_field": "url", "keep_fields": {"id": "string"}}},
        "keep_fields: 'id' is already a column of the table",
    ),
    (
        {"document": {"separator": "<|endoftext|>", "url_field": "url", "keep_fields": {"tokens": "integer"}}},
        "keep_fields: 'tokens' is already a column of the table. Remove tokens",
    ),
    (
        {
            "document": {
                "separator": "<|endoftext|>",
                "url_field": "url",
                "keep_fields": {"a.b": "string", "a_b": "string"},
            }
        },
        "keep_fields: two fields would become the column 'a_b'. Remove one",
    ),
    (
        {"tag": [{"function": "coast.taggers:quality", "columns": {"kept": "boolean"}}]},
        "the table already has a column 'kept'. Rename",
    ),
]


def test_impossible_declarations_are_refused_before_anything_runs(tmp_path: Path) -> None:
    coast = Coast(tmp_path / "coast")
    source = {"kind": "local", "path": str(coast.folder / "data")}
    names = [f"wrong_{number}" for number in range(len(WRONG))]
    for name, (changes, _) in zip(names, WRONG, strict=True):
        coast.declare(**{"dataset": name, "source": source, **changes})
        folder = coast.folder.with_name(name)
        folder.mkdir()
        (coast.folder / "defs.yaml").rename(folder / "defs.yaml")
    lines = coast("check", *names, code=2).splitlines()
    for name, (_, said) in zip(names, WRONG, strict=True):
        assert any(f"/{name}/defs.yaml:" in line and said in line for line in lines), (said, lines)


NUMBER = {"quality": "number"}


def test_check_notes_likely_mistakes(coast: Coast) -> None:
    command = {"name": "counts", "command": ["no-such-program", "{input}", "{output}"], "version": "1"}
    try:
        document = {"separator": "<|endoftext|>", "url_field": "link", "keep_fields": {"meta.scor": "number"}}
        tags = [{**command, "columns": {"count": "integer"}}, {"function": "coast.taggers:qualty", "columns": NUMBER}]
        coast.declare(document=document, tag=["gopher", *tags], keep=None)
        said = coast("check", "pages", code=2)
        assert_names(said, "document.url_field", "'link'", "'text', 'url', 'meta'")
        assert_names(said, "document.keep_fields", "'meta.scor'")
        assert_names(said, "tag: counts", "no-such-program")
        assert_names(said, "coast.taggers", "'qualty'", "'quality'")
        assert said.count("has no function 'qualty") == 1, "what is wrong for certain is no note besides"
        assert "1 declaration: 1 error\n" in said
    finally:
        coast.declare()
