"""Proofs on a directory that TFDS reads, of one dataset or of several combined, and on where its shards come from.

Shards are counted by walking from frame to frame; their payloads were proven with the cohorts, and are the same bytes
when their digests are. What TFDS itself makes of the directory is proven by letting it read (`tfds_reads`).

Entry points: `DIRECTORY_PROOFS`, `prove_directory`; `COMBINED_PROOFS`, `prove_combined`.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.errors import FormatError
from dataprep_assets.formats import array_record, tfds, tfrecord
from dataprep_assets.formats.example import Column
from dataprep_assets.graph.finding import Finding, Row, fact, first_of, judged, name_of, verdict
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt, Verification, damage
from dataprep_assets.pipelines.notes.cohort_shards import NAMES as SHARDS
from dataprep_assets.pipelines.notes.declaration import FileFormat, NotesDeclaration, ReplayDeclaration
from dataprep_assets.pipelines.notes.packed_cohorts import NAME as PACKED
from dataprep_assets.pipelines.notes.packed_cohorts import in_split, packed_paths, read_patients
from dataprep_assets.pipelines.notes.privacy import unquoting
from dataprep_assets.pipelines.notes.replay import BUILDER_DIRECTORIES, GRAIN_MIXTURE
from dataprep_assets.pipelines.notes.tfds_directory import (
    NAMES,
    PROVENANCE,
    ShardOrigin,
    read_provenance,
    version_in_metadata,
)
from dataprep_assets.pipelines.notes.tfds_reader import read_with_tfds

__all__ = [
    "COMBINED_PROOFS",
    "DIRECTORY_PROOFS",
    "VIRTUAL_PROOFS",
    "TfdsDirectory",
    "equals_cohort_shards",
    "features_match",
    "files_intact",
    "months_complete",
    "names_complete",
    "num_bytes_counted",
    "patients_disjoint",
    "prove_combined",
    "prove_directory",
    "provenance_complete",
    "shard_lengths_counted",
    "shards_of",
    "shares_achieved",
    "sources_equal",
    "splits_disjoint",
    "tfds_reads",
    "virtual_files",
]

_OF_EVERY = {
    "files_intact": "Every file has the size and digest of the receipt, and no file is unlisted.",
    "names_complete": "Shards 0 to N - 1 of each split are there under the names that TFDS wants, and nothing else.",
    "shard_lengths_counted": "shardLengths is the counted records of each shard, not only their sum.",
    "num_bytes_counted": "numBytes is the sum of all payloads.",
    "features_match": "features.json declares the stored columns, their length and int32.",
}
_READS = {
    "tfds_reads": "tensorflow-datasets opens the directory and reads the rows, in file order, as they are stored."
}
DIRECTORY_PROOFS: Mapping[str, str] = {
    **_OF_EVERY,
    "equals_cohort_shards": "Each shard is, byte for byte, one of a cohort as it is now; rows equal the JSON lines.",
    "months_complete": "Every declared month is there once, in order, with all its shards; none is missing or twice.",
    "patients_disjoint": "No patient is in two splits or in two cohorts.",
    **_READS,
}
"""Name of each proof of the directory of one dataset, and what it proves."""
_OF_COMBINED = {
    "sources_equal": "Columns, row length, pad id, layout and tokenizer are the same in all sources.",
    "provenance_complete": "Every shard has its entry, and is byte for byte the source's; none is there unasked twice.",
    "shares_achieved": "Each source's share of the rows, recounted, is the declared one within the tolerance.",
    "splits_disjoint": "No patient of any source is in two splits of the combination.",
}
COMBINED_PROOFS: Mapping[str, str] = {**_OF_EVERY, **_OF_COMBINED, **_READS}
"""The same of a combination of datasets."""
VIRTUAL_PROOFS: Mapping[str, str] = {
    "files_intact": _OF_EVERY["files_intact"],
    "virtual_files": "The file for the loader names every source where it is, with shares that add up to 1.",
    **_OF_COMBINED,
}
"""The same of a virtual one, which has no shards."""

_REBUILD = "Materialize the directory again"
_AGAIN = "Materialize its sources and then the directory again"


@dataclass(frozen=True, kw_only=True)
class TfdsDirectory:
    """A directory to prove: where it lies, what its receipt says, and what was declared of it."""

    artifact: Path
    receipt: Receipt
    dataset: str
    version: str
    format: FileFormat
    verification: Verification = "full"

    @property
    def path(self) -> Path:
        """Where the shards are."""
        return self.artifact / self.dataset / self.version

    @cached_property
    def info(self) -> tfds.DatasetInfo:
        """Its metadata as they are on disk."""
        return tfds.read_metadata(self.path)

    @cached_property
    def provenance(self) -> Mapping[str, Sequence[tuple[str, ShardOrigin]]]:
        """Split → name and origin of each shard, as they are on disk."""
        return read_provenance(self.artifact / PROVENANCE)


def prove_directory(notes: NotesDeclaration, store: ArtifactStore, format: FileFormat) -> Iterator[tuple[str, Finding]]:
    """Every proof of a dataset's directory, by name; what cannot be read at all raises DataprepError."""
    directory = _opened(notes.artifact(NAMES[format]), store, notes.dataset, notes.tfds_version, format, notes.verify)
    columns = [Column(name=name, length=notes.capacity) for name in notes.columns]
    with unquoting(notes.dataset):
        yield from _of_every(directory, columns)
        yield "equals_cohort_shards", equals_cohort_shards(directory, notes, store)
        yield "months_complete", months_complete(directory, notes)
        yield "patients_disjoint", patients_disjoint(notes, store)
        yield "tfds_reads", tfds_reads(directory)


