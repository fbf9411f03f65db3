"""Packed chat shards: the trainer reads the conversations, the ledgers balance, and no upstream defect occurs."""

import json
import shutil
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep_assets.errors import BadRecordError, ConfigError, CorruptSourceError
from dataprep_assets.execution.pool import TaskEngine
from dataprep_assets.formats.row_origins import ORIGINS
from dataprep_assets.integrity.receipt import find_damage
from dataprep_assets.pipelines.blend.sft.packed_sft import build_packed_sft
from dataprep_assets.pipelines.blend.sft.shard import PACKED, QUARANTINE, PackPlan
from dataprep_assets.pipelines.blend.sft.spool import get_spool_artifact
from dataprep_assets.sources.readers.read_options import RowRange
from dataprep_assets.sources.readers.rows import split_rows
from dataprep_assets.tokenization.chat.choices import OURS
from dataprep_assets.tokenization.chat.messages import ConversationFields
from dataprep_assets.tokenization.chat.template import ChatTemplate
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.blend.sft.conversations import (
    END,
    build,
    build_rows,
    decode_trained,
    describe_source,
    find_answers,
    make_conversation,
    plan,
    read_consumed,
    work,
    write_rows,
)
from dataprep_assets_tests.pipelines.blend.sft.proven_shards import find_failing
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer
from dataprep_assets_tests.tokenization.chat.trap import QWEN

ROWS = [make_conversation(seed) for seed in range(120)]
USER = {"role": "user", "content": "Why?"}


def list_answers(*contents: str) -> dict[str, Any]:
    return {"messages": [{"role": ("user", "assistant")[i % 2], "content": c} for i, c in enumerate(contents)]}


@pytest.mark.parametrize("algorithm", ["first_fit_shuffle", "first_fit_decreasing", "concatenative", "best_fit"])
def test_labels_under_the_mask_are_exactly_the_answers_with_their_stop_tokens(algorithm: str, tmp_path: Path) -> None:
    shard = build_rows(tmp_path, ROWS, packing={"algorithm": algorithm})
    assert Counter(decode_trained(shard.rows)) == Counter(text for row in ROWS for text in find_answers(row))


def test_the_trainer_never_predicts_across_sequences(tmp_path: Path) -> None:
    shard = build_rows(tmp_path, ROWS)
    rows = shard.rows
    first = rows[0]["input_ids"][0]
    assert len(rows) > 3
    for tokens, labels, mask in read_consumed(rows):
        assert tokens[0] == first  # the template begins every conversation with the same token
        assert len(tokens) == len(labels) == len(mask)
        assert sum(mask) > 0
    for row in rows:
        assert len(row["input_ids"]) <= 1024
        assert all(row["loss_mask"][start - 1] == 0 for start in [*row["seq_start_id"][1:], len(row["input_ids"])])


def test_the_receipt_describes_the_file(tmp_path: Path) -> None:
    shard = build_rows(tmp_path, ROWS)
    facts, ledger, rows = shard.receipt.facts, shard.receipt.ledger, shard.rows
    assert ledger is not None
    tokens = sum(len(r["input_ids"]) for r in rows)
    assert (facts["bins"], facts["sequences"]) == (len(rows), sum(len(r["seq_start_id"]) for r in rows))
    assert facts["tokens"] == ledger.tokens == tokens
    assert facts["trained_tokens"] == sum(sum(r["loss_mask"]) for r in rows)
    assert facts["fill"] == pytest.approx(tokens / (1024 * len(rows)), abs=1e-6)
    assert (ledger.rows_in, ledger.documents, dict(ledger.dropped)) == (120, 120, {})
    assert (ledger.min_id, ledger.max_id) == (
        min(min(r["input_ids"]) for r in rows),
        max(max(r["input_ids"]) for r in rows),
    )
    assert facts["template_digest"] == ChatTemplate.load("chatml_reasoning").digest
    assert sorted(shard.origins) == sorted(
        [0, n, turn] for n, row in enumerate(ROWS, 1) for turn in range(_sequences(row))
    )


def _sequences(row: dict[str, Any]) -> int:
    roles = [m["role"] for m in row["messages"]]
    return roles.count("user") if any("reasoning_content" in m for m in row["messages"]) else 1


