"""Training schedules: a thousand random histories against the claims, and what a sample, a start and a look-up cost.

python -m dataprep_assets_tests.tools.bench.schedule                  # the costs, and a thousand histories: ten minutes
python -m dataprep_assets_tests.tools.bench.schedule --histories 40
"""

import argparse
import resource
import time
from collections import Counter

import numpy as np

from dataprep_assets.serving.sampler.next_revision import CurrentSource, DocumentEnds, RevisionRequest, add_revision
from dataprep_assets.serving.sampler.sampler import Sampler
from dataprep_assets.serving.sampler.source_order import PackTable, Permutation
from dataprep_assets.serving.sampler.training_schedule import ScheduleHistory, SourceShard
from dataprep_assets_tests.serving.histories import history, resumed, tell

SAMPLES, LENGTH, SHARDS, SOURCES = 10**9, 4096, 1000, 10


def histories(count: int) -> list[str]:
    """Return the findings in this many seeded histories."""
    changes, total = Counter[str](), Counter[str]()
    off = 0.0
    for seed in range(count):
        run = history(seed)
        told = tell(run)
        changes += run.changes
        total += Counter(samples=told.samples, epochs=told.epochs, twice=told.twice, lost=told.lost, empty=told.empty)
        off = max(off, told.off_share)
        steps, wrong = resumed(run, seed)
        total += Counter(resumed=steps, wrong=wrong)
    return [
        f"{count:,} histories: {total['samples']:,} samples, {total['epochs']:,} epochs that ended",
        f"tokens read twice in an epoch: {total['twice']}; lost: {total['lost']}",
        f"samples without a token: {total['empty']}",
        f"steps after a kill, on another number of ranks: {total['resumed']:,}; read differently: {total['wrong']}",
        f"largest distance from a share: {off:.4f} samples",
        "changes: " + ", ".join(f"{name} {number}" for name, number in sorted(changes.items())),
    ]


def _no_documents(content: str) -> DocumentEnds:
    raise AssertionError(content)


def _no_packs(shard: SourceShard, length: int) -> PackTable:
    raise AssertionError(shard)


def large(revisions: int) -> ScheduleHistory:
    """Return a schedule of 10⁹ samples in ten sources of a hundred shards, with several appends during epochs."""
    tokens = SAMPLES * LENGTH // SHARDS
    wanted = RevisionRequest(
        name="large", batch=1024, sequence_length=LENGTH, seed=0, samples="windows", steps=SAMPLES // 512
    )
    schedule: ScheduleHistory | None = None
    for revision in range(revisions):
        sources = [
            CurrentSource(
                name=f"s{source}", dataset=f"s{source}", split="train", dtype="uint32", tokenizer="t",
                weight=1.0 + source,
                shards=tuple(
                    (f"train-{at:05d}", f"{source:032x}{at:032x}", tokens) for at in range(SHARDS // SOURCES + revision)
                ),
            )
            for source in range(SOURCES)
        ]  # fmt: skip
        schedule = add_revision(
            schedule, wanted, sources, documents=_no_documents, packs=_no_packs, from_step=revision * 10_000
        )
    assert schedule is not None
    return schedule


def costs() -> list[str]:
    """Return CPU seconds and bytes of a permutation, a start, a step and a look-up."""
    lines = []
    numbers = np.random.default_rng(0).integers(0, SAMPLES, 1 << 16)
    permutation = Permutation(SAMPLES, "bench")
    started = time.process_time()
    for _ in range(10):
        permutation(numbers)
    lines.append(f"permutation of 10⁹: {(time.process_time() - started) / 10 / len(numbers) * 1e9:.0f} ns a sample")
    for revisions in (1, 8):
        schedule = large(revisions)
        data = schedule.to_json()
        started = time.process_time()
        sampler = Sampler(ScheduleHistory.from_json(data))
        begun = time.process_time() - started
        step = sampler.rules[-1].first + 12_345
        started = time.process_time()
        for at in range(20):
            sampler.find_step_spans(step + at)
        spans = (time.process_time() - started) / 20 / 1024
        started = time.process_time()
        found = list(sampler.find_readings(f"{3:032x}{5:032x}", 10**9, 10**9 + 1000))
        looked = time.process_time() - started
        lines.append(
            f"10⁹ samples, {revisions} revisions: start {begun:.2f} s, spans {spans * 1e6:.2f} µs a sample, "
            f"steps of a document {looked * 1e3:.1f} ms ({len(found)} readings)"
        )
    lines.append(f"peak memory of all of it: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    return lines


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=1000)
    print("\n".join(costs()), flush=True)
    print("\n".join(histories(parser.parse_args().histories)))


if __name__ == "__main__":
    main()
