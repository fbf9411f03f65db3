"""A field that no row has and an empty dataset are reported before the plan and by the preview."""

import json
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import TokenizerError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.pairs.options import PairsOptions
from dataprep_assets.pipelines.blend.plan.blend_plan import build_blend_plan
from dataprep_assets.pipelines.blend.plan.blend_preview import build_blend_preview, every_dataset_sampled
from dataprep_assets.pipelines.blend.plan.plan import load_blend_plan
from dataprep_assets.pipelines.blend.plan.planner import plan_blend
from dataprep_assets.pipelines.blend.remarks import find_blend_remarks
from dataprep_assets.sources.readers.first_rows import ROWS
from dataprep_assets_tests.fakes.hub_server import HubServer
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.blend.pipeline import declare_pretraining, make_texts, write_rows
from dataprep_assets_tests.pipelines.blend.rl.records import declare_rl_blend
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer

TURNS = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
CHAT = [{"messages": TURNS, "meta": i} for i in (1, 2)]
WRONG_TEXT = (
    "`text_field: txt`: dataset a (first file: {}): none of the first 60 rows has this field. Their fields: `text`"
)


def _blend(path: Path, entry: dict[str, Any] | None = None, **changes: Any) -> BlendDeclaration:
    return declare_pretraining(
        path.parent, blend={"datasets": [{"name": "a", "path": str(path), **(entry or {})}]}, **changes
    )


def _chat(path: Path, entry: dict[str, Any] | None = None, **sft: Any) -> BlendDeclaration:
    bundle = write_chat_tokenizer(path.parent / "tokenizer")
    options = {"pack_size": 4096, "chat_template": "chatml_reasoning", **sft}
    return _blend(path, entry, stage="sft", pretrain=None, sft=options, tokenizer={"path": str(bundle.directory)})


def _told(blend: BlendDeclaration) -> list[tuple[tuple[str | int, ...], str]]:
    return [(remark.keys, remark.sentence) for remark in find_blend_remarks(blend)]


def _check_preview(blend: BlendDeclaration, root: Path) -> str:
    """Return the message of the preview's check; empty if it passes."""
    store = LocalArtifacts(root)
    build_blend_plan(blend, store)
    receipt, _ = build_blend_preview(blend, store, load_blend_plan(blend, store))
    finding = every_dataset_sampled(receipt)
    return "" if finding.passed else finding.summary


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst", "a.parquet"])
def test_a_missing_text_field_is_reported_with_the_available_fields(tmp_path: Path, name: str) -> None:
    blend = _blend(write_rows(tmp_path / name, make_texts("a", 60)), {"text_field": "txt"})
    wrong = WRONG_TEXT.format(name)
    assert _told(blend) == [(("blend", "datasets", 0, "text_field"), wrong)]
    assert _check_preview(blend, tmp_path / "out").startswith(f"{wrong}. Set the correct field")
    hidden = _told(blend.model_copy(update={"sensitive": True}))
    told = wrong.partition(". Their")[0].replace(f" (first file: {name})", "")
    assert hidden == [(("blend", "datasets", 0, "text_field"), told)], "neither fields nor names of files"


