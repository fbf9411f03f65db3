"""Builder of a directory for TFDS from shards of any dataset: links to the files under global names, with metadata.

``<dataset>/<version>/`` contains the shards, `dataset_info.json` and `features.json`. Therefore the artifact's path is
a `data_dir` for `tfds.builder("<dataset>:<version>")`. `provenance.json`, next to the directory, lists the origin of
every shard. ArrayRecord files have a separate artifact, because TFDS reads only one format from a directory.

Entry points: `Directory`, `link_shards`; `DirectoryFacts`, `CombinedFacts`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from dataprep_assets.engine.artifact.build import Facts
from dataprep_assets.engine.artifact.metadata_values import ShownValue, Table
from dataprep_assets.formats.tensorflow import tfds
from dataprep_assets.formats.tensorflow.example import FeatureColumn
from dataprep_assets.integrity.artifacts import ArtifactStore, JoinedFile
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.notes.cohorts.packed_files import RowFacts
from dataprep_assets.pipelines.notes.declaration import FileFormat
from dataprep_assets.pipelines.notes.tfds.provenance import ShardOrigin, write_provenance

DIRECTORIES: dict[FileFormat, str] = {"tfrecord": "tfds_directory", "array_record": "array_record_directory"}
"""Artifact name per format."""


class DirectorySplit(Facts):
    """Counts of one split."""

    rows: int
    shards: int


class DirectoryFacts(RowFacts):
    """Facts in the receipt of every directory, of one dataset or of a mixture.

    `directory` and `version` are absent in a virtual mixture, which has no shards. `mode` is absent in the directory of
    one dataset.
    """

    format: FileFormat
    splits: dict[str, DirectorySplit]
    directory: str | None = None
    version: str | None = None
    mode: str | None = None


def find_stored_length(facts: RowFacts) -> int | None:
    """Return the number of values per row in each column; None if rows have variable lengths."""
    return None if facts.layout == "unpacked" else facts.row_length


class SourceShare(Facts):
    """Rows of a source in one split of a mixture, their share of the split, and the wanted share."""

    rows: int
    share: float
    wanted: float


class CombinedFacts(DirectoryFacts):
    """Facts in the receipt of a mixture; `shares` is split → source → share, and empty for a virtual mixture."""

    mode: str
    sources: list[str]
    shares: Mapping[str, Mapping[str, SourceShare]] = Field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Directory:
    """Description of a directory: name, format, version directory, columns, and each split's shards in order."""

    dataset: str
    description: str
    version: str
    format: FileFormat
    columns: tuple[FeatureColumn, ...]
    splits: Mapping[str, Sequence[ShardOrigin]]

    @property
    def path(self) -> str:
        """Directory of the shards, relative to the artifact."""
        return f"{self.dataset}/{self.version}"

    def build_info(self) -> tfds.DatasetInfo:
        """Return the metadata of the directory for TFDS."""
        return tfds.DatasetInfo(
            name=self.dataset,
            version=convert_version(self.version),
            description=self.description,
            file_format=self.format,
            columns=self.columns,
            splits=tuple(
                tfds.Split(
                    name=name,
                    shard_lengths=tuple(origin.rows for origin in origins),
                    num_bytes=sum(origin.payload_bytes for origin in origins),
                )
                for name, origins in self.splits.items()
            ),
        )

    def count_splits(self) -> dict[str, DirectorySplit]:
        """Return the numbers of rows and shards per split."""
        return {
            split.name: DirectorySplit(rows=split.rows, shards=len(split.shard_lengths))
            for split in self.build_info().splits
        }


def convert_version(version: str) -> str:
    """Convert a version for `dataset_info.json`, where TFDS rejects the original scripts' `1.0`."""
    return "1.0.0" if version == "1.0" else version


def link_shards(staged: Path, store: ArtifactStore, directory: Directory) -> tuple[JoinedFile, ...]:
    """Link the shards into the artifact's staging directory, and write the metadata and the provenance.

    ``staged`` is the staging directory, and ``store`` contains the shards. Every origin in ``directory`` must have a
    `part`. Returns the linked files for `WrittenFiles`.
    """
    info = directory.build_info()
    target = staged / directory.path
    target.mkdir(parents=True)
    joined_files, provenance = [], {}
    for split in info.splits:
        origins, names = directory.splits[split.name], info.list_shard_names(split)
        for origin, name in zip(origins, names, strict=True):
            assert origin.part is not None
            # Do not verify the part, because its receipt already has the digest, and verification would read the whole
            # part.
            joined_files.append(store.join(staged, f"{directory.path}/{name}", [origin.part], verify=False))
        provenance[split.name] = [origin.to_json(name) for origin, name in zip(origins, names, strict=True)]
    tfds.write_metadata(target, info)
    write_provenance(staged, provenance)
    return tuple(joined_files)


def build_split_metadata(receipt: Receipt) -> Mapping[str, ShownValue]:
    """Return the metadata that all directories have in common: rows and shards per split."""
    splits = DirectoryFacts.from_receipt(receipt).splits
    rows = [
        {"split": name, "rows": split_facts.rows, "shards": split_facts.shards} for name, split_facts in splits.items()
    ]
    return {"splits": Table(rows)} if rows else {}
