"""Faults of a single pipeline: patients in two splits, renumbered months, wrong weights, stale views, changed files at
the location of a publication or in a trainer's tree.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from dataprep_assets_tests.tools.drill.box import Box, Target, edit_json, edit_receipt, reseal, write
from dataprep_assets_tests.tools.drill.bytes_of_files import CHANGES
from dataprep_assets_tests.tools.drill.faults import Apply, Fault, InapplicableError


def _targets(box: Box, name: str, dataset: str | None = None) -> list[Target]:
    return [t for t in box.targets() if t.spec.name == name and dataset in (None, t.spec.path[0])]


# --- corpus


def stale_view(box: Box, target: Target, random: Random) -> str:
    """Replace the combined bins by other intact ones, so that the view is of the old ones."""
    (other,) = (t for t in _targets(box, "combined_bins") if t.spec.split == "train")
    folder = box.folder(other)
    for path in (folder / "train.bin", folder / "document_ends.bin"):
        if path.name == "train.bin":
            data = bytearray(path.read_bytes())
            at = 2 * random.randrange(len(data) // 2)
            data[at] ^= 1
            write(path, bytes(data))
    reseal(folder)
    return str(other)


# --- notes


def patients_in_two_splits(box: Box, target: Target, random: Random) -> None:
    """Add a patient of train also to val's list of the month, with consistent numbers."""
    folder = box.folder(target)
    train, val = (folder / split / "patients.bin" for split in ("train", "val"))
    patients = [train.read_bytes()[i : i + 16] for i in range(0, train.stat().st_size, 16)]
    known = [val.read_bytes()[i : i + 16] for i in range(0, val.stat().st_size, 16)]
    write(val, b"".join(sorted([*known, random.choice(patients)])))

    def change(value: dict[str, Any]) -> None:
        value["facts"]["splits"]["val"]["patients"] += 1
        value["facts"]["patients"] += 1

    edit_receipt(folder, change)
    reseal(folder)


def patient_moved(box: Box, target: Target, random: Random) -> None:
    """List a patient of train in val instead."""
    folder = box.folder(target)
    train, val = (folder / split / "patients.bin" for split in ("train", "val"))
    patients = [train.read_bytes()[i : i + 16] for i in range(0, train.stat().st_size, 16)]
    moved = patients.pop(random.randrange(len(patients)))
    known = [val.read_bytes()[i : i + 16] for i in range(0, val.stat().st_size, 16)]
    write(train, b"".join(patients))
    write(val, b"".join(sorted([*known, moved])))

    def change(value: dict[str, Any]) -> None:
        value["facts"]["splits"]["val"]["patients"] += 1
        value["facts"]["splits"]["train"]["patients"] -= 1

    edit_receipt(folder, change)
    reseal(folder)


def patient_in_two_months(box: Box, target: Target, random: Random) -> None:
    """Put a patient of one month's train into val of another month, so that their directory leaks."""
    months = _targets(box, "packed_cohorts", target.spec.path[0])
    if len(months) != 2:  # a mixture packs no cohorts itself
        raise InapplicableError
    first, second = months
    train = box.folder(first) / "train" / "patients.bin"
    val = box.folder(second) / "val" / "patients.bin"
    taken = train.read_bytes()[:16]
    data = val.read_bytes()
    write(val, b"".join(sorted([*(data[i : i + 16] for i in range(0, len(data), 16)), taken])))
    reseal(box.folder(second))


def months_exchanged(box: Box, target: Target, random: Random) -> None:
    """Swap the artifacts of two months, each of which claims the month of its path."""
    first, second = (box.folder(t) for t in _targets(box, target.spec.name, target.spec.path[0]))
    aside = first.with_name(".exchanged")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    for folder, other in ((first, second), (second, first)):
        for path in sorted(folder.rglob(f"*{other.name}*")):
            path.rename(path.with_name(path.name.replace(other.name, folder.name)))
        edit_receipt(folder, lambda value, name=folder.name: value.update(partition=name))
        reseal(folder)


def shards_renumbered(box: Box, target: Target, random: Random) -> str:
    """Swap the numbers of two shards of a split."""
    splits: dict[str, list[Path]] = {}
    for path in sorted(box.folder(target).rglob("*-of-*")):
        key = f"{path.parent}/{path.name.partition('-0')[0] if '-train' in path.name or '-val' in path.name else ''}"
        splits.setdefault(key, []).append(path)
    shards = random.choice([found for found in splits.values() if len(found) > 1] or [[]])
    if len(shards) < 2:
        raise InapplicableError
    a, b = random.sample(shards, 2)
    first, second = a.read_bytes(), b.read_bytes()
    if first == second:
        raise InapplicableError
    write(a, second)
    write(b, first)
    reseal(box.folder(target))
    return f"{a.name} and {b.name}"