def test_numbers_of_workers_and_folders_do_not_change_bytes(tmp_path: Path) -> None:
    paths = [write_rows(tmp_path / f"{i}.jsonl.zst", ROWS[i * 30 : i * 30 + 30]) for i in range(4)]
    files = [describe_source(path, i) for i, path in enumerate(paths)]
    one = build(work(tmp_path / "one", files, plan()), workers=1)
    copies = [Path(shutil.copy(path, tmp_path / f"copy-{path.name}")) for path in paths]
    moved = [describe_source(path, i, label=f.label) for i, (path, f) in enumerate(zip(copies, files, strict=True))]
    three = build(work(tmp_path / "three", moved, plan()), workers=3)
    assert one.receipt.key == three.receipt.key
    for name in (PACKED, ORIGINS):
        assert (one.directory / name).read_bytes() == (three.directory / name).read_bytes()


def test_a_second_run_is_a_no_op(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", ROWS)
    todo = work(tmp_path / "out", [describe_source(path)], plan())
    build(todo)
    before = (tmp_path / "out/d/packed_sft/chat-00000" / PACKED).stat()
    (again,) = build_packed_sft([todo], workers=2)
    assert again.reused
    assert (tmp_path / "out/d/packed_sft/chat-00000" / PACKED).stat().st_mtime_ns == before.st_mtime_ns


def test_a_finished_shard_needs_no_cluster_and_its_spools_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    todo = work(tmp_path / "out", [describe_source(write_rows(tmp_path / "a.jsonl", ROWS))], plan())
    first = build(todo)
    left = get_spool_artifact(todo.artifact, todo.sources[0].ordinal).directory(todo.scratch)
    left.mkdir(parents=True)
    monkeypatch.setitem(sys.modules, "ray", None)
    (again,) = build_packed_sft([todo], workers=2, engine=TaskEngine("ray"))
    assert again.reused
    assert again.receipt == first.receipt
    assert not left.exists()


def test_a_truncated_output_is_found_and_rebuilt_with_the_same_bytes(tmp_path: Path) -> None:
    """Upstream accepts any file that exists (docs/formats/shard-plan.md#resume)."""
    path = write_rows(tmp_path / "rows.jsonl", ROWS)
    todo = work(tmp_path / "out", [describe_source(path)], plan())
    packed = build(todo).directory / PACKED
    whole = packed.read_bytes()
    packed.write_bytes(whole[:3])
    (again,) = build_packed_sft([todo], workers=1)
    assert (again.error, again.reused) == (None, False)
    assert packed.read_bytes() == whole


def test_a_template_edited_under_its_name_changes_the_key(tmp_path: Path) -> None:
    """Upstream's plan has only the template's name or path (docs/migration/nemotron.md)."""
    rows = describe_source(write_rows(tmp_path / "rows.jsonl", ROWS[:8]))
    mine = tmp_path / "mine.jinja"
    mine.write_text(ChatTemplate.load("chatml_reasoning").text)
    before = work(tmp_path / "out", [rows], plan(str(mine)))
    assert before.key == work(tmp_path / "out", [rows], plan("chatml_reasoning")).key
    build(before)
    mine.write_text(mine.read_text().replace("system\\n'", "system\\nNEW '"))
    after = work(tmp_path / "out", [rows], plan(str(mine)))
    assert after.key != before.key
    (result,) = build_packed_sft([after], workers=1)
    assert not result.reused


def test_the_key_depends_exactly_on_what_decides_bytes(tmp_path: Path) -> None:
    rows = describe_source(write_rows(tmp_path / "rows.jsonl", ROWS[:8]))
    base = work(tmp_path / "a", [rows], plan())
    same = [work(tmp_path / "b", [replace(rows, path=tmp_path / "else", size=1)], plan(sample_rate=0.5))]
    other_tokenizer = write_chat_tokenizer(tmp_path / "tokenizer", normalized=True)
    changed = [
        work(tmp_path / "a", [rows], plan(pack_size=1023)),
        work(tmp_path / "a", [rows], plan(max_doc_tokens=100)),
        work(tmp_path / "a", [rows], plan(turns="always")),
        work(tmp_path / "a", [rows], plan(too_long="drop")),
        work(tmp_path / "a", [rows], plan(fields=ConversationFields(used_in_filter=("x",)))),
        work(tmp_path / "a", [rows], plan(), seed=43),
        work(tmp_path / "a", [rows], plan(), algorithm="concatenative"),
        work(tmp_path / "a", [rows], replace(plan(), tokenizer_digest=other_tokenizer.digest)),
        work(tmp_path / "a", [replace(rows, sha256="0" * 64)], plan()),
        work(tmp_path / "a", [replace(rows, rows=RowRange(1, 5))], plan()),
    ]
    assert {w.key for w in same} == {base.key}
    assert len({w.key for w in changed} | {base.key}) == len(changed) + 1


def test_shards_that_share_a_file_contain_each_row_once(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", ROWS)
    shards = [
        work(tmp_path / "out", [describe_source(path, rows=rows)], plan(), shard=f"chat-{i:05d}")
        for i, rows in enumerate(split_rows(len(ROWS), 7))
    ]
    results = list(build_packed_sft(shards, workers=2))
    assert [r.error for r in results] == [None] * 7
    texts = [
        t for s in shards for t in decode_trained(pq.read_table(s.store.directory(s.artifact) / PACKED).to_pylist())
    ]
    assert Counter(texts) == Counter(text for row in ROWS for text in find_answers(row))


BAD: list[tuple[Any, str]] = [
    (b"{nope", "bad_json"),
    (b"[]", "not_an_object"),
    ({"id": 1}, "no_messages"),
    ({"messages": [{"role": "bot", "content": "x"}]}, "unknown_role"),
    ({"messages": [USER, {"role": "assistant", "content": 3}]}, "content_not_a_string"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "image": "x"}]}]}, "not_text"),
    ({"messages": [USER, {"role": "assistant", "content": ""}]}, "empty_assistant"),
    ({"messages": [USER, {"role": "assistant", "content": "<tool_call>"}]}, "tool_call_text_without_tools"),
]


