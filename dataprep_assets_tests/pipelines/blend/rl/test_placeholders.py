"""Tests of placeholders in RL blends (docs/formats/rl-jsonl.md#placeholders)."""

from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.pipelines.blend.declaration import SourceAccessDeclaration
from dataprep_assets.pipelines.blend.rl.options import OURS, RlOptions, RlRules
from dataprep_assets.pipelines.blend.rl.placeholders import (
    fetch_sources,
    fill_placeholder,
    identify_sources,
    is_malformed,
    parse_sources,
)
from dataprep_assets_tests.fakes.hub_server import HubServer
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.blend.pipeline import write_rows

NOWHERE = SourceAccessDeclaration()
DAPO, SKYWORK = "nano_v3_sft_profiled_dapo17k", "nano_v3_sft_profiled_skywork_no_omni"
NEMOTRON = RlOptions(like="nemotron").rules
WRAPPED = "Solve this.\n\nWhat is 1+1?\n\nAnd 2+2?\n\nRemember the format."


def _row(question: str, answer: Any) -> dict[str, Any]:
    return {"prompt": [{"content": question, "role": "user"}], "reward_model": {"ground_truth": answer}, "id": 1}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    dapo = [_row(WRAPPED, "34"), _row("Short question", '["5", "6"]'), _row("x", '{"a": 7}')]
    write_rows(tmp_path / "dapo.parquet", dapo)
    write_rows(tmp_path / "sky" / "math-00000.jsonl", [_row("Q0", '["0"]'), _row("Q1", "[]")])
    write_rows(tmp_path / "sky" / "math-00001.jsonl", [_row("Q2", "two"), {"prompt": []}])
    write_rows(tmp_path / "sky" / "code-00000.jsonl", [_row("C0", "c")])
    return {DAPO: str(tmp_path / "dapo.parquet"), SKYWORK: str(tmp_path / "sky")}


def _resolve(
    files: dict[str, str], name: str, row: Any, template: Any, rules: RlRules = OURS, **more: Any
) -> dict[str, Any] | None:
    sources = {s.name: s for s in fetch_sources(parse_sources({"sources": files}), NOWHERE)}
    placeholder = {"row": row, "question_template": template}
    return fill_placeholder({"dataset": name, "_hf_placeholder": placeholder, **more}, sources, rules)


def test_dapo_loses_its_wrapper_and_gets_the_one_of_the_template(files: dict[str, str]) -> None:
    found = _resolve(files, DAPO, 0, {"prefix": "Please: ", "suffix": "\nThanks.\n\n"}, pass_rate=0.5)
    text = "Please: What is 1+1?\n\nAnd 2+2?\nThanks."
    assert found == {
        "dataset": DAPO,
        "pass_rate": 0.5,
        "question": text,
        "expected_answer": "34",
        "responses_create_params": {"input": [{"role": "user", "content": text}]},
    }


def test_text_of_fewer_than_three_paragraphs_is_the_question(files: dict[str, str]) -> None:
    found = _resolve(files, DAPO, 1, {"prefix": "P ", "suffix": ""})
    assert found is not None
    assert (found["question"], found["expected_answer"]) == ("P Short question", "5")


def test_skywork_keeps_the_raw_question_and_its_prompt_uses_the_template(files: dict[str, str]) -> None:
    found = _resolve(files, SKYWORK, 2, "Think: {question} Go.", responses_create_params={"temperature": 1})
    assert found is not None
    assert found["question"] == "Q2"
    assert found["expected_answer"] == "two"
    assert found["responses_create_params"] == {
        "temperature": 1,
        "input": [{"role": "user", "content": "Think: Q2 Go."}],
    }


@pytest.mark.parametrize("name", ["super_v3_lcsft_step1000_dapo17k", "super_v3_lcsft_step1000_skyworks"])
def test_the_sources_of_super_equal_those_of_nano_under_other_names(files: dict[str, str], name: str) -> None:
    """Skywork's code comes before its mathematics, and row numbers count only the latter; DAPO's wrapper is removed."""
    other = DAPO if "dapo" in name else SKYWORK
    template = {"prefix": "P ", "suffix": "\n"} if "dapo" in name else "Think: {question}"
    for row in range(3):
        found = _resolve({name: files[other]}, name, row, template)
        wanted = _resolve(files, other, row, template)
        assert found is not None
        assert wanted is not None
        assert found | {"dataset": other} == wanted


