"""The page of a dataset shows the same facts as the commands, escapes texts, and changes only with its facts."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.engine.artifact.summary import build_loss_table
from dataprep_assets.engine.privacy import OPEN, Privacy
from dataprep_assets.engine.staleness.decide import Action, Decision
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.site.changes import explain_documents
from dataprep_assets.site.dataset import DatasetFacts, describe_dataset, gather_facts
from dataprep_assets.site.history import CheckRecord, DatasetHistory, read_history
from dataprep_assets.site.pages import PageEnvironment
from dataprep_assets.site.partitions import MAX_CELLS, PartitionGrid, describe_grids
from dataprep_assets.site.states import DatasetState, choose_command, summarize_datasets
from dataprep_assets.site.stored import StoredDataset, link_datasets
from dataprep_assets_tests.engine.building import build_all, dump_declaration, find_sample, redeclare
from dataprep_assets_tests.engine.notices_dataset import NoticesDataset
from dataprep_assets_tests.orchestration.notice_board import NoticeBoard, make_notice_board
from dataprep_assets_tests.site.records import make_history

SCRIPT = "<script>alert(1)</script>"


def built(dataset: Dataset, folder: Path) -> StoredDataset:
    store = LocalArtifacts(folder)
    build_all(dataset.specs, store)
    return StoredDataset(dataset, store)


def state_of(dataset: StoredDataset, **changes: Any) -> DatasetState:
    with dg.DagsterInstance.ephemeral() as instance:
        (state,) = summarize_datasets([dataset], instance)
    return replace(state, **changes)


def render(dataset: StoredDataset, state: DatasetState) -> str:
    page = describe_dataset(dataset, state)
    assert (page.slug, page.title) == ("index", dataset.name)
    return page.render(PageEnvironment(root="../../"))


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> StoredDataset:
    """Return the deduplication sample with rules, and with HTML in its description."""
    sample = find_sample("sample_duplicates")
    changes = {
        "description": f"Pages {SCRIPT}",
        "tag": ["gopher"],
        "keep": {"long_enough": "words >= 60"},
        "drop": {"symbols": "hashes_per_word > 0.1"},
    }
    declaration = {**dump_declaration(sample), **changes}
    assert sample.folder is not None
    declaration["decontaminate"]["sets"]["quiz"]["path"] = str(sample.folder / "quiz.jsonl")
    return built(redeclare(sample, declaration), tmp_path_factory.mktemp("pages"))


@pytest.fixture
def board(tmp_path: Path) -> Iterator[NoticeBoard]:
    with make_notice_board(tmp_path, home=tmp_path / "home") as made:
        made.specs = NoticesDataset(made.declaration).specs
        yield made


def board_page(board: NoticeBoard) -> tuple[DatasetFacts, str]:
    dataset = NoticesDataset(board.declaration)
    board.specs = dataset.specs
    stored = StoredDataset(dataset, board.store)
    (state,) = summarize_datasets([stored], board.instance, {stored.name: read_history(board.instance, stored)})
    return gather_facts(stored, state), render(stored, state)


def test_the_way_from_rows_to_tokens_has_the_counts_of_the_card_and_the_losses(pages: StoredDataset) -> None:
    facts = gather_facts(pages, state_of(pages))
    assert facts.tiles == {"source rows": 93, "dropped": 33, "documents": 60, "tokens": 18_088}
    assert facts.headline == build_loss_table(pages.component, pages.store).headline
    assert facts.funnel is not None
    assert dict(facts.funnel.rows) == {
        "source rows": 93,
        "dropped: duplicate": 26,
        "dropped: long_enough": 4,
        "dropped: benchmark": 3,
        "documents": 60,
    }
    assert facts.parts is not None
    assert facts.parts.header == ("part", "source rows", "duplicate", "long_enough", "benchmark", "kept")
    assert facts.parts.rows == (("train", 79, 26, 4, 3, 46),)
    assert facts.distributions.by_source is not None
    header, rows = facts.distributions.by_source
    assert header == ("source", "documents", "long_enough", "symbols", "benchmark", "duplicate")
    assert rows[-1] == ("all sources", 93, 4, 0, 3, 26)
    assert facts.splits is not None
    assert facts.splits.header == ("split", "source files", "rows", "documents", "tokens")
    assert facts.splits.rows == (("train", 2, 79, 46, 14_205), ("val", 1, 14, 14, 3_883))


def test_distributions_have_the_thresholds_of_the_rules(pages: StoredDataset) -> None:
    distributions = gather_facts(pages, state_of(pages)).distributions
    found = {histogram.chart.header[0]: histogram for histogram in distributions.histograms}
    assert list(found) == ["bytes from", "words from", "hashes_per_word from", "benchmark_overlap from", "tokens from"]
    words = found["words from"]
    assert sum(row[2] for row in words.chart.rows) == 93
    assert words.rules == ("long_enough drops 4 documents (4.3%): not (words >= 60)",)
    assert "long_enough (60)" in words.chart.svg
    assert dict(words.quantiles)["median"] == "178"


def test_a_corpus_without_a_table_shows_the_lengths_of_its_documents(tmp_path: Path) -> None:
    corpus = built(find_sample("sample_corpus"), tmp_path)
    facts = gather_facts(corpus, state_of(corpus))
    (histogram,) = facts.distributions.histograms
    lengths = corpus.component.read_lengths(corpus.store, 1 << 20)
    assert lengths is not None
    assert (len(lengths), int(lengths.sum())) == (facts.tiles["documents"], facts.tiles["tokens"])
    assert sum(row[2] for row in histogram.chart.rows) == len(lengths)
    views = dump_declaration(corpus.component)["views"]
    assert [product.artifact.name for product in facts.products] == [f"{view}_bins" for view in views]
    assert corpus.component.read_lengths(corpus.store, 100) is None
    settings = [f"{name}: {line}" for name, lines in facts.trainers for line in lines]
    assert settings == list(corpus.component.describe_trainers(corpus.store))
    page = render(corpus, state_of(corpus))
    assert "nanogpt_bins/train.bin" in page
    assert "CC0-1.0 OR Apache-2.0" in page


def test_a_mixture_shows_requested_available_and_realized_shares(tmp_path: Path) -> None:
    blend = built(find_sample("sample_blend_pretrain"), tmp_path)
    facts = gather_facts(blend, state_of(blend))
    assert facts.mixture is not None
    assert facts.mixture.header[:5] == ("source", "split", "requested", "available", "realized")
    assert [row[:6] for row in facts.mixture.rows if row[1] == "train"] == [
        ("tales", "train", "75.0%", "75.0%", "75.0%", "+0.00 points"),
        ("recipes", "train", "25.0%", "25.0%", "25.0%", "+0.00 points"),
    ]
    assert facts.shares is not None
    (histogram,) = facts.distributions.histograms
    lengths = blend.component.read_lengths(blend.store, 1 << 20)
    assert lengths is not None
    assert int(lengths.sum()) == facts.tiles["tokens"]
    assert sum(row[2] for row in histogram.chart.rows) == len(lengths)


def test_html_in_texts_is_shown_as_text(pages: StoredDataset) -> None:
    history = DatasetHistory(checks={("selection_train", "within_budget"): (CheckRecord(1e9, False),)})
    page = render(pages, state_of(pages, why=SCRIPT, history=history))
    assert SCRIPT not in page
    assert f"Pages {escape(SCRIPT)}" in page


def test_texts_of_the_card_have_no_pictures_and_no_open_colon(pages: StoredDataset) -> None:
    (section,) = (section for section in gather_facts(pages, state_of(pages)).sections if section.title == "Duplicates")
    assert section.text.endswith(".")
    assert "![" not in section.text


class _Elements(HTMLParser):
    """Collects the elements and attributes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_a_page_has_no_inline_script_and_no_address_in_the_network(pages: StoredDataset) -> None:
    parser = _Elements()
    parser.feed(render(pages, state_of(pages)))
    for tag, attributes in parser.found:
        assert tag not in ("style", "iframe")
        assert tag != "script" or attributes["src"] == "../../static/site.js"
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (tag, attributes)
        assert not (attributes.get("href") or attributes.get("src") or "").startswith(("http", "//")), attributes
    headings = [tag for tag, _ in parser.found if tag in ("h1", "h2", "h3")]
    assert headings[0] == "h1"
    assert headings.count("h1") == 1
    assert all(attributes.get("scope") for tag, attributes in parser.found if tag == "th")