def test_bad_rows_are_dropped_counted_and_quarantined_and_the_ledger_balances(tmp_path: Path) -> None:
    rows = [ROWS[0], *(row for row, _ in BAD), {"messages": [USER]}, ROWS[1]]
    shard = build_rows(tmp_path, rows)
    ledger = shard.receipt.ledger
    assert ledger is not None
    assert dict(ledger.dropped) == Counter([reason for _, reason in BAD] + ["empty_after_masking"])
    assert ledger.rows_in == len(rows) == ledger.documents + sum(ledger.dropped.values())
    lines = [json.loads(line) for line in (shard.directory / QUARANTINE).read_bytes().splitlines()]
    assert {line["row"]: line["reason"] for line in lines} == {
        **{n: reason for n, (_, reason) in enumerate(BAD, 2)},
        len(BAD) + 2: "empty_after_masking",
    }
    data = (tmp_path / "rows.jsonl").read_bytes()
    assert all(data[line["byte"] :].startswith(data.splitlines()[line["row"] - 1]) for line in lines)


@pytest.mark.parametrize("policy", ["fail", "drop"])
@pytest.mark.parametrize("data", [[b"broken"], [{"text": "a"}, b"[1]"], [{"messages": "text"}]])
def test_a_file_without_any_conversation_fails_under_both_policies(
    tmp_path: Path, data: list[Any], policy: str
) -> None:
    good = describe_source(write_rows(tmp_path / "a.jsonl", ROWS))
    bad = describe_source(write_rows(tmp_path / "z.jsonl", data), 1)
    with raises(BadRecordError, "z.jsonl", 1) as raised:
        build(work(tmp_path / "out", [good, bad], plan(bad_rows=policy), budget=1.0))
    assert "policy: drop" not in str(raised.value)


@pytest.mark.parametrize(("row", "reason"), BAD)
def test_under_the_policy_fail_the_first_bad_row_is_named(row: Any, reason: str, tmp_path: Path) -> None:
    with raises(BadRecordError, "rows.jsonl", 2, reason):
        build_rows(tmp_path, [ROWS[0], row], bad_rows="fail")


def test_messages_contain_no_text_of_a_conversation(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "SECRET"}, {"role": "SECRET", "content": "SECRET"}]}
    with pytest.raises(BadRecordError) as caught:
        build_rows(tmp_path, [row], bad_rows="fail")
    with pytest.raises(BadRecordError) as budget:
        build_rows(tmp_path, [row], budget=0.5)
    assert "SECRET" not in str(caught.value) + str(budget.value)
    assert "message 1: unknown_role" in str(caught.value)


def test_more_bad_rows_than_the_budget_fail_the_shard_and_keep_the_old_one(tmp_path: Path) -> None:
    good = build_rows(tmp_path, ROWS[:4], budget=0.1)
    whole = (good.directory / PACKED).read_bytes()
    with raises(BadRecordError, 1, 5, "no_messages: 1", "rows.jsonl"):
        build_rows(tmp_path, [*ROWS[:4], {}], budget=0.1)
    assert (good.directory / PACKED).read_bytes() == whole