def directory_json(name: str) -> Apply:
    """Return a fault that changes a number in a JSON file of a directory."""

    def apply(box: Box, target: Target, random: Random) -> str:
        found = sorted(box.folder(target).rglob(name))
        if not found:
            raise InapplicableError
        said = _other_number(found[0], random)
        reseal(box.folder(target))
        return said

    return apply


# `run_layout.py` does not compare these keys, because they describe the build of a shard, and the shard may be rebuilt
# after a run has copied it.
_BUILT_BY = frozenset({"reference_documents", "sampled_documents", "source_bytes"})


def _other_number(path: Path, random: Random) -> str:
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, item in items:
            is_number = isinstance(item, int | float) and not isinstance(item, bool)
            if key not in _BUILT_BY and (is_number or (isinstance(item, str) and item.isdigit())):
                places.append((value, key))
            walk(item)

    value = json.loads(path.read_bytes())
    walk(value)
    if not places:
        raise InapplicableError
    holder, key = random.choice(places)
    old = holder[key]
    holder[key] = str(int(old) + 1) if isinstance(old, str) else old + 1
    write(path, json.dumps(value, indent=1, sort_keys=True).encode() + b"\n")
    return f"{path.name}: {key}"


# --- release


def _published(box: Box) -> list[Path]:
    found = [path for path in sorted((box.bench.folder / "published").rglob("*")) if path.is_file()]
    return [path for path in found if ".uploads" not in path.parts]


def published_bytes(kind: str) -> Apply:
    def apply(box: Box, target: Target, random: Random) -> str:
        path = random.choice(_published(box))
        before = path.read_bytes()
        after = before
        while after == before:
            after = CHANGES[kind](before, random)
        write(path, after)
        return path.name

    return apply


def published_lost(box: Box, target: Target, random: Random) -> str:
    path = random.choice(_published(box))
    path.unlink()
    return path.name


def published_swapped(box: Box, target: Target, random: Random) -> str:
    a, b = random.sample([path for path in _published(box) if path.suffix == ".npy"], 2)
    first, second = a.read_bytes(), b.read_bytes()
    write(a, second)
    write(b, first)
    return f"{a.name} and {b.name}"


# --- tasks


def _tree(box: Box, target: Target) -> list[Path]:
    record = json.loads((box.folder(target) / "migration.json").read_bytes())
    place = box.bench.folder / "new" / record["place"]
    # Leave out test files, because the trainer never opens them, so that a fault in a test file causes only a warning.
    names = [file["name"] for file in record["files"] if file["split"] != "test"]
    return sorted(place / name for name in names if (place / name).exists())


def in_tree(kind: str) -> Apply:
    def apply(box: Box, target: Target, random: Random) -> str:
        path = random.choice(_tree(box, target))
        before = path.read_bytes()
        after = before
        while after == before:
            after = CHANGES[kind](before, random) if kind in CHANGES else _lines(kind, before, random)
        # Resolve links, because `write` would replace a link instead of the file in the old project to which it points.
        write(Path(os.path.realpath(path)), after)
        return path.name

    return apply


def _lines(kind: str, data: bytes, random: Random) -> bytes:
    lines = data.splitlines(keepends=True)
    at = random.randrange(len(lines) - 1)
    if kind == "rows lost":
        del lines[at]
    elif kind == "rows doubled":
        lines.insert(at, lines[at])
    elif kind == "rows reordered":
        lines[at], lines[at + 1] = lines[at + 1], lines[at]
    return b"".join(lines)


def tree_lost(box: Box, target: Target, random: Random) -> str:
    path = random.choice(_tree(box, target))
    path.unlink()
    return path.name


def tree_of_another_version(box: Box, target: Target, random: Random) -> str:
    """Replace the train file by that of another version."""
    if not str(target.slot).startswith("Copa"):
        raise InapplicableError
    others = [t for t in _targets(box, "task_folder") if str(t.slot).startswith("Copa") and t.slot != target.slot]
    (mine,) = (path for path in _tree(box, target) if "train" in path.name)
    (theirs,) = (path for path in _tree(box, random.choice(others)) if "train" in path.name)
    write(mine, theirs.read_bytes())
    return mine.name


# --- blend


def weights_off(box: Box, target: Target, random: Random) -> None:
    """Change the first weight of the train split."""
    path = box.folder(target) / "blend.json"
    if not path.exists():
        raise InapplicableError

    def change(value: Any) -> None:
        value["train"][0] = str(float(value["train"][0]) * random.choice((0.5, 1.1, 2.0)))

    edit_json(path, change)
    reseal(box.folder(target))


