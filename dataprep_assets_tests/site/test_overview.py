"""The overview: what needs attention comes first, and unusual changes are shown without a budget."""

import re
from dataclasses import replace
from html import escape
from html.parser import HTMLParser

from dataprep_assets.engine.checks.results import UnpassedCheck
from dataprep_assets.site.changes import compare_builds, explain_documents, find_unusual_changes
from dataprep_assets.site.history import DatasetHistory
from dataprep_assets.site.overview import describe_overview
from dataprep_assets.site.pages import FactsPage, PageEnvironment, mark_code
from dataprep_assets.site.states import LEVELS, DatasetState
from dataprep_assets_tests.site.records import make_history, make_states

HOSTILE = "<script>alert(1)</script>\" onload='x' & {{ 7 * 7 }}"


class _Tags(HTMLParser):
    """Collects the elements of a page, with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


def render(page: FactsPage) -> str:
    return page.render(PageEnvironment())


def test_failed_checks_come_before_warnings_and_other_problems() -> None:
    states = list(make_states(14, 3))
    page = describe_overview(states, {"broken": "defs.yaml:3: splits: unknown key"})
    problems = page.facts["problems"]
    assert [problem.what for problem in problems] == [
        *["failed"] * 2,
        *["unknown"] * 2,
        *["warned"] * 2,
        *["out of date"] * 2,
    ]
    assert (problems[0].where, problems[0].command) == (
        "train/token_bins: roundtrip",
        "dataprep show corpus_of_the_web_01",
    )
    assert problems[0].sentence == states[1].not_passed["train/token_bins", "roundtrip"].sentence
    assert page.facts["counts"] == [
        ("failed", "bad", 2),
        ("unknown", "bad", 2),
        ("warned", "warn", 2),
        ("out of date", "warn", 2),
        ("up to date", "good", 4),
        ("never built", "idle", 2),
    ]
    assert [row.level for row in page.facts["rows"]] == sorted((s.level for s in states), key=LEVELS.index)
    assert page.facts["owners"] == ["a@example.com", "team:data"]
    text = render(page)
    assert text.index("cannot be loaded") < text.index("roundtrip") < text.index("length_change")
    assert "dataprep check broken<" in text


def test_a_page_without_datasets_says_what_to_do() -> None:
    assert "dataprep init" in render(describe_overview([], {}))


def test_hostile_text_is_shown_as_text() -> None:
    state = DatasetState(
        dataset="web",
        kind=HOSTILE,
        owners=(HOSTILE,),
        state="1 to build",
        to_build=1,
        why=HOSTILE,
        not_passed={("bins", "check"): UnpassedCheck(HOSTILE, True)},
    )
    text = render(describe_overview([state], {"broken": HOSTILE}))
    tags = _Tags(text).elements
    assert [attributes for tag, attributes in tags if tag == "script"] == [{"src": "static/site.js", "defer": None}]
    assert not [name for _, attributes in tags for name in attributes if name.startswith("on") or name == "style"]
    assert escape("<script>alert(1)</script>") in text
    assert "{{ 7 * 7 }}" in text


def change_last(history: DatasetHistory, **volumes: int) -> DatasetHistory:
    """Return the history with other counts of some rules in its last build."""
    *earlier, last = history.builds
    changed = {key: volumes.get(key[1], count) for key, count in last.volumes.items()}
    return DatasetHistory(builds=(*earlier, replace(last, volumes=changed)))


def test_a_rule_that_drops_many_more_rows_is_an_unusual_change() -> None:
    history = make_history(5)
    assert list(find_unusual_changes("web", history)) == []
    (change,) = find_unusual_changes("web", change_last(history, symbols=5_000))
    assert (change.what, change.before, change.now, change.change) == (
        "rows dropped: symbols",
        50,
        5_000,
        "+9900%",
    )
    (gone,) = find_unusual_changes("web", change_last(history, short=0))
    assert (gone.what, gone.now, gone.change) == ("rows dropped: short", 0, "-100%")


def test_a_small_count_never_changes_unusually() -> None:
    history = change_last(make_history(5), symbols=99)
    assert list(find_unusual_changes("web", history)) == []


def test_lost_documents_are_explained_by_source_rows_and_rules() -> None:
    history = make_history(5)
    *earlier, before, last = history.builds
    assert isinstance(before.rows, int)
    rows, short = before.rows - 5_000, before.volumes["train", "short", "rows dropped"]
    volumes = {
        ("train", "", "all rows"): rows,
        ("train", "short", "rows dropped"): short - 1,
        ("train", "symbols", "rows dropped"): 250,
    }
    lost = replace(last, rows=rows, documents=rows - short + 1 - 250, dropped=short - 1 + 250, volumes=volumes)
    history = DatasetHistory(builds=(*earlier, before, lost))
    explanation = explain_documents(history)
    assert re.findall(r"(\d[\d,]*) (more|fewer) (\w+)", explanation) == [
        ("5,199", "fewer", "documents"),
        ("5,000", "fewer", "source"),
        ("200", "more", "rows"),
        ("1", "fewer", "row"),
    ]
    first, *others = find_unusual_changes("web", history)
    assert (first.what, first.explanation) == ("documents", explanation)
    assert {change.explanation for change in others} == {""}
    state = DatasetState(dataset="web", state="up to date", history=history)
    assert explanation in render(describe_overview([state], {}))
    # Counts that do not add up explain nothing, and neither do private ones or a single build.
    assert isinstance(lost.documents, int)
    wrong = replace(lost, documents=lost.documents - 1)
    for builds, is_private in (((before, wrong), False), ((before, lost), True), ((lost,), False)):
        assert explain_documents(DatasetHistory(builds=builds, is_private=is_private)) == ""


def test_counts_of_several_parts_name_their_part() -> None:
    *_, before, last = make_history(5).builds
    volumes = {("val", *key[1:]): count for key, count in last.volumes.items()} | dict(last.volumes)
    names = [
        change.what for change in compare_builds("web", DatasetHistory(builds=(before, replace(last, volumes=volumes))))
    ]
    assert names[4:7] == ["all rows, val", "rows dropped: short, val", "rows dropped: symbols, val"]


def test_counts_of_a_sensitive_dataset_are_not_compared() -> None:
    *earlier, last = make_history(5).builds
    history = DatasetHistory(builds=(*earlier, replace(last, documents=10)), is_private=True)
    assert list(compare_builds("notes", history)) == []
    assert history.list_drop_rates() == [None] * 5
    page = describe_overview([DatasetState(dataset="notes", state="up to date", history=history)], {})
    assert page.facts["changes"] == []
    assert page.facts["rows"][0].trends[2].line == ""


def test_a_failed_check_explains_why_artifacts_are_not_built() -> None:
    findings = {
        ("selection_train", "within_budget"): UnpassedCheck("short drops 32%. Run `dataprep documents web`.", True),
        ("selection_train", "sources_kept"): UnpassedCheck(),
    }
    state = DatasetState(dataset="web", state="3 to build", to_build=3, not_passed=findings, passed=58)
    page = describe_overview([state], {})
    assert [(problem.what, problem.command) for problem in page.facts["problems"]] == [
        ("failed", "dataprep documents web")
    ]
    assert page.facts["rows"][0].state == "3 to build"
    assert "documents web</code>." in render(page)


def test_code_in_a_sentence_is_escaped() -> None:
    assert mark_code("`<b>` & `\n`") == "<code>&lt;b&gt;</code> &amp; `\n`"


def test_checks_are_counted_by_outcome() -> None:
    findings = {
        ("bins", "roundtrip"): UnpassedCheck("1 document differs", True),
        ("bins", "length"): UnpassedCheck("shorter"),
        ("bins", "layout"): UnpassedCheck(),
        ("bins", "totals"): UnpassedCheck(),
    }
    state = DatasetState(dataset="web", state="up to date", passed=58, not_passed=findings)
    assert state.check_counts.split(", ") == ["1 failed", "1 warned", "2 not run"]
    assert replace(state, not_passed={}).check_counts == "58 passed"
    row = describe_overview([replace(state, card={"documents": "12"})], {}).facts["rows"][0]
    assert (row.trends[3].text, row.is_last_success) == (state.check_counts, True)


def test_a_build_without_recorded_volumes_is_not_compared_by_rule() -> None:
    *earlier, before, last = make_history(5).builds
    history = DatasetHistory(builds=(*earlier, replace(before, volumes={}), last))
    assert list(find_unusual_changes("web", history)) == []


def test_private_counts_leave_gaps_in_trends() -> None:
    first, second, third = make_history(3).builds
    history = DatasetHistory(builds=(first, replace(second, documents="< 11"), third))
    page = describe_overview([DatasetState(dataset="notes", state="up to date", history=history)], {})
    (row,) = page.facts["rows"]
    documents, tokens, dropped, checks = row.trends
    assert documents.line.count("M") == 2
    assert (tokens.line.count("M"), dropped.line.count("M"), checks.line) == (1, 1, "")


def test_the_digest_depends_on_what_is_shown() -> None:
    states = list(make_states(7, 3))
    page = describe_overview(states, {})
    assert describe_overview(states, {}).digest == page.digest
    assert render(describe_overview(states, {})) == render(page)
    changed = [replace(states[0], owners=("team:other",)), *states[1:]]
    assert describe_overview(changed, {}).digest != page.digest
    longer = [replace(states[0], history=make_history(4)), *states[1:]]
    assert describe_overview(longer, {}).digest != page.digest
