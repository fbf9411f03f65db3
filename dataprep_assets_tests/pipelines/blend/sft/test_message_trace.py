"""Trace a token of a chat blend's rows to its message, and back to exactly the tokens of that message."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dataprep_assets.engine.trace.trace import Trace, Tracer, trace_documents
from dataprep_assets.errors import ConfigError, IntegrityError, NotFoundError
from dataprep_assets.formats.conversations import sft_rows
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.blend.blend_sample import build_blend_engine
from dataprep_assets.pipelines.blend.component import TrainingBlend
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.blend_plan import build_blend_plan
from dataprep_assets.pipelines.blend.plan.blend_snapshot import build_blend_snapshot
from dataprep_assets.pipelines.blend.plan.plan import load_blend_plan
from dataprep_assets.pipelines.blend.runs import build_blend_run
from dataprep_assets.pipelines.blend.sft.packed_sft import build_packed_sft, prepare_sft_shards
from dataprep_assets.pipelines.blend.sft.view import ConversationView
from dataprep_assets.pipelines.blend.view import build_view
from dataprep_assets.stream.engine_certificate import ensure_certificate
from dataprep_assets.stream.tokenizer import load_declared_tokenizer
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.blend.pipeline import write_rows
from dataprep_assets_tests.pipelines.blend.sft.conversations import make_conversation
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer

VIEWS = ["messages", "olmo_sft", "sft_rows", "sft_rows_packed"]
ROWS = [make_conversation(seed, 20) for seed in range(12)]


@dataclass(frozen=True)
class Built:
    """A finished chat blend."""

    blend: BlendDeclaration
    store: LocalArtifacts

    @property
    def tracer(self) -> Tracer:
        """A new tracer."""
        return TrainingBlend(self.blend).tracer(self.store)

    def decode(self, ids: Any) -> str:
        """Return the text of ids."""
        return load_declared_tokenizer(self.blend.required_tokenizer).decode(ids)


def build(home: Path, **sft: Any) -> Built:
    path = write_rows(home / "chat" / "a.jsonl", ROWS)
    blend = BlendDeclaration.model_validate(
        {
            "dataset": "small_chat",
            "stage": "sft",
            "blend": {"datasets": [{"name": "chat", "path": str(path)}]},
            "tokenizer": {"path": write_chat_tokenizer(home / "tokenizer").directory, "engine": "tokenizers"},
            "sft": {"pack_size": 1024, "chat_template": "chatml_reasoning", "pad_to_multiple": 8, **sft},
            "views": VIEWS,
        }
    )
    store = LocalArtifacts(home / "out")
    build_blend_plan(blend, store)
    plan = load_blend_plan(blend, store)
    for partition in plan.partitions:
        build_blend_snapshot(blend, store, plan, partition)
    ensure_certificate(build_blend_engine(blend), store)
    shards = prepare_sft_shards(blend, store, plan, plan.partitions)
    for result in build_packed_sft(shards, workers=1):
        assert result.error is None
    build_blend_run(blend, store, plan, shards)
    for name in VIEWS:
        build_view(blend, store, ConversationView.load(name))
    return Built(blend, store)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("built"))


def read_rows(built: Built) -> dict[str, list[list[int]]]:
    """Return the ids of the rows of each artifact with tokens, read without the tracer."""
    folder = built.store.directory(built.blend.artifact("packed_sft", "chat-00000"))
    packed = [row["input_ids"] for row in pq.read_table(folder / "packed.parquet").to_pylist()]
    rows = {"packed_sft": packed}
    for name in ("sft_rows", "sft_rows_packed"):
        view = built.store.directory(built.blend.artifact(name))
        paths = sorted((view / sft_rows.split_name("train")).glob("*.arrow"))
        rows[name] = [ids for path in paths for ids in read_ids(path)]
    return rows


def find_padding(built: Built) -> list[set[int]]:
    """Return the positions of padding in each packed row."""
    folder = built.store.directory(built.blend.artifact("packed_sft", "chat-00000"))
    return [
        {
            start + position
            for start, length, unpadded in zip(*(row[name] for name in columns), strict=True)
            for position in range(unpadded, length)
        }
        for columns in [("seq_start_id", "seq_lengths", "unpadded_lengths")]
        for row in pq.read_table(folder / "packed.parquet").to_pylist()
    ]


def read_ids(path: Path) -> list[list[int]]:
    import pyarrow as pa

    with pa.memory_map(str(path)) as file:
        found: list[list[int]] = pa.ipc.open_stream(file).read_all()["input_ids"].to_pylist()
        return found


def make_question(name: str, number: int) -> dict[str, Any]:
    return (
        {"shard": "chat-00000", "packed_row": number}
        if name == "packed_sft"
        else {"view": name, "split": "train", "sample": number}
    )


def find_texts(message: Mapping[str, Any]) -> list[str]:
    """Return the texts of a message."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    arguments = [str(value) for call in calls for value in json.loads(call["arguments"]).values()]
    texts = [message.get("reasoning_content", ""), message["content"], *(call["name"] for call in calls), *arguments]
    return [text.strip() for text in texts if text.strip()]


