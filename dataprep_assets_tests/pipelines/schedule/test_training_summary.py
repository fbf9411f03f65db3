"""The European summary of training content: its numbers are recomputed from the spans of every step, token by token."""

import json
import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.errors import ConfigError
from dataprep_assets.formats.document_index import ENDS
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.schedule import training_summary
from dataprep_assets.pipelines.schedule.declaration import ScheduleDeclaration
from dataprep_assets.pipelines.schedule.schedule_artifact import (
    load_current_schedule,
    revise_schedule,
    write_revisions,
)
from dataprep_assets.pipelines.schedule.summary_counts import (
    NO_VALUE,
    NOT_RECORDED,
    ReadCounts,
    ScheduleReads,
    SourceReads,
)
from dataprep_assets.pipelines.schedule.summary_declaration import SourceKind, TrainingSummaryDeclaration
from dataprep_assets.pipelines.schedule.summary_fields import (
    NOT_APPLICABLE,
    NOT_DECLARED,
    SECTION_TITLES,
    ComputedAnswers,
    choose_range,
    find_large_sources,
    find_missing_answers,
)
from dataprep_assets.pipelines.schedule.training_summary import DATA, PAGE, SUMMARY_CHECKS, TRAINING_SUMMARY
from dataprep_assets.serving.sampler.training_data import TrainingData
from dataprep_assets_tests.engine.building import build_all, build_source, dump_declaration, find_sample, redeclare
from dataprep_assets_tests.engine.found import run_checks
from dataprep_assets_tests.faults.edits import flip_byte
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.tools.drill.box import reseal

SCHEDULE, PAGES = "sample_schedule", "sample_duplicates"
SECTIONS = ["0", "1.1", "1.2", "1.3", "2.1", "2.2.1", "2.2.2", "2.2", "2.3", "2.4", "2.5", "2.6", "3.1", "3.2", "3.3"]
Counts = dict[str, int]


def schedule_pages(**changes: Any) -> Dataset:
    """Return the sample schedule over pages with URLs and languages, of which those in train were crawled."""
    value = dump_declaration(find_sample(SCHEDULE))
    value |= {
        "megatron": None,
        "steps": 90,
        "sources": [
            {"dataset": PAGES, "split": "train", "name": "web", "weight": 2},
            {"dataset": PAGES, "split": "val", "name": "held", "weight": 1},
        ],
    }
    value["training_summary"] |= {
        "sources": {"web": {"kind": "crawled"}, "held": {"kind": "public", "link": "https://example.org/held"}},
        "crawlers": [
            {
                "name": "ExampleBot", "purpose": "text", "behavior": "obeys robots.txt",
                "collected_from": "01/2025", "collected_until": "02/2025",
            }
        ],
        "crawled_content": "pages", "other_datasets": "none", "small_provider": False,
    } | changes  # fmt: skip
    return redeclare(find_sample(SCHEDULE), value)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> LocalArtifacts:
    """Return a store with the sample schedule, and the pages."""
    store = LocalArtifacts(tmp_path_factory.mktemp("summary"))
    build_source(SCHEDULE, store)
    build_all(tag_pages().specs, store)
    return store


def tag_pages(**changes: Any) -> Dataset:
    """Return the pages with their languages."""
    pages = find_sample(PAGES)
    # Remove `decontaminate`, because its file is next to the sample's YAML.
    value = dump_declaration(pages) | {"tag": ["language"], "decontaminate": None, "budget": {}} | changes
    return redeclare(pages, value)


def build_pages(store: LocalArtifacts, folder: Path, **changes: Any) -> tuple[Dataset, LocalArtifacts]:
    """Return a schedule of the pages that is built in its own folder, whose sources are links to those of the store."""
    own = LocalArtifacts(folder / "artifacts")
    own.root.mkdir(parents=True)
    (own.root / PAGES).symlink_to(store.root / PAGES)
    dataset = schedule_pages(**changes)
    build_all(dataset.specs, own)
    return dataset, own


def read_summary(store: LocalArtifacts) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((store.root / SCHEDULE / TRAINING_SUMMARY / DATA).read_bytes())
    return value


def find_answers(value: dict[str, Any]) -> dict[str, str]:
    return {field["name"]: field["answer"] for field in value["fields"]}


