"""Origins of a directory's shards: `provenance.json`, written next to the directory.

The file has one entry per shard, by split, in the order of the directory. It allows a mixture to be separated into its
sources, and every shard to be compared with its original file.

Entry points: `ShardOrigin`, `read_provenance`, `write_provenance`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.errors import IntegrityError
from dataprep_assets.integrity.artifacts import FileRef

PROVENANCE = "provenance.json"
_NUMBERS = ("rows", "payload_bytes", "repeat")


@dataclass(frozen=True, kw_only=True)
class ShardOrigin:
    """Origin of a directory's shard: the file with the same bytes in a different artifact.

    `dataset` and `partition` identify the shard's packed cohort. `repeat` is the number of earlier occurrences of the
    shard in the directory. `part` is None in a record that was read from a file.
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
        """Return the shard's entry in `provenance.json`."""
        names = ("dataset", "partition", "source_shard", "rows", "payload_bytes", "sha256", "repeat")
        return {"shard": shard, **{name: getattr(self, name) for name in names}}


def write_provenance(staged: Path, splits: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write `provenance.json`: split → entries of its shards, in order."""
    (staged / PROVENANCE).write_text(json.dumps({"splits": splits}, indent=1, sort_keys=True) + "\n")


def read_provenance(path: Path) -> dict[str, list[tuple[str, ShardOrigin]]]:
    """Read split → name and origin of each shard; raise IntegrityError if the file is invalid."""
    try:
        splits = load_untrusted_json(path.read_bytes())["splits"]
        return {split: [_parse_entry(**entry) for entry in entries] for split, entries in splits.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise IntegrityError(f"{path}: not a provenance file. Rebuild the artifact") from None


def _parse_entry(*, shard: str, **origin: str | int) -> tuple[str, ShardOrigin]:
    """Return the name and origin of a shard; raise TypeError for unknown names and for values of the wrong type."""
    # Compare exact types, because `isinstance` accepts a bool as an int.
    kinds = {name: type(value) for name, value in origin.items()}
    if type(shard) is not str or any(kind is not (int if name in _NUMBERS else str) for name, kind in kinds.items()):
        raise TypeError(shard)
    return shard, ShardOrigin(**origin)  # type: ignore[arg-type]