@pytest.mark.parametrize("given", ["a.parquet", {"path": "a.parquet"}])
def test_an_unknown_name_requires_its_kind(given: Any) -> None:
    """It once counted as Skywork, so a prompt of DAPO was written with both wrappers."""
    with raises(ConfigError, "sources.my_math", "`kind`", "super_v3_lcsft_step1000_dapo17k"):
        parse_sources({"sources": {"my_math": given}})
    assert parse_sources({"sources": {"my_math": {"path": "a.parquet", "kind": "dapo"}}})["my_math"].kind == "dapo"


def test_parameters_next_to_a_placeholder_are_merged_or_replaced(files: dict[str, str]) -> None:
    given = {"input": "old", "temperature": 1}
    prompt = {"input": [{"role": "user", "content": "Q0"}]}
    ours = _resolve(files, SKYWORK, 0, "{question}", responses_create_params=given)
    theirs = _resolve(files, SKYWORK, 0, "{question}", NEMOTRON, responses_create_params=given)
    assert ours is not None
    assert theirs is not None
    assert ours["responses_create_params"] == {**given, **prompt}
    assert theirs["responses_create_params"] == prompt


@pytest.mark.parametrize(("row", "answers"), [(0, ("34", 34)), (1, ("5", "5")), (2, (7, 7))])
def test_a_numeric_answer_becomes_text_or_stays_a_number(
    files: dict[str, str], row: int, answers: tuple[Any, Any]
) -> None:
    found = [_resolve(files, DAPO, row, {}, rules) or {} for rules in (OURS, NEMOTRON)]
    assert tuple(record["expected_answer"] for record in found) == answers


def test_an_empty_answer_is_text_or_empty(files: dict[str, str]) -> None:
    found = [_resolve(files, SKYWORK, 1, "{question}", rules) or {} for rules in (OURS, NEMOTRON)]
    assert [record["expected_answer"] for record in found] == ["[]", []]


@pytest.mark.parametrize("template", [None, "Now: {question}"])
def test_a_template_of_another_kind_is_used_or_the_row_stays_unchanged(files: dict[str, str], template: Any) -> None:
    ours, theirs = (_resolve(files, DAPO, 0, template, rules) or {} for rules in (OURS, NEMOTRON))
    inner = "What is 1+1?\n\nAnd 2+2?"
    assert ours["question"] == (f"Now: {inner}" if template else inner)
    assert theirs["question"] == WRAPPED


@pytest.mark.parametrize(("value", "printed"), [(None, "None"), (0, "0"), ("", ""), ([], "[]")])
def test_a_null_prefix_or_suffix_is_empty_or_the_word(files: dict[str, str], value: Any, printed: str) -> None:
    template = {"prefix": value, "suffix": value}
    ours, theirs = (_resolve(files, DAPO, 1, template, rules) or {} for rules in (OURS, NEMOTRON))
    assert ours["question"] == "Short question"
    assert theirs["question"] == f"{printed}Short question{printed}"


def test_a_boolean_row_number_is_refused_or_a_number(files: dict[str, str]) -> None:
    ours, theirs = ([_resolve(files, SKYWORK, row, "", rules) for row in (True, False)] for rules in (OURS, NEMOTRON))
    assert ours == [None, None]
    assert [(found or {}).get("question") for found in theirs] == ["Q1", "Q0"]


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        ({"_hf_placeholder": {"row": "0"}}, True),
        ({"_hf_placeholder": {"row": [1]}}, True),
        ({"_hf_placeholder": {"row": {"row": 1}}}, True),
        ({"_hf_placeholder": "text"}, True),
        ({"_hf_placeholder": 7}, True),
        ({"_hf_placeholder": [0]}, True),
        ({"_hf_placeholder": {"row": 0}, "dataset": [DAPO]}, True),
        ({"_hf_placeholder": {"row": 0}, "dataset": {}}, True),
        ({"_hf_placeholder": "text", "dataset": "unknown"}, False),
        ({"_hf_placeholder": {"row": None}}, False),
        ({"_hf_placeholder": {"row": 99}}, False),
        ({"_hf_placeholder": {"row": 1.5}}, False),
        ({"_hf_placeholder": {"row": True}}, False),
        ({"_hf_placeholder": None}, False),
        ({"dataset": [1]}, False),
    ],
)
def test_a_malformed_placeholder_is_distinguished_from_a_missing_one(
    files: dict[str, str], record: dict[str, Any], wanted: bool
) -> None:
    """The first eight stop Nemotron with a TypeError or an AttributeError; it drops or accepts the others."""
    sources = {s.name: s for s in fetch_sources(parse_sources({"sources": files}), NOWHERE)}
    given = {"dataset": DAPO, **record}
    assert is_malformed(given, sources) == wanted
    if wanted:
        assert fill_placeholder(given, sources) is None


