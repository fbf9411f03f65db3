"""Selects the artifacts and the partitions that a run builds: a split, a range, or one of several equal parts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dataprep_assets.engine.yaml.declared_keys import require_known_names
from dataprep_assets.errors import ConfigError

if TYPE_CHECKING:
    from dataprep_assets.engine.artifact.spec import ArtifactSpec
    from dataprep_assets.integrity.artifacts import ArtifactStore


def parse_split_names(splits: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """Return the distinct split names in `val,test`, or in several such strings; None if there are none.

    Raises ConfigError for a string without a name.
    """
    if splits is None:
        return None
    texts = [splits] if isinstance(splits, str) else list(splits)
    names = [name.strip() for text in texts for name in text.split(",")]
    if texts and not all(names):
        raise ConfigError(
            f"--split {','.join(texts)!r}: must not contain an empty name. Use one split, or several such as val,test"
        )
    return tuple(dict.fromkeys(names)) or None


@dataclass(frozen=True, kw_only=True)
class PartitionSelection:
    """A part of a dataset: some of its artifacts, or some of their partitions.

    Attributes:
        until: Name of the last artifact; None for all artifacts.
        splits: Only partitions of these splits.
        bounds: `FIRST...LAST`, or one name.
        option: The option that set the bounds, for messages.
        count: Number of equal parts into which the remaining partitions are divided.
        index: Number of the part to build, from 0.
    """

    until: str | None = None
    splits: tuple[str, ...] | None = None
    bounds: str | None = None
    option: str = "--shards"
    count: int | None = None
    index: int | None = None

    def __post_init__(self) -> None:
        if (self.count is None) != (self.index is None):
            raise ConfigError("--process-count and --process-index must be used together. Set both")
        if self.index is not None and self.count is not None and not 0 <= self.index < self.count:
            raise ConfigError(f"--process-index {self.index}: must be at least 0 and below --process-count")

    @property
    def is_limited(self) -> bool:
        """Whether the selection is limited in any way."""
        return self.until is not None or self.limits_partitions

    @property
    def limits_partitions(self) -> bool:
        """Whether only some of the partitions are selected."""
        return any(value is not None for value in (self.splits, self.bounds, self.count))

    def __str__(self) -> str:
        limits = {
            "--until": self.until,
            "--split": None if self.splits is None else ",".join(self.splits),
            self.option: self.bounds,
            "--process-count": self.count,
        }
        return ", ".join(name for name, value in limits.items() if value is not None)

    @property
    def arguments(self) -> str:
        """The options of `dataprep run` that select this part, each after a space."""
        values = {
            "--until": self.until,
            "--split": None if self.splits is None else ",".join(self.splits),
            self.option: self.bounds,
            "--process-count": self.count,
            "--process-index": self.index,
        }
        return "".join(f" {name} {value}" for name, value in values.items() if value is not None)

    def select_specs(self, specs: "Sequence[ArtifactSpec]") -> "list[ArtifactSpec]":
        """Return the artifacts up to the last one, inputs first. Raises ConfigError if the last artifact is unknown."""
        if self.until is None:
            return list(specs)
        from dataprep_assets.engine.artifact.build import find_ancestors

        require_known_names("artifact", [self.until], list(dict.fromkeys(spec.name for spec in specs)))
        last_specs = {spec for spec in specs if spec.name == self.until}
        needed = last_specs | find_ancestors(last_specs)
        return [spec for spec in specs if spec in needed]

    def select_partitions(
        self, specs: "Sequence[ArtifactSpec]", store: "ArtifactStore"
    ) -> "dict[ArtifactSpec, Sequence[str]]":
        """Return the partitioned artifacts with their selected partitions, without artifacts that have none.

        Raises ConfigError if no artifact has partitions within the bounds.
        """
        partitioned = self.list_partitioned_specs(specs)
        selected: dict[ArtifactSpec, Sequence[str]] = {}
        known_names: list[str] = []
        has_selection = False
        for spec in partitioned:
            if not self.includes(spec) or spec.partitions is None:
                continue
            all_keys = spec.partitions.keys(store)
            known_names += [f"{all_keys[0]}...{all_keys[-1]}"] if all_keys else []
            keys_within_bounds = self._select_within_bounds(all_keys)
            # A range belongs to one split, so the artifacts of other splits may have no partition in the range.
            has_selection |= bool(keys_within_bounds)
            if keys := self._select_process_part(keys_within_bounds):
                selected[spec] = keys
        if self.bounds is not None and not has_selection:
            raise ConfigError(
                f"{self.option} {self.bounds}: selects no partition. Write one name, or FIRST...LAST. "
                f"Available: {', '.join(dict.fromkeys(known_names)) or 'none'}"
            )
        return selected

    def list_partitioned_specs(self, specs: "Sequence[ArtifactSpec]") -> "list[ArtifactSpec]":
        """Return the partitioned artifacts. Raises ConfigError if there are none, or if a split is unknown."""
        partitioned = [spec for spec in specs if spec.partitions is not None]
        dataset = specs[0].declaration.dataset
        if not partitioned:
            name = dataset if self.until is None else f"{dataset}/{self.until}"
            raise ConfigError(f"{replace(self, until=None)}: {name} has no partitions. Remove this option")
        splits = list(dict.fromkeys(spec.split for spec in partitioned if spec.split is not None))
        if self.splits and not splits:
            raise ConfigError(f"{self}: {dataset} has no splits. Use {self.option} to select partitions")
        require_known_names("split", self.splits or (), splits)
        return partitioned

    def includes(self, spec: "ArtifactSpec") -> bool:
        """Return whether an artifact belongs to one of the splits."""
        return self.splits is None or spec.split in self.splits

    def _select_within_bounds(self, all_keys: Sequence[str]) -> Sequence[str]:
        """Return the partitions within the bounds; an empty list if a bound is not a partition."""
        if self.bounds is None:
            return all_keys
        first_partition, dots, last_partition = self.bounds.partition("...")
        last_partition = last_partition if dots else first_partition
        if (
            first_partition not in all_keys
            or last_partition not in all_keys
            or all_keys.index(first_partition) > all_keys.index(last_partition)
        ):
            return []
        return all_keys[all_keys.index(first_partition) : all_keys.index(last_partition) + 1]

    def _select_process_part(self, partitions: Sequence[str]) -> Sequence[str]:
        if self.count is None or self.index is None:
            return partitions
        size = len(partitions)
        # Divide evenly: each partition is in exactly one part, and sizes differ by at most one.
        return partitions[size * self.index // self.count : size * (self.index + 1) // self.count]
