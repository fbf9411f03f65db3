"""The settings of chat data: presets and individual choices."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dataprep_assets.errors import TokenizerError
from dataprep_assets.pipelines.blend.component import TrainingBlend
from dataprep_assets.pipelines.blend.data_blend import DataBlend
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.pairs.options import PairsOptions
from dataprep_assets.pipelines.blend.plan.planner import collect_stage_identity
from dataprep_assets.pipelines.blend.sft.chat_plan import find_unprompted_header
from dataprep_assets.pipelines.blend.sft.declared_template import has_local_template, load_declared_template
from dataprep_assets.pipelines.blend.sft.options import SftOptions
from dataprep_assets.stream.declaration import TokenizerDeclaration
from dataprep_assets.tokenization.chat.choices import NEMOTRON, OURS
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.blend.sft.conversations import make_conversation, plan, write_rows
from dataprep_assets_tests.tokenization.chat.tokenizers import chat_bundle
from dataprep_assets_tests.tokenization.chat.trap import NO_KWARGS


def make_options(**given: Any) -> SftOptions:
    return SftOptions.model_validate(given)


def blend(**sft: Any) -> BlendDeclaration:
    return BlendDeclaration.model_validate(
        {
            "dataset": "chat",
            "stage": "sft",
            "blend": {"datasets": [{"name": "a", "path": "a.jsonl"}]},
            "tokenizer": {"path": chat_bundle().directory},
            "sft": {"chat_template": "chatml_reasoning", **sft},
        }
    )


def test_a_preset_sets_every_choice_and_three_keys_override_it() -> None:
    assert make_options().choices == OURS
    assert make_options(like="nemotron").choices == NEMOTRON
    roles = ["user", "assistant", "developer"]
    changed = {"answers": "last_turn", "roles": tuple(roles), "content": "join_parts"}
    for like, preset in (("ours", OURS), ("nemotron", NEMOTRON)):
        given = make_options(like=like, answers="last_turn", roles=roles, join_text_parts=True)
        assert given.choices == replace(preset, **changed)


def test_declaring_a_default_changes_no_key() -> None:
    named = blend(like="ours", answers="every", join_text_parts=False)
    assert collect_stage_identity(named) == collect_stage_identity(blend())


@pytest.mark.parametrize(
    ("given", "name"),
    [({"like": "nemotron"}, "choices"), ({"template_kwargs": {"effort": "low"}}, "template_kwargs")],
)
def test_a_choice_that_can_change_a_byte_is_part_of_the_keys(given: dict[str, Any], name: str) -> None:
    found = collect_stage_identity(blend(**given))["options"]
    assert found[name] != collect_stage_identity(blend())["options"][name]
    changes = {"choices": make_options(**given).choices, "template_kwargs": make_options(**given).template_kwargs}
    assert plan(**changes).key_parts()[name] == found[name]


def test_a_single_name_of_used_in_needs_no_list() -> None:
    assert make_options(used_in_filter="nano_v3") == make_options(used_in_filter=["nano_v3"])


@pytest.mark.parametrize(
    "given",
    [
        {"like": "theirs"},
        {"answers": "last"},
        {"roles": []},
        {"train_on": {}},
        {"accept": {"content": "join_parts"}},
        {"chat_template": {"repo": "org/model", "revision": "main"}},
        {"chat_template": {"repo": "model", "revision": "0" * 40}},
    ],
)
def test_invalid_options_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        make_options(**given)


def test_a_template_of_the_hub_is_a_file_at_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from the cache, the only source without a network."""
    commit, file = "0" * 40, "templates/chat.jinja"
    snapshot = tmp_path / "models--org--model" / "snapshots" / commit
    (snapshot / "templates").mkdir(parents=True)
    (snapshot / file).write_text("{{ messages }}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.file_download.HF_HUB_CACHE", str(tmp_path), raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    tokenizer = TokenizerDeclaration(path=tmp_path)
    there = make_options(chat_template={"repo": "org/model", "revision": commit, "file": file})
    absent = make_options(chat_template={"repo": "org/model", "revision": "1" * 40})
    assert load_declared_template(there, tokenizer).text == "{{ messages }}"
    assert (has_local_template(there, tokenizer), has_local_template(absent, tokenizer)) == (True, False)
    with raises(TokenizerError, "chat_template", "org/model@" + "1" * 40, "chat_template.jinja"):
        load_declared_template(absent, tokenizer)


def test_an_ambiguous_template_is_reported_before_a_build(tmp_path: Path) -> None:
    row = make_conversation(0)
    path = write_rows(tmp_path / "a.jsonl", [{key: value for key, value in row.items() if key != "id"}])
    datasets = {"blend": DataBlend.model_validate({"datasets": [{"name": "a", "path": str(path)}]})}
    assert list(TrainingBlend(blend().model_copy(update=datasets)).remarks()) == []
    (remark,) = TrainingBlend(blend(chat_template=NO_KWARGS).model_copy(update=datasets)).remarks()
    assert remark.keys == ("sft", "chat_template")
    assert "The loss could begin at" in remark.sentence
    assert not remark.hint


TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
REFUSES = (
    "{% if messages[-1].role == 'user' and not add_generation_prompt %}{{ raise_exception('no answer') }}{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "header"),
    [(TURNS, "<|im_start|>assistant\n"), (TURNS + PROMPT, ""), (REFUSES + TURNS + PROMPT, "")],
    ids=["without a prompt", "with one", "that takes no question alone"],
)
def test_tokens_before_an_answer_are_trained_if_there_is_no_prompt(template: str, header: str) -> None:
    assert find_unprompted_header(plan(template), chat_bundle()) == header


def test_pairs_have_the_settings_of_conversations_under_equal_names() -> None:
    declared = PairsOptions.model_validate({"used_in_filter": "dpo", "stop": "<|end|>", "max_length": 64})
    assert (declared.chat.used_in_filter, declared.chat.stop, declared.chat.pack_size) == (("dpo",), "<|end|>", 64)
