"""The lock of the artifacts at any place, declared or not: read from the receipts in a folder or a bucket.

An artifact is the one that its folder says, so a second copy under another name is an artifact of its own.

Nothing there says which artifacts are planned, so shards that are no longer planned are recognized by their consumers:
if a finished artifact is made of some shards of a split, the other shards of that split are left over. Of a blend its
plan says which run is planned.

Entry points: `lock_of_receipts`, `left_over`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dataprep_assets.errors import ConfigError, MissingArtifactError
from dataprep_assets.graph.lock import Lock
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.planning.shard_plan import split_of


@dataclass(frozen=True, kw_only=True)
class FoundLock:
    """The lock of a dataset at a place; `left_over` are artifacts that are no longer planned and not in the lock."""

    lock: Lock
    left_over: Sequence[str]


def lock_of_receipts(receipts: Iterable[tuple[str, Receipt]], where: str, dataset: str | None = None) -> FoundLock:
    """The lock of one dataset among receipts.

    Args:
        receipts: All receipts at the place, with what their folders call them.
        where: Name of the place for errors.
        dataset: Name of the dataset; None if there is only one.

    Raises MissingArtifactError if the dataset is not there, ConfigError if there are several and none is chosen, or if
    an artifact is there twice.
    """
    by_dataset: dict[str, dict[str, Receipt]] = {}
    for name, receipt in receipts:
        found = by_dataset.setdefault(receipt.dataset, {})
        if name in found:
            raise ConfigError(f"{where}: has {receipt.dataset}/{name} twice: name the folder of one copy")
        artifact, _, partition = name.partition("/")
        found[name] = replace(receipt, artifact=artifact, partition=partition or None)
    if not by_dataset:
        raise MissingArtifactError(f"{where}: no finished artifact is there")
    if dataset is None and len(by_dataset) > 1:
        raise ConfigError(f"{where}: has several datasets, {sorted(by_dataset)}: name one with --dataset")
    chosen = dataset or next(iter(by_dataset))
    if chosen not in by_dataset:
        raise MissingArtifactError(f"{where}: no artifact of {chosen} is there; it has {sorted(by_dataset)}")
    found = by_dataset[chosen]
    left = left_over(found)
    lock = Lock.of_receipts(chosen, (receipt for name, receipt in found.items() if name not in left))
    return FoundLock(lock=lock, left_over=sorted(left))


def left_over(found: Mapping[str, Receipt]) -> set[str]:
    """The artifacts of a dataset that are no longer planned, judged by those that are made of others like them.

    `found` has the receipts of the dataset by `name[/partition]`.
    """
    former = _of_earlier_plans(found)
    used: set[str] = set()
    splits: set[tuple[str, str]] = set()
    for receipt in (receipt for name, receipt in found.items() if name not in former):
        upstream = {n: c for n, c in receipt.recipe.get("upstream", {}).items() if ":" not in n and "/" in n}
        if any(name not in found or found[name].content != content for name, content in upstream.items()):
            continue  # it is out of date itself, and says nothing about the plan
        used |= upstream.keys()
        splits |= {_kind_and_split(name) for name in upstream}
    unused = {name for name in found if "/" in name and _kind_and_split(name) in splits and name not in used}
    # all that is made of such a partition is left over with it, also what nothing else is made of
    partitions = {name.partition("/")[2] for name in unused}
    return former | {name for name in found if name.partition("/")[2] in partitions}


def _of_earlier_plans(found: Mapping[str, Receipt]) -> set[str]:
    """The runs of a blend that its plan, which names its own, does not have."""
    planned = {receipt.facts["run_hash"] for name, receipt in found.items() if "/" not in name and _has_run(receipt)}
    if not planned:
        return set()
    runs = {name: receipt.recipe.get("settings", {}).get("run_hash") for name, receipt in found.items()}
    return {name for name, run in runs.items() if run is not None and run not in planned}


def _has_run(receipt: Receipt) -> bool:
    return "run_hash" in receipt.facts


def _kind_and_split(name: str) -> tuple[str, str]:
    kind, _, partition = name.partition("/")
    return kind, split_of(partition)
