"""Proof on what the trainer reads first in a blend run: it lists every used shard once, under names that exist."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from dataprep_assets.formats import blend_json
from dataprep_assets.graph.finding import Finding, first_of, judged, name_of, verdict
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.finished_shards import suffixes
from dataprep_assets.pipelines.blend.run_layout import json_object
from dataprep_assets.pipelines.blend.runs import RunFacts
from dataprep_assets.pipelines.blend.trainer_entry import BLEND, MANIFEST, SHARDS, manifest_key, split_file
from dataprep_assets.plural import count_of

_REFINALIZE = "Materialize the run again"


@judged
def entry_lists_every_shard(blend: BlendDeclaration, directory: Path, receipt: Receipt) -> Finding:
    """What the trainer reads first lists every used shard once, under a name that exists, and no other.

    `blend` is the declaration, `directory` the run's, `receipt` its receipt.
    """
    facts = RunFacts.of(receipt)
    used = {split: len(partitions) for split, partitions in facts.used.items()}
    empty = len(facts.empty)
    readers = {"pretrain": _blend_json_defects, "sft": _split_folder_defects, "rl": _rl_manifest_defects}
    return verdict(
        (f"{name_of(receipt)}: {defect}" for defect in readers[blend.stage](blend, directory, facts)),
        f"{count_of(sum(used.values()), 'shard')} of {count_of(len(used), 'split')}, each listed once; {empty} empty.",
        _REFINALIZE,
        facts={**{f"listed_{split}": count for split, count in used.items()}, "empty": empty},
    )


def _stems(facts: RunFacts, split: str, plan_folders: dict[str, str]) -> list[str]:
    """`datasets/<name>/<plan_hash>/shard_000000` of each shard that a split uses."""
    found = []
    for partition in facts.used.get(split, ()):
        # a dataset's name may hold hyphens: the number is behind the last; `?` stands for a folder that is not there
        name, _, index = partition.rpartition("-")
        found.append(f"datasets/{name}/{plan_folders.get(name, '?')}/shard_{int(index):06d}")
    return sorted(found)


def _plan_folders(directory: Path) -> dict[str, str]:
    return {path.parent.name: path.name for path in (directory / "datasets").glob("*/*")}


def _blend_json_defects(blend: BlendDeclaration, directory: Path, facts: RunFacts) -> Iterator[str]:
    root, files = f"{facts.root}/", suffixes(blend)

    def exists(prefix: str) -> bool:
        # prefixes are as the trainer sees them (`trainer_root`); the files are looked up below the run as it lies here
        place = directory / prefix.removeprefix(root)
        return prefix.startswith(root) and all(place.with_name(place.name + s).is_file() for s in files)

    found = blend_json.defects(directory / BLEND, lambda _: True)
    yield from found
    # entries of a malformed list cannot be told apart
    if found:
        return
    splits, folders = blend_json.read_blend(directory / BLEND), _plan_folders(directory)
    for split in blend_json.SPLITS:
        prefixes = [entry.prefix for entry in splits.get(split, ())]
        for prefix in prefixes:
            if not exists(prefix):
                yield f"{BLEND}: {prefix}: listed, but its {' and '.join(files)} are not all there"
        listed = sorted(prefix.removeprefix(root) for prefix in prefixes)
        if listed != (wanted := _stems(facts, split, folders)):
            odd = sorted({*listed} ^ {*wanted})
            yield (
                f"{BLEND}: {split} lists {len(listed)} shards, {len(wanted)} are used; they differ in {first_of(odd)}"
            )


def _split_folder_defects(blend: BlendDeclaration, directory: Path, facts: RunFacts) -> Iterator[str]:
    yield from _blend_json_defects(blend, directory, facts)
    folders = _plan_folders(directory)
    for split in facts.used:
        files = sorted((directory / "splits" / split).iterdir())
        found = []
        for position, path in enumerate(files):
            at, _, rest = path.stem.partition("__")
            name, _, shard = rest.rpartition("__shard_")
            if int(at) != position:
                yield f"splits/{split}: {path.name} is at position {position}"
            found.append(f"datasets/{name}/{folders.get(name, '?')}/shard_{shard}")
            # A symbolic link may lead out of the run, and dangle once it is moved; the run was laid out with hard links
            # or copies. The size is enough here: `run_intact` compares digests.
            target = directory / f"{found[-1]}.parquet"
            if path.is_symlink() or not target.is_file() or path.stat().st_size != target.stat().st_size:
                yield f"splits/{split}: {path.name} is not the shard that it names"
        if sorted(found) != _stems(facts, split, folders):
            yield f"splits/{split}: its {len(found)} files are not the shards that are used"


def _rl_manifest_defects(blend: BlendDeclaration, directory: Path, facts: RunFacts) -> Iterator[str]:
    used, known = {manifest_key(split) for split in facts.used}, ("train", "val", "test")
    for key in sorted(used - {*known}):
        yield f"{MANIFEST}: {key} is none of the splits that a trainer reads, {', '.join(known)}"
    yield from _rl_list_defects(blend, directory, facts)
    value, listed = json_object(directory / MANIFEST), json_object(directory / SHARDS)
    (suffix,) = suffixes(blend)
    if value.get("run_hash") != facts.run_hash:
        yield f"{MANIFEST}: run hash {value.get('run_hash')}, the receipt says {facts.run_hash}"
    for key in known:
        wanted = f"{facts.root}/{split_file(key, suffix)}" if key in used else ""
        if value.get(key) != wanted:
            yield f"{MANIFEST}: {key} is {value.get(key)!r}, not {wanted!r}"
        if key not in used:
            continue
        file = directory / split_file(key, suffix)
        parts = [directory / path.removeprefix(f"{facts.root}/") for path in listed.get(key, [])]
        sizes = [path.stat().st_size for path in (file, *parts) if path.is_file()]
        if len(sizes) != 1 + len(parts) or sizes[0] != sum(sizes[1:]):
            yield f"{file.name}: it is not the {len(parts)} files of {SHARDS} in one"


def _rl_list_defects(blend: BlendDeclaration, directory: Path, facts: RunFacts) -> Iterator[str]:
    value = json_object(directory / SHARDS)
    root, folders, (suffix,) = f"{facts.root}/", _plan_folders(directory), suffixes(blend)
    if value.get("run_hash") != facts.run_hash:
        yield f"{SHARDS}: run hash {value.get('run_hash')}, the receipt says {facts.run_hash}"
    # for RL an epoch is one listing of a dataset's records, so this float is a whole number
    repeats = {(row.split, row.name): round(row.epochs) for row in facts.realised}
    for split in facts.used:
        listed = value.get(manifest_key(split), [])
        wanted = [
            f"{stem}{suffix}"
            for stem in _stems(facts, split, folders)
            for _ in range(repeats[split, PurePosixPath(stem).parts[1]])
        ]
        if sorted(path.removeprefix(root) for path in listed) != wanted:
            yield f"{SHARDS}: {split} lists {len(listed)} files, expected {len(wanted)}"
        for path in dict.fromkeys(listed):
            if not (directory / path.removeprefix(root)).is_file():
                yield f"{SHARDS}: {path}: listed, but missing"
