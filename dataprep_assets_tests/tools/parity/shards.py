"""Write invented rows to a source file, and build a finished shard of packed rows."""

from pathlib import Path
from typing import Any

from dataprep_assets.integrity.artifacts import Artifact, LocalArtifacts
from dataprep_assets.packing.algorithms import Algorithm
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan, ChatSource
from dataprep_assets.pipelines.blend.sft.packing import pack_shard
from dataprep_assets.pipelines.blend.sft.shard import PACKED, PackPlan, SftShard
from dataprep_assets.pipelines.blend.sft.spool import spool_source
from dataprep_assets.stores.files import sha256_file
from dataprep_assets_tests.tools.parity.conversations import write_rows


def source_of(given: list[dict[str, Any]], folder: Path) -> ChatSource:
    """Write the rows to a file of a new folder, and return it as a snapshot describes it."""
    folder.mkdir(parents=True)
    path = write_rows(folder / "rows.jsonl", given)
    return ChatSource(
        label=path.name,
        path=path,
        format="jsonl",
        compression=None,
        sha256=sha256_file(path),
        ordinal=0,
        size=path.stat().st_size,
    )


def packed_shard(
    plan: ChatPlan,
    given: list[dict[str, Any]],
    folder: Path,
    algorithm: Algorithm = "first_fit_shuffle",
    **padding: int,
) -> SftShard:
    """Build the shard of the rows in a new folder; `padding` are settings of `PackPlan`."""
    source = source_of(given, folder)
    shard = SftShard(
        artifact=Artifact(dataset="parity", name="packed_sft", partition="a"),
        store=LocalArtifacts(folder / "store"),
        sources=(source,),
        plan=plan,
        packing=PackPlan(algorithm=algorithm, **padding),
        budget=1.0,
    )
    spool_source(plan, source, shard.scratch, shard.artifact)
    pack_shard(shard, "full")
    return shard


def packed(
    plan: ChatPlan,
    given: list[dict[str, Any]],
    folder: Path,
    algorithm: Algorithm = "first_fit_shuffle",
    **padding: int,
) -> Path:
    """Return the packed file of such a shard."""
    shard = packed_shard(plan, given, folder, algorithm, **padding)
    return shard.store.directory(shard.artifact) / PACKED
