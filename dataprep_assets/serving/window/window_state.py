"""Position of a training run in a release for its checkpoint: exact, and independent of the number of ranks.

Steps count over the whole run, so they are the same on every rank. `Schedule.samples` returns the samples of a rank.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from dataprep_assets.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class WindowState:
    """Position at which a run resumes: `step` is the first step that was not trained yet.

    `shard` and `epoch` follow from `step`. They are stored for readers, and so that a restart can compare them with the
    schedule. `release` is the digest of the manifest, and `prefix` selects the shards.
    """

    release: str
    prefix: str
    shards: int
    steps_per_shard: int
    step: int
    shard: int
    epoch: int

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of strings and numbers for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the state for a value of `to_json`; raise ConfigError if it is not the state of a window."""
        names = {field.name: field.type for field in fields(cls)}
        # `type` instead of `isinstance`, because `true` as a step would otherwise pass for 1.
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
                "steps_per_shard that the run began with"
            )