def test_a_failed_check_is_shown_with_its_sentence_its_command_and_its_history(board: NoticeBoard) -> None:
    board.materialize()
    board.say("n-1", "")
    board.materialize()
    facts, page = board_page(board)
    (row,) = facts.failing
    assert (row.artifact, row.name, row.outcome) == ("notices", "has_words", "failed, blocking")
    assert row.sentence == "0 words"
    assert row.details is not None
    assert [dict(zip(row.details.header, cells, strict=True)) for cells in row.details.rows] == [
        {"notice": "n-1", "finding": "0 words"}
    ]
    styles = [style for _, _, style in row.results]
    assert (styles[0], styles[-1]) == ("good", "bad")
    assert row.command == "dataprep show notices"
    assert facts.reasons[0] == "notices/board: its input changed: notices/n-1", "failed checks have their own section"
    (grid,) = facts.grids
    assert [(cell.partition, cell.style) for cell in grid.cells] == [("n-0", "good"), ("n-1", "bad"), ("n-2", "good")]
    assert grid.cells[1].title == "n-1: notices failed check"
    assert grid.pending[0][:3] == ("n-1", "notices", "failed check")
    assert (facts.state.level, facts.style, facts.state.has_failed_run) == ("failed", "bad", True)
    assert f'class="state {facts.style}">{facts.state.level}<' in page
    assert facts.state.check_counts.startswith("1 failed")
    assert "resumes it" not in page, "it would fail again"
    assert "fail again" in page


def test_a_dataset_that_was_never_built_says_how_to_build_it(board: NoticeBoard) -> None:
    facts, page = board_page(board)
    assert (facts.state.level, facts.checks, facts.grids) == ("never built", {}, ())
    assert f"dataprep run {facts.dataset.name}<" in page


