"""Tests of the preview of a blend."""

import json
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep_assets.bounds import report_to
from dataprep_assets.errors import TokenizerError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.blend.blend_sample import read_blend_sample
from dataprep_assets.pipelines.blend.dataset import build_blend_specs
from dataprep_assets.pipelines.blend.plan import blend_preview
from dataprep_assets.pipelines.blend.plan.blend_preview import every_dataset_sampled, preview_blend
from dataprep_assets.pipelines.blend.plan.planner import plan_blend
from dataprep_assets.pipelines.blend.sft.chat_plan import chat_plan
from dataprep_assets.tokenization.certificate import refuse_engine
from dataprep_assets.tokenization.chat.template import ChatTemplate
from dataprep_assets_tests.engine.building import build_all
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.blend.finished_blend import finish
from dataprep_assets_tests.pipelines.blend.pipeline import (
    SEPARATOR,
    declare_pretraining,
    finish_blend,
    make_texts,
    write_blend_json,
    write_rows,
    write_small_sources,
)
from dataprep_assets_tests.pipelines.corpus.shards import reference_ids
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer
from dataprep_assets_tests.tokenization.chat.trap import CHATML
from dataprep_assets_tests.tokenization.known_words import save_words


def test_small_sources_are_counted_exactly(tmp_path: Path) -> None:
    blend = declare_pretraining(write_small_sources(tmp_path / "s"))
    found = {source.name: source for source in preview_blend(blend, plan_blend(blend))}
    _, receipt, _ = finish_blend(blend, tmp_path / "out")
    assert {n: s.rows for n, s in found.items()} == {"code": 90, "web": 60}
    assert {n: s.tokens for n, s in found.items()} == {r["name"]: r["tokens"] for r in receipt.facts["realised"]}
    assert {n: round(s.epochs, 6) for n, s in found.items()} == {
        r["name"]: round(r["epochs"], 6) for r in receipt.facts["realised"]
    }
    bins = LocalArtifacts(tmp_path / "out").root / "small_blend" / "indexed_bins"
    on_disk = sum(p.stat().st_size for p in bins.glob("code-*/*") if p.name.startswith(("tokens", "document")))
    assert found["code"].disk_bytes == pytest.approx(on_disk, rel=0.1)


@pytest.mark.parametrize(
    "trial", [{"max_rows": 2}, {"sample": {"count": 1}}, {"sample": {"percent": 60}, "max_rows": 9}]
)
def test_a_trial_is_estimated_from_the_rows_that_it_reads(tmp_path: Path, trial: dict[str, Any]) -> None:
    everything = declare_pretraining(write_small_sources(tmp_path / "s"))
    whole = {source.name: source for source in preview_blend(everything, plan_blend(everything))}
    blend = declare_pretraining(tmp_path / "s", **trial)
    found = preview_blend(blend, plan_blend(blend))
    _, receipt, _ = finish_blend(blend, tmp_path / "out")
    assert receipt.ledger is not None
    assert sum(source.rows for source in found) == pytest.approx(receipt.ledger.rows_in, rel=0.6)
    assert sum(source.tokens for source in found) == pytest.approx(receipt.ledger.tokens, rel=0.6)
    assert {s.name: (s.samples, s.epochs) for s in found} == {n: (s.samples, s.epochs) for n, s in whole.items()}