def recount(store: LocalArtifacts, steps: int) -> dict[tuple[str, str], Counts]:
    """Count each token that a span of a step covers; return (column, label) → counts."""
    data = TrainingData(store, SCHEDULE)
    reads: dict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
    for step in range(steps):
        sources = data.sampler.find_rule(step).revision.sources
        spans = data.sampler.find_step_spans(step, data.sampler.find_positions(step, 0, 1))
        for _, number, _, shard, start, stop in zip(*(column.tolist() for column in spans), strict=True):
            source, part = sources[number], sources[number].shards[shard]
            by_source = reads[source.dataset, part.name]
            by_source.setdefault(source.name, np.zeros(part.tokens, np.int64))[start:stop] += 1
    counts: dict[tuple[str, str], Counts] = defaultdict(lambda: {"tokens": 0, "distinct_tokens": 0, "documents": 0})
    for (dataset, shard), by_source in reads.items():
        folder = store.root / dataset
        ends = np.fromfile(folder / "token_bins" / shard / ENDS, "<u8").astype(np.int64)
        table = folder / "documents" / shard / "documents.parquet"
        rows = [row for row in pq.read_table(table).to_pylist() if row["kept"]] if table.exists() else [{}] * len(ends)
        assert len(rows) == len(ends)
        for row, start, stop in zip(rows, [0, *ends[:-1].tolist()], ends.tolist(), strict=True):
            labels = {name: (row[name] or NO_VALUE) if name in row else NOT_RECORDED for name in ("host", "language")}
            own = {source: tokens[start:stop] for source, tokens in by_source.items()}
            keys = {
                ("total", ""): sum(own.values()),
                ("language", labels["language"]): sum(own.values()),
                **{("source", source): tokens for source, tokens in own.items()},
                **{(f"host of {source}", labels["host"]): tokens for source, tokens in own.items()},
            }
            for key, tokens in keys.items():
                if np.any(tokens):
                    counts[key]["tokens"] += int(tokens.sum())
                    counts[key]["distinct_tokens"] += int((tokens > 0).sum())
                    counts[key]["documents"] += 1
    return dict(counts)


def select(counts: dict[tuple[str, str], Counts], column: str) -> dict[str, Counts]:
    return {label: own for (name, label), own in counts.items() if name == column}


def read_rows(value: dict[str, Any], table: str, column: str) -> dict[str, Counts]:
    return {
        row[column]: {name: row[name] for name in ("tokens", "distinct_tokens", "documents")}
        for row in value["counts"][table]
    }


def test_the_numbers_of_the_sample_schedule_are_those_of_its_spans(store: LocalArtifacts) -> None:
    value, counts = read_summary(store), recount(store, 400)
    assert value["counts"]["total"] == counts["total", ""]
    assert read_rows(value, "sources", "source") == select(counts, "source")
    assert (
        read_rows(value, "languages", "language") == select(counts, "language") == {NOT_RECORDED: counts["total", ""]}
    )
    assert value["counts"]["domains"] == []
    assert value["missing"] == []
    assert_names(find_answers(value)["Training data size"], "Less than 1 billion tokens", *counts["total", ""].values())


