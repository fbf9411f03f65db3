"""Selection of the partitions that a run builds: a split, a range, or one of several even parts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataprep_assets.engine.yaml.declared_keys import require_known
from dataprep_assets.errors import ConfigError

if TYPE_CHECKING:
    from dataprep_assets.engine.artifact.spec import ArtifactSpec
    from dataprep_assets.integrity.artifacts import ArtifactStore


def split_names(given: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """Return the distinct split names in `val,test`, or in several such texts; None if there are none.

    Raises ConfigError for a text without a name.
    """
    if given is None:
        return None
    texts = [given] if isinstance(given, str) else list(given)
    names = [name.strip() for text in texts for name in text.split(",")]
    if texts and not all(names):
        raise ConfigError(
            f"--split {','.join(texts)!r}: must not contain an empty name. Use one split, or several such as val,test"
        )
    return tuple(dict.fromkeys(names)) or None


@dataclass(frozen=True, kw_only=True)
class PartitionSelection:
    """A part of a dataset's partitions.

    Attributes:
        splits: Only partitions of these splits.
        bounds: `FIRST...LAST`, or one name.
        option: The option that set the bounds, for messages.
        count: Number of even parts into which the remaining partitions are cut.
        index: Which of these parts, from 0.
    """

    splits: tuple[str, ...] | None = None
    bounds: str | None = None
    option: str = "--shards"
    count: int | None = None
    index: int | None = None

    def __post_init__(self) -> None:
        if (self.count is None) != (self.index is None):
            raise ConfigError("--process-count and --process-index must be used together")
        if self.index is not None and self.count is not None and not 0 <= self.index < self.count:
            raise ConfigError(f"--process-index {self.index}: must be at least 0 and below --process-count")

    @property
    def is_some(self) -> bool:
        """Whether the selection is limited in any way."""
        return any(value is not None for value in (self.splits, self.bounds, self.count))

    def __str__(self) -> str:
        said = {
            "--split": None if self.splits is None else ",".join(self.splits),
            self.option: self.bounds,
            "--process-count": self.count,
        }
        return ", ".join(name for name, value in said.items() if value is not None)

    def select_partitions(
        self, specs: "Sequence[ArtifactSpec]", store: "ArtifactStore"
    ) -> "dict[ArtifactSpec, Sequence[str]]":
        """Return the partitioned artifacts with their selected partitions; omit artifacts without any.

        Raises ConfigError if no artifact has partitions within the bounds.
        """
        partitioned = self.partitioned_specs(specs)
        selected: dict[ArtifactSpec, Sequence[str]] = {}
        known: list[str] = []
        some = False
        for spec in partitioned:
            if not self.includes(spec) or spec.partitions is None:
                continue
            every = spec.partitions.keys(store)
            known += [f"{every[0]}...{every[-1]}"] if every else []
            within = self._select_within_bounds(every)
            # a range belongs to one split, so the other splits may have no partition in it
            some |= bool(within)
            if keys := self._select_process_part(within):
                selected[spec] = keys
        if self.bounds is not None and not some:
            raise ConfigError(
                f"{self.option} {self.bounds}: must be FIRST...LAST. Available: "
                f"{', '.join(dict.fromkeys(known)) or 'none'}"
            )
        return selected

    def partitioned_specs(self, specs: "Sequence[ArtifactSpec]") -> "list[ArtifactSpec]":
        """Return the partitioned artifacts; raise ConfigError if there are none, or if a split is unknown."""
        partitioned = [spec for spec in specs if spec.partitions is not None]
        dataset = specs[0].declaration.dataset
        if not partitioned:
            raise ConfigError(f"{self}: {dataset} has no partitions. Remove this option")
        splits = list(dict.fromkeys(spec.split for spec in partitioned if spec.split is not None))
        if self.splits and not splits:
            raise ConfigError(f"{self}: {dataset} has no splits. Use {self.option} to select partitions")
        require_known("split", self.splits or (), splits)
        return partitioned

    def includes(self, spec: "ArtifactSpec") -> bool:
        """Return whether an artifact belongs to one of the splits."""
        return self.splits is None or spec.split in self.splits

    def _select_within_bounds(self, every: Sequence[str]) -> Sequence[str]:
        """Return the partitions within the bounds; an empty list if a bound is not one of them."""
        if self.bounds is None:
            return every
        first, dots, last = self.bounds.partition("...")
        last = last if dots else first
        if first not in every or last not in every or every.index(first) > every.index(last):
            return []
        return every[every.index(first) : every.index(last) + 1]

    def _select_process_part(self, partitions: Sequence[str]) -> Sequence[str]:
        if self.count is None or self.index is None:
            return partitions
        size = len(partitions)
        # each partition is in exactly one part, and sizes of parts differ by at most one
        return partitions[size * self.index // self.count : size * (self.index + 1) // self.count]
