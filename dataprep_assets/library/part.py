"""The partitions that a run is limited to: those of a split, a range of them, or one of several even parts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataprep_assets.engine.yaml.declared_keys import require_known
from dataprep_assets.errors import ConfigError

if TYPE_CHECKING:
    from dataprep_assets.engine.artifact.spec import ArtifactSpec
    from dataprep_assets.integrity.artifacts import ArtifactStore


def split_names(given: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """Return the names of splits, each once: of `val,test`, or of several such texts; None if none was given.

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
        option: The option that gave the bounds.
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
        """Whether anything is limited at all."""
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
        """The partitioned artifacts with the chosen ones of their partitions; an artifact without any is left out.

        Raises ConfigError if there are none of that name.
        """
        partitioned = self.partitioned(specs)
        selected: dict[ArtifactSpec, Sequence[str]] = {}
        known: list[str] = []
        some = False
        for spec in partitioned:
            if not self.takes(spec) or spec.partitions is None:
                continue
            every = spec.partitions.keys(store)
            known += [f"{every[0]}...{every[-1]}"] if every else []
            within = self._select_within_bounds(every)
            # a range is of one split: that the others have nothing in it is no mistake
            some |= bool(within)
            if keys := self._of_process(within):
                selected[spec] = keys
        if self.bounds is not None and not some:
            raise ConfigError(
                f"{self.option} {self.bounds}: must be FIRST...LAST. Available: "
                f"{', '.join(dict.fromkeys(known)) or 'none'}"
            )
        return selected

    def partitioned(self, specs: "Sequence[ArtifactSpec]") -> "list[ArtifactSpec]":
        """The partitioned artifacts; raises ConfigError if there are none, or none of the split."""
        partitioned = [spec for spec in specs if spec.partitions is not None]
        dataset = specs[0].declaration.dataset
        if not partitioned:
            raise ConfigError(f"{self}: {dataset} has no partitions. Remove this option")
        splits = list(dict.fromkeys(spec.split for spec in partitioned if spec.split is not None))
        if self.splits and not splits:
            raise ConfigError(f"{self}: {dataset} has no splits. Use {self.option} to select partitions")
        require_known("split", self.splits or (), splits)
        return partitioned

    def takes(self, spec: "ArtifactSpec") -> bool:
        """Whether an artifact is of one of the splits."""
        return self.splits is None or spec.split in self.splits

    def _select_within_bounds(self, every: Sequence[str]) -> Sequence[str]:
        """The partitions within the bounds; none if the bounds are not among them."""
        if self.bounds is None:
            return every
        first, dots, last = self.bounds.partition("...")
        last = last if dots else first
        if first not in every or last not in every or every.index(first) > every.index(last):
            return []
        return every[every.index(first) : every.index(last) + 1]

    def _of_process(self, partitions: Sequence[str]) -> Sequence[str]:
        if self.count is None or self.index is None:
            return partitions
        size = len(partitions)
        # each partition is in exactly one part, and parts differ by one partition at most
        return partitions[size * self.index // self.count : size * (self.index + 1) // self.count]
