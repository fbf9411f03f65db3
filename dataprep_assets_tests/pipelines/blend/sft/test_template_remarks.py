"""Features of the first rows that a template drops are remarks: errors if rows would be refused, else hints."""

import json
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.remarks import find_blend_remarks
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer
from dataprep_assets_tests.tokenization.chat.trap import CHATML


def find_remarks(folder: Path, **keys: Any) -> list[Remark]:
    user, thought = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning": "c"}
    rows = [{"messages": [user, thought]}, {"messages": [user, {"role": "assistant", "content": "b"}]}]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_chat_tokenizer(folder / "tokenizer")
    declared = {
        "dataset": "chats",
        "stage": "sft",
        "blend": {"datasets": [{"name": "d", "path": str(folder / "rows.jsonl")}]},
        "tokenizer": {"path": str(folder / "tokenizer")},
        "sft": {"pack_size": 64, "chat_template": CHATML, **keys.pop("sft", {})},
        **keys,
    }
    return list(find_blend_remarks(BlendDeclaration.model_validate(declared)))


def test_dropped_features_are_named_with_the_number_of_rows(tmp_path: Path) -> None:
    [remark] = find_remarks(tmp_path)
    assert_names(remark.sentence, "reasoning", "1 of the first 2")
    assert (remark.hint, remark.of_source) == (False, True)
    [hint] = find_remarks(tmp_path, bad_records={"policy": "drop", "budget": 1.0})
    assert hint.hint
    assert find_remarks(tmp_path, sft={"allow_loss": ["reasoning"]}) == []


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("efort", "; did you mean `effort`?"),
        ("enable_thinkin", "; `enable_thinking` is set by each rendering. Remove this key"),
        ("colour", ". Remove this key"),
    ],
)
def test_a_declared_variable_that_the_template_does_not_use_is_reported(tmp_path: Path, name: str, advice: str) -> None:
    template = CHATML + "{{ effort or '' }}{{ '' if enable_thinking else '' }}"
    options = {"chat_template": template, "allow_loss": ["reasoning"]}
    [remark] = find_remarks(tmp_path, sft={**options, "template_kwargs": {name: False, "effort": ""}})
    assert (remark.keys, remark.hint) == (("sft", "template_kwargs", name), False)
    assert_names(remark.sentence, "template_kwargs", "inline")
    assert remark.sentence.endswith(f"`{name}`{advice}")


def test_a_template_that_reads_all_variables_may_use_any_of_them(tmp_path: Path) -> None:
    template = CHATML + "{{ chat_template_kwargs.effort or '' }}"
    options = {"chat_template": template, "allow_loss": ["reasoning"], "template_kwargs": {"effort": "", "size": 1}}
    [remark] = find_remarks(tmp_path, sft=options)
    assert (remark.keys, remark.hint) == (("sft", "template_kwargs", "size"), True)
