"""The files of a blend run while it is laid out: the shards' own bytes under other names, with JSON beside them.

    datasets/<name>/<plan_hash>/plan.json    the dataset's shard plan
    …/receipts/shard_000000.json             status, ledger and files of a shard
    …/shard_000000.bin .idx                  pretrain; sft .parquet; rl .jsonl or .jsonl.zst

Entry points: `RunLayout`, `write_datasets`; `json_object` reads a file of a run.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dataprep_assets.bounds import json_of
from dataprep_assets.errors import FormatError
from dataprep_assets.integrity.artifacts import ArtifactStore, FileRef, JoinedFile
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.finished_shards import FinishedShard, data_file, suffixes
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan

# Where sources were, and how shards of these bytes were made: both may change under a finished run, whose key
# holds the content of its shards alone. A comparison of its files leaves these keys out, at any depth.
_PLACES = frozenset({"path", "split", "subset", "commit", "etag"})
_MAKING = frozenset({"key", "reference_documents", "sampled_documents", "source_bytes"})


@dataclass(frozen=True, kw_only=True)
class RunLayout:
    """A blend run under construction in the staging directory `target`; `root` is where its trainer will find it."""

    blend: BlendDeclaration
    store: ArtifactStore
    target: Path
    root: str
    joined: list[JoinedFile] = field(default_factory=list)

    def link(self, shard: FinishedShard, suffix: str, name: str) -> None:
        """Put a shard's data file with this suffix under another name; read and compared when `verify` is full."""
        part = FileRef(shard.artifact, data_file(self.blend, shard.receipt, suffix))
        self.joined.append(self.store.join(self.target, name, [part], verify=self.blend.verify == "full"))

    def join(self, shards: Sequence[FinishedShard], suffix: str, name: str) -> None:
        """Put the shards' data files with this suffix into one, in order; read and compared as by `link`."""
        parts = [FileRef(shard.artifact, data_file(self.blend, shard.receipt, suffix)) for shard in shards]
        self.joined.append(self.store.join(self.target, name, parts, verify=self.blend.verify == "full"))

    def write(self, name: str, value: Any) -> None:
        """Write a JSON file of the run."""
        path = self.target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # sorted, so that equal values are equal bytes, which a comparison with a finished run tries first
        path.write_bytes(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n")


def write_datasets(run: RunLayout, plan: BlendPlan, shards: Sequence[FinishedShard]) -> None:
    """Lay out `datasets/` in `run`: each dataset's part of `plan`, and for each of the `shards` its receipt and files.

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
            for suffix in suffixes(run.blend):
                run.link(shard, suffix, f"{shard.stem}{suffix}")


def says_the_same(wanted: Path, kept: Path) -> bool:
    """Return whether a `kept` file of a run says what is `wanted`, but for what the key of the run does not hold.

    That is, in `datasets/`, where the sources were when the run was laid out, and how the same shards were made of
    them. Raises FormatError for a file there that has no JSON object.
    """
    if wanted.read_bytes() == kept.read_bytes():
        return True
    if not any(wanted.match(f"datasets/*/*/{name}") for name in ("plan.json", "receipts/*.json")):
        return False
    return bool(_of_content(json_object(wanted)) == _of_content(json_object(kept)))


def _of_content(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _of_content(inner) for key, inner in value.items() if key not in _PLACES | _MAKING}
    return [_of_content(inner) for inner in value] if isinstance(value, list) else value


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a run; raises FormatError if there is none."""
    try:
        value = json_of(path.read_bytes())
    except ValueError as error:
        raise FormatError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise FormatError(f"{path}: not a JSON object")
    return value
