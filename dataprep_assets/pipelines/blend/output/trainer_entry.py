"""Entry files of a trainer in a blend run: `blend.json` and `data_args.txt`, split folders, or a manifest of files.

  blend.json                               pretrain, sft: weights and prefixes of every split
  data_args.txt                            pretrain: the same content, only for a blend with a single split
  splits/<split>/<pos>__<name>__shard_<i>.parquet    sft: the trainer's files, in proportion to the weights
  splits/<split>/<pos>__<name>__shard_<i>.parquet    pairs: the shards, in proportion to the weights
  manifest.json                            rl: the file of each split, in Nemotron's form (`rl_manifest.py`)
  splits/<split>.jsonl                     rl: the shards of a split in one file, repeated according to the weights
  shards.json                              rl: the list of these shards

Entry points: `write_entry`, `format_trainer_lines`, `get_manifest_key`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from dataprep_assets.formats import blend_json
from dataprep_assets.pipelines.blend.declaration import Stage
from dataprep_assets.pipelines.blend.finished_shards import FinishedShard, list_suffixes
from dataprep_assets.pipelines.blend.output.realized_shares import repeat_shards, weigh_shards
from dataprep_assets.pipelines.blend.output.run_layout import RunLayout
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan
from dataprep_assets.stores.files import canonical_json

BLEND = "blend.json"
DATA_ARGS = "data_args.txt"
MANIFEST = "manifest.json"
SHARDS = "shards.json"
RL_MANIFEST = "rl_manifest"
"""Name of the artifact that contains the latest run's manifest, at a path that does not change."""
UsedShards = Mapping[str, Sequence[FinishedShard]]
"""The shards of each split."""


def get_manifest_key(split: str) -> str:
    """Return the key of a split in `manifest.json`, where NeMo-RL uses `val` for `valid`."""
    return "val" if split == "valid" else split


def format_split_path(key: str, suffix: str) -> str:
    """Return the path of a split's file in a run, by the split's key in the manifest."""
    return f"splits/{key}{suffix}"


def format_trainer_lines(stage: Stage, root: str, used_names: Collection[str], files: Collection[str]) -> list[str]:
    """Return the lines for the trainer: its name, then its arguments or settings, or the path of the manifest.

    The trainer finds the run at `root`. `used_names` are the splits of the run, and `files` are the paths of its files.
    """
    if stage == "pretrain":
        lines = ["Megatron-LM:", f"--per-split-data-args-path {root}/{BLEND}"]
        # `DATA_ARGS` exists only if the run has a single split and its location contains no white space. The file has
        # the same entries as the blend file.
        return [*lines, f"or --data-args-path {root}/{DATA_ARGS}"] if DATA_ARGS in files else lines
    if stage == "sft":
        keys = {"train": "packed_train_data_path", "valid": "packed_val_data_path"}
        return ["Megatron-Bridge:", *(f"{keys.get(split, split)}={root}/splits/{split}/" for split in used_names)]
    if stage == "pairs":
        folders = {split: f"{root}/splits/{split}" for split in used_names}
        return [f"TRL: {_format_load_call(folder)}, for DPOTrainer ({split})" for split, folder in folders.items()]
    # Show the manifest in the folder next to the runs, because its path, unlike the path of the run's own manifest,
    # does not change with every run.
    return ["NeMo-RL:", f"{root.rsplit('/', 2)[0]}/{RL_MANIFEST}/{MANIFEST}"]


def _format_load_call(folder: str) -> str:
    return f"load_dataset('parquet', data_dir={folder!r}, split='train')"


def write_entry(run: RunLayout, plan: BlendPlan, shards: UsedShards) -> None:
    """Write the entry files of the trainer into `run`, with the shards that each split of `plan` uses."""
    _WRITERS[run.blend.stage](run, plan, shards)


def _write_blend(run: RunLayout, shards: UsedShards) -> dict[str, list[blend_json.Entry]]:
    splits = {
        split: [blend_json.Entry(weight, f"{run.root}/{shard.stem}") for weight, shard in weigh_shards(members)]
        for split, members in shards.items()
    }
    blend_json.write_blend(run.target / BLEND, splits)
    return splits


def _write_pretrain(run: RunLayout, _: BlendPlan, shards: UsedShards) -> None:
    splits = _write_blend(run, shards)
    # A `--data-args-path` file can contain only one split, and its paths must not contain white space, which separates
    # the entries.
    if len(splits) == 1 and not any(character.isspace() for character in run.root):
        (run.target / DATA_ARGS).write_text(blend_json.format_data_args(next(iter(splits.values()))))


def _write_sft(run: RunLayout, _: BlendPlan, shards: UsedShards) -> None:
    """Write the split folders, and the `blend.json` from which Nemotron's `stage1_sft/data_prep.py` builds them."""
    _write_blend(run, shards)
    _link_splits(run, shards)


def _write_pairs(run: RunLayout, _: BlendPlan, shards: UsedShards) -> None:
    _link_splits(run, shards)


def _link_splits(run: RunLayout, shards: UsedShards) -> None:
    """Link the shards of each split under names that sort in the order of the shards."""
    for split, members in shards.items():
        for position, shard in enumerate(members):
            name = f"splits/{split}/{position:06d}__{shard.unit.name}__shard_{shard.index:06d}.parquet"
            run.link(shard, ".parquet", name)


def _write_rl(run: RunLayout, plan: BlendPlan, used_shards: UsedShards) -> None:
    """Write the file of each split, the manifest that lists them, and the list of their shards.

    Nemotron's recipes read a split from one file. The manifest has the file's path, or an empty string if the blend has
    no such split (`_manifest_resolver` in `nemo_runspec/config/resolvers.py`, and `setup_single_nemo_gym_dataset` in
    Nemotron's RL trainers).
    """
    (suffix,) = list_suffixes(run.blend)
    files = {"train": "", "val": "", "test": ""}
    shard_files: dict[str, list[str]] = {key: [] for key in files}
    records: dict[str, int] = {}
    for split, members in used_shards.items():
        key, shards = get_manifest_key(split), repeat_shards(members)
        run.join(shards, suffix, format_split_path(key, suffix))
        files[key] = f"{run.root}/{format_split_path(key, suffix)}"
        shard_files[key] = [f"{run.root}/{shard.stem}{suffix}" for shard in shards]
        records[key] = sum(shard.rows for shard in shards)
    splits = sorted({unit.home for unit in plan.units})
    manifest = {**files, "mode": "resolve", "source_splits": splits, "run_hash": plan.run_hash}
    (run.target / MANIFEST).write_bytes(canonical_json(manifest) + b"\n")
    value = {**shard_files, "run_hash": plan.run_hash, "source_splits": splits, "records": records}
    (run.target / SHARDS).write_bytes(canonical_json(value) + b"\n")


_WRITERS: Mapping[Stage, Callable[[RunLayout, BlendPlan, UsedShards], None]] = {
    "pretrain": _write_pretrain,
    "sft": _write_sft,
    "pairs": _write_pairs,
    "rl": _write_rl,
}
