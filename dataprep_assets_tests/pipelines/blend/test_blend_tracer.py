"""Trace documents of a pretraining blend and conversations of a chat blend, from trainer rows to the source and
back.
"""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from dataprep_assets.engine.trace.trace import trace_documents
from dataprep_assets.errors import ConfigError, NotFoundError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.blend.blend_sample import build_blend_engine
from dataprep_assets.pipelines.blend.component import TrainingBlend
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.blend_plan import build_blend_plan
from dataprep_assets.pipelines.blend.plan.blend_snapshot import build_blend_snapshot
from dataprep_assets.pipelines.blend.plan.plan import load_blend_plan
from dataprep_assets.pipelines.blend.sft.packed_sft import build_packed_sft, prepare_sft_shards
from dataprep_assets.stream.engine_certificate import ensure_certificate
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.blend.pipeline import (
    build_shards,
    declare_pretraining,
    make_text,
    make_texts,
    write_rows,
    write_small_sources,
)
from dataprep_assets_tests.pipelines.blend.sft.conversations import make_conversation
from dataprep_assets_tests.pipelines.corpus.pipeline import Outcome
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer


def test_every_document_of_a_blend_with_split_files_is_traced(tmp_path: Path) -> None:
    folder = write_small_sources(tmp_path / "s")
    short = [{"text": "x"}, *make_texts("long", 20), {"text": "y"}, *make_texts("long", 20, 20)]
    write_rows(folder / "long" / "a.jsonl", short)
    blend = declare_pretraining(
        folder,
        num_shards=5,
        pretrain={"separator": "<|endoftext|>", "min_doc_chars": 4, "max_doc_tokens": 30},
        blend={"datasets": [{"name": name, "path": str(folder / name)} for name in ("code", "web", "long")]},
    )
    store, outcome = LocalArtifacts(tmp_path / "out"), Outcome()
    build_blend_plan(blend, store)
    build_shards(blend, store, load_blend_plan(blend, store), 1, outcome)
    assert not outcome.failed
    tracer = TrainingBlend(blend).tracer(store)
    expected = {
        "code": {("part-2.jsonl.zst", n + 1): make_text("code", n) for n in range(40)}
        | {("part-10.jsonl.gz", n + 1): make_text("code", 40 + n) for n in range(50)},
        "web": {("train-00000.parquet", n + 1): make_text("web", n) for n in range(60)},
        "long": {("a.jsonl", row): str(line["text"]) for row, line in enumerate(short, 1) if len(line["text"]) > 3},
    }
    for name, rows in expected.items():
        seen = set()
        for number in range(len(rows)):
            (found,) = trace_documents(tracer, document=number, split=name)
            key = (found.file.rpartition("/")[2], found.row)
            assert found.text is not None
            assert rows[key].startswith(found.text)  # a trace truncates the text of long documents
            seen.add(key)
            (place,) = found.places
            partition = place.artifact.rpartition("/")[2]
            assert trace_documents(tracer, megatron_index=place.at["document"], shard=partition) == [found]
            assert trace_documents(tracer, file=found.file, row=found.row) == [found]
            assert found in trace_documents(tracer, text=rows[key])
        assert seen == rows.keys()
    with raises(NotFoundError, 1, found.file, "min_doc_chars"):
        trace_documents(tracer, file=found.file, row=1)


def chat(tmp_path: Path, rows: list[Any], **changes: Any) -> BlendDeclaration:
    path = write_rows(tmp_path / "chat" / "a.jsonl", rows)
    declared: dict[str, Any] = {
        "dataset": "small_chat",
        "stage": "sft",
        "blend": {"datasets": [{"name": "chat", "path": str(path)}]},
        "tokenizer": {"path": write_chat_tokenizer(tmp_path / "tokenizer").directory, "engine": "tokenizers"},
        "sft": {"pack_size": 512, "chat_template": "chatml_reasoning"},
        "num_shards": 2,
        "bad_records": {"policy": "drop", "budget": 1},
    }
    return BlendDeclaration.model_validate(declared | changes)


def test_every_packed_row_of_a_chat_blend_is_traced(tmp_path: Path) -> None:
    rows = [make_conversation(seed) for seed in range(30)]
    rows[7] = {"messages": "none"}
    blend = chat(tmp_path, rows)
    store = LocalArtifacts(tmp_path / "out")
    build_blend_plan(blend, store)
    plan = load_blend_plan(blend, store)
    for partition in plan.partitions:
        build_blend_snapshot(blend, store, plan, partition)
    ensure_certificate(build_blend_engine(blend), store)
    for result in build_packed_sft(prepare_sft_shards(blend, store, plan, plan.partitions), workers=1):
        assert result.error is None
    tracer = TrainingBlend(blend).tracer(store)
    seen = set()
    for partition in plan.partitions:
        path = store.directory(blend.artifact("packed_sft", partition)) / "packed.parquet"
        packed = pq.read_table(path).to_pylist()
        for number, row in enumerate(packed):
            found = trace_documents(tracer, shard=partition, packed_row=number)
            covered = 0
            for one in found:
                assert one.text is not None
                assert f"Question {one.row - 1}.0: " in one.text
                assert trace_documents(tracer, file=one.file, row=one.row) == [one]
                seen.add(one.row)
                covered += sum(place.stop - place.start for place in one.places if place.at["row"] == number)
                for place in one.places:
                    assert place.start in packed[place.at["row"]]["seq_start_id"]  # type: ignore[index]
            assert covered == len(row["input_ids"])
        with raises(NotFoundError, len(packed), partition):
            trace_documents(tracer, shard=partition, packed_row=len(packed))
    assert seen == set(range(1, 31)) - {8}
    file = found[0].file
    with raises(NotFoundError, 8, file, "no_messages"):
        trace_documents(tracer, file=file, row=8)
    with raises(NotFoundError, 99, file, "exist"):
        trace_documents(tracer, file=file, row=99)
    for question in ({"token": 1}, {"packed_row": 0}):
        with raises(ConfigError, "trace"):
            trace_documents(tracer, **question)
