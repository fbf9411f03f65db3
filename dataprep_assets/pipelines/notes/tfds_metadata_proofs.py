"""Proofs on any directory that TFDS reads: names, lengths, sizes and features agree with its metadata.

Shards are counted by walking from frame to frame; their payloads were proven with the cohorts, and are the same bytes
when their digests are. What TFDS itself makes of the directory is proven by letting it read (`tfds_reads`).

Entry points: `TfdsDirectory`, `metadata_findings`, `tfds_reads`; `METADATA_PROOFS`, `TFDS_READS`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from dataprep_assets.errors import FormatError
from dataprep_assets.formats import array_record, tfds, tfrecord
from dataprep_assets.formats.example import FeatureColumn
from dataprep_assets.graph.finding import Finding, first_of, judged, name_of, verdict
from dataprep_assets.graph.spec import Proof
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt, Verification, damage
from dataprep_assets.pipelines.notes.declaration import FileFormat, NotesDeclaration
from dataprep_assets.pipelines.notes.linked_directory import (
    DIRECTORIES,
    DirectoryFacts,
    DirectorySplit,
    version_in_metadata,
)
from dataprep_assets.pipelines.notes.provenance import PROVENANCE, ShardOrigin, read_provenance
from dataprep_assets.pipelines.notes.replay_declaration import ReplayDeclaration
from dataprep_assets.pipelines.notes.tfds_reader import read_with_tfds
from dataprep_assets.plural import count_of

METADATA_PROOFS = (
    Proof("files_intact", "Every file has the size and digest of the receipt, and no file is unlisted."),
    Proof(
        "names_complete", "Shards 0 to N - 1 of each split are there under the names that TFDS wants, and nothing else."
    ),
    Proof("shard_lengths_counted", "shardLengths is the counted records of each shard, not only their sum."),
    Proof("num_bytes_counted", "numBytes is the sum of all payloads."),
    Proof(
        "features_match",
        "features.json declares the stored columns, their length and int32, and nothing else.",
    ),
)
"""Proofs of a directory's own files."""
TFDS_READS = Proof(
    "tfds_reads",
    "tensorflow-datasets opens the directory and reads the rows, in file order, as they are stored.",
    blocking=False,
)
"""Repeats with the real reader what the others prove without it; a warning if TensorFlow is not installed, which the
machines that build a dataset do not need."""

REBUILD = "Materialize the directory again"
REBUILD_SOURCES = "Materialize its sources and then the directory again"


@dataclass(frozen=True, kw_only=True)
class TfdsDirectory:
    """A directory to prove: its path, its receipt, and its declaration."""

    artifact: Path
    receipt: Receipt
    dataset: str
    version: str
    format: FileFormat
    verification: Verification = "full"

    @property
    def path(self) -> Path:
        """The folder of the shards."""
        return self.artifact / self.dataset / self.version

    @cached_property
    def info(self) -> tfds.DatasetInfo:
        """Its metadata as they are on disk."""
        return tfds.read_metadata(self.path)

    @cached_property
    def provenance(self) -> Mapping[str, Sequence[tuple[str, ShardOrigin]]]:
        """Split → name and origin of each shard, as they are on disk."""
        return read_provenance(self.artifact / PROVENANCE)

    @property
    def miscounted(self) -> list[str]:
        """A sentence for each count of the provenance or the receipt that differs from the metadata."""
        counts = {
            split: ([origin.rows for _, origin in of], sum(origin.payload_bytes for _, origin in of))
            for split, of in self.provenance.items()
        }
        listed = {s.name: DirectorySplit(rows=s.rows, shards=len(s.shard_lengths)) for s in self.info.splits}
        agrees = DirectoryFacts.of(self.receipt).splits == listed
        of_receipt = [] if agrees else [f"its receipt counts other rows or shards than {tfds.DATASET_INFO}"]
        return of_receipt + [
            f"{PROVENANCE} counts other rows or bytes of {split.name} than {tfds.DATASET_INFO}"
            for split in self.info.splits
            if counts.get(split.name) != (list(split.shard_lengths), split.num_bytes)
        ]

    @classmethod
    def open(cls, declared: NotesDeclaration | ReplayDeclaration, store: ArtifactStore, format: FileFormat) -> Self:
        """The declared directory in one format, from ``store``; raises MissingArtifactError if it is not there."""
        artifact = declared.artifact(DIRECTORIES[format])
        return cls(
            receipt=store.require(artifact),
            artifact=store.local(artifact),
            dataset=declared.dataset,
            version=declared.tfds_version,
            format=format,
            verification=declared.verify,
        )


def metadata_findings(directory: TfdsDirectory, columns: Sequence[FeatureColumn]) -> Iterator[tuple[str, Finding]]:
    """The `METADATA_PROOFS` of a directory whose rows have these columns, by name."""
    yield "files_intact", files_intact(directory)
    yield "names_complete", names_complete(directory)
    yield "shard_lengths_counted", shard_lengths_counted(directory)
    yield "num_bytes_counted", num_bytes_counted(directory)
    yield "features_match", features_match(directory, columns)


@judged
def files_intact(directory: TfdsDirectory) -> Finding:
    """Every file has the size and, unless `verify: size` is declared, the digest of the receipt; none is unlisted."""
    receipt = directory.receipt
    return verdict(
        (f"{name_of(receipt)}: {d}" for d in damage(directory.artifact, receipt, directory.verification)),
        f"{count_of(len(receipt.files), 'file')}, {receipt.total_bytes} bytes, as the receipt says.",
        REBUILD,
        facts={"files": len(receipt.files), "bytes": receipt.total_bytes},
    )