def prove_combined(replay: ReplayDeclaration, store: ArtifactStore) -> Iterator[tuple[str, Finding]]:
    """Every proof of a combination, by name; what cannot be read at all raises DataprepError."""
    artifact = replay.artifact(NAMES[replay.format])
    directory = _opened(artifact, store, replay.dataset, replay.tfds_version, replay.format, replay.verify)
    sources = {s.dataset: Artifact(dataset=s.dataset, name=NAMES[replay.format]) for s in replay.sources}
    virtual = replay.mode == "virtual"
    with unquoting(replay.dataset):
        receipts = {name: store.require(source) for name, source in sources.items()}
        if virtual:
            yield "files_intact", files_intact(directory)
            locations = {name: store.location(artifact) for name, artifact in sources.items()}
            yield "virtual_files", virtual_files(directory, locations, receipts)
        else:
            facts = directory.receipt.facts
            columns = [Column(name=name, length=facts["row_length"]) for name in facts["columns"]]
            yield from _of_every(directory, columns)
        yield "sources_equal", sources_equal(directory, receipts)
        shards = shards_of(replay, store, sources)
        yield "provenance_complete", provenance_complete(directory, replay, receipts, shards)
        yield "shares_achieved", shares_achieved(directory, replay, shards)
        yield "splits_disjoint", splits_disjoint(directory, store, receipts)
        if not virtual:
            yield "tfds_reads", tfds_reads(directory)


def _opened(
    artifact: Artifact, store: ArtifactStore, dataset: str, version: str, format: FileFormat, verify: Verification
) -> TfdsDirectory:
    return TfdsDirectory(
        receipt=store.require(artifact),
        artifact=store.local(artifact),
        dataset=dataset,
        version=version,
        format=format,
        verification=verify,
    )


def _of_every(directory: TfdsDirectory, columns: Sequence[Column]) -> Iterator[tuple[str, Finding]]:
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
        f"{len(receipt.files)} files, {receipt.total_bytes} bytes, as the receipt says.",
        _REBUILD,
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
    return verdict(defects, f"{len(wanted)} shards, none missing.", _REBUILD, facts={"shards": len(wanted)})


