"""Documents of the web in a corpus: lists of URLs, licenses, and rules by source."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from dataprep_assets.curation.table import CarriedValueError
from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.pipelines.corpus.curation.corpus_documents import CorpusDocuments
from dataprep_assets.pipelines.corpus.curation.tags import plan_tagged_shards
from dataprep_assets.pipelines.corpus.remarks import find_corpus_remarks
from dataprep_assets.pipelines.corpus.source.manifest import load_manifest
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.corpus.selected import Selected

PAGES: dict[str, list[Any]] = {
    "train/web/a.jsonl": [
        {"text": "one two three", "url": "https://www.bad.com/1", "license": "CC-BY-4.0"},
        {"text": "four five six", "url": "http://good.com/2", "license": " Unknown "},
        {"text": "seven eight nine", "license": ""},
    ],
    "train/forums/b.jsonl": [{"text": "ten eleven twelve", "url": "not a url", "license": "cc-by-4.0"}],
}
DOCUMENT = {"separator": "<|endoftext|>", "keep_fields": {"url": "string"}, "license_field": "license"}


def make_pages(folder: Path, **declared: Any) -> Selected:
    """Return a corpus whose URLs are looked up in a list."""
    lists = {"tag": [{"url_lists": {"lists": {"blocked": "lists/*.txt"}}}], "drop": {"blocked": "blocked"}}
    settings = {"document": DOCUMENT, "shards": {"count": 1}, "duplicates": {"kind": "exact"}}
    pages = Selected(folder, **{**lists, **settings, **declared})
    pages.write(PAGES)
    (folder / "lists").mkdir()
    (folder / "lists" / "adult.txt").write_text("bad.com  # a comment\n")
    return pages


def read_tags(pages: Selected, file: str, column: str) -> list[Any]:
    (path,) = pages.store.directory(pages.corpus.artifact("tags")).glob(f"*/{file}")
    values: list[Any] = pq.read_table(path)[column].to_pylist()
    return values


def find_dropped(pages: Selected) -> set[tuple[str, int, str]]:
    return {(row["file"].rpartition("/")[2], row["row"], row["reason"]) for row in pages.dropped()}


def test_a_rule_drops_the_documents_on_a_list_and_keeps_those_without_a_url(tmp_path: Path) -> None:
    pages = make_pages(tmp_path)
    pages.build()
    assert sorted(read_tags(pages, "url_lists.parquet", "blocked"), key=str) == [False, None, None, True]
    assert find_dropped(pages) == {("a.jsonl", 1, "blocked")}


def test_a_changed_list_looks_up_the_urls_again(tmp_path: Path) -> None:
    pages = make_pages(tmp_path)
    pages.build()
    assert pages.build() == []
    (tmp_path / "lists" / "fraud.txt").write_text("good.com/2\n")
    assert {name.partition("/")[0] for name in pages.build()} == {"tags", "duplicates", "selection"}
    assert find_dropped(pages) == {("a.jsonl", 1, "blocked"), ("a.jsonl", 2, "blocked")}


def test_a_license_is_in_lower_case_and_null_if_it_is_unknown(tmp_path: Path) -> None:
    pages = make_pages(tmp_path, keep={"licensed": "license in ['cc-by-4.0']"})
    pages.build()
    assert sorted(read_tags(pages, "rows.parquet", "license"), key=str) == [None, None, "cc-by-4.0", "cc-by-4.0"]
    assert {(row, reason) for file, row, reason in find_dropped(pages) if file == "a.jsonl"} == {
        (1, "blocked"),
        (2, "licensed"),
        (3, "licensed"),
    }


def check_values(pages: Selected) -> Finding:
    return pages.findings("tags", "train")["values_known"]


def test_documents_without_a_value_are_counted_by_source(tmp_path: Path) -> None:
    pages = make_pages(tmp_path)
    pages.build()
    finding = check_values(pages)
    assert not finding.passed
    assert finding.warning
    assert finding.facts == {"documents": 4, "without_license": 2, "without_blocked": 2, "defects": 1}
    assert_names(finding.summary, "2 (50.0%)", "train/web 2", "license, blocked", "train/forums 1")
    assert {(row["column"], row["source"], row["documents_without_value"]) for row in finding.table} == {
        ("license", "train/web", 2),
        ("blocked", "train/web", 1),
        ("blocked", "train/forums", 1),
    }


def test_the_check_of_values_passes_if_every_document_has_them(tmp_path: Path) -> None:
    pages = make_pages(tmp_path)
    complete = [{"text": f"text {number}", "url": "a.com", "license": "cc0-1.0"} for number in range(3)]
    pages.write(dict.fromkeys(PAGES, complete))
    pages.build()
    assert check_values(pages).passed


def test_a_corpus_without_such_columns_has_no_check_of_values(tmp_path: Path) -> None:
    pages = make_pages(tmp_path, tag=["gopher"], drop={}, document={"separator": "<|endoftext|>"})
    pages.build()
    assert "values_known" not in pages.findings("tags", "train")
    (shard,) = plan_tagged_shards(pages.corpus, pages.store, load_manifest(pages.corpus, pages.store), ["train-00000"])
    receipt = pages.store.receipt(shard.artifact)
    assert receipt is not None
    assert "missing" not in receipt.facts


def test_a_license_that_is_no_text_is_refused_with_its_row(tmp_path: Path) -> None:
    pages = make_pages(tmp_path)
    pages.write({"train/web/a.jsonl": [{"text": "one", "license": ["mit"]}]})
    with raises(CarriedValueError, "a.jsonl", "row 1", "license_field"):
        pages.build()


def test_rules_by_source_drop_and_show_documents_by_source(tmp_path: Path) -> None:
    by_source = {"default": "characters < 14", "train/forums": "characters > 16"}
    pages = make_pages(tmp_path, drop={"size": by_source})
    pages.build()
    assert find_dropped(pages) == {("a.jsonl", 1, "size"), ("a.jsonl", 2, "size"), ("b.jsonl", 1, "size")}
    assert pages.findings("selection", "train")["rule_sources_exist"].passed
    drops = CorpusDocuments(pages.corpus, pages.store).drops()
    assert drops is not None
    rule = drops.rules[0]
    assert rule.by_source == {"train/web": 2, "train/forums": 1}
    for text in (*by_source.values(), "source == 'train/forums'", "source not in ['train/forums']"):
        assert text in rule.drops


def test_a_source_that_no_document_has_is_an_error_before_and_after_the_build(tmp_path: Path) -> None:
    pages = make_pages(tmp_path, keep={"long": {"train/forum": "characters > 3"}})
    (remark,) = [remark for remark in find_corpus_remarks(pages.corpus) if remark.keys[0] == "keep"]
    assert remark.keys == ("keep", "long", "train/forum")
    assert not remark.hint
    assert_names(remark.sentence, "'train/forum'", "'train/forums'")
    pages.build()
    finding = pages.findings("selection", "train")["rule_sources_exist"]
    assert not finding.passed
    assert not finding.warning
    assert_names(finding.summary, "keep.long", "'train/forum'", "'train/forums'")


def test_a_source_may_be_in_a_split_that_is_not_selected_yet(tmp_path: Path) -> None:
    splits = {"train": ["train/**"], "val": ["val/**"]}
    pages = make_pages(tmp_path, splits=splits, drop={"short": {"val/x": "characters < 3"}})
    pages.write({"val/x/c.jsonl": [{"text": "thirteen"}]})
    pages.build()
    for split in splits:
        assert pages.findings("selection", split)["rule_sources_exist"].passed
    pages.store.remove(pages.corpus.artifact("selection", "val-00000"))
    assert pages.findings("selection", "train")["rule_sources_exist"].passed


def test_plain_rules_have_no_check_of_sources(tmp_path: Path) -> None:
    pages = make_pages(tmp_path)
    pages.build()
    assert "rule_sources_exist" not in pages.findings("selection", "train")
