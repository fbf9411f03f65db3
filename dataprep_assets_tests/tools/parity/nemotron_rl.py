"""RL records of Nemotron's data_prep beside ours: the same files through both, compared line by line.

Theirs run as they are, from a copy of the repository: their placeholder resolver over local files in the place of the
hub, their shard writer, and the resolver with which their training settings read a manifest.
"""

import copy
import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson

from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration, SourceAccessDeclaration
from dataprep_assets.pipelines.blend.output.trainer_entry import RL_MANIFEST
from dataprep_assets.pipelines.blend.rl.apply_transforms import RefusedRecord, SkippedRecord, apply_transforms
from dataprep_assets.pipelines.blend.rl.options import RESOLVE, RlOptions
from dataprep_assets.pipelines.blend.rl.placeholders import fetch_sources
from dataprep_assets.pipelines.blend.rl.shard import encode_line
from dataprep_assets.pipelines.blend.rl.transforms import compose_steps, list_declared_sources
from dataprep_assets_tests.pipelines.blend.pipeline import finish_blend, write_rows
from dataprep_assets_tests.tools.parity.absent import stand_in
from dataprep_assets_tests.tools.parity.rl_records import NAMES, STOPS, Record, records_by_shape, write_tables
from dataprep_assets_tests.tools.parity.table import Row

AREA = "RL records"
STOPS_ALL = "stops"
Line = bytes | str | None
"""A written record; None for a dropped one; `STOPS_ALL` for one at which the run ends. Ours ends at a bad record under
`bad_records: {policy: fail}`, the default."""


def compare(folder: Path) -> list[Row]:
    """Return a row for each shape of records, for whole files, and for the manifest.

    `folder` is a copy of the Nemotron repository, with `src/` in it.
    """
    logging.getLogger("nemotron").setLevel(logging.ERROR)
    reach(folder)
    with TemporaryDirectory() as name:
        work = Path(name)
        write_tables(work / "hub" / "datasets")
        theirs, ours = _their_transform(work / "hub"), _our_transform(work / "hub")
        shapes = list(records_by_shape())
        rows = [_compared(shape, records, theirs, ours) for shape, records in shapes]
        every = [record for shape, records in shapes if shape != STOPS for record in records]
        return [*rows, *_whole_files(work, every, theirs), _manifest(folder, work, every)]


def _compared(
    shape: str, records: list[Record], theirs: Callable[[Record], Record | None], ours: Callable[[Record], Line]
) -> Row:
    found = [(_line(theirs, record), ours(copy.deepcopy(record))) for record in records]
    stopped = sum(line == STOPS_ALL for line, _ in found)
    note = f"{stopped} stop both: there by an exception, here as bad records" if stopped else ""
    return Row(AREA, shape, len(records), sum(line == made for line, made in found), 0, note)


def _line(theirs: Callable[[Record], Record | None], record: Record) -> Line:
    try:
        made = theirs(copy.deepcopy(record))
        return None if made is None else orjson.dumps(made, option=orjson.OPT_APPEND_NEWLINE)
    except (AttributeError, TypeError):
        return STOPS_ALL


def _declared(hub: Path) -> RlOptions:
    sources = {name: str(hub / "datasets" / repository / "data") for name, repository in NAMES.items()}
    return RlOptions(transforms=({RESOLVE: {"sources": sources}},), like="nemotron")


def _our_transform(hub: Path) -> Callable[[Record], Line]:
    options = _declared(hub)
    files = fetch_sources(list_declared_sources(options.transforms), SourceAccessDeclaration())
    steps = compose_steps(options.transforms, files, options.rules)

    def line(record: Record) -> Line:
        made = apply_transforms(record, steps, options.rules, "the record")
        try:
            if isinstance(made, SkippedRecord | RefusedRecord):
                return STOPS_ALL if isinstance(made, RefusedRecord) else None
            return encode_line(made)
        except (TypeError, ValueError):  # `encode_line` refuses the record
            return STOPS_ALL

    return line


def _blend(work: Path, path: Path, name: str, **settings: Any) -> BlendDeclaration:
    return BlendDeclaration.model_validate(
        {
            "dataset": name,
            "stage": "rl",
            "blend": {"train": [{"name": "all", "path": str(path)}]},
            "rl": _declared(work / "hub").model_dump(),
            "num_shards": 1,
            **settings,
        }
    )


