"""`python -m dataprep_assets_tests.tools.bench.sft`: packed chat data beside the loop that it replaces.

The baseline is chat data as it is usually prepared (Nemotron, ``data_prep/core``): for every message
`apply_chat_template` on all messages so far, every chunk through the tokenizer, lists of Python integers, a scan over
all bins for every sequence, Parquet from lists. Both read the same JSON lines and write a Parquet file, on one thread,
with their tokenizers loaded before the clock starts; runs alternate. Both must give the same sequences of ids, or the
bench fails. Conversations are generated once, with log-normal lengths of turns. All checks of the packed file are run
too, and the ratio counts their CPU-seconds. They read the whole file but compare about 500 sequences with the source
rows, so they cost little for a file of a usual size.
"""

import argparse
import gc
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.execution.processes import ONE_THREAD
from dataprep_assets.integrity.artifacts import Artifact, LocalArtifacts
from dataprep_assets.pipelines.blend.sft import packed_sft_checks
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatSource, chat_plan
from dataprep_assets.pipelines.blend.sft.packing import pack_shard
from dataprep_assets.pipelines.blend.sft.shard import PACKED, PackPlan, SftShard
from dataprep_assets.pipelines.blend.sft.spool import spool_source
from dataprep_assets.stores.files import sha256_file
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import certify
from dataprep_assets.tokenization.chat.template import ChatTemplate
from dataprep_assets.tokenization.engines import FastokensEngine
from dataprep_assets_tests.tools.bench.check_costs import CheckCosts
from dataprep_assets_tests.tools.bench.comparison import REPOSITORY

TARGET = 8
SHARED_TOKENIZER = REPOSITORY.parent / "shared" / "tokenizers" / "qwen3"
_PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "dataprep_assets" / "docs" / "pipelines").glob("*.md"))]
WORDS = [w for page in _PAGES for w in page.read_text(encoding="utf-8").split() if "<" not in w]


def conversations(count: int, seed: int) -> list[dict[str, Any]]:
    """Return rows with `messages`: a third with reasoning, the others plain; 1 to 6 turns; a median of 150 words per
    answer.
    """
    draw, lengths = random.Random(seed), np.random.default_rng(seed)

    def text(median: float) -> str:
        return " ".join(draw.choices(WORDS, k=max(1, min(2000, int(lengths.lognormal(np.log(median), 0.9))))))

    rows = []
    for index in range(count):
        messages: list[dict[str, Any]] = [{"role": "system", "content": text(20)}]
        for _ in range(draw.choice((1, 1, 2, 2, 3, 4, 6))):
            messages.append({"role": "user", "content": text(40)})
            reasoning = {"reasoning_content": text(120)} if index % 3 == 0 else {}
            messages.append({"role": "assistant", "content": text(150), **reasoning})
        rows.append({"messages": messages})
    return rows