@pytest.mark.parametrize("name", ["packed_sft", "sft_rows", "sft_rows_packed"])
def test_every_token_leads_to_a_message_whose_tokens_include_it(built: Built, name: str) -> None:
    tracer, ids_of_row = built.tracer, read_rows(built)[name]
    ranges: dict[tuple[str, int, int], list[Trace]] = {}
    padding = find_padding(built) if name == "packed_sft" else [set[int]() for _ in ids_of_row]
    seen = set()
    for number, ids in enumerate(ids_of_row[:3]):
        owned: dict[tuple[str, int, int], list[int]] = {}
        for position in range(len(ids)):
            if position in padding[number]:
                with raises(NotFoundError, position, "padding"):
                    trace_documents(tracer, token=position, decode=False, **make_question(name, number))
                continue
            (found,) = trace_documents(tracer, token=position, decode=False, **make_question(name, number))
            assert found.message is not None
            assert found.message.token == position
            if found.message.index is None:
                continue
            message = ROWS[found.row - 1]["messages"][found.message.index]
            assert found.message.role == message["role"]
            owned.setdefault((found.file, found.row, found.message.index), []).append(position)
        for key, positions in owned.items():
            file, row, index = key
            if key not in ranges:
                ranges[key] = trace_documents(tracer, file=file, row=row, message=index)
            (back,) = ranges[key]
            covered = [
                position
                for place in back.places
                if place.artifact.split("/")[1] == name
                and place.at["row" if name == "packed_sft" else "sample"] == number
                for position in range(place.start, place.stop)
            ]
            assert covered == positions
            text = built.decode([ids[position] for position in positions])
            message = dict(ROWS[row - 1]["messages"][index])
            if message.get("reasoning_content", "").strip() not in text:
                del message["reasoning_content"]  # the template drops the reasoning of earlier turns
                assert index < len(ROWS[row - 1]["messages"]) - 1
            for words in find_texts(message):
                assert words in text
            assert "<|im_" not in text
            seen.add(key)
    assert len(seen) > 10


def test_every_message_has_its_tokens_in_every_artifact(built: Built) -> None:
    tracer, ids_of_rows = built.tracer, read_rows(built)
    flat_folder = built.store.directory(built.blend.artifact("olmo_sft"))
    for row, source in enumerate(ROWS, 1):
        (whole,) = trace_documents(tracer, file=(file := list_files(built)[0]), row=row)
        for index, message in enumerate(source["messages"]):
            (found,) = trace_documents(tracer, file=file, row=row, message=index)
            assert found.message is not None
            assert (found.message.index, found.message.role) == (index, message["role"])
            assert (found.source, found.tokens, found.document) == (whole.source, whole.tokens, whole.document)
            assert found.text is not None
            assert all(words in found.text for words in find_texts(message))
            by_artifact: dict[str, list[str]] = {}
            for place in found.places:
                name = place.artifact.split("/")[1]
                if name == "messages":
                    assert place.at["message"] == index
                    continue
                if name == "olmo_sft":
                    ids = np.fromfile(flat_folder / place.file, f"<u{place.itemsize}").tolist()
                else:
                    number = place.at["row" if name == "packed_sft" else "sample"]
                    assert isinstance(number, int)
                    ids = ids_of_rows[name][number]
                by_artifact.setdefault(name, []).append(built.decode(ids[place.start : place.stop]))
            assert by_artifact.keys() == {*VIEWS[1:], "packed_sft"}
            assert len({tuple(texts) for texts in by_artifact.values()}) == 1
            (sample,) = {place.at["sample"] for place in found.places if place.artifact.endswith("/messages")}
            assert trace_documents(tracer, view="messages", split="train", sample=sample, message=index) == [found]