def _whole_files(work: Path, records: list[Record], theirs: Callable[[Record], Record | None]) -> Iterator[Row]:
    """Compare the bytes of both shard writers over one file of all records, as JSON lines and Parquet."""
    core = importlib.import_module("nemotron.data_prep.core.jsonl_shard_core")
    from fsspec.implementations.local import LocalFileSystem

    # Use only records whose fields have the same types, because a Parquet column has one type.
    typed = [record for record in records if set(record) >= {"id", "dataset"} and isinstance(record["id"], str)]
    typed = [{"id": record["id"], "dataset": record["dataset"], "n": i} for i, record in enumerate(typed)]
    typed = [{**r, "_hf_placeholder": {"row": r["n"] % 45, "question_template": "{question}"}} for r in typed]
    for shape, rows in (("a file of JSON lines", records), ("a file of Parquet", typed)):
        path = write_rows(work / "sources" / ("all.parquet" if "Parquet" in shape else "all.jsonl"), rows)
        out = work / "theirs" / path.suffix[1:]
        core.process_jsonl_shard_core(
            shard_index=0,
            files=[{"path": str(path), "local_path": str(path), "size": path.stat().st_size}],
            output_dir=str(out),
            receipts_dir=str(out),
            output_fs=LocalFileSystem(),
            text_field="text",
            transform=theirs,
            compression="none",
            max_rows=None,
            skip_receipt=True,
        )
        blend = _blend(work, path, f"file_{path.suffix[1:]}")
        directory, _, _ = finish_blend(blend, work / "ours")
        (made,) = directory.glob("datasets/*/*/shard_000000.jsonl")
        wanted, found = ((out / "shard_000000.jsonl").read_bytes(), made.read_bytes())
        lines = zip(wanted.splitlines(), found.splitlines(), strict=False)
        same = sum(a == b for a, b in lines) if wanted != found else len(rows)
        yield Row(AREA, shape, len(rows), same, 0, f"{len(wanted.splitlines())} lines, {len(wanted)} bytes")


def _manifest(folder: Path, work: Path, records: list[Record]) -> Row:
    """Run their resolver of `${manifest:<folder>,<split>}` over the manifest of two splits of three shards each."""
    spec = importlib.util.spec_from_file_location("resolvers", folder / "src/nemo_runspec/config/resolvers.py")
    assert spec is not None
    assert spec.loader is not None
    resolvers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(resolvers)
    splits = {"train": records[:200], "valid": records[200:300]}
    listed = {
        split: [{"name": "all", "path": str(write_rows(work / "split" / f"{split}.jsonl", rows))}]
        for split, rows in splits.items()
    }
    blend = _blend(work, work, "with_manifest", blend=listed, num_shards=3)
    finish_blend(blend, work / "ours")
    home = LocalArtifacts(work / "ours").location(blend.artifact(RL_MANIFEST))
    line = _our_transform(work / "hub")
    equal = 0
    for key, split in (("train", "train"), ("val", "valid"), ("test", "test")):
        path = resolvers._manifest_resolver(home, key)
        lines = [made for record in splits.get(split, []) if (made := line(copy.deepcopy(record))) is not None]
        equal += (path == "") if not lines else Path(path).read_bytes() == b"".join(lines)
    return Row("RL manifest", "train, val and test by their resolver", 3, equal, 0, "of 3, 3 and no shards")


def reach(folder: Path) -> None:
    """Make the upstream modules importable, with empty ones in place of those for a cluster."""
    stand_in("cosmos_xenna", "omegaconf")
    source = str(folder / "src")
    if source not in sys.path:
        sys.path.insert(0, source)


def _their_transform(hub: Path) -> Callable[[Record], Record | None]:
    """Return their transform, with the tables that their own search for files finds below `hub`."""
    import huggingface_hub
    from fsspec.implementations.dirfs import DirFileSystem
    from fsspec.implementations.local import LocalFileSystem

    placeholders = importlib.import_module("nemotron.data_prep.utils.hf_placeholder")
    transforms = importlib.import_module("nemotron.data_prep.formats.transforms")
    targets = {**placeholders.NANO3_TARGET_DATASETS, **placeholders.SUPER3_TARGET_DATASETS}
    missing = set(targets) ^ set(NAMES)
    if missing:
        raise SystemExit(f"the original knows other placeholder sources than these records: {sorted(missing)}")
    theirs = huggingface_hub.HfFileSystem
    huggingface_hub.HfFileSystem = lambda: DirFileSystem(str(hub), LocalFileSystem())  # type: ignore
    try:
        resolver = placeholders.HFPlaceholderResolver.create(targets)
    finally:
        huggingface_hub.HfFileSystem = theirs  # type: ignore
    found: Callable[[Record], Record | None] = transforms.resolve_hf_placeholders(resolver)
    return found
