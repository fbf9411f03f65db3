"""Generate conversations, and create and build small shards of them."""

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import zstandard

from dataprep_assets.formats.row_origins import ORIGINS
from dataprep_assets.integrity.artifacts import Artifact, LocalArtifacts
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan, ChatSource, chat_plan
from dataprep_assets.pipelines.blend.sft.packed_sft import build_packed_sft
from dataprep_assets.pipelines.blend.sft.shard import PACKED, PackPlan, SftShard
from dataprep_assets.stores.files import sha256_file
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.chat.template import ChatTemplate
from dataprep_assets_tests.tokenization.chat.tokenizers import chat_bundle, chat_certificate

WORDS = ("the", "a", "of", "to", "and", "is", "in", "it", "you", "that", "was", "for", "Köln", "12", "x = 3", "日本")
END = "<|im_end|>"
TOOL = {"type": "function", "function": {"name": "look_up", "description": "Finds a word.", "parameters": {}}}


def make_text(random_: random.Random, words: int) -> str:
    """Return prose with several lines and punctuation."""
    return "".join(
        random_.choice(WORDS) + random_.choice((" ", " ", " ", " ", ", ", ". ", "\n", " — ")) for _ in range(words)
    )


def make_conversation(seed: int, longest: int = 60) -> dict[str, Any]:
    """Return one row: plain, with a system text, with reasoning, or with a tool call."""
    random_ = random.Random(seed)
    kind = seed % 4
    messages: list[dict[str, Any]] = []
    if kind == 1:
        messages.append({"role": "system", "content": make_text(random_, 8)})
    for turn in range(random_.randint(1, 3)):
        messages.append(
            {"role": "user", "content": f"Question {seed}.{turn}: {make_text(random_, random_.randint(1, 20))}"}
        )
        reasoning = {"reasoning_content": make_text(random_, 10)} if kind == 2 else {}
        if kind == 3:
            call = {
                "type": "function",
                "function": {"name": "look_up", "arguments": json.dumps({"word": "a", "n": turn})},
            }
            messages.append({"role": "assistant", "content": "", "tool_calls": [call], **reasoning})
            messages.append({"role": "tool", "content": make_text(random_, 5)})
        messages.append({"role": "assistant", "content": make_text(random_, random_.randint(1, longest)), **reasoning})
    return {"id": seed, "messages": messages, **({"tools": [TOOL]} if kind == 3 else {})}


def write_rows(path: Path, rows: Iterable[Any]) -> Path:
    """Write JSON lines of rows; values that are bytes are written unchanged. `.zst` is compressed."""
    lines = [row if isinstance(row, bytes) else json.dumps(row, ensure_ascii=False).encode() for row in rows]
    data = b"".join(line + b"\n" for line in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(zstandard.compress(data) if path.suffix == ".zst" else data)
    return path


def describe_source(path: Path, ordinal: int = 0, **changes: Any) -> ChatSource:
    """Return a file as its snapshot describes it."""
    described: dict[str, Any] = {
        "label": path.name,
        "path": path,
        "format": "parquet" if path.suffix == ".parquet" else "jsonl",
        "compression": {".zst": "zstd", ".gz": "gzip"}.get(path.suffix),
        "sha256": sha256_file(path),
        "ordinal": ordinal,
        "size": path.stat().st_size,
    }
    return ChatSource(**(described | changes))


def plan(template: str = "chatml_reasoning", bundle: TokenizerBundle | None = None, **changes: Any) -> ChatPlan:
    """Return a plan over the small tokenizer."""
    settings: dict[str, Any] = {"pack_size": 1024, "sample_rate": 0.0}
    return chat_plan(bundle or chat_bundle(), chat_certificate(), ChatTemplate.load(template), **(settings | changes))


def work(
    root: Path,
    sources: Sequence[ChatSource],
    plan: ChatPlan,
    *,
    shard: str = "chat-00000",
    budget: float = 0.0,
    **packing: Any,
) -> SftShard:
    """Return the work of one shard."""
    return SftShard(
        artifact=Artifact(dataset="d", name="packed_sft", partition=shard),
        store=LocalArtifacts(root),
        sources=tuple(sources),
        plan=plan,
        packing=PackPlan(**packing),
        budget=budget,
    )


@dataclass(frozen=True)
class Shard:
    """A finished shard with its directory and receipt."""

    directory: Path
    receipt: Receipt
    work: SftShard

    @property
    def rows(self) -> list[dict[str, list[int]]]:
        """The packed rows."""
        found: list[dict[str, list[int]]] = pq.read_table(self.directory / PACKED).to_pylist()
        return found

    @property
    def origins(self) -> list[list[int]]:
        """The source ordinal, row and sequence of every packed sequence."""
        found: list[list[int]] = np.load(self.directory / ORIGINS).tolist()
        return found


def build(work: SftShard, workers: int = 1) -> Shard:
    """Build one shard; raises its error."""
    (result,) = build_packed_sft([work], workers=workers)
    if result.error is not None:
        raise result.error
    assert result.receipt is not None
    return Shard(work.store.directory(work.artifact), result.receipt, work)


def build_rows(
    folder: Path, rows: Iterable[Any], *, budget: float = 1.0, packing: dict[str, Any] | None = None, **changes: Any
) -> Shard:
    """Build the shard of one file of rows, which allows every drop by default."""
    path = write_rows(folder / "rows.jsonl", rows)
    changes.setdefault("bad_rows", "drop")
    return build(work(folder / "out", [describe_source(path)], plan(**changes), budget=budget, **(packing or {})))


def read_consumed(rows: Iterable[dict[str, list[int]]]) -> list[tuple[list[int], list[int], list[int]]]:
    """Return tokens, labels and mask of every sequence, as the trainer takes them from a row.

    The rule of Megatron-Bridge (`data/packing/gpt_sft.py`, `GPTSFTPackedDataset.collate_fn`;
    docs/formats/packed-sft.md#loss-mask).
    """
    found = []
    for row in rows:
        ids, mask, starts = row["input_ids"], row["loss_mask"], row["seq_start_id"]
        for start, end in zip(starts, [*starts[1:], len(ids)], strict=True):
            found.append((ids[start : end - 1], ids[start + 1 : end], mask[start : end - 1]))
    return found


def decode_trained(rows: Iterable[dict[str, list[int]]], bundle: TokenizerBundle | None = None) -> list[str]:
    """Return the decoded labels under the mask, one text per answer, in the order of the rows."""
    texts = []
    for _, labels, mask in read_consumed(rows):
        run: list[int] = []
        for label, on in [*zip(labels, mask, strict=True), (0, 0)]:
            if on:
                run.append(label)
            elif run:
                texts.append((bundle or chat_bundle()).decode(run))
                run = []
    return texts


def find_answers(row: dict[str, Any]) -> list[str]:
    """Return the answers of a row as `chatml_reasoning` writes them after its generation prompt."""
    texts = []
    for message in row["messages"]:
        if message["role"] == "assistant":
            reasoning = message.get("reasoning_content", "").strip()
            calls = "".join(
                f"\n<tool_call>\n<function={call['function']['name']}>\n"
                + "".join(
                    f"<parameter={k}>\n{v}\n</parameter>\n"
                    for k, v in json.loads(call["function"]["arguments"]).items()
                )
                + "</function>\n</tool_call>"
                for call in message.get("tool_calls", [])
            )
            texts.append((f"{reasoning}\n</think>\n" if reasoning else "") + message["content"] + calls + END)
    return texts