@pytest.mark.parametrize(("budget", "is_fresh"), [(0.5, True), (0.2, True), (0.1, False)])
def test_a_larger_budget_keeps_a_finished_shard_and_an_exceeded_one_fails(
    tmp_path: Path, budget: float, is_fresh: bool
) -> None:
    shard = build_rows(tmp_path, [*ROWS[:4], {}], budget=0.2)
    changed = replace(shard.work, budget=budget).compare_existing()
    assert (changed.recipe.find_change(shard.receipt) is None) == is_fresh
    if is_fresh:
        assert build(changed).receipt == shard.receipt
    else:
        with raises(BadRecordError, 1, 5, "10.0%"):
            build(changed)
    assert find_damage(shard.directory, shard.receipt) == []


def test_filtered_rows_are_not_defects(tmp_path: Path) -> None:
    """Rows that the declaration filters out neither fail nor count against the budget."""
    rows = [{**ROWS[0], "used_in": "a"}, {**ROWS[1], "used_in": "b"}, ROWS[2]]
    fields = ConversationFields(used_in_filter=("a",))
    shard = build_rows(tmp_path, rows, bad_rows="fail", budget=0.0, fields=fields)
    assert shard.receipt.ledger is not None
    assert dict(shard.receipt.ledger.dropped) == {"not_used_in": 2}


def test_a_changed_prefix_names_row_and_message(tmp_path: Path) -> None:
    template = (
        ChatTemplate.load("chatml_reasoning").text
        + "{% if messages[0].content == 'x' or messages | length > 4 %}{{ raise_exception('too long') }}{% endif %}"
    )
    with raises(BadRecordError, 2, 0, "template_refused", "TemplateError: too long"):
        build_rows(
            tmp_path, [list_answers("a", "b"), list_answers("x", "b", "c", "d")], template=template, bad_rows="fail"
        )
    shard = build_rows(
        tmp_path / "used", [list_answers("a", "b", "c", "d", "e", "f")], template=template, bad_rows="fail"
    )
    assert decode_trained(shard.rows) == [f"b{END}", f"d{END}"]
    assert shard.receipt.facts["conversations_cut"] == {"template_refused": 1}
    assert find_failing(shard) == {}


def test_a_template_without_the_prefix_property_gives_one_sequence_per_turn() -> None:
    assert plan(AHEAD).turns == plan(QWEN).turns == plan(turns="always").turns == "always"
    assert plan().turns == "reasoning"


def test_rows_of_a_qwen_style_template_pass_every_check_with_default_settings(tmp_path: Path) -> None:
    shard = build_rows(
        tmp_path, [make_conversation(seed) for seed in range(40)], template=QWEN, bad_rows="fail", budget=0.0
    )
    assert find_failing(shard) == {}
    assert not any(text.startswith("<think>\n\n") for text in decode_trained(shard.rows))


AHEAD = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ 'LAST' if loop.last and m.role == 'assistant' }}"
    "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_long_sequences_are_truncated_and_counted(tmp_path: Path) -> None:
    rows = [
        list_answers("a", "b " * 300),
        list_answers("c", "d"),
        list_answers("e " * 300, "f"),
        list_answers("g", "h " * 5),
    ]
    shard = build_rows(tmp_path, rows, pack_size=64, max_doc_tokens=100)
    facts = shard.receipt.facts
    assert max(len(r["input_ids"]) for r in shard.rows) == 64
    assert shard.receipt.ledger is not None
    # One conversation is dropped, because its answer was in the part that was removed by truncation.
    assert dict(shard.receipt.ledger.dropped) == {"empty_after_masking": 1}
    assert (facts["truncated"], facts["truncated_to_pack_size"]) == (1, 1)
    assert sorted(t.endswith(END) for t in decode_trained(shard.rows)) == [False, True, True]


def test_sequences_without_trained_tokens_may_be_kept(tmp_path: Path) -> None:
    rows = [list_answers("a", "b " * 300), list_answers("c", "d"), list_answers("e " * 300, "f"), {"messages": [USER]}]
    kept = replace(OURS, untrained="kept")
    shard = build_rows(tmp_path, rows, pack_size=64, max_doc_tokens=100, choices=kept)
    assert shard.receipt.ledger is not None
    assert (shard.receipt.ledger.documents, dict(shard.receipt.ledger.dropped)) == (4, {})
    assert sorted(sum(mask) > 0 for _, _, mask in read_consumed(shard.rows)) == [False, False, True, True]
    assert find_failing(shard) == {}
    said_otherwise = replace(shard, work=replace(shard.work, plan=plan(pack_size=64, max_doc_tokens=100)))
    assert set(find_failing(said_otherwise)) == {"rows_valid", "sampled_sequences_trained"}