def prefixes_exchanged(box: Box, target: Target, random: Random) -> None:
    """Swap a prefix of train with one of valid."""
    path = box.folder(target) / "blend.json"
    if not path.exists():
        raise InapplicableError

    def change(value: Any) -> None:
        at = random.randrange(len(value["train"]) // 2) * 2 + 1
        value["train"][at], value["valid"][1] = value["valid"][1], value["train"][at]

    edit_json(path, change)
    reseal(box.folder(target))


def split_leaks(box: Box, target: Target, random: Random) -> str:
    """Add a shard of train to a held-out split as well."""
    splits = box.folder(target) / "splits"
    train = sorted((splits / "train").glob("*")) if (splits / "train").is_dir() else []
    if not train or not (splits / "valid").is_dir():
        raise InapplicableError
    path = random.choice(train)
    shutil.copyfile(path, splits / "valid" / path.name)
    reseal(box.folder(target))
    return path.name


def json_of_run(name: str) -> Apply:
    return directory_json(name)


_TABLE: dict[str, list[tuple[str, str, str, Apply]]] = {
    "corpus": [
        *((view, "stale view", "older combined bins", stale_view) for view in ("nanogpt_bins", "megatron_bins")),
        *((view, "stale view", "older combined bins", stale_view) for view in ("datatrove_bins", "olmo_bins")),
        *((view, "stale view", "older combined bins", stale_view) for view in ("mds_bins", "hf_parquet_bins")),
        ("manifest", "a number is another", "shard_plan.json", directory_json("shard_plan.json")),
        ("olmo_bins", "a number is another", "index", directory_json("train_index.json")),
        ("mds_bins", "a number is another", "index.json", directory_json("index.json")),
        ("combined_bins", "a number is another", "meta.json", directory_json("meta.json")),
        ("data_card", "a number is another", "croissant.json", directory_json("croissant.json")),
    ],
    "notes": [
        ("packed_cohorts", "patients in two splits", "of one month", patients_in_two_splits),
        ("packed_cohorts", "patients in two splits", "moved", patient_moved),
        ("tfds_directory", "patients in two splits", "of two months", patient_in_two_months),
        ("packed_cohorts", "months renumbered", "exchanged", months_exchanged),
        ("tfrecord_shards", "months renumbered", "exchanged", months_exchanged),
        ("array_record_shards", "months renumbered", "exchanged", months_exchanged),
        ("tfrecord_shards", "shards renumbered", "two of a month", shards_renumbered),
        ("array_record_shards", "shards renumbered", "two of a month", shards_renumbered),
        ("tfds_directory", "shards renumbered", "two of a split", shards_renumbered),
        ("array_record_directory", "shards renumbered", "two of a split", shards_renumbered),
        *(
            (directory, "a number is another", name, directory_json(name))
            for directory in ("tfds_directory", "array_record_directory")
            for name in ("dataset_info.json", "features.json", "provenance.json")
        ),
    ],
    "release": [
        *(("published_shards", kind, "at the public location", published_bytes(kind)) for kind in CHANGES),
        ("published_shards", "file lost", "at the public location", published_lost),
        ("published_shards", "files swapped between shards", "at the public location", published_swapped),
    ],
    "curated": [],
    "tasks": [
        *(("task_folder", kind, "in the trainer's tree", in_tree(kind)) for kind in CHANGES),
        *(
            ("task_folder", f"rows {how}", "in the trainer's tree", in_tree(f"rows {how}"))
            for how in ("lost", "doubled")
        ),
        ("task_folder", "rows reordered", "in the trainer's tree", in_tree("rows reordered")),
        ("task_folder", "file lost", "in the trainer's tree", tree_lost),
        ("task_folder", "file of another dataset", "another version's", tree_of_another_version),
    ],
    "blend": [
        ("blend", "weights off", "blend.json", weights_off),
        ("blend", "splits exchanged", "blend.json", prefixes_exchanged),
        ("blend", "splits exchanged", "shard in two splits", split_leaks),
        ("blend", "a number is another", "realised.json", directory_json("realised.json")),
        ("blend", "a number is another", "config.json", directory_json("config.json")),
        ("blend", "a number is another", "plan.json", directory_json("plan.json")),
        ("blend", "a number is another", "shard_000000.json", directory_json("shard_000000.json")),
        ("blend_plan", "a number is another", "plan.json", directory_json("plan.json")),
        ("blend_plan", "a number is another", "config.json", directory_json("config.json")),
        ("blend_preview", "a number is another", "preview.json", directory_json("preview.json")),
        ("rl_manifest", "a number is another", "shards.json", directory_json("shards.json")),
        ("data_card", "a number is another", "croissant.json", directory_json("croissant.json")),
    ],
}


def special_faults(box: Box, places: int) -> Iterator[Fault]:
    """Yield the faults of the box's pipeline."""
    for artifact, kind, name, apply in _TABLE[box.bench.pipeline]:
        for target in _targets(box, artifact):
            for place in range(places):
                yield Fault(kind=kind, name=name, target=target, apply=apply, place=place)