class Baseline:
    """The plain loop over a transformers tokenizer."""

    def __init__(self, tokenizer: Path, template: ChatTemplate, pack_size: int) -> None:
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(str(tokenizer))
        self._tokenizer.chat_template = template.text
        self._pack_size = pack_size

    def run(self, source: Path, target: Path) -> None:
        """Convert JSON lines to packed Parquet."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        sequences: list[tuple[list[int], list[int]]] = []
        with source.open(encoding="utf-8") as lines:
            for line in lines:
                found = self._sequences(json.loads(line)["messages"])
                # Leave out a sequence without trained tokens, because the truncation has removed its answers.
                sequences += [(ids, mask) for ids, mask in found if any(mask[1:])]
        rows = []
        for items in self._packed([len(ids) for ids, _ in sequences]):
            row: dict[str, list[int]] = {"input_ids": [], "loss_mask": [], "seq_start_id": []}
            for ids, mask in (sequences[item] for item in items):
                row["seq_start_id"].append(len(row["input_ids"]))
                row["input_ids"] += ids
                row["loss_mask"] += [*mask[1:], 0]
            rows.append(row)
        kinds = {"input_ids": pa.int32(), "loss_mask": pa.uint8(), "seq_start_id": pa.int32()}
        schema = pa.schema([(name, pa.list_(kind)) for name, kind in kinds.items()])
        pq.write_table(pa.Table.from_pylist(rows, schema), target, row_group_size=1000, compression="zstd")

    def _render(self, messages: list[dict[str, Any]], prompt: bool, thinking: bool) -> str:
        text: str = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=prompt, enable_thinking=thinking
        )
        return text

    def _sequences(self, messages: list[dict[str, Any]]) -> list[tuple[list[int], list[int]]]:
        if not any(message.get("reasoning_content") for message in messages):
            return [self._sequence(messages, 0, False)]
        users = [i for i, message in enumerate(messages) if message["role"] == "user"]
        ends = [*users[1:], len(messages)]
        return [self._sequence(messages[:end], user + 1, True) for user, end in zip(users, ends, strict=True)]

    def _sequence(self, messages: list[dict[str, Any]], first: int, thinking: bool) -> tuple[list[int], list[int]]:
        whole = self._render(messages, False, thinking)
        ids: list[int] = []
        mask: list[int] = []
        at = 0
        for index in range(max(0, first - 1), len(messages)):
            role = messages[index]["role"]
            upto = self._render(messages[: index + 1], role == "user", thinking)
            if not whole.startswith(upto):
                raise SystemExit("the baseline's rendering has no prefix property")
            chunk = self._tokenizer.encode(whole[at : len(upto)], add_special_tokens=False)
            ids += chunk
            mask += [int(role == "assistant" and index >= first)] * len(chunk)
            at = len(upto)
        return ids[: self._pack_size], mask[: self._pack_size]

    def _packed(self, lengths: list[int]) -> list[list[int]]:
        order = [(length, item) for item, length in enumerate(lengths)]
        random.Random(42).shuffle(order)
        bins: list[list[int]] = []
        rooms: list[int] = []
        for length, item in order:
            for at, room in enumerate(rooms):
                if room >= length:
                    bins[at].append(item)
                    rooms[at] -= length
                    break
            else:
                bins.append([item])
                rooms.append(self._pack_size - length)
        return bins


class Ours:
    """The two tasks of a worker, in this process: spool, then pack."""

    def __init__(self, tokenizer: Path, template: ChatTemplate, pack_size: int) -> None:
        bundle = TokenizerBundle.load(tokenizer)
        certificate = certify(bundle, "text", FastokensEngine(bundle, "text"), [])
        self._plan = chat_plan(bundle, certificate, template, pack_size=pack_size)

    def run(self, source: Path, target: Path) -> SftShard:
        """Build an artifact from JSON lines and return it; its digest is computed in the run."""
        described = ChatSource(
            label=source.name,
            path=source,
            format="jsonl",
            compression=None,
            sha256=sha256_file(source),
            ordinal=0,
            size=source.stat().st_size,
        )
        work = SftShard(
            artifact=Artifact(dataset="bench", name="packed_sft", partition="chat-00000"),
            store=LocalArtifacts(target.with_suffix(".artifacts")),
            sources=(described,),
            plan=self._plan,
            packing=PackPlan(),
            budget=0.0,
        )
        spool_source(work.plan, described, work.scratch, work.artifact)
        pack_shard(work)
        os.link(work.store.directory(work.artifact) / PACKED, target)
        return work


def sequences_of(path: Path) -> Counter[bytes]:
    """Return the sequences of ids in a packed file."""
    import pyarrow.parquet as pq

    found: Counter[bytes] = Counter()
    for row in pq.read_table(path).to_pylist():
        ids, starts = np.array(row["input_ids"], np.int32), row["seq_start_id"]
        found.update(ids[a:b].tobytes() for a, b in zip(starts, [*starts[1:], len(ids)], strict=True))
    return found


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.bench.sft", description=__doc__)
    parser.add_argument("--count", type=int, default=8000, help="conversations")
    parser.add_argument("--pack-size", type=int, default=4096)
    parser.add_argument("--tokenizer", type=Path, default=SHARED_TOKENIZER)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write all measurements here")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its figures; return 1 if the target is missed."""
    arguments = _arguments(argv)
    os.environ.update(ONE_THREAD)
    template = ChatTemplate.load("chatml_reasoning")
    base = Baseline(arguments.tokenizer, template, arguments.pack_size)
    ours = Ours(arguments.tokenizer, template, arguments.pack_size)
    loop, packed = "apply_chat_template loop", "packed_sft"
    seconds: dict[str, list[float]] = {loop: [], packed: []}
    cpu: dict[str, list[float]] = {loop: [], packed: []}
    proofs = CheckCosts(packed, packed_sft_checks.PACKED_SFT_CHECKS)
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-") as folder:
        warm, source = Path(folder, "warm.jsonl"), Path(folder, "rows.jsonl")
        for path, count in ((warm, 20), (source, arguments.count)):
            rows = conversations(count, arguments.seed)
            path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        outputs: dict[str, Counter[bytes]] = {}

        def timed(name: str, contender: Baseline | Ours, target: Path) -> SftShard | None:
            started, cpu_started = time.perf_counter(), time.process_time()
            made = contender.run(source, target)
            seconds[name].append(time.perf_counter() - started)
            cpu[name].append(time.process_time() - cpu_started)
            print(f"{name}: {seconds[name][-1]:.2f} s, {cpu[name][-1]:.2f} s of CPU", file=sys.stderr, flush=True)
            outputs[name] = sequences_of(target)
            return made

        base.run(warm, Path(folder, "warm-loop.parquet"))
        shard = ours.run(warm, Path(folder, "warm-packed.parquet"))
        proofs.check(lambda: packed_sft_checks.open_shard(shard))
        proofs.forget()
        # Exclude all current objects from garbage collection, so that neither contender pays for the objects of the
        # other's libraries.
        gc.freeze()
        for number in range(arguments.runs):
            timed(loop, base, Path(folder, f"{number}-loop.parquet"))
            target = Path(folder, f"{number}-packed.parquet")
            made = timed(packed, ours, target)
            proofs.built(cpu[packed][-1])
            proofs.check(lambda made=made: packed_sft_checks.open_shard(made))
    first, second = outputs.values()
    if first != second:
        raise SystemExit("the two have not the same sequences of ids")
    tokens = sum(len(ids) // 4 * times for ids, times in first.items())
    busy = {name: statistics.median(taken) for name, taken in cpu.items()}
    for name, taken in seconds.items():
        rate = arguments.count / statistics.median(taken)
        print(
            f"{name:26} {rate:10,.0f} conversations/s {rate / arguments.count * tokens:14,.0f} tokens/s"
            f"  {busy[name]:8.2f} s of CPU"
        )
    build_seconds, check_seconds = proofs.medians
    ratio, checked = busy[loop] / build_seconds, busy[loop] / (build_seconds + check_seconds)
    print(f"{arguments.count:,} conversations, {first.total():,} sequences, {tokens:,} tokens")
    met = checked >= TARGET
    verdict = "met" if met else "MISSED"
    print(
        f"  {verdict}  with all checks, at least {TARGET} times the loop per CPU-second: {checked:.1f} "
        f"(without checks {ratio:.1f})"
    )
    met = proofs.report() and met
    if arguments.json:
        facts = {"count": arguments.count, "pack_size": arguments.pack_size, "tokens": tokens}
        found = {"facts": facts, "seconds": seconds, "cpu_seconds": cpu, "ratio": checked, "costs": proofs.as_json()}
        arguments.json.write_text(json.dumps(found, indent=1))
    return int(not met)


if __name__ == "__main__":
    raise SystemExit(main())