def _shards(directory: TfdsDirectory) -> Iterator[tuple[str, str, int]]:
    """Split, name and declared rows of each shard."""
    for split in directory.info.splits:
        for name, rows in zip(directory.info.shard_names(split), split.shard_lengths, strict=True):
            yield split.name, name, rows


@judged
def shard_lengths_counted(directory: TfdsDirectory) -> Finding:
    """Each shard's records, counted, against its own entry of shardLengths: a right sum is not enough.

    Slices of a split and the shards of a host begin in the wrong place where one entry is wrong.
    """
    defects, rows = [], 0
    for _, name, length in _shards(directory):
        try:
            found = _rows(directory, name)
        except (FormatError, OSError) as error:
            why = str(error) if isinstance(error, FormatError) else str(error.strerror)
            defects.append(f"{name}: cannot be counted: {why}")
            continue
        rows += found
        if found != length:
            defects.append(f"{name}: {found} records, {tfds.DATASET_INFO} says {length}")
    return verdict(
        (f"{name_of(directory.receipt)}: {d}" for d in defects),
        f"{rows} rows, in each shard as many as {tfds.DATASET_INFO} says.",
        _REBUILD,
        facts={"rows": rows},
    )


def _rows(directory: TfdsDirectory, name: str) -> int:
    path = directory.path / name
    return tfrecord.count(path).records if directory.format == "tfrecord" else array_record.count(path)


@judged
def num_bytes_counted(directory: TfdsDirectory) -> Finding:
    """numBytes of each split is the sum of payload bytes: counted for TFRecord, of the cohorts' books for ArrayRecord.

    An ArrayRecord file does not tell the size of its payloads without being read; the cohort's own proofs read it.
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
        _REBUILD,
        facts={"payload_bytes": total},
    )


@judged
def features_match(directory: TfdsDirectory, columns: Sequence[Column]) -> Finding:
    """features.json has the columns that are stored: a missing one is dropped by TFDS, another length stops it."""
    found = {column.name: column for column in directory.info.columns}
    wanted = {column.name: column for column in columns}
    defects = [f"column {name} is not in {tfds.FEATURES}" for name in sorted(wanted.keys() - found.keys())]
    defects += [f"column {name} is not stored" for name in sorted(found.keys() - wanted.keys())]
    for name in sorted(wanted.keys() & found.keys()):
        if found[name] != wanted[name]:
            defects.append(
                f"column {name} is {found[name].dtype} of {found[name].length}, stored is {wanted[name].dtype} of "
                f"{wanted[name].length}"
            )
    return verdict(
        (f"{name_of(directory.receipt)}: {d}" for d in defects),
        f"{len(wanted)} columns of {columns[0].length} values.",
        _REBUILD,
        facts={"columns": len(wanted)},
    )


@judged
def equals_cohort_shards(directory: TfdsDirectory, notes: NotesDeclaration, store: ArtifactStore) -> Finding:
    """Every shard has the digest of the cohort's shard that provenance names, which is made of the rows as they are."""
    months = notes.months.expected
    shards = store.receipts([notes.artifact(SHARDS[directory.format], month) for month in months])
    packed = store.receipts([notes.artifact(PACKED, month) for month in months])
    receipts = {month: receipt for month, receipt in zip(months, shards, strict=True) if receipt is not None}
    defects, rows = [], 0
    for month, of_shards, of_rows in zip(months, shards, packed, strict=True):
        if of_shards is None or of_rows is None:
            defects.append(f"{month}: its shards or its packed rows are not there any more")
        elif of_shards.inputs.get(PACKED) != of_rows.content:
            defects.append(f"{month}: its shards are made of other rows than {PACKED} has now")
        else:
            rows += sum(of["rows"] for of in fact(of_rows, "splits").values())
    for split, entries in directory.provenance.items():
        for name, origin in entries:
            record = directory.receipt.file(f"{directory.dataset}/{directory.version}/{name}")
            source = receipts.get(origin.partition)
            known = {} if source is None else {file.path: file.sha256 for file in source.files}
            if not record.sha256 == origin.sha256 == known.get(origin.source_shard):
                defects.append(f"{name} of {split}: not the bytes that {origin.partition} has in {origin.source_shard}")
    listed = {split.name: directory.info.shard_names(split) for split in directory.info.splits}
    if listed != {split: [name for name, _ in entries] for split, entries in directory.provenance.items()}:
        defects.append(f"{PROVENANCE} has not one entry for each shard of {tfds.DATASET_INFO}, in order")
    declared = sum(split.rows for split in directory.info.splits)
    if declared != rows:
        defects.append(f"{declared} rows in {tfds.DATASET_INFO}, {rows} in the JSON lines of all cohorts")
    return verdict(
        (f"{name_of(directory.receipt)}: {d}" for d in defects),
        f"{rows} rows, every shard a cohort's, byte for byte.",
        _AGAIN,
        facts={"rows": rows, "months": len(months)},
    )


