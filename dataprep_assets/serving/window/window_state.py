"""Position of a training run in a release for its checkpoint: exact, and independent of the number of ranks.

Steps count across the whole run, so they are the same on every rank. `Schedule.samples` returns the samples of a rank.
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
        # Compare exact types, because `isinstance` would accept `true` as step 1.
        if set(value) != set(names) or any(type(value[name]) is not kind for name, kind in names.items()):
            raise ConfigError(
                f"not the state of a window: has the keys {', '.join(sorted(map(str, value)))}, expected "
                f"{', '.join(sorted(names))} with strings and whole numbers. Pass a value of `to_json`"
            )
        return cls(**value)

    def check(self, other: "WindowState") -> None:
        """Raise ConfigError, naming the differences, if the other window would not continue with the same shards."""
        own_values, other_values = asdict(self), asdict(other)
        if wrong_names := [name for name, value in own_values.items() if other_values[name] != value]:
            differences = "; ".join(
                f"{name} is {other_values[name]}, but {own_values[name]} in the state" for name in wrong_names
            )
            raise ConfigError(
                f"the window cannot resume from this state: {differences}. Use the release, the prefix and the "
                "steps_per_shard that the run began with"
            )