def test_a_null_placeholder_is_none_or_cannot_be_resolved() -> None:
    record = {"a": 1, "_hf_placeholder": None}
    assert fill_placeholder(record, {}) == {"a": 1}
    assert fill_placeholder(record, {}, NEMOTRON) is None


def test_row_numbers_count_through_the_files_of_the_split_in_order(files: dict[str, str]) -> None:
    answers = [(_resolve(files, SKYWORK, row, "{question}") or {}).get("question") for row in range(5)]
    assert answers == ["Q0", "Q1", "Q2", None, None]


@pytest.mark.parametrize(("row", "answer"), [(0, "34"), (1, "5"), (2, 7)])
def test_an_answer_in_a_list_or_object_is_its_first_value(files: dict[str, str], row: int, answer: Any) -> None:
    found = _resolve(files, DAPO, row, None)
    assert found is not None
    assert found["expected_answer"] == answer


@pytest.mark.parametrize(
    ("name", "row"), [("unknown", 0), (DAPO, 99), (DAPO, -1), (DAPO, "0"), (DAPO, True), (DAPO, None)]
)
def test_an_unresolvable_placeholder_is_dropped(files: dict[str, str], name: str, row: Any) -> None:
    assert _resolve(files, name, row, "{question}") is None


def test_a_record_without_a_placeholder_is_unchanged(files: dict[str, str]) -> None:
    assert fill_placeholder({"a": 1}, {}) == {"a": 1}
    assert fill_placeholder({"a": 1, "_hf_placeholder": None}, {}) == {"a": 1}


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ({}, ("sources",)),
        ({"sources": {}}, ("sources",)),
        ({"sources": {DAPO: "hf://org/d"}}, (DAPO, "pinned")),
        ({"sources": {DAPO: "hf://org/d@main"}}, (DAPO, "pinned")),
        ({"sources": {DAPO: {"path": "x", "kind": "other"}}}, ("kind",)),
        ({"sources": {DAPO: {"split": "x"}}}, ("path",)),
    ],
)
def test_sources_must_be_pinned_and_known(options: dict[str, Any], values: tuple[str, ...]) -> None:
    """Upstream resolves the current state of the branch (docs/migration/nemotron.md)."""
    with raises(ConfigError, *values):
        parse_sources(options)


def test_rows_from_the_hub_are_those_of_the_pinned_commit(files: dict[str, str], tmp_path: Path) -> None:
    tree = {"data/train-00000.parquet": Path(files[DAPO]).read_bytes()}
    with HubServer(tree, repo_id="org/dapo") as hub:
        access = SourceAccessDeclaration(hub_endpoint=hub.endpoint, hub_cache=tmp_path / "cache")
        pinned = parse_sources({"sources": {DAPO: f"hf://org/dapo@{hub.commit}"}})
        write_rows(tmp_path / "other.parquet", [_row("Moved", "x")])
        hub.move_branch({"data/train-00000.parquet": (tmp_path / "other.parquet").read_bytes()})
        (source,) = fetch_sources(pinned, access)
        found = fill_placeholder({"dataset": DAPO, "_hf_placeholder": {"row": 1}}, {DAPO: source})
        assert found is not None
        assert found["question"] == "Short question"


def test_the_content_of_a_local_source_identifies_it(files: dict[str, str]) -> None:
    before = identify_sources(parse_sources({"sources": files}), NOWHERE)
    write_rows(Path(files[DAPO]), [_row("other", "x")])
    assert identify_sources(parse_sources({"sources": files}), NOWHERE) != before