def test_an_answer_without_a_question_is_trained(tmp_path: Path) -> None:
    unasked = {"messages": [{"role": "assistant", "content": "b", "reasoning_content": "t"}]}
    shard = build_rows(tmp_path, [unasked, list_answers("c", "d")])
    assert sorted(decode_trained(shard.rows)) == [f"d{END}", f"t\n</think>\nb{END}"]
    assert find_failing(shard) == {}


def test_long_sequences_may_be_dropped_instead(tmp_path: Path) -> None:
    rows = [list_answers("a", "b " * 300), list_answers("c", "d")]
    shard = build_rows(tmp_path, rows, pack_size=64, too_long="drop", bad_rows="fail", budget=0.0)
    assert shard.receipt.ledger is not None
    assert dict(shard.receipt.ledger.dropped) == {"longer_than_pack_size": 1}
    assert decode_trained(shard.rows) == [f"d{END}"]


@pytest.mark.parametrize("too_long", ["truncate", "drop"])
def test_a_conversation_that_is_dropped_whole_counts_only_as_a_row(tmp_path: Path, too_long: str) -> None:
    rows = [list_answers("a " * 300, "b"), list_answers("c", "d")]
    shard = build_rows(tmp_path, rows, pack_size=64, max_doc_tokens=100, too_long=too_long)
    assert shard.receipt.ledger is not None
    assert sum(shard.receipt.ledger.dropped.values()) == 1
    facts = shard.receipt.facts
    assert (facts["sequences_dropped"], facts["truncated"], facts["truncated_to_pack_size"]) == ({}, 0, 0)


def test_one_long_turn_does_not_drop_the_other_turns_of_a_conversation(tmp_path: Path) -> None:
    row = list_answers("a", "b", "c", "d " * 200)
    row["messages"][1]["reasoning_content"] = "hm"
    shard = build_rows(tmp_path, [row], pack_size=64, too_long="drop")
    assert shard.receipt.ledger is not None
    assert (shard.receipt.ledger.documents, dict(shard.receipt.ledger.dropped)) == (1, {})
    assert shard.receipt.facts["sequences_dropped"] == {"longer_than_pack_size": 1}
    assert shard.origins == [[0, 1, 0]]


def test_a_shard_without_rows_is_declared_empty_and_has_no_file(tmp_path: Path) -> None:
    shard = build_rows(tmp_path, [{}, {"messages": [USER]}])
    assert shard.receipt.facts["empty"] is True
    assert not (shard.directory / PACKED).exists()
    (again,) = build_packed_sft([shard.work], workers=1)
    assert again.reused
    assert build(work(tmp_path / "none", [], plan())).receipt.facts["empty"] is True


def test_parquet_rows_are_also_conversations(tmp_path: Path) -> None:
    rows = [{"messages": r["messages"], "tools": json.dumps(r.get("tools"))} for r in ROWS]
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    shard = build(work(tmp_path / "out", [describe_source(path)], plan()))
    assert Counter(decode_trained(shard.rows)) == Counter(text for row in ROWS for text in find_answers(row))


def test_a_file_other_than_the_declared_one_is_refused(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", ROWS[:3])
    declared = describe_source(path)
    write_rows(path, ROWS[:4])
    with raises(CorruptSourceError, "rows.jsonl", "sha256"):
        build(work(tmp_path / "out", [declared], plan()))


def test_a_failed_shard_does_not_stop_the_others(tmp_path: Path) -> None:
    good = describe_source(write_rows(tmp_path / "good.jsonl", ROWS[:9]))
    bad = describe_source(write_rows(tmp_path / "bad.jsonl", [{}]))
    shards = [
        work(tmp_path / "out", [good if i != 1 else bad, replace(good, ordinal=1)], plan(), shard=f"chat-{i:05d}")
        for i in range(3)
    ]
    results = {r.partition: r for r in build_packed_sft(shards, workers=2)}
    assert isinstance(results["chat-00001"].error, BadRecordError)
    assert [results[f"chat-0000{i}"].receipt is not None for i in range(3)] == [True, False, True]


def test_impossible_packing_settings_are_refused() -> None:
    with raises(ConfigError, "packing", "'magic'"):
        PackPlan(algorithm="magic")  # type: ignore[arg-type]
    with raises(ConfigError, "row_group_bins", 0):
        PackPlan(row_group_bins=0)
    with raises(ConfigError, "pack_size", 1):
        plan(pack_size=1)
