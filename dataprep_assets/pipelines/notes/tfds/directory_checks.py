"""The checks that every directory has, of one dataset or of several combined.

A directory links shards that were checked with their cohorts, and adds metadata. So what it should be is known by
building it again (`rebuilt_otherwise`), which reads no row. What TFDS itself makes of it is checked by letting it read.

Entry points: `OpenedDirectory`; `FILES_INTACT`, `TFDS_READS`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dataprep_assets.engine.checks.check import Check, OpenedArtifact
from dataprep_assets.engine.checks.finding import Finding, verdict
from dataprep_assets.integrity.receipt import damage
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.replay.replay_declaration import ReplayDeclaration
from dataprep_assets.pipelines.notes.tfds.linked_directory import DirectoryFacts
from dataprep_assets.pipelines.notes.tfds.provenance import PROVENANCE, ShardOrigin, read_provenance
from dataprep_assets.pipelines.notes.tfds.tfds_reader import read_with_tfds
from dataprep_assets.plural import count_of

REBUILD = "Materialize the directory again"
REBUILD_SOURCES = "Materialize its sources and then the directory again"


@dataclass(frozen=True)
class OpenedDirectory(OpenedArtifact):
    """A directory to check."""

    declared: NotesDeclaration | ReplayDeclaration

    @property
    def path(self) -> Path:
        """The folder of the shards."""
        return self.directory / self.declared.dataset / self.declared.tfds_version

    @cached_property
    def provenance(self) -> Mapping[str, Sequence[tuple[str, ShardOrigin]]]:
        """Split → name and origin of each shard, as they are on disk."""
        return read_provenance(self.directory / PROVENANCE)


def _files_intact(opened: OpenedDirectory) -> Finding:
    receipt = opened.receipt
    return verdict(
        (f"{opened.name}: {d}" for d in damage(opened.directory, receipt, opened.declared.verify)),
        f"{count_of(len(receipt.files), 'file')}, {receipt.total_bytes} bytes, as the receipt says.",
        REBUILD,
        facts={"files": len(receipt.files), "bytes": receipt.total_bytes},
    )


def _tfds_reads(opened: OpenedDirectory) -> Finding:
    declared, format = opened.declared, DirectoryFacts.of(opened.receipt).format
    return read_with_tfds(opened.path, declared.dataset, declared.tfds_version, format)


# its digests are compared unless `verify: size` is declared
FILES_INTACT: Check[OpenedDirectory] = Check(
    "files_intact", "Every file has the size and digest of the receipt, and no file is unlisted.", _files_intact
)
# Repeats with the real reader what the others verify without it; a warning if TensorFlow is not installed, which the
# machines that build a dataset do not need.
TFDS_READS: Check[OpenedDirectory] = Check(
    "tfds_reads",
    "tensorflow-datasets opens the directory and reads the rows, in file order, as they are stored.",
    _tfds_reads,
    blocking=False,
)