def test_a_missing_messages_field_is_reported(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", CHAT)
    wrong = "`messages_field: turns`: dataset a (first file: a.jsonl): none of the first 2 rows has this field. "
    wrong += "Their fields: `messages`, `meta`"
    for blend in (_chat(path, {"messages_field": "turns"}), _chat(path, messages_field="turns")):
        assert _told(blend) == [(("blend", "datasets", 0, "messages_field"), wrong)]
        assert _check_preview(blend, tmp_path / "out").startswith(wrong)


def test_the_form_of_the_rows_and_unread_fields_are_named(tmp_path: Path) -> None:
    said = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]
    alpaca, pair = {"instruction": "hi", "output": "ho"}, {"prompt": "hi", "chosen": "ho", "rejected": "hm"}
    cases: list[tuple[list[dict[str, Any]], str]] = [
        (CHAT, "first 2 rows of a: form messages; keys that are not read: meta (2 rows)"),
        ([{"conversations": said, "images": None}], "first row of a: form sharegpt"),
        ([alpaca, {**alpaca, "id": 1}], "first 2 rows of a: form alpaca; keys that are not read: id (1 row)"),
        ([CHAT[0], alpaca], "a: a.jsonl, row 2: other_form, alpaca after messages ("),
        ([pair], "`messages_field: messages`: dataset a (first file: a.jsonl): no row can be used: 1 preference_pair"),
        (
            [{"question": "hi"}],
            "`messages_field: messages`: dataset a (first file: a.jsonl): no row has this field (a row needs",
        ),
    ]
    for rows, sentence in cases:
        ((keys, told),) = _told(_chat(write_rows(tmp_path / "a.jsonl", rows)))
        assert keys[:3] == ("blend", "datasets", 0)
        assert told.startswith(sentence)
    assert _told(_chat(write_rows(tmp_path / "a.jsonl", [{"messages": TURNS}]))) == []
    hidden = _chat(write_rows(tmp_path / "a.jsonl", CHAT)).model_copy(update={"sensitive": True})
    assert [told for _, told in _told(hidden)] == ["rows of a: form messages; other keys are not read"]
    assert _told(_chat(tmp_path / "a.jsonl", {"format": "alpaca"}))[0][1].startswith("`messages_field: messages`: ")


def test_one_row_among_the_first_thousand_is_enough(tmp_path: Path) -> None:
    rows = [*({"id": i} for i in range(999)), {"txt": "a"}, {"id": 0}]
    assert _told(_blend(write_rows(tmp_path / "a.jsonl", rows), {"text_field": "txt"})) == []
    ((_, told),) = _told(_blend(write_rows(tmp_path / "b.jsonl", [{"id": 0}, *rows]), {"text_field": "txt"}))
    assert (
        told == "`text_field: txt`: dataset a (first file: b.jsonl): none of the first 1,000 rows has this field. "
        "Their fields: `id`"
    )


@pytest.mark.parametrize("rows", [[], [b"\n", b"\n"]])
def test_an_empty_dataset_is_reported_as_empty(tmp_path: Path, rows: list[bytes]) -> None:
    path = write_rows(tmp_path / "a.jsonl", rows)
    empty = f"dataset a is empty: no rows found in {path}"
    blend = _blend(path, num_shards=1)
    assert _told(blend) == [(("blend", "datasets", 0, "text_field"), empty)]
    assert _check_preview(blend, tmp_path / "out").startswith(empty)
    tasks = declare_rl_blend(tmp_path / "s", num_shards=1, blend={"train": [{"name": "a", "path": str(path)}]})
    assert _told(tasks) == [(("blend", "train", 0), empty)]


def test_one_empty_file_of_a_hub_does_not_make_the_dataset_empty(tmp_path: Path) -> None:
    files = {"a.jsonl": b"\n", "b.jsonl": b'{"text": "a longer one"}\n'}
    with HubServer(files, repo_id="org/texts") as hub:
        access = {"hub_endpoint": hub.endpoint, "hub_cache": tmp_path / "cache"}
        blend = _blend(tmp_path / "a.jsonl", {"path": "hf://org/texts"}, sources=access, num_shards=1)
        assert _told(blend) == []
        assert "is empty" not in _check_preview(blend, tmp_path / "out")


def test_an_unreadable_file_is_reported_for_the_source(tmp_path: Path) -> None:
    (broken,) = find_blend_remarks(_blend(write_rows(tmp_path / "a.jsonl", [b"{broken\n"])))
    assert (broken.keys, broken.of_source) == (("blend", "datasets", 0, "path"), True)
    assert broken.sentence.startswith("a.jsonl: none of its rows can be read")
    (gone,) = find_blend_remarks(_blend(tmp_path / "gone" / "c.jsonl"))
    assert (gone.keys, gone.of_source) == (("blend", "datasets", 0, "path"), True)
    assert _told(_blend(tmp_path / "a.jsonl", {"weight": 1, "path": "hf://org/name"})) == []