def test_conversations_are_counted_as_packed(tmp_path: Path) -> None:
    """Counted by plain text, a dataset with tools or many turns would seem much smaller than it is."""
    turn = [{"role": "user", "content": "how many?"}, {"role": "assistant", "content": "three"}]
    thinking = [turn[0], {**turn[1], "reasoning_content": "one, two, three"}]
    tools = [{"type": "function", "function": {"name": "count", "description": "counts", "parameters": {}}}]
    rows = {
        "plain": [{"messages": turn}] * 20,
        "long": [{"messages": turn * 100}] * 3,
        "turns": [{"messages": thinking * 3}] * 10,
        "tools": [{"messages": turn, "tools": tools}] * 10,
        "partly": [{"messages": turn}, {"messages": [{"role": "nobody", "content": "said"}]}] * 10,
    }
    entries = [{"name": name, "path": str(write_rows(tmp_path / f"{name}.jsonl", some))} for name, some in rows.items()]
    bundle = write_chat_tokenizer(tmp_path / "tokenizer")
    blend = declare_pretraining(
        tmp_path,
        stage="sft",
        pretrain=None,
        sft={"pack_size": 512, "chat_template": "chatml_reasoning"},
        tokenizer={"path": str(bundle.directory)},
        bad_records={"policy": "drop", "budget": 1.0},
        blend={"datasets": entries},
    )
    places: list[str] = []
    # Each conversation is reported before it is encoded, so that a conversation that needs too much memory can be
    # identified.
    with report_to(places.append):
        found = {source.name: source.tokens for source in preview_blend(blend, plan_blend(blend))}
    for name, some in rows.items():
        last = [place for place in places if place.startswith(f"{name}.jsonl")][-len(some) :]
        assert last == [f"{name}.jsonl, from row {number}" for number in range(1, len(some) + 1)]
    store = LocalArtifacts(tmp_path / "out")
    build_all([spec for spec in build_blend_specs(blend) if spec.name != "blend"], store)
    packed: Counter[str] = Counter()
    for partition in store.partitions(blend.dataset, "packed_sft"):
        packed[partition.rpartition("-")[0]] += store.require(blend.artifact("packed_sft", partition)).facts["tokens"]
    assert found == packed
    assert found["long"] == 3 * 512


@pytest.mark.parametrize("stage", ["pretrain", "sft"])
def test_a_row_that_the_tokenizer_cannot_encode_is_named(tmp_path: Path, stage: str) -> None:
    words = save_words(
        tmp_path / "tokenizer",
        ["user", "assistant", "Is", "it", "so", "Yes", "is", "Why", "So", "known", "?", ",", ".", "?"],
    )
    said = ["known", "known secret"]
    answers = [[{"role": "user", "content": "Why?"}, {"role": "assistant", "content": one}] for one in said]
    rows = [{"text": one, "messages": messages} for one, messages in zip(said, answers, strict=True)]
    options = {"pack_size": 64, "chat_template": CHATML} if stage == "sft" else {"separator": "<|endoftext|>"}
    blend = declare_pretraining(
        tmp_path,
        stage=stage,
        tokenizer={"path": str(words.directory)},
        blend={"datasets": [{"name": "a", "path": str(write_rows(tmp_path / "a.jsonl", rows))}]},
        **{"pretrain": None, stage: options},
    )
    with raises(TokenizerError, "a.jsonl", 2, "tokenizer", file="a.jsonl", row=2) as caught:
        preview_blend(blend, plan_blend(blend))

    assert "secret" not in str(caught.value)


def test_a_tokenizer_that_cannot_encode_the_template_trial_is_named(tmp_path: Path) -> None:
    words = save_words(tmp_path / "words", ["user", "assistant"])
    refused = refuse_engine(words, "text", "tokenizers", "a test")
    with raises(TokenizerError, "words", "unknown"):
        chat_plan(words, refused, ChatTemplate("given", CHATML), pack_size=64)


def test_rows_without_text_have_no_tokens(tmp_path: Path) -> None:
    some = make_texts("a", 40)
    path = write_rows(tmp_path / "a.jsonl", [row for one in some for row in (one, {"text": ""})])
    blend = declare_pretraining(tmp_path, blend={"datasets": [{"name": "a", "path": str(path)}]})
    (found,) = preview_blend(blend, plan_blend(blend))
    assert found.rows == 80
    assert found.tokens == sum(map(len, reference_ids([row["text"] for row in some]))) + 40


