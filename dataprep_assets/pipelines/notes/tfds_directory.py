"""Builds the directory that TFDS reads: the shards of all cohorts in month order under their global names.

The artifact holds ``<dataset>/<version>/`` with the shards (the same files under other names), `dataset_info.json` and
`features.json`, so that the artifact's own place is a `data_dir` for `tfds.builder("<dataset>:<version>")`; and beside
it `provenance.json`, which says for every shard what it was made of. ArrayRecord files are in an artifact of their own:
TFDS reads one format from one directory.

Refused: a month that is missing, shards that were made with other settings or from older rows, and patients who are in
several cohorts.

Entry points: `build_tfds_directory`; `Directory`, `link_shards` for combinations; `maxtext_settings`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.errors import ConfigError, IntegrityError, MissingArtifactError
from dataprep_assets.formats import tfds
from dataprep_assets.formats.example import Column
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore, Joined, Part
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.engine_certificate import load_bundle
from dataprep_assets.pipelines.notes.cohort_shards import NAMES as SHARDS
from dataprep_assets.pipelines.notes.cohort_shards import SHARED_FACTS, row_ledger, shard_names
from dataprep_assets.pipelines.notes.declaration import FileFormat, NotesDeclaration
from dataprep_assets.pipelines.notes.packed_cohorts import NAME as PACKED
from dataprep_assets.pipelines.notes.packed_cohorts import packed_paths, read_patients
from dataprep_assets.pipelines.notes.privacy import unquoting

__all__ = [
    "NAMES",
    "PROVENANCE",
    "Directory",
    "ShardOrigin",
    "build_tfds_directory",
    "directory_key",
    "link_shards",
    "maxtext_settings",
    "read_provenance",
    "version_in_metadata",
]

VERSION = 1
NAMES: dict[FileFormat, str] = {"tfrecord": "tfds_directory", "array_record": "array_record_directory"}
"""Format → name of the artifact."""
PROVENANCE = "provenance.json"


@dataclass(frozen=True, kw_only=True)
class ShardOrigin:
    """Where a shard of a directory comes from: the file of another artifact that has the same bytes.

    `dataset` and `partition` name what it was packed from (the cohort's month), `repeat` counts from 0 the times that
    it was there before. `part` is None in a record that was read back.
    """

    dataset: str
    partition: str
    source_shard: str
    rows: int
    payload_bytes: int
    sha256: str
    repeat: int = 0
    part: Part | None = None

    def to_json(self, shard: str) -> dict[str, Any]:
        """One entry of `provenance.json`."""
        names = ("dataset", "partition", "source_shard", "rows", "payload_bytes", "sha256", "repeat")
        return {"shard": shard, **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True, kw_only=True)
class Directory:
    """What a directory is called and holds: format, version directory, columns, and each split's shards in order."""

    dataset: str
    description: str
    version: str
    format: FileFormat
    columns: tuple[Column, ...]
    splits: Mapping[str, Sequence[ShardOrigin]]

    @property
    def path(self) -> str:
        """The directory of shards, relative to the artifact."""
        return f"{self.dataset}/{self.version}"

    def info(self) -> tfds.DatasetInfo:
        """Its metadata."""
        return tfds.DatasetInfo(
            name=self.dataset,
            version=version_in_metadata(self.version),
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

    def facts(self) -> dict[str, Any]:
        """What a receipt says of it."""
        splits = {split.name: {"rows": split.rows, "shards": len(split.shard_lengths)} for split in self.info().splits}
        return {"directory": self.path, "version": self.version, "format": self.format, "splits": splits}


def version_in_metadata(version: str) -> str:
    """The version inside `dataset_info.json`: TFDS refuses the seed's `1.0` there, under any directory name."""
    return "1.0.0" if version == "1.0" else version


def link_shards(staged: Path, store: ArtifactStore, directory: Directory) -> tuple[Joined, ...]:
    """Write a directory into the staging directory of its artifact: shards linked, metadata and provenance written."""
    info = directory.info()
    where = staged / directory.path
    where.mkdir(parents=True)
    joined, provenance = [], {}
    for split in info.splits:
        origins, names = directory.splits[split.name], info.shard_names(split)
        for origin, name in zip(origins, names, strict=True):
            assert origin.part is not None
            joined.append(store.join(staged, f"{directory.path}/{name}", [origin.part], verify=False))
        provenance[split.name] = [origin.to_json(name) for origin, name in zip(origins, names, strict=True)]
    tfds.write_metadata(where, info)
    write_provenance(staged, provenance)
    return tuple(joined)


def write_provenance(staged: Path, splits: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write `provenance.json`: split → entries of its shards, in order."""
    (staged / PROVENANCE).write_text(json.dumps({"splits": splits}, indent=1, sort_keys=True) + "\n")


def read_provenance(path: Path) -> dict[str, list[tuple[str, ShardOrigin]]]:
    """Split → name and origin of each shard, of a `provenance.json`. IntegrityError when it is not one."""
    try:
        splits = json.loads(path.read_bytes())["splits"]
        return {
            split: [(e["shard"], ShardOrigin(**{k: v for k, v in e.items() if k != "shard"})) for e in entries]
            for split, entries in splits.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        raise IntegrityError(f"{path}: not a provenance file. Materialize its artifact again") from None


@dataclass(frozen=True, kw_only=True)
class _Month:
    month: str
    shards: Artifact
    receipt: Receipt
    packed: Artifact
    packed_receipt: Receipt


def _months(notes: NotesDeclaration, store: ArtifactStore, format: FileFormat) -> list[_Month]:
    """Every declared month, in order. MissingArtifactError naming the ones that are not there."""
    months = notes.months.expected
    shards = [notes.artifact(SHARDS[format], month) for month in months]
    packed = [notes.artifact(PACKED, month) for month in months]
    found = []
    missing = []
    receipts = zip(months, shards, store.receipts(shards), packed, store.receipts(packed), strict=True)
    for month, artifact, receipt, rows, rows_receipt in receipts:
        if receipt is None or rows_receipt is None:
            missing.append(month)
        else:
            found.append(
                _Month(month=month, shards=artifact, receipt=receipt, packed=rows, packed_receipt=rows_receipt)
            )
    if missing:
        shown = ", ".join(missing[:8]) + (", …" if len(missing) > 8 else "")
        raise MissingArtifactError(
            f"{notes.dataset}: {len(missing)} of {len(months)} months are not there: {shown}. Materialize these "
            f"partitions of packed_cohorts and {SHARDS[format]} first"
        )
    _require_same(notes, found)
    return found


def _require_same(notes: NotesDeclaration, months: Sequence[_Month]) -> None:
    declared = {
        "columns": list(notes.columns),
        "row_length": notes.capacity,
        "layout": notes.layout,
        "rows_per_shard": notes.rows_per_shard,
        "tokenizer": load_bundle(notes.tokenizer).digest,
    }
    first = {name: months[0].receipt.facts[name] for name in SHARED_FACTS}
    for found in months:
        facts, receipt = found.receipt.facts, found.receipt
        if receipt.inputs[PACKED] != found.packed_receipt.content:
            raise IntegrityError(
                f"{found.shards}: made of older rows than packed_cohorts has now. Materialize it again"
            )
        has = {name: facts[name] for name in declared if name != "tokenizer"} | {
            "tokenizer": receipt.inputs["tokenizer"]
        }
        wrong = [name for name, value in declared.items() if has[name] != value]
        wrong += [name for name, value in first.items() if facts[name] != value]
        if wrong or facts["splits"].keys() != notes.splits.keys():
            raise IntegrityError(
                f"{found.shards}: made with another {', '.join(wrong) or 'set of splits'} than is declared now, or "
                f"than {months[0].month} has. Materialize packed_cohorts and its shards again: only stale ones "
                "are rebuilt"
            )


def directory_key(notes: NotesDeclaration, store: ArtifactStore, format: FileFormat = "tfrecord") -> str:
    """The key of the directory of the shards as they are now; raises as `build_tfds_directory` does."""
    return _key(notes, _months(notes, store, format), format)


def _key(notes: NotesDeclaration, months: Sequence[_Month], format: FileFormat) -> str:
    declared = [notes.dataset, notes.description, notes.tfds_version, notes.duplicate_patients, format]
    contents = [[m.month, m.receipt.key, m.receipt.content, m.packed_receipt.content] for m in months]
    return digest_value(["tfds_directory", VERSION, declared, contents])


def build_tfds_directory(
    notes: NotesDeclaration, store: ArtifactStore, format: FileFormat = "tfrecord"
) -> tuple[Receipt, bool]:
    """Have the directory: its receipt, and whether the one that was there is current.

    MissingArtifactError naming missing months; IntegrityError for shards that do not belong together and, unless
    declared otherwise, for patients in several cohorts; ConfigError for a split without a row.
    """
    if format not in notes.formats:
        raise ConfigError(f"{notes.dataset}: format {format} is not among the declared {list(notes.formats)}")
    months = _months(notes, store, format)

    def write(staged: Path) -> Written:
        patients, several = _patients(notes, store, months)
        directory = _directory(notes, months, format)
        joined = link_shards(staged, store, directory)
        rows = sum(split.rows for split in directory.info().splits)
        in_shards = sum(m.receipt.ledger.documents for m in months if m.receipt.ledger is not None)
        if rows != in_shards:
            raise IntegrityError(f"{notes.dataset}: {rows} rows of {in_shards} in its shards. This is a bug")
        shared = {name: months[0].receipt.facts[name] for name in SHARED_FACTS}
        return Written(
            inputs={m.month: m.receipt.content for m in months} | {"tokenizer": months[0].receipt.inputs["tokenizer"]},
            facts=shared
            | directory.facts()
            | {"months": len(months), "patients": patients, "patients_in_several_cohorts": several},
            ledger=row_ledger(rows, (m.receipt.ledger for m in months)),
            joined=joined,
        )

    with unquoting(notes.dataset):
        return ensure(notes.artifact(NAMES[format]), store, _key(notes, months, format), write, notes.verify)


def _directory(notes: NotesDeclaration, months: Sequence[_Month], format: FileFormat) -> Directory:
    splits = {split: [o for m in months for o in _origins(notes, m, split, format)] for split in notes.splits}
    if empty := [split for split, origins in splits.items() if not origins]:
        raise ConfigError(f"{notes.dataset}: splits {empty} have no row; declare larger shares, or leave them out")
    return Directory(
        dataset=notes.dataset,
        description=notes.description,
        version=notes.tfds_version,
        format=format,
        columns=tuple(Column(name=name, length=notes.capacity) for name in notes.columns),
        splits=splits,
    )


def _origins(notes: NotesDeclaration, month: _Month, split: str, format: FileFormat) -> list[ShardOrigin]:
    facts = month.receipt.facts["splits"][split]
    lengths, sizes = facts["shard_lengths"], facts["payload_bytes"]
    origins = []
    for name, rows, payload_bytes in zip(
        shard_names(notes, split, month.month, len(lengths), format), lengths, sizes, strict=True
    ):
        record = month.receipt.file(name)
        origins.append(
            ShardOrigin(
                dataset=notes.dataset,
                partition=month.month,
                source_shard=name,
                rows=rows,
                payload_bytes=payload_bytes,
                sha256=record.sha256,
                part=Part(month.shards, record),
            )
        )
    return origins


def _patients(notes: NotesDeclaration, store: ArtifactStore, months: Sequence[_Month]) -> tuple[int, int]:
    """Patients in all, and in several cohorts; IntegrityError for the latter where they are refused."""
    of_month = []
    for found in months:
        paths = [path.patients for path in packed_paths(notes, found.month).values()]
        directory = store.local(found.packed, paths)
        of_month.append(np.concatenate([read_patients(directory / path) for path in paths]))
    every = np.concatenate(of_month)
    distinct, counts = np.unique(every.view("V16"), return_counts=True)
    twice = distinct[counts > 1]
    if twice.size and notes.duplicate_patients == "fail":
        among = [found.month for found, here in zip(months, of_month, strict=True) if np.isin(here, twice).any()]
        shown = ", ".join(among[:8]) + (", …" if len(among) > 8 else "")
        raise IntegrityError(
            f"{notes.dataset}: {twice.size} patients are in several cohorts, in {len(among)} months: {shown}. Mend the "
            "source, or declare `duplicate_patients: allow`"
        )
    return int(distinct.size), int(twice.size)


def maxtext_settings(notes: NotesDeclaration, store: ArtifactStore, format: FileFormat = "tfrecord") -> dict[str, str]:
    """What to pass to MaxText to train on this directory, by its option names.

    Prepacked rows need a loader that passes the stored columns through: stock pipelines take one column and compute the
    rest again, as one segment a row. For these, only the settings that such a loader shares are given.
    """
    place = store.location(notes.artifact(NAMES[format]))
    shards = f"{place}/{notes.dataset}/{notes.tfds_version}"
    common = {"max_target_length": str(notes.row_length), "tokenize_train_data": "False", "packing": "False"}
    if format == "array_record":
        found = {
            "dataset_type": "grain",
            "grain_file_type": "arrayrecord",
            "grain_train_files": f"{shards}/{notes.dataset}-train.array_record-*",
        }
    else:
        version = version_in_metadata(notes.tfds_version)
        found = {
            "dataset_type": "tfds",
            "dataset_path": place,
            "dataset_name": f"{notes.dataset}:{version}",
            "train_split": "train",
        }
    column = "tokens" if notes.layout == "unpacked" else "inputs"
    return found | common | {"train_data_columns": f"['{column}']"}