@pytest.mark.parametrize("stage", ["pretrain", "rl"])
def test_if_every_row_is_refused_the_first_is_named_with_its_file(tmp_path: Path, stage: str) -> None:
    path = write_rows(tmp_path / "a.jsonl", [b"\n", b"{broken\n", b"[]\n", b'"text"\n'])
    if stage == "rl":
        blend = declare_rl_blend(tmp_path / "s", num_shards=1, blend={"train": [{"name": "a", "path": str(path)}]})
    else:
        blend = _blend(path, num_shards=1)
    blend = blend.model_copy(update={"bad_records": blend.bad_records.model_copy(update={"policy": "drop"})})
    ((_, told),) = _told(blend)
    assert told.startswith("a.jsonl: none of its rows can be read. First error: row 2")
    told = _check_preview(blend, tmp_path / "out")
    assert_names(told, "dataset a", "2 not_an_object", "1 bad_json", "a.jsonl")
    assert "a.jsonl, row 2: bad_json. " in told


def test_an_unreadable_parquet_file_is_named_at_any_position(tmp_path: Path) -> None:
    whole = write_rows(tmp_path / "d" / "a.parquet", make_texts("a", 60)).read_bytes()
    (tmp_path / "d" / "b.parquet").write_bytes(whole[:-9])
    blend = _blend(tmp_path / "d", {"path": str(tmp_path / "d")})
    (remark,) = find_blend_remarks(blend)
    assert (remark.keys, remark.of_source) == (("blend", "datasets", 0, "path"), True)
    assert "b.parquet" in remark.sentence


USELESS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "numbers": ([{"text": i} for i in range(9)], "9 not a string in a.jsonl. Their fields: `text`"),
    "blanks": ([{"text": " \n", "id": i} for i in range(9)], "9 blank in a.jsonl. Their fields: `text`, `id`"),
    "nulls": (
        [{"text": None}] * 5 + [{"text": ""}] * 4,
        "5 not a string in a.jsonl, 4 blank in a.jsonl. Their fields: `text`",
    ),
}


@pytest.mark.parametrize("what", USELESS)
def test_a_text_field_without_text_is_reported_before_the_plan_and_in_the_preview(tmp_path: Path, what: str) -> None:
    rows, told = USELESS[what]
    blend = _blend(write_rows(tmp_path / "a.jsonl", rows))
    wanted = f"`text_field: text`: dataset a (first file: a.jsonl): none of the first 9 rows can be used: {told}"
    assert _told(blend) == [(("blend", "datasets", 0, "text_field"), wanted)]
    assert _check_preview(blend, tmp_path / "out").startswith(f"{wanted}. Set the correct field")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "2 no_messages in a.jsonl (a row needs a list of `messages`, ShareGPT's `conversations`, "),
        (json.dumps(TURNS[0]), "2 no_messages in a.jsonl ("),
        ([{"from": "narrator", "value": "a"}], "2 unknown_role in a.jsonl ("),
        ([TURNS[0], {**TURNS[1], "weight": 3}], "2 unclear_weight in a.jsonl ("),
    ],
)
def test_unusable_messages_are_reported_with_reason_and_remedy(tmp_path: Path, value: Any, told: str) -> None:
    blend = _chat(write_rows(tmp_path / "a.jsonl", [{"messages": value, "meta": i} for i in (1, 2)]))
    ((keys, sentence),) = _told(blend)
    assert keys == ("blend", "datasets", 0, "messages_field")
    begun = "`messages_field: messages`: dataset a (first file: a.jsonl): none of the first 2 rows can be used: "
    assert sentence.startswith(begun + told)
    assert sentence.endswith(". Their fields: `messages`, `meta`")
    (hidden,) = _told(blend.model_copy(update={"sensitive": True}))
    assert hidden[1].startswith(
        begun.replace(" (first file: a.jsonl)", "") + told.removeprefix("2 ").replace(" in a.jsonl", "")
    )