def list_files(built: Built) -> list[str]:
    return sorted({one.file for one in trace_documents(built.tracer, shard="chat-00000", packed_row=0)})


def test_output_has_the_message(built: Built) -> None:
    (found,) = trace_documents(built.tracer, token=0, **make_question("sft_rows", 0))
    assert found.to_json()["message"] == {"index": None, "role": None}
    assert found.to_json()["token"] == 0
    assert any(line.startswith("  token 0: ") and "template" in line for line in found.lines())
    (found,) = trace_documents(built.tracer, file=found.file, row=found.row, message=0)
    assert found.to_json()["message"] == {"index": 0, "role": ROWS[found.row - 1]["messages"][0]["role"]}
    assert "token" not in found.to_json()
    assert any(line.startswith("  message 0 (") for line in found.lines())
    (found,) = trace_documents(built.tracer, file=found.file, row=found.row)
    assert "message" not in found.to_json()


def test_a_message_that_does_not_exist_is_one_error(built: Built) -> None:
    tracer, file = built.tracer, list_files(built)[0]
    for index in (-1, len(ROWS[0]["messages"])):
        with raises(NotFoundError, "message", index, len(ROWS[0]["messages"])):
            trace_documents(tracer, file=file, row=1, message=index)
    with raises(NotFoundError, "token", 10**6, "padding"):
        trace_documents(tracer, token=10**6, **make_question("sft_rows", 0))
    with raises(ConfigError, "messages", "message"):
        trace_documents(tracer, token=1, **make_question("messages", 0))
    with raises(ConfigError, "token", "message"):
        trace_documents(tracer, token=1, message=0, **make_question("sft_rows", 0))


def test_sensitive_text_is_not_decoded(built: Built) -> None:
    blend = built.blend.model_copy(update={"sensitive": True})
    tracer = TrainingBlend(blend).tracer(built.store)
    (found,) = trace_documents(tracer, token=20, view="sft_rows", split="train", sample=0)
    assert found.text is None
    (found,) = trace_documents(tracer, file=found.file, row=found.row, message=0)
    assert found.text is None


def test_a_changed_source_row_is_one_error(tmp_path: Path) -> None:
    built = build(tmp_path)
    path = tmp_path / "chat" / "a.jsonl"
    changed = path.read_text(encoding="utf-8").replace("Question", "Query")
    path.write_text(changed, encoding="utf-8")
    with raises(IntegrityError, "row 1", "a.jsonl", "ids"):
        trace_documents(built.tracer, file=str(list_files(built)[0]), row=1, message=0)


@pytest.mark.parametrize("limit", [{"max_doc_tokens": 40}, {"turns": "always"}])
def test_truncated_sequences_and_several_turns(tmp_path: Path, limit: dict[str, Any]) -> None:
    built = build(tmp_path, **limit)
    tracer = built.tracer
    for number, ids in enumerate(read_rows(built)["sft_rows"][:6]):
        for position in range(0, len(ids), 7):
            (found,) = trace_documents(tracer, token=position, decode=False, **make_question("sft_rows", number))
            assert found.message is not None
            if (index := found.message.index) is not None:
                (back,) = trace_documents(tracer, file=found.file, row=found.row, message=index)
                places = [p for p in back.places if p.artifact.endswith("/sft_rows") and p.at["sample"] == number]
                assert any(place.start <= position < place.stop for place in places)