@judged
def months_complete(directory: TfdsDirectory, notes: NotesDeclaration) -> Finding:
    """The months of each split are in order, each in one run of shards 1 to n, and together those declared."""
    seen: set[str] = set()
    defects = []
    for split, entries in directory.provenance.items():
        runs = [month for at, (_, origin) in enumerate(entries) if (month := origin.partition) != _before(entries, at)]
        twice = sorted(month for month, count in Counter(runs).items() if count > 1)
        defects += [f"{split}: {month} is there twice" for month in twice]
        if runs != sorted(runs):
            defects.append(f"{split}: its months are not in order")
        shards = Counter(origin.source_shard for _, origin in entries)
        defects += [f"{split}: {shard} is there twice" for shard, count in shards.items() if count > 1]
        for month in dict.fromkeys(runs):
            of_month = [origin.source_shard for _, origin in entries if origin.partition == month]
            total = of_month[0].rpartition("-of-")[2].partition(".")[0]
            if of_month != sorted(of_month) or len(of_month) != int(total):
                defects.append(f"{split}: {month} has {len(of_month)} of {int(total)} shards, or not in their order")
        seen.update(runs)
    expected = set(notes.months.expected)
    rowless = {month for month in notes.months.allow_empty if month not in seen}
    if missing := sorted(expected - seen - rowless):
        defects.append(f"{len(missing)} months are missing: {first_of(missing)}")
    if strange := sorted(seen - expected):
        defects.append(f"{len(strange)} months are not declared: {first_of(strange)}")
    return verdict(
        (f"{name_of(directory.receipt)}: {d}" for d in defects),
        f"{len(seen)} months, each there once and in order.",
        _REBUILD,
        facts={"months": len(seen), "months_without_rows": len(rowless)},
    )


def _before(entries: Sequence[tuple[str, ShardOrigin]], at: int) -> str | None:
    return entries[at - 1][1].partition if at else None


@judged
def patients_disjoint(notes: NotesDeclaration, store: ArtifactStore) -> Finding:
    """The keyed digests of all months: none in two splits; none in two cohorts, unless that is declared."""
    of_split: dict[str, list[Any]] = {split: [] for split in notes.splits}
    for month in notes.months.expected:
        paths = packed_paths(notes, month)
        folder = store.local(notes.artifact(PACKED, month), [path.patients for path in paths.values()])
        for split, path in paths.items():
            of_split[split].append(read_patients(folder / path.patients))
    distinct, several, defects = 0, 0, list[str]()
    in_splits = []
    for split, of_months in of_split.items():
        found, counts = np.unique(np.concatenate(of_months), return_counts=True)
        in_splits.append(found)
        distinct += found.size
        again = int(np.count_nonzero(counts > 1))
        several += again
        if again and notes.duplicate_patients == "fail":
            twice = found[counts > 1]
            months = [m for m, d in zip(notes.months.expected, of_months, strict=True) if np.isin(d, twice).any()]
            defects.append(f"{split}: {again} patients are in several cohorts, of {first_of(months, 8)}")
    _, counts = np.unique(np.concatenate(in_splits), return_counts=True)
    if leaked := int(np.count_nonzero(counts > 1)):
        defects.append(f"{leaked} patients are in several splits")
    return verdict(
        (f"{notes.dataset}: {d}" for d in defects),
        f"{distinct} patients, {several} of them in several cohorts" + (", as declared." if several else "."),
        "Mend the source, or declare `duplicate_patients: allow` where cohorts may share patients",
        facts={"patients": distinct, "in_several_cohorts": several, "in_several_splits": leaked},
    )