def test_a_thousand_unusable_rows_stop_only_a_run_that_they_would_fail(tmp_path: Path) -> None:
    rows = [{"messages": None}] * 1000 + CHAT
    assert len(_told(_chat(write_rows(tmp_path / "a.jsonl", rows)))) == 1
    dropping = _chat(tmp_path / "a.jsonl").model_copy(
        update={"bad_records": _blend(tmp_path / "a.jsonl", bad_records={"policy": "drop", "budget": 1.0}).bad_records}
    )
    assert _told(dropping) == []


def test_a_weight_that_is_too_small_is_still_reported_as_such(tmp_path: Path) -> None:
    big, small = (write_rows(tmp_path / f"{name}.jsonl", make_texts(name, 60)) for name in ("big", "small"))
    entries = [{"name": "big", "path": str(big), "weight": 1e6}, {"name": "small", "path": str(small)}]
    told = _check_preview(declare_pretraining(tmp_path, blend={"datasets": entries}), tmp_path / "out")
    assert told.startswith("small: a share of 0.000001 gives 0 samples")
    assert "Raise the weight" in told


def test_a_dataset_smaller_than_a_sample_is_reported_with_its_files_and_without_a_weight(tmp_path: Path) -> None:
    blend = _blend(write_rows(tmp_path / "few.jsonl", make_texts("a", 1)))
    told = _check_preview(blend, tmp_path / "out")
    assert told.startswith(
        "a (first file: few.jsonl): 14 tokens in total (rows: 1) are less than one sample of 32 tokens"
    )
    assert_names(told, "field", "path", "weight", 0)
    hidden = _check_preview(blend.model_copy(update={"sensitive": True}), tmp_path / "hidden")
    assert "few.jsonl" not in hidden


def test_a_small_chat_dataset_needs_no_larger_weight(tmp_path: Path) -> None:
    """A dataset with fewer tokens than a packed row once led to advice to raise its weight."""
    assert _check_preview(_chat(write_rows(tmp_path / "a.jsonl", CHAT)), tmp_path / "out") == ""


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"separator": "<|nope|>"}, "pretrain.separator: '<|nope|>' is not in the vocabulary"),
        ({"separator": "auto"}, "pretrain.separator: auto cannot choose for"),
        ({"separator": "<|endoftext|>", "add_bos": True}, "pretrain.add_bos: "),
    ],
)
def test_an_unknown_token_is_reported_with_the_key_of_the_blend_before_the_plan(
    tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    path = write_rows(tmp_path / "a.jsonl", make_texts("a", 3))
    tokenizer = tmp_path / "tokenizer"
    sample = _blend(path).required_tokenizer.path
    assert sample is not None
    tokenizer.mkdir()
    (tokenizer / "tokenizer.json").write_bytes((sample / "tokenizer.json").read_bytes())
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({}))
    blend = _blend(path, pretrain=options, tokenizer={"path": tokenizer, "engine": "tokenizers"})
    with pytest.raises(TokenizerError) as raised:
        plan_blend(blend)
    assert str(raised.value).startswith(told)
    (remark,) = find_blend_remarks(blend)
    assert remark == Remark(keys=(*told.split(":")[0].split("."),), sentence=str(raised.value))


@pytest.mark.parametrize("sensitive", [False, True])
def test_a_file_of_records_that_shares_no_field_with_the_others_is_noted(tmp_path: Path, sensitive: bool) -> None:
    folder = tmp_path / "d"
    write_rows(folder / "a.jsonl", [{"question": "why?"}, {"question": "how?", "level": 1}])
    write_rows(folder / "b.jsonl", [{"level": 2}, {"level": 3}])
    data = {"train": [{"name": "a", "path": str(folder)}]}
    blend = declare_rl_blend(tmp_path / "s", {"transforms": ["passthrough"]}, blend=data)
    blend = blend.model_copy(update={"sensitive": sensitive})
    assert _told(blend) == []
    (folder / "c.json").write_text('{"data": [{"question": "where?"}]}')
    (remark,) = find_blend_remarks(blend)
    assert (remark.keys, remark.hint) == (("blend", "train", 0, "path"), True)
    assert ("c.json" in remark.sentence and "`data`" in remark.sentence) is not sensitive


QUESTIONS = [{"question": "why?", "result": "so"}, {"question": "how?", "result": "thus"}]


