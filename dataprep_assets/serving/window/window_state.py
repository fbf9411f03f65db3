"""The position of a training run in a release, for its checkpoint: exact, and the same for any number of ranks.

Steps are those of the whole run, so they are the same on every rank; `Schedule.samples` says which samples a rank
reads.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from dataprep_assets.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class WindowState:
    """Where a run resumes: at `step`, the first step that was not trained on yet.

    `shard` and `epoch` follow from it; they are kept for readers, and so that a restart can compare them with the
    schedule. `release` is the digest of the manifest, `prefix` names the shards.
    """

    release: str
    prefix: str
    shards: int
    steps_per_shard: int
    step: int
    shard: int
    epoch: int

    def to_json(self) -> dict[str, Any]:
        """A dictionary of texts and numbers, for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`; raises ConfigError if the value is not the state of a window."""
        names = {field.name: field.type for field in fields(cls)}
        # `type`, not `isinstance`: a step that is `true` would pass for 1
        if set(value) != set(names) or any(type(value[name]) is not kind for name, kind in names.items()):
            raise ConfigError(
                f"not the state of a window: it has the keys {', '.join(sorted(map(str, value)))}, expected "
                f"{', '.join(sorted(names))}"
            )
        return cls(**value)

    def check(self, other: "WindowState") -> None:
        """Raise ConfigError, naming the differences, if the other window would not continue with the same shards."""
        own_values, other_values = asdict(self), asdict(other)
        if wrong := [name for name, value in own_values.items() if other_values[name] != value]:
            differences = "; ".join(f"{name} {other_values[name]}, the state has {own_values[name]}" for name in wrong)
            raise ConfigError(
                f"this window cannot resume from that state: {differences}. Use the release, the prefix and the "
                "steps_per_shard with which the run began"
            )
