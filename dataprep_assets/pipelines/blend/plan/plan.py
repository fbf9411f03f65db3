"""The plan of a blend, which has the files, shards and chosen shards of each dataset, and its JSON form.

`planner.py` computes the plan, and `blend_plan.py` commits it. Two kinds of hashes identify its content. A dataset's
`plan_hash` covers the digests of its sources, the bytes of the tokenizer, the text of the template, and the options
that change the shards' bytes. The blend's `run_hash` covers every plan hash, the weights, the sample and the held-out
shards. The hashes do not depend on times, local paths, the number of workers or the versions of libraries.
"""

from dataclasses import dataclass
from typing import Any

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.errors import FormatError, IntegrityError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.blend.data_blend import DESCRIPTIVE_FIELDS, BlendDataset
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.planning.manifest import ManifestEntry
from dataprep_assets.sources.readers.read_options import RowRange
from dataprep_assets.stores.files import digest_value

VERSION = 2
BLEND_PLAN = "blend_plan"
PLAN = "plan.json"


@dataclass(frozen=True, kw_only=True)
class PlannedPart:
    """A file of a shard; `rows` is None if the shard has the whole file."""

    entry: ManifestEntry
    rows: RowRange | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedBlendShard:
    """A shard of a dataset. `total_bytes` is its part of the source; a file's size is divided among its ranges."""

    index: int
    parts: tuple[PlannedPart, ...]
    total_bytes: int


@dataclass(frozen=True, kw_only=True)
class PlannedUnit:
    """A dataset of the blend with its shards; `chosen` are the numbers of the sampled shards (all without a sample)."""

    name: str
    dataset: BlendDataset
    split: str | None
    plan_hash: str
    commit: str | None
    entries: tuple[ManifestEntry, ...]
    shards: tuple[PlannedBlendShard, ...]
    chosen: tuple[int, ...]

    @property
    def home(self) -> str:
        """The split that the dataset's shards belong to, unless shards are held out."""
        return self.split or "train"

    @property
    def partitions(self) -> list[str]:
        """Partition keys of the chosen shards, in order."""
        return [format_partition_key(self.name, index) for index in self.chosen]

    @property
    def size_bytes(self) -> int:
        """Total size of the dataset's source files in bytes."""
        return sum(entry.size_bytes for entry in self.entries)


@dataclass(frozen=True, kw_only=True)
class BlendPlan:
    """The plan of a blend: its datasets with their shards, and its run hash."""

    run_hash: str
    units: tuple[PlannedUnit, ...]

    @property
    def partitions(self) -> list[str]:
        """Partition keys of all chosen shards, dataset by dataset."""
        return [partition for unit in self.units for partition in unit.partitions]

    def find_shard(self, partition: str) -> tuple[PlannedUnit, PlannedBlendShard]:
        """Return the dataset and the shard of a partition key. Raises KeyError for an unknown key."""
        # Split at the last hyphen, because a dataset's name may also contain hyphens.
        name, _, number = partition.rpartition("-")
        for unit in self.units:
            if unit.name == name and number.isdecimal() and int(number) in unit.chosen:
                return unit, unit.shards[int(number)]
        raise KeyError(partition)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values. Shards refer to files as `[ordinal]` or `[ordinal, first row, end row]`."""
        return {"version": VERSION, "run_hash": self.run_hash, "datasets": [_encode_unit(unit) for unit in self.units]}


def format_partition_key(unit: str, index: int) -> str:
    """Return the partition key of a shard, such as `code-00017`."""
    return f"{unit}-{index:05d}"


def _encode_unit(unit: PlannedUnit) -> dict[str, Any]:
    """Return a dataset of the plan as JSON values."""
    return {
        "name": unit.name,
        "dataset": unit.dataset.model_dump(exclude=set(DESCRIPTIVE_FIELDS)),
        "split": unit.split,
        "plan_hash": unit.plan_hash,
        "commit": unit.commit,
        "files": [entry._asdict() for entry in unit.entries],
        "shards": [
            {
                "parts": [[p.entry.ordinal, *([p.rows.first, p.rows.stop] if p.rows else [])] for p in shard.parts],
                "bytes": shard.total_bytes,
            }
            for shard in unit.shards
        ],
        "chosen": list(unit.chosen),
    }


def decode_plan(value: dict[str, Any], location: str) -> BlendPlan:
    """Decode a plan from a value that `BlendPlan.to_json` returned. Raises FormatError for any other value."""
    try:
        if value["version"] != VERSION:
            raise FormatError(
                f"{location}: version {value['version']} is not supported (only {VERSION}). Rebuild `blend_plan`"
            )
        return BlendPlan(run_hash=value["run_hash"], units=tuple(_decode_unit(unit) for unit in value["datasets"]))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise FormatError(
            f"{location}: not the plan of a blend: {type(error).__name__}: {error}. Rebuild `blend_plan`"
        ) from error


def _decode_unit(value: dict[str, Any]) -> PlannedUnit:
    """Return the dataset in a value of `_encode_unit`."""
    entries = tuple(ManifestEntry(**entry) for entry in value["files"])
    shards = tuple(
        PlannedBlendShard(
            index=index,
            total_bytes=shard["bytes"],
            parts=tuple(
                PlannedPart(entry=entries[ordinal], rows=RowRange(*rows) if rows else None)
                for ordinal, *rows in shard["parts"]
            ),
        )
        for index, shard in enumerate(value["shards"])
    )
    return PlannedUnit(
        name=value["name"],
        dataset=BlendDataset.model_validate(value["dataset"]),
        split=value["split"],
        plan_hash=value["plan_hash"],
        commit=value["commit"],
        entries=entries,
        shards=shards,
        chosen=tuple(value["chosen"]),
    )


def compute_plan_key(plan: BlendPlan) -> str:
    """Return the key of a plan's artifact."""
    return digest_value(["blend_plan", VERSION, plan.to_json()])


def describe_first_file(blend: BlendDeclaration, unit: PlannedUnit) -> str:
    """Return a text in parentheses, with a leading space, that names the dataset's first file; empty if sensitive."""
    return "" if blend.sensitive or not unit.entries else f" (first file: {unit.entries[0].relpath})"


def load_blend_plan(blend: BlendDeclaration, store: ArtifactStore) -> BlendPlan:
    """Return the committed plan.

    Raises MissingArtifactError if there is no plan, and IntegrityError if the plan is not valid JSON.
    """
    path = store.local(blend.artifact(BLEND_PLAN)) / PLAN
    try:
        return decode_plan(load_untrusted_json(path.read_bytes()), str(path))
    except ValueError as error:
        raise IntegrityError(f"{path}: invalid JSON: {error}. Rebuild `blend_plan`") from error


def has_blend_plan(blend: BlendDeclaration, store: ArtifactStore) -> bool:
    """Return whether a plan is committed and its files are intact. A damaged plan must be rebuilt."""
    return store.intact_receipt(blend.artifact(BLEND_PLAN)) is not None