def test_the_numbers_of_crawled_pages_are_those_of_their_spans(store: LocalArtifacts, tmp_path: Path) -> None:
    _, own = build_pages(store, tmp_path)
    value, counts = read_summary(own), recount(own, 90)
    assert value["counts"]["total"] == counts["total", ""]
    assert counts["total", ""]["tokens"] > counts["total", ""]["distinct_tokens"]
    assert read_rows(value, "sources", "source") == select(counts, "source")
    assert read_rows(value, "languages", "language") == select(counts, "language")
    assert "en" in select(counts, "language")
    hosts = select(counts, "host of web")
    ranked = sorted(hosts, key=lambda host: (-hosts[host]["distinct_tokens"], host))
    listed = ranked[: -(-len(ranked) // 10)]
    assert read_rows(value, "domains", "domain") == {host: hosts[host] for host in listed}
    assert list(read_rows(value, "domains", "domain")) == listed
    assert value["counts"]["domain_count"] == len(hosts) > 20
    answers = find_answers(value)
    assert_names(answers["Summary of the most relevant domain names crawled"], len(listed), len(hosts), *listed)
    assert_names(answers["List of large publicly available datasets"], "https://example.org/held")
    assert_names(answers["Period of data collection"], "ExampleBot", "01/2025", "02/2025")
    page = (own.root / SCHEDULE / TRAINING_SUMMARY / PAGE).read_text()
    assert_names(page, *listed, counts["total", ""]["distinct_tokens"])


@pytest.mark.parametrize("sensitive", [False, True])
def test_crawled_tokens_without_a_known_domain_are_counted_per_source(
    store: LocalArtifacts, tmp_path: Path, sensitive: bool
) -> None:
    # The sample corpus has no URLs, so none of its tokens has a known domain.
    value = dump_declaration(find_sample(SCHEDULE)) | {"megatron": None, "steps": 30, "sensitive": sensitive}
    value["sources"] = [
        {"dataset": PAGES, "split": "train", "name": "web", "weight": 1},
        {"dataset": "sample_corpus", "split": "train", "name": "books", "weight": 1},
        {"dataset": "sample_corpus", "split": "val", "name": "held", "weight": 1},
    ]
    value["training_summary"] |= {
        "sources": {"web": {"kind": "crawled"}, "books": {"kind": "crawled"}, "held": {"kind": "other"}},
    }
    dataset, own = redeclare(find_sample(SCHEDULE), value), LocalArtifacts(tmp_path / "artifacts")
    own.root.mkdir(parents=True)
    for name in (PAGES, "sample_corpus"):
        (own.root / name).symlink_to(store.root / name)
    build_all(dataset.specs, own)
    summary = read_summary(own)
    sizes = read_rows(summary, "sources", "source")
    assert read_rows(summary, "unknown_domains", "source") == {"books": sizes["books"]}
    books = sizes["books"]["distinct_tokens"]
    finding = run_checks(dataset.spec(TRAINING_SUMMARY), own)["domains_known"]
    assert (finding.passed, finding.warning) == (False, True)
    assert_names(finding.summary, "books", "document.url_field", books)
    answer = find_answers(summary)["Summary of the most relevant domain names crawled"]
    if not sensitive:
        assert_names(answer, "without a known domain", f"books {books:,}")
    assert "held" not in answer + finding.summary


def test_only_the_trained_steps_are_counted(store: LocalArtifacts, tmp_path: Path) -> None:
    _, own = build_pages(store, tmp_path, steps=7)
    value, counts = read_summary(own), recount(own, 7)
    assert value["counts"]["total"] == counts["total", ""]
    assert value["schedule"]["steps"] == 7
    assert all("step < 7" in query["filter"] for query in value["queries"].values())


def test_more_trained_steps_than_the_schedule_has_are_refused(store: LocalArtifacts, tmp_path: Path) -> None:
    with raises(ValidationError, "training_summary.steps", 90, 91):
        schedule_pages(steps=91)
    # Without `steps` in the declaration, the number of steps is known only after the build of the schedule.
    value = dump_declaration(schedule_pages()) | {"steps": None, "tokens": 90 * 8 * 64}
    value["training_summary"]["steps"] = 91
    own = LocalArtifacts(tmp_path / "artifacts")
    own.root.mkdir(parents=True)
    (own.root / PAGES).symlink_to(store.root / PAGES)
    with raises(ConfigError, "training_summary.steps", 90, 91):
        build_all(redeclare(find_sample(SCHEDULE), value).specs, own)


def test_documents_that_were_removed_later_keep_their_domains_and_languages(
    store: LocalArtifacts, tmp_path: Path
) -> None:
    dataset, own = schedule_pages(), LocalArtifacts(tmp_path / "artifacts")
    shutil.copytree(store.root / PAGES, own.root / PAGES)
    build_all(dataset.specs, own)
    before = read_summary(own)
    row = next(
        row
        for row in pq.read_table(next((own.root / PAGES / "documents").glob("train-*/documents.parquet"))).to_pylist()
        if row["kept"]
    )
    (tmp_path / "ids").write_text(f"{row['file']}:{row['row']}\n")
    pages = tag_pages(retractions=str(tmp_path / "retracted.jsonl"))
    pages.retract(own, tmp_path / "ids")
    assert "token_bins/train-00000" in build_all(pages.specs, own)
    assert build_all(dataset.specs, own) == [TRAINING_SUMMARY]
    assert read_summary(own)["counts"] == before["counts"]


def test_packed_documents_are_counted(store: LocalArtifacts, tmp_path: Path) -> None:
    value = dump_declaration(schedule_pages()) | {"samples": "documents"}
    dataset, own = redeclare(find_sample(SCHEDULE), value), LocalArtifacts(tmp_path / "artifacts")
    own.root.mkdir(parents=True)
    (own.root / PAGES).symlink_to(store.root / PAGES)
    build_all(dataset.specs, own)
    summary, counts = read_summary(own), recount(own, 90)
    assert summary["counts"]["total"] == counts["total", ""]
    assert read_rows(summary, "languages", "language") == select(counts, "language")
    assert all(finding.passed for finding in run_checks(dataset.spec(TRAINING_SUMMARY), own).values())


def test_tokens_of_a_renamed_source_count_once_in_all(store: LocalArtifacts, tmp_path: Path) -> None:
    sources = [
        {"dataset": PAGES, "split": "train", "name": "web", "weight": 2},
        {"dataset": PAGES, "split": "val", "name": "held", "weight": 1},
    ]
    value = dump_declaration(schedule_pages()) | {"sources": sources, "revisions": str(tmp_path / "revisions.json")}
    own = LocalArtifacts(tmp_path / "artifacts")
    own.root.mkdir(parents=True)
    (own.root / PAGES).symlink_to(store.root / PAGES)
    dataset = redeclare(find_sample(SCHEDULE), value | {"steps": 20})
    build_all(dataset.specs, own)
    # From step 9 on, the source has another name, so it is read from its beginning again.
    renamed = redeclare(dataset, value | {"sources": [sources[0] | {"name": "later"}, sources[1]], "steps": 20})
    declaration: Any = renamed.declaration
    present = load_current_schedule(declaration, own)
    write_revisions(declaration, revise_schedule(declaration, own, present, from_step=9))
    build_all(renamed.specs, own)
    summary, counts = read_summary(own), recount(own, 20)
    assert {*select(counts, "source")} == {"web", "later", "held"}
    total = counts["total", ""]
    assert total["distinct_tokens"] < sum(one["distinct_tokens"] for one in select(counts, "source").values())
    assert summary["counts"]["total"] == total
    assert read_rows(summary, "sources", "source") == select(counts, "source")
    assert read_rows(summary, "languages", "language") == select(counts, "language")


def test_every_number_has_the_query_that_computes_it(store: LocalArtifacts, tmp_path: Path) -> None:
    _, own = build_pages(store, tmp_path)
    value = read_summary(own)
    for name in ("total", "sources", "languages", "domains"):
        query = value["queries"][name]
        assert query["artifacts"][0] == f"{SCHEDULE}/schedule"
        assert all((own.root / artifact).is_dir() for artifact in query["artifacts"])
        module, _, function = query["function"].rpartition(".")
        assert hasattr(__import__(module, fromlist=[function]), function)
    assert {field["query"] for field in value["fields"]} - {""} == set(value["queries"])


def test_each_field_of_the_template_has_an_origin_and_an_answer(store: LocalArtifacts) -> None:
    fields = read_summary(store)["fields"]
    assert list(dict.fromkeys(field["section"] for field in fields)) == SECTIONS
    assert {field["origin"] for field in fields} == {"declared", "derived", "computed", "not declared"}
    for field in fields:
        assert field["answer"]
        is_key_named = field["origin"] in ("declared", "not declared")
        assert field["key"] if is_key_named else field["query"] or field["origin"] == "derived"


def test_the_fields_ask_for_every_key_if_the_schedule_reads_every_kind_of_source() -> None:
    sources = {kind: {"kind": kind} for kind in get_args(SourceKind)}
    summary = TrainingSummaryDeclaration.model_validate({"sources": sources})
    fields = list_fields(summary, list(sources), ComputedAnswers())
    keys = {field.key.removeprefix("training_summary.").partition(".")[0] for field in fields} - {""}
    assert keys == {*TrainingSummaryDeclaration.model_fields} - {"steps"}


def test_an_answer_that_is_not_declared_does_not_count_as_declared(store: LocalArtifacts, tmp_path: Path) -> None:
    _, own = build_pages(store, tmp_path, provider=None, comments={"2.1": "A comment."})
    fields = {(field["section"], field["name"]): field for field in read_summary(own)["fields"]}
    user_names = [
        "Data from user interactions with the AI model",
        "Data from user interactions with other services",
        "General description of the services or products",
    ]
    user_fields = [fields["2.4", name] for name in user_names]
    assert [field["answer"] for field in user_fields] == ["No", "No", NOT_APPLICABLE]
    assert {(field["origin"], field["key"]) for field in user_fields} == {("derived", "training_summary.sources")}
    assert fields["1.1", "Provider name and contact details"]["origin"] == "not declared"
    comments = {section: fields[section, "Additional comments (optional)"] for section in ("2.1", "2.3")}
    assert [(comments[section]["origin"], comments[section]["answer"]) for section in comments] == [
        ("declared", "A comment."),
        ("not declared", "none"),
    ]


def read_page(store: LocalArtifacts) -> tuple[str, str]:
    """Return the summary and the annex of the page."""
    page = (store.root / SCHEDULE / TRAINING_SUMMARY / PAGE).read_text()
    summary, heading, annex = page.partition("## Annex: How the answers were obtained")
    assert heading
    return summary, annex


def test_the_page_has_the_sections_of_the_template_before_an_annex(store: LocalArtifacts, tmp_path: Path) -> None:
    long_text, comment = "robots.txt is respected. " * 20, "First line.\nSecond line."
    _, own = build_pages(store, tmp_path, opt_out=long_text, comments={"2.2": comment}, steps=7)
    value, (summary, annex) = read_summary(own), read_page(own)
    headings = [line for line in summary.splitlines() if line.startswith("##")]
    assert [heading.lstrip("# ") for heading in headings] == [
        f"{number} {title}".removeprefix("0 ") for number, title in SECTION_TITLES.items()
    ]
    assert {heading for heading in headings if heading.startswith("####")} == {
        f"#### {number} {SECTION_TITLES[number]}" for number in ("2.2.1", "2.2.2")
    }
    for field in value["fields"]:
        is_shown = field["origin"] != "not declared" and field["key"] != "training_summary.comments.2.2"
        texts = (f"| {field['name']} | {field['answer']} |", f"**{field['name']}**\n\n{field['answer']}\n")
        assert any(text in summary for text in texts) == is_shown
    assert f" of rights**\n\n{long_text}\n" in summary
    assert f" section 2.2**\n\n{comment}\n" in summary
    assert summary.count("Additional comments") == 1
    assert summary.rstrip().endswith("### 3.3 Other information\n\nNone.")
    internal = ("training_summary.", "dataprep_assets", "computed", "declared", value["schedule"]["digest"])
    assert [word for word in internal if word in summary] == []
    for text in (summary, annex):
        assert_names(text, "7 of 90 steps", f"`{SCHEDULE}`")
    assert (value["schedule"]["steps"], value["schedule"]["steps_in_schedule"]) == (7, 90)


def test_the_annex_has_the_origin_of_each_answer_and_the_queries(store: LocalArtifacts, tmp_path: Path) -> None:
    _, own = build_pages(store, tmp_path, provider=None)
    value, (summary, annex) = read_summary(own), read_page(own)
    for field in value["fields"]:
        key = field["key"] and f"`{field['key']}`"
        row = f"| {field['section']} | {field['name']} | {field['origin']} | {key} | {field['query']} |"
        assert row in annex.splitlines()
    for name, query in value["queries"].items():
        assert f"| {name} | {', '.join(query['artifacts'])} | {', '.join(query['columns'])} |" in annex
        assert query["function"] in annex
    for table in ("sources", "languages", "domains"):
        for row in value["counts"][table]:
            assert f"| {' | '.join(f'{cell:,}' if isinstance(cell, int) else cell for cell in row.values())} |" in annex
    assert_names(annex, value["schedule"]["digest"], "steps 0 to 89", "other training phases", "post-training")
    assert "- `training_summary.provider`" in annex.splitlines()
    for text in (summary, annex):
        assert_names(text, "all 90 steps", "not registered domains")


def test_missing_answers_are_listed_by_key(store: LocalArtifacts, tmp_path: Path) -> None:
    dataset, own = build_pages(
        store,
        tmp_path,
        provider=None,
        models=[],
        crawlers=[],
        small_provider=None,
        sources={"web": {"kind": "crawled"}},
    )
    keys = [f"training_summary.{key}" for key in ("provider", "models", "sources.held", "crawlers", "small_provider")]
    value = read_summary(own)
    assert value["missing"] == keys
    remarks = list(dataset.remarks())
    assert [".".join(map(str, remark.keys)) for remark in remarks] == keys
    assert all(remark.hint and key in remark.sentence for remark, key in zip(remarks, keys, strict=True))
    answers = find_answers(value)
    assert (
        answers["Provider name and contact details"] == answers["Publicly available datasets used to train the model"]
    )
    assert answers["Provider name and contact details"] == NOT_DECLARED
    finding = run_checks(dataset.spec(TRAINING_SUMMARY), own)["answers_complete"]
    assert (finding.passed, finding.warning) == (False, True)


def test_answers_about_sources_of_earlier_revisions_are_asked_for(store: LocalArtifacts, tmp_path: Path) -> None:
    dataset, own = build_pages(store, tmp_path)
    assert not [remark for remark in dataset.pending(own) if remark.keys[0] == "training_summary"]
    value = dump_declaration(dataset)
    value["sources"] = [source for source in value["sources"] if source["name"] != "held"]
    value["training_summary"]["sources"] = {"web": {"kind": "crawled"}}
    later = redeclare(dataset, value)
    assert list(later.remarks()) == []
    remarks = [remark for remark in later.pending(own) if remark.keys[0] == "training_summary"]
    assert [remark.keys for remark in remarks] == [("training_summary", "sources", "held")]


def test_an_answer_about_an_unknown_source_is_a_hint(store: LocalArtifacts, tmp_path: Path) -> None:
    sources = {"webb": {"kind": "crawled"}, "web/pages": {"kind": "crawled"}, "held": {"kind": "public"}}
    dataset = schedule_pages(sources=sources)
    remarks = [remark for remark in dataset.pending(LocalArtifacts(tmp_path)) if remark.keys[0] == "training_summary"]
    assert [(remark.keys, remark.hint) for remark in remarks] == [(("training_summary", "sources", "webb"), True)]
    assert_names(remarks[0].sentence, "webb", "'web'?")


def test_an_answer_about_a_kind_of_source_that_the_schedule_does_not_read_is_a_hint(
    store: LocalArtifacts, tmp_path: Path
) -> None:
    sources = {name: {"kind": "public", "link": f"https://example.org/{name}"} for name in ("web", "held")}
    dataset, own = build_pages(store, tmp_path, sources=sources, user_services=True, user_interactions=False)
    remarks = [remark for remark in dataset.pending(own) if remark.keys[0] == "training_summary"]
    assert [(remark.keys[1], remark.hint) for remark in remarks] == [("crawlers", True), ("user_services", True)]
    for remark, kind in zip(remarks, ("crawled", "user"), strict=True):
        assert_names(remark.sentence, f"training_summary.{remark.keys[1]}", f"`kind: {kind}`")
    fields = {field["name"]: field for field in read_summary(own)["fields"] if field["section"] == "2.3"}
    used = fields["Crawlers used by the provider or on its behalf"]
    assert (used["answer"], used["key"]) == ("Yes", "training_summary.crawlers")
    assert fields["Crawler name(s)/identifier(s)"]["answer"] == "ExampleBot"
    assert NOT_APPLICABLE not in {field["answer"] for field in fields.values()}


def test_an_answer_about_a_kind_that_a_source_has_or_may_have_is_no_hint(tmp_path: Path) -> None:
    for sources in ({"web": {"kind": "crawled"}, "held": {"kind": "public"}}, {"held": {"kind": "public"}}):
        dataset = schedule_pages(sources=sources)
        assert list(dataset.pending(LocalArtifacts(tmp_path))) == []


def test_a_question_about_a_kind_of_source_is_asked_only_if_the_schedule_reads_it() -> None:
    summary = TrainingSummaryDeclaration.model_validate({"sources": {"mix": {"kind": "user"}}})
    keys = find_missing_answers(summary, ["mix/chats", "mix/forum"])
    assert {"training_summary.user_interactions", "training_summary.user_services"} < {*keys}
    assert not {"training_summary.crawlers", "training_summary.generators", "training_summary.sources.mix"} & {*keys}


@pytest.mark.parametrize(
    ("first_month", "last_month", "is_valid"), [("12/2024", "01/2025", True), ("02/2025", "01/2025", False)]
)
def test_a_collection_begins_before_it_ends(first_month: str, last_month: str, is_valid: bool) -> None:
    period = {"collected_from": first_month, "collected_until": last_month}
    for value in (
        {"sources": {"web": {"kind": "crawled", **period}}},
        {"crawlers": [{"name": "a", "purpose": "b", "behavior": "c", **period}]},
    ):
        if is_valid:
            TrainingSummaryDeclaration.model_validate(value)
        else:
            with raises(ValidationError, "collected_from", "collected_until"):
                TrainingSummaryDeclaration.model_validate(value)


@pytest.mark.parametrize(
    ("acquired", "is_valid"), [("06/2025", True), ("01/2026", True), ("05/2025", False), ("12/2024", False)]
)
def test_no_data_are_collected_after_the_latest_month_of_acquisition(acquired: str, is_valid: bool) -> None:
    period = {"collected_from": "12/2024", "collected_until": "06/2025"}
    for key, value in (
        ("sources.web.collected_until", {"sources": {"web": {"kind": "public", **period}}}),
        ("sources.web.collected_from", {"sources": {"web": {"kind": "public", "collected_from": "06/2025"}}}),
        ("crawlers.0.collected_until", {"crawlers": [{"name": "a", "purpose": "b", "behavior": "c", **period}]}),
    ):
        if is_valid:
            TrainingSummaryDeclaration.model_validate(value | {"acquired": acquired})
        else:
            with raises(ValidationError, "acquired", acquired, key, "06/2025"):
                TrainingSummaryDeclaration.model_validate(value | {"acquired": acquired})


@pytest.mark.parametrize(
    ("tokens", "label"),
    [
        (0, "Less than 1 billion tokens"),
        (999_999_999, "Less than 1 billion tokens"),
        (1_000_000_000, "1 billion to 10 trillion tokens"),
        (10_000_000_000_000, "1 billion to 10 trillion tokens"),
        (10_000_000_000_001, "More than 10 trillion tokens"),
    ],
)
def test_a_number_of_tokens_has_the_range_of_the_template(tokens: int, label: str) -> None:
    assert choose_range(tokens) == label


def test_a_public_dataset_is_large_above_three_percent_of_all_public_data() -> None:
    links = {"a": "https://a.example", "b": "https://b.example", "c1": "https://c.example", "c2": "https://c.example"}
    sources: dict[str, Any] = {name: {"kind": "public", "link": link} for name, link in links.items()}
    sources |= {"mine": {"kind": "private"}, "d": {"kind": "public", "description": "d"}}
    summary = TrainingSummaryDeclaration.model_validate({"sources": sources})
    tokens = {"a": 9_100, "b": 300, "c1": 299, "c2": 2, "d": 299, "mine": 10**9, "unknown": 10**9}
    # `b` has exactly 3%, and the two sources of `c` have more together.
    assert find_large_sources(summary, tokens) == ["a", "c1", "c2"]
    assert find_large_sources(summary, dict.fromkeys(tokens, 0)) == []


@pytest.mark.parametrize(("description", "last"), [("some books", "some books"), (None, NOT_DECLARED)])
def test_public_datasets_that_are_not_large_are_among_the_other_datasets(description: str | None, last: str) -> None:
    sources = {name: {"kind": "public", "link": f"https://example.org/{name}"} for name in ("big", "small")}
    summary = TrainingSummaryDeclaration.model_validate({"sources": sources, "other_datasets": description})
    computed = ComputedAnswers(sources={"big": "97 tokens", "small": "3 tokens"}, large_sources=["big"])
    fields = {field.name: field for field in list_fields(summary, ["big", "small"], computed)}
    large = fields["List of large publicly available datasets"]
    assert (large.answer, large.query) == ("big, https://example.org/big, 97 tokens", "sources")
    other = fields["General description of other publicly available datasets"]
    assert other.answer == f"small, https://example.org/small, 3 tokens; {last}"
    assert (other.query, other.missing) == ("sources", () if description else ("training_summary.other_datasets",))
    none_large = list_fields(summary, ["small"], ComputedAnswers())
    assert [field.answer for field in none_large if field.name == large.name] == ["none"]


@pytest.mark.parametrize(
    ("domains", "small", "listed"), [(1, False, 1), (40, False, 4), (41, False, 5), (40, True, 2), (30_000, True, 1000)]
)
def test_a_tenth_of_the_domains_is_listed_and_a_twentieth_for_a_small_provider(
    domains: int, small: bool, listed: int
) -> None:
    counts = {f"d{number}": ReadCounts(tokens=1, distinct_tokens=1, documents=1) for number in range(domains)}
    reads = ScheduleReads(
        steps=1, sources={"web": SourceReads(dataset="pages", domains={**counts, NO_VALUE: ReadCounts()})}
    )
    summary = TrainingSummaryDeclaration.model_validate(
        {"sources": {"web": {"kind": "crawled"}}, "small_provider": small}
    )
    count, rows = training_summary._choose_domains(summary, reads)
    assert count == domains
    assert len(rows) == listed + 1
    assert rows[-1]["domain"] == NO_VALUE


def test_the_summary_of_a_sensitive_schedule_has_no_names_and_no_small_counts(
    store: LocalArtifacts, tmp_path: Path
) -> None:
    value = dump_declaration(schedule_pages()) | {"sensitive": True, "small_cell": 1000}
    dataset, own = redeclare(find_sample(SCHEDULE), value), LocalArtifacts(tmp_path / "artifacts")
    own.root.mkdir(parents=True)
    (own.root / PAGES).symlink_to(store.root / PAGES)
    build_all(dataset.specs, own)
    summary = read_summary(own)
    assert summary["counts"]["domains"] is summary["counts"]["languages"] is summary["counts"]["domain_count"] is None
    assert {row["documents"] for row in summary["counts"]["sources"]} == {"< 1000"}
    text = (own.root / SCHEDULE / TRAINING_SUMMARY / PAGE).read_text() + json.dumps(summary)
    assert "example.org/page" not in text
    assert ".example.org:" not in text


def damage_a_file(store: LocalArtifacts, _: pytest.MonkeyPatch) -> None:
    flip_byte(store.root / SCHEDULE / TRAINING_SUMMARY / DATA)


def change_a_number(store: LocalArtifacts, _: pytest.MonkeyPatch) -> None:
    path = store.root / SCHEDULE / TRAINING_SUMMARY / DATA
    path.write_bytes(path.read_bytes().replace(b'"documents": ', b'"documents": 1', 1))
    reseal(path.parent)


def count_wrong(_: LocalArtifacts, monkeypatch: pytest.MonkeyPatch) -> None:
    def count_one_more(*arguments: Any) -> ScheduleReads:
        reads = counted(*arguments)
        reads.sources["held"].total.tokens += 1
        return reads

    counted = training_summary.count_reads
    monkeypatch.setattr(training_summary, "count_reads", count_one_more)


def lose_a_domain(_: LocalArtifacts, monkeypatch: pytest.MonkeyPatch) -> None:
    def count_without_domains(*arguments: Any) -> ScheduleReads:
        reads = counted(*arguments)
        reads.sources["web"].domains = {NOT_RECORDED: reads.sources["web"].total}
        return reads

    counted = training_summary.count_reads
    monkeypatch.setattr(training_summary, "count_reads", count_without_domains)


def drop_an_answer(_: LocalArtifacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_summary, "list_fields", _list_without_answers)


def _list_without_answers(_: TrainingSummaryDeclaration, *arguments: Any) -> Any:
    return list_fields(TrainingSummaryDeclaration(), *arguments)


list_fields = training_summary.list_fields
FAULTS: dict[str, Callable[[LocalArtifacts, pytest.MonkeyPatch], None]] = {
    "files_intact": damage_a_file,
    "rebuild_matches": change_a_number,
    "tokens_match_schedule": count_wrong,
    "answers_complete": drop_an_answer,
    "domains_known": lose_a_domain,
}


@pytest.mark.parametrize("check", [check.name for check in SUMMARY_CHECKS])
def test_every_check_can_fail(
    store: LocalArtifacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: str
) -> None:
    dataset, own = build_pages(store, tmp_path)
    spec = dataset.spec(TRAINING_SUMMARY)
    assert run_checks(spec, own)[check].passed
    FAULTS[check](own, monkeypatch)
    finding = run_checks(spec, own)[check]
    assert not finding.passed
    assert finding.summary


def test_a_new_answer_or_table_rebuilds_only_the_summary(store: LocalArtifacts, tmp_path: Path) -> None:
    dataset, own = build_pages(store, tmp_path)
    assert build_all(dataset.specs, own) == []
    assert build_all(schedule_pages(opt_out="robots.txt").specs, own) == [TRAINING_SUMMARY]
    assert isinstance(dataset.declaration, ScheduleDeclaration)
    assert find_answers(read_summary(own))["Description of these data sources and the data"] == NOT_APPLICABLE
