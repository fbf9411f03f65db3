"""Proofs of packed chat shards: all pass on a sound shard, each fails on its own planted faults, naming the place."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep_assets.formats.packed_sft import schema
from dataprep_assets.graph.finding import Finding, files_intact
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.sft import packed_sft_proofs as proofs
from dataprep_assets.pipelines.blend.sft.packed_sft import ORIGINS, PACKED, QUARANTINE
from dataprep_assets_tests.pipelines.blend.sft.conversations import Shard, build_rows, conversation, source, write_rows
from dataprep_assets_tests.tokenization.chat.tokenizers import chat_bundle

ROWS = [conversation(seed) for seed in range(60)] + [{"id": "bad"}]
STOP = "<|im_end|>"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    return build_rows(tmp_path_factory.mktemp("sound"), ROWS, packing={"row_group_bins": 4})


@pytest.fixture
def shard(built: Shard, tmp_path: Path) -> Shard:
    """A shard that the test may damage."""
    return replace(built, directory=Path(shutil.copytree(built.directory, tmp_path / "shard")))


def prove_all(shard: Shard) -> dict[str, Finding]:
    directory, receipt, bundle = shard.directory, shard.receipt, chat_bundle()
    return {
        "files_intact": files_intact(directory, receipt),
        "ledger_balances": proofs.ledger_balances(directory, receipt),
        "counts_match": proofs.counts_match(directory, receipt),
        "rows_valid": proofs.rows_valid(directory, receipt),
        "ids_in_vocabulary": proofs.ids_in_vocabulary(directory, receipt, bundle.vocab_size),
        "stop_tokens_trained": proofs.stop_tokens_trained(directory, receipt),
        "specials_not_doubled": proofs.specials_not_doubled(directory, receipt, bundle),
        "decoded_mask": proofs.decoded_mask(directory, receipt, bundle),
        "round_trip": proofs.round_trip(directory, receipt, shard.work.sources, shard.work.plan, bundle, count=1000),
    }


def failing(shard: Shard) -> dict[str, str]:
    return {name: finding.summary for name, finding in prove_all(shard).items() if not finding.passed}


def edit(shard: Shard, change: Callable[[list[dict[str, list[int]]]], Any], kinds: pa.Schema | None = None) -> None:
    """Rewrite the packed file with its rows changed in place."""
    rows = shard.rows
    change(rows)
    with pq.ParquetWriter(shard.directory / PACKED, kinds or schema()) as writer:
        for start in range(0, len(rows), 4):
            writer.write_table(pa.Table.from_pylist(rows[start : start + 4], kinds or schema()))


def with_facts(shard: Shard, **facts: Any) -> Shard:
    return replace(shard, receipt=replace(shard.receipt, facts={**shard.receipt.facts, **facts}))


def with_ledger(receipt: Receipt, **changes: Any) -> Receipt:
    assert receipt.ledger is not None
    return replace(receipt, ledger=replace(receipt.ledger, **changes))


def test_a_sound_shard_passes_every_proof(built: Shard) -> None:
    assert failing(built) == {}


def test_a_shard_with_every_kind_of_cut_and_drop_passes(tmp_path: Path) -> None:
    for name, changes in (("cut", {"pack_size": 100}), ("dropped", {"pack_size": 200, "too_long": "drop"})):
        shard = build_rows(tmp_path / name, ROWS, **changes)
        assert failing(shard) == {}
    assert shard.receipt.facts["sequences_dropped"]["longer_than_pack_size"] > 0


def test_an_empty_shard_passes_and_a_file_in_it_does_not(tmp_path: Path, built: Shard) -> None:
    shard = build_rows(tmp_path, [{}])
    assert failing(shard) == {}
    shutil.copy(built.directory / PACKED, shard.directory / PACKED)
    assert "declared empty" in failing(shard)["counts_match"]


def test_a_changed_or_strange_file_is_not_intact(shard: Shard) -> None:
    (shard.directory / "extra").touch()
    assert "extra: not in the receipt" in files_intact(shard.directory, shard.receipt).summary
    edit(shard, lambda rows: None)
    assert failing(shard).keys() == {"files_intact"}


def test_a_cut_file_is_found_by_every_proof_that_reads_it(shard: Shard) -> None:
    packed = shard.directory / PACKED
    packed.write_bytes(packed.read_bytes()[:-9])
    found = failing(shard)
    assert found.keys() == set(prove_all(shard)) - {"ledger_balances"}
    assert all(PACKED in summary for summary in found.values())


def test_books_that_do_not_balance_are_found(shard: Shard) -> None:
    wrong = replace(shard, receipt=with_ledger(shard.receipt, rows_in=62))
    assert "does not balance" in failing(wrong)["ledger_balances"]
    (shard.directory / QUARANTINE).unlink()
    assert "1 rows dropped as no_messages, quarantine.jsonl holds 0" in failing(shard)["ledger_balances"]


def test_a_source_line_that_does_not_add_up_is_found(shard: Shard) -> None:
    (line,) = shard.receipt.facts["sources"]
    wrong = with_facts(shard, sources=[{**line, "conversations": 59}])
    assert "rows.jsonl: 61 rows in, but 59 conversations + 1 dropped" in failing(wrong)["ledger_balances"]


@pytest.mark.parametrize("fact", ["bins", "sequences", "tokens", "trained_tokens", "fill"])
def test_a_count_that_is_not_the_files_is_found(fact: str, shard: Shard) -> None:
    wrong = with_facts(shard, **{fact: shard.receipt.facts[fact] + 1})
    assert str(wrong.receipt.facts[fact]) in failing(wrong)["counts_match"]


def test_another_schema_is_found(shard: Shard) -> None:
    wide = pa.schema([(f.name, pa.list_(pa.int64())) for f in schema()])
    edit(shard, lambda rows: None, wide)
    assert "the trainer needs input_ids list<element: int32>" in failing(shard)["rows_valid"]


def test_other_row_groups_are_found(shard: Shard) -> None:
    pq.write_table(pq.read_table(shard.directory / PACKED), shard.directory / PACKED)
    assert "declared are 4" in failing(shard)["rows_valid"]


def set_starts(rows: list[dict[str, list[int]]]) -> None:
    rows[5]["seq_start_id"][1] = 0


def set_mask(value: int) -> Callable[[list[dict[str, list[int]]]], None]:
    def change(rows: list[dict[str, list[int]]]) -> None:
        rows[5]["loss_mask"][-1] = value

    return change


def clear_mask(rows: list[dict[str, list[int]]]) -> None:
    rows[5]["loss_mask"] = [0] * len(rows[5]["loss_mask"])


ROW_FAULTS: list[tuple[Callable[[list[dict[str, list[int]]]], None], str]] = [
    (set_starts, "row 5: starts of sequences do not increase strictly"),
    (set_mask(1), "row 5: the last position of a sequence is trained"),
    (set_mask(7), "row 5: loss_mask holds a value that is not 0 or 1"),
    (clear_mask, "row 5: a sequence has no trained token"),
]


@pytest.mark.parametrize(("change", "said"), ROW_FAULTS)
def test_a_row_that_the_trainer_would_misread_is_found(change: Any, said: str, shard: Shard) -> None:
    edit(shard, change)
    assert said in failing(shard)["rows_valid"]


def test_a_row_longer_than_the_pack_size_is_found(shard: Shard) -> None:
    assert "longer than the pack size of 600" in failing(with_facts(shard, pack_size=600))["rows_valid"]


@pytest.mark.parametrize("token", [-1, 4102])
def test_an_id_outside_the_vocabulary_is_found(token: int, shard: Shard) -> None:
    edit(shard, lambda rows: rows[5]["input_ids"].__setitem__(7, token))
    assert f"row 5 holds id {token}, not in [0, 4102)" in failing(shard)["ids_in_vocabulary"]


def test_a_range_of_ids_that_is_not_the_ledgers_is_found(shard: Shard) -> None:
    wrong = replace(shard, receipt=with_ledger(shard.receipt, max_id=4000))
    assert "the ledger says" in failing(wrong)["ids_in_vocabulary"]


def _shifted(rows: list[dict[str, list[int]]], by: int) -> None:
    for row in rows:
        for start, end in zip(row["seq_start_id"], [*row["seq_start_id"][1:], len(row["input_ids"])], strict=True):
            part = row["loss_mask"][start:end]
            row["loss_mask"][start:end] = [0, *part[:-1]] if by < 0 else [*part[1:], 0]


@pytest.mark.parametrize("by", [-1, 1])
def test_a_mask_not_shifted_or_shifted_twice_is_found(by: int, shard: Shard) -> None:
    edit(shard, lambda rows: _shifted(rows, by))
    found = failing(shard)
    assert "not with the stop token 4097" in found["stop_tokens_trained"]
    assert "its loss mask differ" in found["round_trip"]


def test_a_stop_token_outside_the_mask_is_found(shard: Shard) -> None:
    def change(rows: list[dict[str, list[int]]]) -> None:
        row = rows[5]
        last = max(i for i, on in enumerate(row["loss_mask"]) if on)
        row["loss_mask"][last] = 0

    edit(shard, change)
    assert "row 5: the trained labels that end at token" in failing(shard)["stop_tokens_trained"]


def test_answers_cut_off_that_nobody_counted_are_found(tmp_path: Path) -> None:
    shard = build_rows(tmp_path, ROWS, pack_size=100)
    wrong = with_facts(shard, truncated_to_pack_size=0)
    assert "sequences end inside an answer, but only 0 were truncated" in failing(wrong)["stop_tokens_trained"]


TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n"


def test_a_doubled_special_token_is_found_and_one_beside_another_sequences_is_not(tmp_path: Path) -> None:
    rows = [{"messages": r["messages"]} for seed, r in enumerate(ROWS[:60]) if seed % 4 < 2]
    twice = f"<|endoftext|><|endoftext|>{TURNS}{PROMPT}{{% endif %}}"
    around = f"<|endoftext|>{TURNS}{PROMPT}{{% else %}}<|endoftext|>{{% endif %}}"
    doubled = build_rows(tmp_path / "a", rows, template=twice)
    single = build_rows(tmp_path / "b", rows, template=around, turns="always")
    found = failing(doubled)
    assert found.keys() == {"specials_not_doubled"}
    assert "'<|endoftext|>' 30 times; the first in row 0, 0" in found["specials_not_doubled"]
    assert proofs.specials_not_doubled(single.directory, single.receipt, chat_bundle()).passed


def test_the_decoded_mask_shows_answers_between_brackets(built: Shard) -> None:
    finding = proofs.decoded_mask(built.directory, built.receipt, chat_bundle(), count=1000)
    texts = [str(row["text"]) for row in finding.table]
    assert len(texts) == built.receipt.facts["sequences"]
    joined = "".join(texts)
    for row in ROWS[:60]:
        for message in row["messages"]:
            if message["role"] == "assistant" and not message.get("tool_calls"):
                assert f"{message['content']}{STOP}{proofs.CLOSE}" in joined
    assert all(f"{proofs.OPEN}<|im_start|>" not in text for text in texts)


def test_the_decoded_mask_of_sensitive_data_shows_no_text(built: Shard) -> None:
    finding = proofs.decoded_mask(built.directory, built.receipt, chat_bundle(), sensitive=True)
    assert finding.passed
    assert all(row.keys() == {"row", "sequence", "tokens", "trained"} for row in finding.table)


def test_a_decoded_sequence_with_nothing_to_train_fails(shard: Shard) -> None:
    def change(rows: list[dict[str, list[int]]]) -> None:
        rows[0]["loss_mask"] = [0] * len(rows[0]["loss_mask"])

    edit(shard, change)
    assert "row 0: sequence 0 has nothing to train" in failing(shard)["decoded_mask"]


def test_ids_that_are_not_the_conversations_are_found(shard: Shard) -> None:
    edit(shard, lambda rows: rows[5]["input_ids"].__setitem__(3, 77))
    assert "its ids differ from those in row 5" in failing(shard)["round_trip"]


def test_a_source_that_changed_is_found(shard: Shard, tmp_path: Path) -> None:
    changed = json.loads(json.dumps(ROWS))
    changed[3]["messages"][-1]["content"] += " more"
    other = replace(shard, work=replace(shard.work, sources=(source(write_rows(tmp_path / "rows.jsonl", changed)),)))
    assert "rows.jsonl: row 4, sequence 0: its ids differ" in failing(other)["round_trip"]
    short = replace(shard, work=replace(shard.work, sources=(source(write_rows(tmp_path / "rows.jsonl", ROWS[:9])),)))
    assert "is packed, but the source has no such row" in failing(short)["round_trip"]


def test_origins_that_are_short_or_double_are_found(shard: Shard) -> None:
    origins = np.load(shard.directory / ORIGINS)
    np.save(shard.directory / ORIGINS, origins[:-1])
    assert "lines for" in failing(shard)["round_trip"]
    origins[1] = origins[0]
    np.save(shard.directory / ORIGINS, origins)
    assert "names one sequence of a conversation twice" in failing(shard)["round_trip"]
    np.save(shard.directory / ORIGINS, origins.astype(np.float64))
    assert "not int64 triples" in failing(shard)["round_trip"]