@judged
def names_complete(directory: TfdsDirectory) -> Finding:
    """Names as TFDS makes them from the metadata: 0 to N - 1 of each split, one total, no stray file beside them."""
    info = directory.info
    wanted = {name for split in info.splits for name in info.shard_names(split)}
    there = {path.name for path in directory.path.iterdir()} - {tfds.DATASET_INFO, tfds.FEATURES}
    where = name_of(directory.receipt)
    defects = []
    for what, said, declared in (
        ("name", info.name, directory.dataset),
        ("version", info.version, version_in_metadata(directory.version)),
        ("fileFormat", info.file_format, directory.format),
    ):
        if said != declared:
            defects.append(f"{where}: {tfds.DATASET_INFO} says {what} {said}, declared is {declared}")
    if missing := sorted(wanted - there):
        defects.append(f"{where}: {len(missing)} of {len(wanted)} shards are not there: {first_of(missing)}")
    if strays := sorted(there - wanted):
        defects.append(f"{where}: {len(strays)} files are not shards of this directory: {first_of(strays)}")
    return verdict(defects, f"{count_of(len(wanted), 'shard')}, none missing.", REBUILD, facts={"shards": len(wanted)})


def _shards(directory: TfdsDirectory) -> Iterator[tuple[str, str, int]]:
    """Split, name and declared rows of each shard."""
    for split in directory.info.splits:
        for name, rows in zip(directory.info.shard_names(split), split.shard_lengths, strict=True):
            yield split.name, name, rows


@judged
def shard_lengths_counted(directory: TfdsDirectory) -> Finding:
    """Each shard's records, counted, against its own entry of shardLengths: a right sum is not enough.

    If one entry is wrong, slices of a split and the shards of a host begin in the wrong place.
    """
    defects, rows = [], 0
    for _, name, length in _shards(directory):
        try:
            found = _rows(directory, name)
        except (FormatError, OSError) as error:
            # a shard that cannot be read does not hide the counts of the others
            why = str(error) if isinstance(error, FormatError) else str(error.strerror)
            defects.append(f"{name}: cannot be counted: {why}")
            continue
        rows += found
        if found != length:
            defects.append(f"{name}: {found} records, {tfds.DATASET_INFO} says {length}")
    return verdict(
        (f"{name_of(directory.receipt)}: {d}" for d in defects),
        f"{rows} rows, in each shard as many as {tfds.DATASET_INFO} says.",
        REBUILD,
        facts={"rows": rows},
    )


def _rows(directory: TfdsDirectory, name: str) -> int:
    path = directory.path / name
    return tfrecord.count(path).records if directory.format == "tfrecord" else array_record.count(path)


@judged
def num_bytes_counted(directory: TfdsDirectory) -> Finding:
    """numBytes of each split is the sum of payload bytes: counted in TFRecord, as recorded in ArrayRecord.

    The size of payloads in an ArrayRecord file is only known by reading it, which the cohort's own proofs do.
    """
    defects, total = [], 0
    for split in directory.info.splits:
        if directory.format == "tfrecord":
            names = directory.info.shard_names(split)
            found = sum(tfrecord.count(directory.path / name).payload_bytes for name in names)
        else:
            found = sum(origin.payload_bytes for _, origin in directory.provenance[split.name])
        total += found
        if found != split.num_bytes:
            defects.append(f"{tfds.DATASET_INFO}: split {split.name}: numBytes {split.num_bytes}, counted {found}")
    return verdict(
        (f"{name_of(directory.receipt)}: {d}" for d in defects),
        f"{total} bytes of payload, as {tfds.DATASET_INFO} says.",
        REBUILD,
        facts={"payload_bytes": total},
    )


@judged
def features_match(directory: TfdsDirectory, columns: Sequence[FeatureColumn]) -> Finding:
    """features.json has the stored columns: TFDS drops a missing one, and fails on another length."""
    found = {column.name: column for column in directory.info.columns}
    wanted = {column.name: column for column in columns}
    defects = [f"column {name} is not in {tfds.FEATURES}" for name in sorted(wanted.keys() - found.keys())]
    defects += [f"column {name} is not stored" for name in sorted(found.keys() - wanted.keys())]
    for name in sorted(wanted.keys() & found.keys()):
        if found[name] != wanted[name]:
            defects.append(f"column {name} is {_said(found[name])}, stored is {_said(wanted[name])}")
    # a key more, or another order, is in no parsed column
    if (directory.path / tfds.FEATURES).read_bytes() != tfds.features_bytes(directory.info.columns):
        defects.append(f"{tfds.FEATURES} has other bytes than these columns give")
    return verdict(
        (f"{name_of(directory.receipt)}: {d}" for d in defects),
        f"{count_of(len(wanted), 'column')}: {_said(columns[0])}.",
        REBUILD,
        facts={"columns": len(wanted)},
    )


def _said(column: FeatureColumn) -> str:
    return f"{column.dtype} of {'any number of' if column.length is None else column.length} values"


@judged
def tfds_reads(directory: TfdsDirectory) -> Finding:
    """TensorFlow Datasets reads the rows in file order and they are the stored ones; see `tfds_reader`.

    If it is not installed, nothing is proven: the finding is a warning.
    """
    return read_with_tfds(directory.path, directory.dataset, directory.version, directory.format)