@judged
def tfds_reads(directory: TfdsDirectory) -> Finding:
    """TensorFlow Datasets reads the rows in file order and they are the stored ones; see `tfds_reader`.

    Where it is not installed, nothing is proven: a failed finding that is a warning.
    """
    return read_with_tfds(directory.path, directory.dataset, directory.version, directory.format)


@judged
def sources_equal(directory: TfdsDirectory, sources: Mapping[str, Receipt]) -> Finding:
    """What must be the same in all sources for their rows to be trained on together."""
    names = ("columns", "row_length", "pad_id", "layout", "separator_id", "bos_id", "vocab_size")
    own = {name: fact(directory.receipt, name) for name in names} | {
        "tokenizer": directory.receipt.inputs.get("tokenizer")
    }
    defects = []
    for dataset, receipt in sources.items():
        has = {name: fact(receipt, name) for name in names} | {"tokenizer": receipt.inputs.get("tokenizer")}
        defects += [f"{dataset} has another {name}" for name in own if has[name] != own[name]]
    table: list[Row] = [{"what": name, "value": str(value)} for name, value in own.items()]
    return verdict(
        (f"{name_of(directory.receipt)}: {d}" for d in defects),
        f"{len(sources)} sources are equal in {', '.join(own)}.",
        "Build all sources with the same settings",
        facts={"sources": len(sources)},
        table=table if not defects else None,
    )


@dataclass(frozen=True, kw_only=True)
class _Shards:
    """The shards of all sources: SHA-256 → source that it came with and its origin there, and how often it is there."""

    known: Mapping[str, tuple[str, ShardOrigin]]
    expected: Counter[str]

    def source(self, origin: ShardOrigin) -> str:
        """The declared source of a shard; the dataset of a combination's shard is the one that it combined."""
        return self.known[origin.sha256][0] if origin.sha256 in self.known else origin.dataset


def shards_of(replay: ReplayDeclaration, store: ArtifactStore, sources: Mapping[str, Artifact]) -> _Shards:
    """Reads the provenance of all sources."""
    known: dict[str, tuple[str, ShardOrigin]] = {}
    expected: Counter[str] = Counter()
    for dataset, artifact in sources.items():
        provenance = read_provenance(store.local(artifact, [PROVENANCE]) / PROVENANCE)
        for split in replay.splits:
            for _, origin in provenance.get(split, ()):
                known[origin.sha256] = dataset, origin
                expected[origin.sha256] += 1
    return _Shards(known=known, expected=expected)