def write_in_format(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write the rows as a file of the format in its name."""
    if path.suffix == ".arrow":
        table = pa.Table.from_pylist(rows)
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table, max_chunksize=10_000)
    elif path.suffix == ".csv":
        path.write_text("".join(f"{row['text']}\n" for row in [{"text": "text"}, *rows]))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        write_rows(path, rows)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.zst", "a.parquet", "a.csv", "a.json", "a.arrow"])
def test_large_sources_are_estimated_from_their_first_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(blend_preview, "ROWS_PER_FILE", 50)
    from dataprep_assets.sources.readers import blocks

    monkeypatch.setattr(blocks, "_BLOCK", 1 << 20)
    # Use digests, because they compress less than text, so that the compressed file is also larger than a block.
    digests = [sha256(str(row).encode()).hexdigest() for row in range(60_000)]
    path = write_in_format(tmp_path / name, [{"text": digest} for digest in digests])
    blend = declare_pretraining(tmp_path, blend={"datasets": [{"name": "a", "path": str(path)}]})
    (found,) = preview_blend(blend, plan_blend(blend))
    assert found.rows == pytest.approx(60_000, rel=0.25)
    exact = 60 * (sum(map(len, reference_ids(digests[:1000]))) + 1000)
    assert found.tokens == pytest.approx(exact, rel=0.25)


def test_columns_that_shards_do_not_read_are_not_read_from_parquet(tmp_path: Path) -> None:
    columns = [pa.array(["a text"] * 20), pa.array([1] * 20), pa.array([2] * 20)]
    pq.write_table(pa.Table.from_arrays(columns, names=["text", "meta", "meta"]), tmp_path / "a.parquet")
    blend = declare_pretraining(tmp_path, blend={"datasets": [{"name": "a", "path": str(tmp_path / "a.parquet")}]})
    (found,) = preview_blend(blend, plan_blend(blend))
    assert found.rows == 20
    assert list(read_blend_sample(blend, plan_blend(blend))) == ["a text"] * 20


def test_a_dataset_that_rounds_to_zero_fails_and_is_named(tmp_path: Path) -> None:
    """In marin#8373, eight sources rounded to zero with only a warning (docs/known-failures.md)."""
    tiny = write_blend_json(write_small_sources(tmp_path / "s"))
    tiny["datasets"][0]["weight"] = 1000.0
    blend = declare_pretraining(tmp_path / "s", blend=tiny, pretrain={"separator": SEPARATOR, "sequence_length": 64})
    finish_blend(blend, tmp_path / "out")
    receipt = LocalArtifacts(tmp_path / "out").require(blend.artifact("blend_preview"))
    assert receipt.facts["rounds_to_zero"] == ["web"]
    finding = every_dataset_sampled(receipt)
    assert not finding.passed
    assert "web" in finding.summary
    assert [row["name"] for row in finding.table] == ["code", "web"]


def test_if_all_conversations_are_too_long_their_length_is_named_as_the_cause(tmp_path: Path) -> None:
    turn = [{"role": "user", "content": "how many?"}, {"role": "assistant", "content": "three"}]
    path = write_rows(tmp_path / "long.jsonl", [{"messages": turn * 40}] * 3)
    blend = declare_pretraining(
        tmp_path,
        stage="sft",
        pretrain=None,
        sft={"pack_size": 64, "chat_template": "chatml_reasoning", "too_long": "drop"},
        tokenizer={"path": str(write_chat_tokenizer(tmp_path / "tokenizer").directory)},
        blend={"datasets": [{"name": "long", "path": str(path)}]},
    )
    store = LocalArtifacts(tmp_path / "out")
    build_all([spec for spec in build_blend_specs(blend) if spec.name in ("blend_plan", "blend_preview")], store)
    finding = every_dataset_sampled(store.require(blend.artifact("blend_preview")))
    assert_names(finding.summary, "`too_long: drop`", "`pack_size")
    assert_names(finding.summary, "`too_long: drop`", "`pack_size: 64`")


def test_a_share_that_needs_repetition_is_reported_as_unreachable(tmp_path: Path) -> None:
    blend = declare_pretraining(write_small_sources(tmp_path / "s"), max_epochs=1)
    found = {source.name: source for source in preview_blend(blend, plan_blend(blend))}
    assert found["code"].epochs > 1
    assert found["code"].realisable < found["code"].requested == 0.75
    assert sum(source.realisable for source in found.values()) == pytest.approx(1)


def test_the_preview_is_a_table_in_a_file(tmp_path: Path) -> None:
    blend = declare_pretraining(write_small_sources(tmp_path / "s"))
    finish_blend(blend, tmp_path / "out")
    store = LocalArtifacts(tmp_path / "out")
    rows = json.loads((store.local(blend.artifact("blend_preview")) / "preview.json").read_bytes())
    assert rows == store.require(blend.artifact("blend_preview")).facts["sources"]
    assert {row["shards"] for row in rows} == {3}
    assert {row["bytes_to_fetch"] for row in rows} == {0}


def test_a_source_that_rounds_to_zero_fails(tmp_path: Path) -> None:
    tiny = write_blend_json(write_small_sources(tmp_path / "s"))
    tiny["datasets"][1]["weight"] = 1e-6
    good = finish(declare_pretraining(tmp_path / "s", blend=tiny), tmp_path / "out")
    finding = every_dataset_sampled(good.store.require(good.blend.artifact("blend_preview")))
    assert not finding.passed
    assert finding.summary.startswith("web: a share of 0.000000 gives 0 samples")
