"""What `dataprep check` finds by running rewriters, taggers and rules on the first rows of a blend."""

from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.blend.ruled_blend import BUILD, RuledBlend

FUNCTIONS = {
    "good": "return {'good': [1.0] * len(rows)}",
    "fails": "return {'fails': [1 / 0] * len(rows)}",
    "counts": "return {'counts': [float(len(text)) for text in rows['text'].to_pylist()]}",
}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of taggers and a rewriter, whose name is used once, because Python loads a module only once."""
    name = f"row_judges_{tmp_path.name}"
    source = "".join(f"def {function}(rows):\n    {body}\n" for function, body in FUNCTIONS.items())
    source += "def change(text):\n    return text if 'song 2' not in text else 1 / 0\n"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def find_remarks(folder: Path, stage: str, **changes: Any) -> list[Remark]:
    """Return the remarks of the trial of a blend with these keys instead of its own taggers and rules."""
    made = RuledBlend(folder, stage)
    for name in ("tag", "tag_text", "keep", "drop"):
        made.changes.pop(name)
    made.changes |= changes
    return list(made.dataset.find_trial_remarks())


def declare_function(module: str, name: str) -> dict[str, Any]:
    return {"function": f"{module}:{name}", "columns": {name: "number"}}


@pytest.mark.parametrize("stage", BUILD)
def test_a_failing_tagger_is_an_error_at_its_key(tmp_path: Path, module: str, stage: str) -> None:
    tag = ["gopher", declare_function(module, "good"), declare_function(module, "fails")]
    (remark,) = find_remarks(tmp_path, stage, tag=tag)
    assert (remark.keys, remark.hint) == (("tag", 2), False)
    assert_names(remark.sentence, "ZeroDivisionError")


@pytest.mark.parametrize("stage", BUILD)
def test_rules_that_drop_every_row_are_hints(tmp_path: Path, module: str, stage: str) -> None:
    tag, tag_text = ["gopher", declare_function(module, "counts")], {"gopher": "questions", "counts": "first_question"}
    rules = {"drop": {"asked": "words > 0", "long": "counts > 40", "tools": "has_tools"}, "keep": {"turn": "turns = 1"}}
    remarks = find_remarks(tmp_path, stage, tag=tag, tag_text=tag_text, **rules)
    # A question has fewer than 40 characters, but a row has more.
    assert [(remark.keys, remark.hint) for remark in remarks] == [(("drop", "asked"), True)]


@pytest.mark.parametrize("stage", ["sft", "pairs"])
def test_a_failing_rewriter_names_the_row(tmp_path: Path, module: str, stage: str) -> None:
    (remark,) = find_remarks(tmp_path, stage, rewrite=[{"function": f"{module}:change"}])
    assert (remark.keys, remark.hint) == (("rewrite",), False)
    assert_names(remark.sentence, "f0.jsonl: row 3", "ZeroDivisionError")


def test_nothing_is_tried_without_a_table(tmp_path: Path) -> None:
    assert find_remarks(tmp_path, "sft") == []