@judged
def provenance_complete(
    directory: TfdsDirectory, replay: ReplayDeclaration, sources: Mapping[str, Receipt], shards: _Shards
) -> Finding:
    """Every shard has its entry, the source's bytes, and a count of repeats; unless weighted, all are there once."""
    receipt = directory.receipt
    defects = [f"{n} has changed since it was combined" for n, s in sources.items() if receipt.inputs[n] != s.content]
    entries = [(split, name, origin) for split, of in directory.provenance.items() for name, origin in of]
    if replay.mode != "virtual":
        info = directory.info
        listed = [(split.name, name) for split in info.splits for name in info.shard_names(split)]
        if listed != [(split, name) for split, name, _ in entries]:
            defects.append(f"{PROVENANCE} has {len(entries)} entries, not one for each of {len(listed)} shards")
    seen: Counter[str] = Counter()
    for split, name, origin in entries:
        defects += [f"{name} of {split}: {d}" for d in _astray(directory, replay, shards, name, origin, seen)]
        seen[origin.sha256] += 1
    if replay.mode != "weighted" and seen != shards.expected:
        lost, more = (seen - shards.expected).total(), (shards.expected - seen).total()
        defects.append(f"{more} shards of the sources are not there, {lost} are there more often than in them")
    of_source = Counter(shards.source(origin) for _, _, origin in entries)
    told = ", ".join(f"{count} of {name}" for name, count in sorted(of_source.items()))
    return verdict(
        (f"{name_of(receipt)}: {d}" for d in defects),
        f"{len(entries)} shards, each one of a source: {told}.",
        _AGAIN,
        facts={"shards": len(entries), "distinct_shards": len(seen)},
    )


def _astray(
    directory: TfdsDirectory,
    replay: ReplayDeclaration,
    shards: _Shards,
    name: str,
    origin: ShardOrigin,
    seen: Mapping[str, int],
) -> Iterator[str]:
    """What is wrong with the entry of one shard."""
    if origin.sha256 not in shards.known:
        yield "no source has a shard of these bytes"
        return
    theirs = shards.known[origin.sha256][1]
    if any(getattr(theirs, of) != getattr(origin, of) for of in ("dataset", "partition", "source_shard", "rows")):
        yield "its source says other rows, or another file or dataset"
    if replay.mode == "virtual":
        return
    if directory.receipt.file(f"{directory.dataset}/{directory.version}/{name}").sha256 != origin.sha256:
        yield f"not the bytes that {PROVENANCE} says"
    if replay.mode == "weighted" and origin.repeat != seen.get(origin.sha256, 0):
        yield f"repeat {origin.repeat}, counted {seen.get(origin.sha256, 0)}"


@judged
def shares_achieved(directory: TfdsDirectory, replay: ReplayDeclaration, shards: _Shards) -> Finding:
    """Rows of each source, recounted from provenance: the wanted share within the tolerance.

    For the modes that mix, also how far any first part of the shards is from the mix of the whole: at most two shards.
    """
    defects: list[str] = []
    table: list[Row] = []
    for split, entries in directory.provenance.items():
        total = sum(origin.rows for _, origin in entries)
        of_source: Counter[str] = Counter()
        for _, origin in entries:
            of_source[shards.source(origin)] += origin.rows
        wanted = _wanted(replay, of_source)
        for name, want in wanted.items():
            share = of_source[name] / total if total else 0.0
            table.append({"split": split, "source": name, "rows": of_source[name], "share": share, "wanted": want})
            if replay.mode == "weighted" and abs(share - want) > replay.tolerance:
                defects.append(f"{split}: {name} has a share of {share:.4f}, wanted {want:.4f}")
        said = directory.receipt.facts.get("shares", {}).get(split, {})
        for name, of in said.items():
            if of["rows"] != of_source[name]:
                defects.append(f"{split}: {name} has {of_source[name]} rows, the receipt says {of['rows']}")
        if replay.mode in ("interleave", "weighted"):
            defects += _unmixed(split, [(shards.source(o), o.rows) for _, o in entries], of_source)
    return verdict(
        (f"{name_of(directory.receipt)}: {d}" for d in defects),
        "; ".join(f"{row['source']} {row['share']:.4f} of {row['split']}" for row in table) + ".",
        _REBUILD,
        facts={"tolerance": replay.tolerance},
        table=table if not defects else None,
    )


