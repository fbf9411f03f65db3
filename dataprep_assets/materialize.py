"""Materializes a whole dataset in this process, in a few Dagster runs, and sums it up for a person.

The runs are those that a backfill from the UI would launch: the manifest, then each split's shards as one covering
range, then the combined bins and the views. Receipts make the finished shards of a range free.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import dagster as dg
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

from dataprep_assets.assets.dataset import DatasetAssets
from dataprep_assets.builds.manifest import load_manifest
from dataprep_assets.builds.views import artifact_name
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.receipt import read_receipt

_QUIET = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}


Step = tuple[str, Sequence[dg.AssetKey], dict[str, str]]
"""One Dagster run: what a person calls it, the assets it materializes, its tags."""


def materialize(definitions: dg.Definitions, steps: Iterable[Step], instance: dg.DagsterInstance) -> bool:
    """Run the steps in order; False as soon as a run fails (its error is on stderr)."""
    job = definitions.resolve_implicit_global_asset_job_def()
    for title, keys, tags in steps:
        print(f"  {title} …", flush=True)
        outcome = job.execute_in_process(
            asset_selection=list(keys), tags=tags, instance=instance, run_config=_QUIET, raise_on_error=False
        )
        if not outcome.success:
            print("    failed")
            for event in outcome.all_events:
                if event.is_failure and event.event_specific_data is not None:
                    error = getattr(event.event_specific_data, "error", None)
                    if error is not None:
                        cause = error.cause or error
                        print(f"    {event.step_key or 'run'}: {cause.message.strip()}", file=sys.stderr)
            return False
        failed = [e for e in outcome.get_asset_check_evaluations() if not e.passed]
        if failed:
            print(f"    checks failed: {', '.join(e.check_name for e in failed)}")
    return True


def whole_dataset(dataset: DatasetAssets, root: Path) -> Iterator[Step]:
    """Everything that a dataset needs. Lazy: the shards are known once the manifest has been materialized."""
    corpus = dataset.corpus
    yield "manifest and engine certificate", [dataset.key("manifest"), dataset.key("engine_certificate")], {}
    manifest = load_manifest(corpus, root)
    for split in corpus.splits:
        yield shard_range(dataset, split, manifest.partitions(split))
    yield "combined bins", [dataset.key("combined_bins", split) for split in corpus.splits], {}
    if corpus.views:
        yield "views", [dataset.key(artifact_name(view)) for view in corpus.views], {}


def shard_range(dataset: DatasetAssets, split: str, shards: Sequence[str]) -> Step:
    """Mirror and tokenize consecutive shards of a split in one run."""
    tags = {"dagster/asset_partition_range_start": shards[0], "dagster/asset_partition_range_end": shards[-1]}
    keys = [dataset.key("snapshot", split), dataset.key("token_bins", split)]
    return f"{split}: {len(shards)} shards mirrored and tokenized", keys, tags


def chosen_shards(every: Sequence[str], *, bounds: str | None, count: int | None, index: int | None) -> Sequence[str]:
    """A range of shards: `FIRST...LAST`, or part `index` of `count` even parts of all.

    Raises ConfigError for names that are not shards and for an index outside the count.
    """
    if bounds is not None:
        first, _, last = bounds.partition("...")
        last = last or first
        if first not in every or last not in every or every.index(first) > every.index(last):
            raise ConfigError(f"--shards {bounds}: give FIRST...LAST among {every[0]}...{every[-1]}")
        return every[every.index(first) : every.index(last) + 1]
    if count is None:
        return every
    if index is None or not 0 <= index < count:
        raise ConfigError(f"--process-index {index}: must be at least 0 and below --process-count {count}")
    return every[len(every) * index // count : len(every) * (index + 1) // count]


def check_counts(
    dataset: DatasetAssets, definitions: dg.Definitions, instance: dg.DagsterInstance
) -> tuple[int, int, list[str]]:
    """Checks of a dataset that passed, that there are, and the names of those that did not pass."""
    graph = definitions.resolve_asset_graph()
    keys = [k for k in graph.asset_check_keys if k.asset_key.path[0] == dataset.corpus.dataset]
    passed, others = 0, []
    for key in sorted(keys, key=str):
        records = instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
        if records and records[0].status == AssetCheckExecutionRecordStatus.SUCCEEDED:
            passed += 1
        else:
            others.append(f"{key.asset_key.to_user_string()}: {key.name}")
    return passed, len(keys), others


def summary(
    dataset: DatasetAssets, definitions: dg.Definitions, instance: dg.DagsterInstance, root: Path, seconds: float
) -> str:
    """The table that ends a run: per split files, shards, documents, tokens, speed; checks; where things are."""
    corpus = dataset.corpus
    manifest = load_manifest(corpus, root)
    lines = [
        "",
        f"{'split':<8}{'files':>8}{'shards':>8}{'documents':>12}{'tokens':>16}{'tokens/s/core':>16}{'bin':>20}",
    ]
    for split in corpus.splits:
        receipt = read_receipt(corpus.artifact("combined_bins", split).directory(root))
        shards = [read_receipt(corpus.artifact("token_bins", p).directory(root)) for p in manifest.partitions(split)]
        cpu = sum(s.measured["cpu_seconds"] for s in shards if s is not None)
        files = sum(e.split == split for e in manifest.entries)
        if receipt is None or receipt.ledger is None:
            lines.append(f"{split:<8}{files:>8}{len(shards):>8}  not there")
            continue
        size = receipt.file(f"{split}.bin").bytes
        lines.append(
            f"{split:<8}{files:>8,}{len(shards):>8,}{receipt.ledger.documents:>12,}{receipt.ledger.tokens:>16,}"
            f"{receipt.ledger.tokens / cpu if cpu else 0:>16,.0f}{size:>16,} B"
        )
    passed, total, others = check_counts(dataset, definitions, instance)
    lines += ["", f"checks: {passed} of {total} passed" + "".join(f"\n  not passed: {name}" for name in others)]
    view = corpus.views[0] if corpus.views else None
    where = corpus.artifact(artifact_name(view)).directory(root) if view else root / corpus.dataset
    lines += [
        f"files:  {where}",
        *(f"          {p.relative_to(where)}" for p in sorted(where.rglob("*")) if p.is_file()),
        f"time:   {seconds:.1f} s",
        "see it: make ui, then open http://127.0.0.1:3000",
    ]
    return "\n".join(lines)