def _declare_records(folder: Path, rows: dict[str, list[dict[str, Any]]], rl: dict[str, Any], **changes: Any) -> Any:
    entries = [{"name": name, "path": str(write_rows(folder / f"{name}.jsonl", rows[name]))} for name in rows]
    return declare_rl_blend(folder / "s", rl, blend={"datasets": entries}, **changes)


@pytest.mark.parametrize(("key", "field"), [("answer", "solution"), ("prompt", "problem"), ("answer", "meta.solution")])
def test_a_declared_field_that_no_record_has_is_reported_with_the_available_fields(
    tmp_path: Path, key: str, field: str
) -> None:
    options = {"transforms": ["passthrough"], "prompt": "question", "answer": "result"}
    blend = _declare_records(tmp_path, {"a": QUESTIONS}, options | {key: field})
    wrong = f"`rl.{key}: {field}`: records of dataset a: none of the first 2 rows has this field"
    (remark,) = find_blend_remarks(blend)
    assert remark == Remark(keys=("rl", key), sentence=f"{wrong}. Their fields: `question`, `result`")
    ((_, hidden),) = _told(blend.model_copy(update={"sensitive": True}))
    assert hidden == wrong
    assert _told(_declare_records(tmp_path, {"a": QUESTIONS}, options)) == []


def test_only_one_of_several_datasets_needs_a_declared_answer(tmp_path: Path) -> None:
    options = {"transforms": ["passthrough"], "prompt": "question", "answer": "solution"}
    judged = [{"question": "why?"}]
    both = {"a": [{"question": "how?", "solution": "so"}], "b": judged}
    (remark,) = find_blend_remarks(_declare_records(tmp_path, both, options))
    assert (remark.keys, remark.hint) == (("rl", "answer"), True)
    assert "dataset b" in remark.sentence
    assert [
        remark.hint for remark in find_blend_remarks(_declare_records(tmp_path, both, options | {"answer": "x"}))
    ] == [False, False]


def test_fields_are_looked_for_in_the_records_that_transforms_return(tmp_path: Path) -> None:
    renamed = {"transforms": [{"rename": {"task": "question"}}], "prompt": "task"}
    assert _told(_declare_records(tmp_path, {"a": QUESTIONS}, renamed)) == []
    ((keys, told),) = _told(_declare_records(tmp_path, {"a": QUESTIONS}, renamed | {"prompt": "question"}))
    assert (keys, told.partition("Their")[2]) == (("rl", "prompt"), " fields: `task`")
    ((keys, told),) = _told(_declare_records(tmp_path, {"a": QUESTIONS}, {"transforms": [{"select": ["task"]}]}))
    assert keys == ("rl", "transforms")
    assert_names(told, "`rl.transforms`", "dataset a", "first 2 rows", "`select`")
    assert told.endswith("Their fields: `question`, `result`")


def test_declared_fields_of_conversations_and_ids_that_no_row_has_are_reported(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"messages": TURNS}] * 2)
    blend = _chat(path, tools_field="functions_", used_in_filter=["sft"]).model_copy(update={"id_field": "uid"})
    told = dict(_told(blend))
    assert set(told) == {("id_field",), ("sft", "tools_field"), ("sft", "used_in_field")}
    assert told["sft", "used_in_field"].startswith("`used_in_field: used_in`: dataset a: none of the first 2 rows has")
    ((keys, _),) = _told(_chat(path, {"tools_field": "functions_"}))
    assert keys == ("blend", "datasets", 0, "tools_field")


def test_a_rule_that_needs_an_unknown_answer_is_noted(tmp_path: Path) -> None:
    options = {"transforms": ["passthrough"], "prompt": "question"}
    rules = {"drop": {"short": "answer_characters < 1", "long": "question_characters > 99"}}
    (remark,) = find_blend_remarks(_declare_records(tmp_path, {"a": QUESTIONS}, options, **rules))
    assert (remark.keys, remark.hint) == (("drop", "short"), True)
    assert_names(remark.sentence, "`answer_characters`", "known answer", "`rl.answer`")
    options["answer"] = "result"
    assert _told(_declare_records(tmp_path, {"a": QUESTIONS}, options, **rules)) == []
    remarks = find_blend_remarks(_declare_records(tmp_path, {"a": QUESTIONS}, {"transforms": ["passthrough"]}, **rules))
    assert {remark.keys: "`rl.prompt`" in remark.sentence for remark in remarks} == {
        ("drop", "short"): True,
        ("drop", "long"): True,
    }