def _wanted(replay: ReplayDeclaration, rows: Mapping[str, int]) -> Mapping[str, float]:
    weights = {s.dataset: s.weight if s.weight is not None else float(rows[s.dataset]) for s in replay.sources}
    total = sum(weights.values()) or 1.0
    return {name: weight / total for name, weight in weights.items()}


def _unmixed(split: str, shards: Sequence[tuple[str, int]], rows: Mapping[str, int]) -> Iterator[str]:
    total = sum(rows.values())
    for name in rows:
        own = np.cumsum([count if of == name else 0 for of, count in shards])
        wanted = np.cumsum([count for _, count in shards]) * rows[name] / total
        furthest = float(np.abs(own - wanted).max())
        if furthest > 2 * max(count for _, count in shards):
            yield f"{split}: a first part has {furthest:.0f} rows of {name} more or fewer than its share"


@judged
def splits_disjoint(directory: TfdsDirectory, store: ArtifactStore, sources: Mapping[str, Receipt]) -> Finding:
    """No patient of one split, of whichever source, is in another split.

    Digests are comparable where the sources have the same patient key; a person does not show under two keys.
    """
    splits = list(directory.provenance)
    digests = []
    for split in splits:
        of_split = {(origin.dataset, origin.partition) for _, origin in directory.provenance[split]}
        found = [_patients(store, sources, dataset, month, split) for dataset, month in sorted(of_split)]
        digests.append(np.unique(np.concatenate(found)) if found else np.zeros(0, "V16"))
    _, counts = np.unique(np.concatenate(digests), return_counts=True)
    leaked = int(np.count_nonzero(counts > 1))
    defects = [f"{leaked} patients are in several of the splits {', '.join(splits)}"] if leaked else []
    return verdict(
        (f"{name_of(directory.receipt)}: {d}" for d in defects),
        f"{int(counts.size)} patients, none in several of {len(splits)} splits.",
        "Use one `patient_key` and the same `splits` for all sources, and build them again",
        facts={"patients": int(counts.size), "in_several_splits": leaked},
    )


def _patients(store: ArtifactStore, sources: Mapping[str, Receipt], dataset: str, month: str, split: str) -> Any:
    artifact = Artifact(dataset=dataset, name=PACKED, partition=month)
    splits = list(fact(store.require(artifact), "splits"))
    path = in_split(splits, split, "patients.bin")
    return read_patients(store.local(artifact, [path]) / path)


@judged
def virtual_files(directory: TfdsDirectory, places: Mapping[str, str], sources: Mapping[str, Receipt]) -> Finding:
    """The file that tells a loader how to mix: every source once, at its place, with shares that add up to 1."""
    wanted = {name: f"{place}/{sources[name].facts['directory']}" for name, place in places.items()}
    if directory.format == "tfrecord":
        found = json.loads((directory.artifact / BUILDER_DIRECTORIES).read_bytes())
        defects = [] if found == list(wanted.values()) else [f"{BUILDER_DIRECTORIES} does not name the sources' places"]
    else:
        found = json.loads((directory.artifact / GRAIN_MIXTURE).read_bytes())
        defects = list(_mixture(found, wanted))
    return verdict(
        (f"{name_of(directory.receipt)}: {d}" for d in defects),
        f"{len(wanted)} sources, each at its place.",
        _REBUILD,
        facts={"sources": len(wanted)},
    )


def _mixture(found: Mapping[str, Any], wanted: Mapping[str, str]) -> Iterable[str]:
    if found.keys() != wanted.keys():
        yield f"{GRAIN_MIXTURE} names {sorted(found)}, the sources are {sorted(wanted)}"
        return
    for name, place in wanted.items():
        if not str(found[name]["path"]).startswith(f"{place}/{name}-"):
            yield f"{GRAIN_MIXTURE}: {name} is not at its place"
    if abs(sum(of["weight"] for of in found.values()) - 1) > 1e-9:
        yield f"{GRAIN_MIXTURE}: the weights do not add up to 1"
