"""Where the shards of a directory come from: `provenance.json`, written beside the directory.

For each split it has one entry per shard, in the order of the directory, so that a combination can be taken apart again
and every shard compared with the bytes from which it was linked.

Entry points: `ShardOrigin`, `read_provenance`, `write_provenance`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataprep_assets.bounds import json_of
from dataprep_assets.errors import IntegrityError
from dataprep_assets.integrity.artifacts import FileRef

PROVENANCE = "provenance.json"
_NUMBERS = ("rows", "payload_bytes", "repeat")


@dataclass(frozen=True, kw_only=True)
class ShardOrigin:
    """Where a shard of a directory comes from: the file of another artifact that has the same bytes.

    `dataset` and `partition` name its packed cohort, `repeat` counts from 0 how often the same shard precedes it in the
    directory. `part` is None in a record that was read back.
    """

    dataset: str
    partition: str
    source_shard: str
    rows: int
    payload_bytes: int
    sha256: str
    repeat: int = 0
    part: FileRef | None = None

    def to_json(self, shard: str) -> dict[str, Any]:
        """One entry of `provenance.json`."""
        names = ("dataset", "partition", "source_shard", "rows", "payload_bytes", "sha256", "repeat")
        return {"shard": shard, **{name: getattr(self, name) for name in names}}


def write_provenance(staged: Path, splits: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write `provenance.json`: split → entries of its shards, in order."""
    (staged / PROVENANCE).write_text(json.dumps({"splits": splits}, indent=1, sort_keys=True) + "\n")


def read_provenance(path: Path) -> dict[str, list[tuple[str, ShardOrigin]]]:
    """Split → name and origin of each shard, of a `provenance.json`. Raises IntegrityError when it is not one."""
    try:
        splits = json_of(path.read_bytes())["splits"]
        return {split: [_entry(**entry) for entry in entries] for split, entries in splits.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise IntegrityError(f"{path}: not a provenance file. Materialize its artifact again") from None


def _entry(*, shard: str, **origin: str | int) -> tuple[str, ShardOrigin]:
    """The name and origin of a shard; raises TypeError for other names, and for values of other types."""
    # by type, because a bool is an int
    kinds = {name: type(value) for name, value in origin.items()}
    if type(shard) is not str or any(kind is not (int if name in _NUMBERS else str) for name, kind in kinds.items()):
        raise TypeError(shard)
    return shard, ShardOrigin(**origin)  # type: ignore[arg-type]