def test_rows_without_pairs_are_reported_with_what_is_missing(tmp_path: Path) -> None:
    subject = "dataset a (first file: a.jsonl): none of the first 2 rows has a prompt with `chosen` "
    subject += "and `rejected`, or with an answer and its boolean `label`"
    for rows, end in (
        (CHAT, ". Use `stage: sft` for conversations. Their fields: `messages`, `meta`"),
        ([{"question": "hi"}] * 2, ". Their fields: `question`"),
    ):
        sft = _chat(write_rows(tmp_path / "a.jsonl", rows))
        options = PairsOptions(chat_template="chatml_reasoning")
        blend = sft.model_copy(update={"stage": "pairs", "sft": None, "pairs": options})
        assert [told for _, told in _told(blend)] == [subject + end]


def test_a_field_that_a_later_row_may_have_is_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for rows, is_hint in ((CHAT * (ROWS // len(CHAT)), True), (CHAT, False)):
        remarks = find_blend_remarks(_chat(write_rows(path, rows), {"tools_field": "functions"}))
        hints = [remark.hint for remark in remarks if remark.keys[-1] == "tools_field"]
        assert hints == [is_hint]


@pytest.mark.parametrize("is_file", [False, True])
def test_a_key_of_a_dataset_that_only_other_stages_read_is_refused(tmp_path: Path, is_file: bool) -> None:
    entry = {"name": "a", "path": str(write_rows(tmp_path / "a.jsonl", [{"messages": TURNS}])), "text_field": "body"}
    (tmp_path / "blend.json").write_text(json.dumps({"datasets": [entry]}))
    blend = _chat(tmp_path / "a.jsonl", {"text_field": "body"})
    blend = blend.model_copy(update={"blend": tmp_path / "blend.json"}) if is_file else blend
    (remark,) = find_blend_remarks(blend)
    assert remark == Remark(
        keys=("blend",) if is_file else ("blend", "datasets", 0, "text_field"),
        sentence="dataset a: `text_field` has no effect with `stage: sft`. Remove it",
        hint=is_file,  # a blend of a different stage may read the same file
    )
    texts = write_rows(tmp_path / "texts.jsonl", make_texts("a", 60))
    assert [keys[-1] for keys, _ in _told(_blend(texts, {"messages_field": "turns"}))] == ["messages_field"]
    assert _told(_chat(tmp_path / "a.jsonl", {"text_field": "text"})) == [], "the default changes nothing"


def test_a_file_in_two_splits_is_a_mistake_and_in_two_datasets_of_a_split_a_hint(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", make_texts("a", 60))
    (tmp_path / "link.jsonl").symlink_to(path)
    entries = [{"name": "a", "path": str(path)}, {"name": "b", "path": str(tmp_path / "link.jsonl")}]
    (hint,) = find_blend_remarks(declare_pretraining(tmp_path, blend={"datasets": entries}))
    assert (hint.keys, hint.hint) == (("blend", "datasets", 1, "path"), True)
    assert hint.sentence.startswith("b.path: 1 file is also read by the dataset a of `datasets` (link.jsonl), so the ")
    split_lists = {"train": entries[:1], "valid": entries[1:]}
    (leak,) = find_blend_remarks(declare_pretraining(tmp_path, blend=split_lists))
    assert (leak.keys, leak.hint) == (("blend", "valid", 0, "path"), False)
    assert_names(leak.sentence, "b.path", "dataset a", "`train`", "(link.jsonl)")
    (sampled,) = find_blend_remarks(declare_pretraining(tmp_path, blend=split_lists, sample={"count": 1}))
    assert sampled.hint
