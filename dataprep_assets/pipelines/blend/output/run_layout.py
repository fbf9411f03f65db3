"""Layout of a blend run: the shards' files under the run's names, with JSON files next to them.

  datasets/<name>/<plan_hash>/plan.json    the dataset's shard plan
  …/receipts/shard_000000.json             status, ledger and files of a shard
  …/shard_000000.bin .idx                  pretrain; sft .parquet; rl .jsonl or .jsonl.zst

Entry points: `RunLayout`, `write_datasets`; `read_json_object` reads a file of a run.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.errors import FormatError
from dataprep_assets.integrity.artifacts import ArtifactStore, FileRef, JoinedFile
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.finished_shards import FinishedShard, find_data_file, list_suffixes
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan

# The keys in `_LOCATION_KEYS` describe the locations and versions of the sources, and the keys in `_BUILD_KEYS` how the
# shards were built. Comparisons ignore all these keys at any depth, because their values may change after a run is
# finished without a change of the run's key.
_LOCATION_KEYS = frozenset({"path", "split", "subset", "commit", "etag"})
_BUILD_KEYS = frozenset({"key", "reference_documents", "sampled_documents", "source_bytes"})


@dataclass(frozen=True, kw_only=True)
class RunLayout:
    """A blend run under construction in the staging directory `target`; the trainer will find the run at `root`."""

    blend: BlendDeclaration
    store: ArtifactStore
    target: Path
    root: str
    joined: list[JoinedFile] = field(default_factory=list)

    def link(self, shard: FinishedShard, suffix: str, name: str) -> None:
        """Link a shard's data file with this suffix under a new name; verify its bytes if `verify` is full."""
        part = FileRef(shard.artifact, find_data_file(self.blend, shard.receipt, suffix))
        self.joined.append(self.store.join(self.target, name, [part], verify=self.blend.verify == "full"))

    def join(self, shards: Sequence[FinishedShard], suffix: str, name: str) -> None:
        """Join the shards' data files with this suffix into one, in order; verify their bytes if `verify` is full."""
        parts = [FileRef(shard.artifact, find_data_file(self.blend, shard.receipt, suffix)) for shard in shards]
        self.joined.append(self.store.join(self.target, name, parts, verify=self.blend.verify == "full"))

    def write(self, name: str, value: Any) -> None:
        """Write a JSON file of the run."""
        path = self.target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Sort the keys, so that equal values give equal bytes, and comparisons need to parse only files that differ.
        path.write_bytes(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n")


def write_datasets(run: RunLayout, plan: BlendPlan, shards: Sequence[FinishedShard]) -> None:
    """Lay out `datasets/` in `run`: each dataset's part of `plan`, and the receipt and files of each of the `shards`.

    A shard without rows has a receipt with the status `empty`, and no data file.
    """
    by_name = {unit["name"]: unit for unit in plan.to_json()["datasets"]}
    for unit in plan.units:
        run.write(f"datasets/{unit.name}/{unit.plan_hash}/plan.json", by_name[unit.name])
    for shard in shards:
        receipt = shard.receipt
        folder = f"datasets/{shard.unit.name}/{shard.unit.plan_hash}"
        run.write(
            f"{folder}/receipts/shard_{shard.index:06d}.json",
            {
                "partition": receipt.partition,
                "status": "completed" if shard.rows else "empty",
                "plan_hash": shard.unit.plan_hash,
                "key": receipt.key,
                "content": receipt.content,
                "ledger": shard.ledger.to_json(),
                "files": [asdict(record) for record in receipt.files],
            },
        )
        if shard.rows:
            for suffix in list_suffixes(run.blend):
                run.link(shard, suffix, f"{shard.stem}{suffix}")


def is_equivalent(expected_path: Path, actual_path: Path) -> bool:
    """Return whether a file of a run equals the expected file, except for values that the run's key ignores.

    The ignored values are in the plans and receipts below `datasets/`: the sources' locations at the time of the
    layout, and details of how the shards were built. Raises FormatError if a plan or receipt is not a JSON object.
    """
    if expected_path.read_bytes() == actual_path.read_bytes():
        return True
    if not any(expected_path.match(f"datasets/*/*/{name}") for name in ("plan.json", "receipts/*.json")):
        return False
    return bool(
        _remove_ignored_keys(read_json_object(expected_path)) == _remove_ignored_keys(read_json_object(actual_path))
    )


def _remove_ignored_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _remove_ignored_keys(inner) for key, inner in value.items() if key not in _LOCATION_KEYS | _BUILD_KEYS
        }
    return [_remove_ignored_keys(inner) for inner in value] if isinstance(value, list) else value


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a run. Raises FormatError if the file does not contain a JSON object."""
    try:
        value = load_untrusted_json(path.read_bytes())
    except ValueError as error:
        raise FormatError(f"{path}: invalid JSON: {error}. Rebuild the blend") from error
    if not isinstance(value, dict):
        raise FormatError(f"{path}: must be a JSON object. Rebuild the blend")
    return value