def test_an_out_of_date_partition_is_listed_with_its_reason(board: NoticeBoard) -> None:
    board.materialize()
    board.say("n-2", "another text")
    facts, _ = board_page(board)
    assert facts.reasons[0].startswith("notices/notices/n-2: ")
    (grid,) = facts.grids
    assert [cell.style for cell in grid.cells] == ["good", "good", "warn"]


def test_earlier_builds_are_drawn_and_listed(pages: StoredDataset) -> None:
    history = make_history(365)
    facts = gather_facts(pages, state_of(pages, history=history))
    assert [chart.title for chart in facts.trends] == [
        "documents after each build",
        "tokens after each build",
        "share of source rows dropped by each build",
    ]
    assert [len(chart.rows) for chart in facts.trends] == [365, 365, 365]
    before, last = history.builds[-2:]
    assert facts.changes is not None
    assert facts.previous_build == before.time
    assert [row[0] for row in facts.changes.rows[:4]] == ["source rows", "documents", "tokens", "dropped rows"]
    assert isinstance(before.documents, int)
    assert isinstance(last.documents, int)
    added = last.documents - before.documents
    assert facts.changes.rows[1] == ("documents", before.documents, last.documents, f"{added:+,}")
    assert ("rows dropped: symbols", 50, 50, "0") in facts.changes.rows
    assert facts.explanation == explain_documents(history)
    private = gather_facts(pages, state_of(pages, history=replace(history, is_private=True)))
    assert (private.changes, private.trends) == (None, ())
    assert facts.builds is not None
    assert facts.builds.rows[0][1] == history.builds[-1].documents
    started = time.process_time()
    render(pages, state_of(pages, history=history))
    assert time.process_time() - started < 5


def test_the_digest_changes_only_with_the_facts(pages: StoredDataset, tmp_path: Path) -> None:
    state = state_of(pages)
    digest = describe_dataset(pages, state).digest
    again = StoredDataset(pages.component, pages.store)
    assert describe_dataset(again, state_of(again)).digest == digest
    assert describe_dataset(replace(pages, dependents=("other",)), state).digest != digest
    assert describe_dataset(pages, replace(state, history=make_history(2))).digest != digest
    other = redeclare(pages.component, {**dump_declaration(pages.component), "owners": ["team:other"]})
    assert describe_dataset(StoredDataset(other, pages.store), state).digest != digest


def test_links_lead_to_the_datasets_before_and_after(tmp_path: Path) -> None:
    store = LocalArtifacts(tmp_path)
    corpus, schedule = link_datasets(
        StoredDataset(find_sample(name), store) for name in ("sample_schedule", "sample_corpus")
    )
    assert '<a href="../sample_schedule/index.html">' in render(corpus, state_of(corpus))
    assert '<a href="../sample_corpus/index.html">' in render(schedule, state_of(schedule))


def grid_of(pages: StoredDataset, number: int, privacy: Privacy = OPEN) -> PartitionGrid:
    """Return the grid of an artifact with many partitions; every hundredth is missing."""
    spec = pages.component.spec("token_bins", "train")
    decisions = [
        Decision(
            action=Action.KEEP if at % 100 else Action.BUILD,
            kind="" if at % 100 else "missing",
            reason="missing",
            name=f"d/token_bins/train-{at:05}",
            spec=spec,
            partition=f"train-{at:05}",
        )
        for at in range(number)
    ]
    (grid,) = describe_grids(pages.specs, decisions, privacy)
    return grid


def test_two_thousand_partitions_are_one_grid(pages: StoredDataset) -> None:
    grid = grid_of(pages, MAX_CELLS)
    assert grid_of(pages, 1).number == "1 shard"
    assert (grid.number, len(grid.cells), grid.counts["token_bins_train"]) == (
        "2,000 shards",
        2_000,
        ("1,980", "0", "0", "20", "0"),
    )
    assert len(grid.pending) == 20
    assert grid_of(pages, MAX_CELLS + 1).cells == ()


def test_counts_of_partitions_of_a_sensitive_dataset_are_rounded(pages: StoredDataset) -> None:
    grid = grid_of(pages, 5, Privacy(closed=True, dataset="d"))
    assert (grid.number, grid.counts["token_bins_train"]) == ("< 11 shards", ("< 11", "0", "0", "< 11", "0"))
    assert [row[3] for row in grid.pending] == [""], "reasons may contain values"


def test_the_command_that_a_sentence_names_is_chosen() -> None:
    assert choose_command("d", "too much. Run `dataprep documents d`, and correct the rule") == "dataprep documents d"
    assert choose_command("d", "3 documents differ") == "dataprep show d"


def test_a_page_is_made_within_half_a_second_of_cpu(pages: StoredDataset) -> None:
    render(pages, state_of(pages))  # load templates and readers, as for the first page of a site
    fresh = StoredDataset(pages.component, pages.store)
    state = state_of(fresh)
    started = time.process_time()
    page = render(fresh, state)
    assert time.process_time() - started < 2, "0.3 s on an idle machine"
    assert len(re.findall("<table", page)) > 10
