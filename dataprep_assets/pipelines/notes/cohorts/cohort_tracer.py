"""Tracing of notes: from a row of packed rows, of a shard or of a directory to its source records, and back.

A note has no id of its own. It is identified by its month, its record and its number in the record, as in messages. The
month represents the file, whose name is never shown. Only finished artifacts are read, so a mixture of datasets is
traced without the declarations of these datasets. Patients are found only with the patient key, and no text of a
sensitive dataset is decoded.

Only receipts, packed rows, `origins.npy` and `provenance.json` are read, with range requests if they are in object
storage.

Entry points: `CohortTracer`, `build_notes_tracer`, `build_mixture_tracer`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from pathlib import PurePosixPath

import numpy as np

from dataprep_assets.engine.trace.place import TokenRange
from dataprep_assets.engine.trace.trace import Trace, TraceQuery, Tracer
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.errors import ConfigError, DataprepError, NotFoundError, count_of
from dataprep_assets.formats.row_origins import ORIGINS, Origins
from dataprep_assets.integrity.artifacts import Artifact, ArtifactHandle, ArtifactStore
from dataprep_assets.pipelines.notes.cohorts.packed_files import (
    PACKED_COHORTS,
    PATIENTS,
    PackedCohortFacts,
    build_split_path,
    read_patients,
)
from dataprep_assets.pipelines.notes.cohorts.row_layout import CHUNK, NOTE, ORIGIN_COLUMNS, PATIENT, RECORD
from dataprep_assets.pipelines.notes.cohorts.sharded_cohort import COHORT_SHARDS, CohortShardsFacts
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.privacy import hide_quoted_data
from dataprep_assets.pipelines.notes.reading import digest_patient
from dataprep_assets.pipelines.notes.replay.replay_declaration import MixtureDeclaration
from dataprep_assets.pipelines.notes.tfds.linked_directory import DIRECTORIES, DirectoryFacts
from dataprep_assets.pipelines.notes.tfds.provenance import PROVENANCE, ShardOrigin, read_provenance
from dataprep_assets.stream.tokenizer import load_declared_tokenizer
from dataprep_assets.stream.traced_rows import TracedRows, TracedSegment
from dataprep_assets.tokenization.bundle import TokenizerBundle


@dataclass(frozen=True, kw_only=True)
class RowOfMonth:
    """A packed row: `row` is its number, from 0, in a split of a dataset's month."""

    dataset: str
    month: str
    split: str
    row: int


_File = tuple[str, str, str, str]
"""Dataset, month, path and digest of a shard file; the path is needed because two files may have the same bytes."""


@dataclass(frozen=True, kw_only=True)
class TracedShardFile:
    """A shard file of a month, which contains the rows `first` to `stop` (exclusive) of the split, in order."""

    artifact: Artifact
    file: str
    sha256: str
    first: int
    stop: int


class TracedMonth:
    """A packed cohort, and the shards that were built from it."""

    def __init__(self, store: ArtifactStore, dataset: str, month: str) -> None:
        """Open the cohort; raise MissingArtifactError if it is missing."""
        self._store, self.dataset, self.month = store, dataset, month
        self.handle = ArtifactHandle.from_store(store, Artifact(dataset=dataset, name=PACKED_COHORTS, partition=month))
        self.facts = PackedCohortFacts.from_receipt(self.handle.receipt)
        # Cache the rows by split, because a query may match many notes of a month.
        self._rows: dict[str, TracedRows] = {}

    def get_path(self, split: str, name: str) -> str:
        """Return the path of a split's file in the artifact."""
        return build_split_path(list(self.facts.splits), split, name)

    def open_rows(self, split: str) -> TracedRows:
        """Return the rows of a split."""
        if split not in self._rows:
            rows, origins = self.get_path(split, f"{self.month}.parquet"), self.get_path(split, ORIGINS)
            self._rows[split] = TracedRows(self.handle, rows, origins, ORIGIN_COLUMNS)
        return self._rows[split]

    def find_patient(self, split: str, digest: bytes) -> int | None:
        """Return the index of a patient in a split's `patients.bin`; None if the patient has no rows."""
        name = self.get_path(split, PATIENTS)
        digests = read_patients(self._store.local(self.handle.artifact, [name]) / name)
        indexes = [index for index, stored_digest in enumerate(digests) if stored_digest.tobytes() == digest]
        return indexes[0] if indexes else None

    @cached_property
    def stale_shards(self) -> tuple[Artifact, ...]:
        """Shard artifacts of the cohort that were built from earlier rows."""
        return tuple(a for a, content, _ in self._shards if content != self.handle.receipt.content)

    def find_shards(self, split: str) -> Iterator[TracedShardFile]:
        """Yield the shard files of a split, in every existing format, that were built from these rows."""
        for _, content, files in self._shards:
            if content == self.handle.receipt.content:
                yield from (shard for name, shard in files if name == split)

    @cached_property
    def _shards(self) -> list[tuple[Artifact, str, list[tuple[str, TracedShardFile]]]]:
        """Artifacts of shards, each with the content of its packed rows, and the split and file of each shard."""
        artifacts = [Artifact(dataset=self.dataset, name=name, partition=self.month) for name in COHORT_SHARDS.values()]
        shards = []
        for artifact, receipt in zip(artifacts, self._store.receipts(artifacts), strict=True):
            if receipt is None:
                continue
            facts, files = CohortShardsFacts.from_receipt(receipt), []
            for split, split_facts in facts.splits.items():
                stops = list(accumulate(split_facts.shard_lengths, initial=0))
                prefix = build_split_path(list(facts.splits), split, "")
                # Sort by name, which also sorts by number, because the numbers in the names have the same width.
                records = sorted((r for r in receipt.files if r.path.startswith(prefix)), key=lambda r: r.path)
                for record, start, stop in zip(records, stops[:-1], stops[1:], strict=True):
                    shard = TracedShardFile(
                        artifact=artifact, file=record.path, sha256=record.sha256, first=start, stop=stop
                    )
                    files.append((split, shard))
            shards.append((artifact, receipt.inputs[PACKED_COHORTS], files))
        return shards


@dataclass(frozen=True, kw_only=True)
class _DirectoryShard:
    """Shard in a directory, with its name there and the number of preceding rows in the split."""

    name: str
    origin: ShardOrigin
    before: int


class TracedDirectory:
    """A directory of one or more datasets, which maps each of its shards to a month's file."""

    def __init__(self, store: ArtifactStore, artifact: Artifact) -> None:
        """Open the directory; raise MissingArtifactError if it is missing."""
        self.handle = ArtifactHandle.from_store(store, artifact)
        self.facts = DirectoryFacts.from_receipt(self.handle.receipt)
        provenance = read_provenance(store.local(artifact, [PROVENANCE]) / PROVENANCE)
        self._splits: dict[str, list[_DirectoryShard]] = {}
        for split, entries in provenance.items():
            starts = list(accumulate((origin.rows for _, origin in entries), initial=0))[:-1]
            self._splits[split] = [
                _DirectoryShard(name=name, origin=origin, before=rows)
                for (name, origin), rows in zip(entries, starts, strict=True)
            ]
        # Index the shards by the month's file from which they were linked. A file has several shards if a mixture
        # repeats the file.
        self._by_file: dict[_File, list[tuple[str, _DirectoryShard]]] = {}
        for split, linked in self._splits.items():
            for linked_shard in linked:
                file = (
                    linked_shard.origin.dataset,
                    linked_shard.origin.partition,
                    linked_shard.origin.source_shard,
                    linked_shard.origin.sha256,
                )
                self._by_file.setdefault(file, []).append((split, linked_shard))

    def locate_row(self, split: str, row: int) -> tuple[ShardOrigin, int]:
        """Return the shard that contains a row of a split (from 0), and the row's number in the shard.

        Raises NotFoundError if the split has no such row.
        """
        linked = self._splits.get(split, [])
        count = linked[-1].before + linked[-1].origin.rows if linked else 0
        if not 0 <= row < count:
            raise NotFoundError(
                f"trace: row {row} is out of range: {self.handle.artifact}, {split}, has {count_of(count, 'row')} "
                "(counted from 0)"
            )
        # `side="right"` finds the last shard that begins at or before the row, so it skips empty shards.
        index = int(np.searchsorted([linked_shard.before for linked_shard in linked], row, side="right")) - 1
        return linked[index].origin, row - linked[index].before

    def find_shards(self, name: str) -> Iterator[tuple[str, ShardOrigin]]:
        """Yield the split and origin of shards with this file name, in the directory or the month, suffix optional."""
        for split, linked in self._splits.items():
            for linked_shard in linked:
                source = PurePosixPath(linked_shard.origin.source_shard)
                if name in (linked_shard.name, str(source), source.name, source.stem):
                    yield split, linked_shard.origin

    def find_holders(self, shard: TracedShardFile) -> Iterator[tuple[str, str, int]]:
        """Yield the locations of a month's file: split, path in the artifact, number of preceding rows in the split."""
        file = (shard.artifact.dataset, str(shard.artifact.partition), shard.file, shard.sha256)
        for split, linked_shard in self._by_file.get(file, ()):
            folder = f"{self.facts.directory}/" if self.facts.directory else ""
            yield split, f"{folder}{linked_shard.name}", linked_shard.before


NoteLocation = tuple[TracedMonth, str, int, int]
"""A note as month, split, record and number."""


class CohortTracer(Tracer):
    """Search for notes in the rows of a dataset, or of a mixture of datasets."""

    def __init__(
        self,
        declaration: DatasetDeclaration,
        store: ArtifactStore,
        *,
        splits: Sequence[str],
        months: Sequence[str],
        directories: Sequence[Artifact],
        bundle: Callable[[], TokenizerBundle] | None = None,
        key: Callable[[], bytes] | None = None,
    ) -> None:
        """Open the current directories.

        Args:
            declaration: The dataset or mixture.
            store: The store of its artifacts, and of the datasets that it combines.
            splits: Its splits.
            months: Its own months; empty for a mixture.
            directories: Its directories of shards.
            bundle: Loads the tokenizer; None if no text can be decoded.
            key: Loads the patient key; None if patients cannot be found.
        """
        self._declaration, self._store, self._splits, self._months = declaration, store, splits, months
        self._bundle, self._key = bundle, key
        self._directories: list[TracedDirectory] = []
        # Cache months by dataset and month, so that each month is opened only once for all queries.
        self._opened: dict[tuple[str, str], TracedMonth] = {}
        notes = []
        for artifact in directories:
            try:
                self._directories.append(TracedDirectory(store, artifact))
            except DataprepError as error:
                # Continue, because the directories of other formats can still be traced.
                notes.append(f"{artifact} cannot be traced: {error}")
        self.notes = tuple(notes)

    def find(self, question: TraceQuery, *, decode: bool = True) -> list[Trace]:
        question.refuse_messages()
        is_shown = decode and not self._declaration.sensitive and self._bundle is not None
        with hide_quoted_data(self._declaration.dataset):
            # Trace each note once, even if a row has several of its chunks. Months can be compared by identity, because
            # each month is opened only once.
            return [
                self._trace_note(*note, is_shown=is_shown) for note in dict.fromkeys(self._find_locations(question))
            ]

    def _find_locations(self, query: TraceQuery) -> Iterator[NoteLocation]:
        if query.tfrecord_row is not None:
            return self._find_row(self._find_shard_row(query, query.tfrecord_row))
        if not self._months:
            raise ConfigError(
                f"trace: {self._declaration.dataset} is built from shards of other datasets. Find its rows by "
                "`tfrecord_row`, or trace records in the dataset that packed them"
            )
        if query.packed_row is not None:
            return self._find_row(self._find_packed_row(query, query.packed_row))
        if query.file is not None and query.row is not None:
            return self._find_record(query, query.file, query.row)
        if query.id is not None:
            return self._find_patient(query, str(query.id))
        raise ConfigError(
            "trace: set `tfrecord_row`; or `shard` (a month) and `packed_row`; or `file` (a month) and `row` (a "
            "record); or `id` (a patient)"
        )

    def _require_split(self, query: TraceQuery) -> str:
        if query.split is None and len(self._splits) > 1:
            raise ConfigError(f"trace: `split` is required with `{query.field}`. Use one of {', '.join(self._splits)}")
        split = query.split or self._splits[0]
        if split not in self._splits:
            raise NotFoundError(f"trace: unknown split {split!r}. Available: {', '.join(self._splits)}")
        return split

    def _open_month(self, dataset: str, month: str) -> TracedMonth:
        if (dataset, month) not in self._opened:
            self._opened[(dataset, month)] = TracedMonth(self._store, dataset, month)
        return self._opened[(dataset, month)]

    def _find_month(self, month: str | None) -> TracedMonth:
        if month not in self._months:
            problem = "the month is missing" if month is None else f"unknown month {month!r}"
            raise NotFoundError(f"trace: {problem}. Available: {self._months[0]} to {self._months[-1]}")
        return self._open_month(self._declaration.dataset, str(month))

    def _find_shard_row(self, query: TraceQuery, row: int) -> RowOfMonth:
        """Return the packed row that a query identifies by its number in a directory's split or in one of its files."""
        if not self._directories:
            raise NotFoundError(f"trace: {'; '.join(self.notes)}")
        split, origin, row_in_shard = (
            self._locate_split_row(query, row) if query.shard is None else self._locate_file_row(query, row)
        )
        month = self._open_month(origin.dataset, origin.partition)
        # Also compare the digest, because a repacked month may have different rows in a shard with the same name.
        for shard in month.find_shards(split):
            if (shard.file, shard.sha256) == (origin.source_shard, origin.sha256):
                return RowOfMonth(dataset=month.dataset, month=month.month, split=split, row=shard.first + row_in_shard)
        raise NotFoundError(
            f"trace: {origin.dataset}/{origin.partition} has been packed again since this shard was built. Run "
            f"`dataprep run {origin.dataset} {self._declaration.dataset}` first"
        )

    def _locate_split_row(self, query: TraceQuery, row: int) -> tuple[str, ShardOrigin, int]:
        # Use the first directory, because all formats have the same rows in the same order.
        split, directory = self._require_split(query), self._directories[0]
        if directory.facts.directory is None:
            raise ConfigError(
                f"trace: {directory.handle.artifact} is virtual, and its loader determines the order of rows. Also "
                "set `shard` to the file"
            )
        return (split, *directory.locate_row(split, row))

    def _locate_file_row(self, query: TraceQuery, row: int) -> tuple[str, ShardOrigin, int]:
        name = str(query.shard)
        for directory in self._directories:
            for split, origin in directory.find_shards(name):
                if query.split not in (None, split):
                    continue
                if not 0 <= row < origin.rows:
                    raise NotFoundError(
                        f"trace: row {row} is out of range: {name} has {count_of(origin.rows, 'row')} (counted from 0)"
                    )
                return split, origin, row
        raise NotFoundError(f"trace: {self._directories[0].handle.artifact} has no file {name!r}")

    def _find_packed_row(self, query: TraceQuery, row: int) -> RowOfMonth:
        month, split = self._find_month(query.shard), self._require_split(query)
        if not 0 <= row < (count := month.facts.splits[split].rows):
            raise NotFoundError(
                f"trace: row {row} is out of range: {month.month}, {split}, has {count_of(count, 'row')} (counted "
                "from 0)"
            )
        return RowOfMonth(dataset=month.dataset, month=month.month, split=split, row=row)

    def _find_row(self, month_row: RowOfMonth) -> Iterator[NoteLocation]:
        month = self._open_month(month_row.dataset, month_row.month)
        rows = month.open_rows(month_row.split)
        yield from _locate_notes(month, month_row.split, rows.origins[list(rows.segments(month_row.row))])

    def _find_record(self, query: TraceQuery, name: str, record: int) -> Iterator[NoteLocation]:
        month, is_absent = self._find_month(name), True
        for split in self._splits if query.split is None else [self._require_split(query)]:
            origins = month.open_rows(split).origins
            for note in _locate_notes(month, split, origins[origins[:, RECORD] == record]):
                is_absent = False
                yield note
        if is_absent:
            raise NotFoundError(
                f"trace: record {record} of {name} is not in any row: the record does not exist, or was dropped"
            )

    def _find_patient(self, query: TraceQuery, patient: str) -> Iterator[NoteLocation]:
        assert self._key is not None, "a dataset with months has a key"
        digest, is_absent = digest_patient(self._key(), patient), True
        for name in self._months if query.shard is None else [query.shard]:
            month = self._find_month(name)
            for split in self._splits if query.split is None else [self._require_split(query)]:
                if (index := month.find_patient(split, digest)) is not None:
                    is_absent = False
                    origins = month.open_rows(split).origins
                    yield from _locate_notes(month, split, origins[origins[:, PATIENT] == index])
        if is_absent:
            raise NotFoundError(f"trace: {self._declaration.dataset} has no row of this patient")

    def _trace_note(self, month: TracedMonth, split: str, record: int, note: int, *, is_shown: bool) -> Trace:
        rows = month.open_rows(split)
        origins = rows.origins
        indexes = np.flatnonzero((origins[:, RECORD] == record) & (origins[:, NOTE] == note))
        indexes = indexes[np.argsort(origins[indexes, CHUNK])]
        segments = [rows.segment(index) for index in indexes.tolist()]
        token_ranges = [
            token_range for segment in segments for token_range in self._locate(month, split, segment, note)
        ]
        for stale_artifact in month.stale_shards:
            self.notes = tuple(
                dict.fromkeys(
                    [*self.notes, f"{stale_artifact}: was not built from the current rows. Run the dataset first"]
                )
            )
        return Trace(
            dataset=month.dataset,
            split=split,
            document=int(indexes.min()),
            file=month.month,
            row=record,
            tokens=sum(len(segment.ids) for segment in segments),
            places=tuple(token_ranges),
            text=self._decode_text(month, segments) if is_shown else None,
        )

    def _locate(self, month: TracedMonth, split: str, segment: TracedSegment, note: int) -> Iterator[TokenRange]:
        row, start, stop = segment.row, segment.start, segment.stop
        position = {"segment": segment.number + 1, "note": note}
        name = month.get_path(split, f"{month.month}.jsonl")
        yield TokenRange(
            artifact=str(month.handle.artifact), file=name, start=start, stop=stop, at={"row": row, **position}
        )
        for shard in month.find_shards(split):
            if not shard.first <= row < shard.stop:
                continue
            row_in_shard = row - shard.first
            yield TokenRange(
                artifact=str(shard.artifact),
                file=shard.file,
                start=start,
                stop=stop,
                at={"row": row_in_shard, **position},
            )
            for directory in self._directories:
                for _, file, rows_before in directory.find_holders(shard):
                    yield TokenRange(
                        artifact=str(directory.handle.artifact),
                        file=file,
                        start=start,
                        stop=stop,
                        at={"row": row_in_shard, "row_of_split": rows_before + row_in_shard, **position},
                    )

    def _decode_text(self, month: TracedMonth, segments: Sequence[TracedSegment]) -> str:
        assert self._bundle is not None
        ids = np.concatenate([segment.ids for segment in segments])
        # Leave out a leading BOS and a trailing separator. A comparison that is true counts as 1 in the bounds of the
        # slice.
        text_ids = ids[int(ids[0]) == month.facts.bos_id : len(ids) - (int(ids[-1]) == month.facts.separator_id)]
        return self._bundle().decode(text_ids)


def _locate_notes(month: TracedMonth, split: str, origins: Origins) -> Iterator[NoteLocation]:
    yield from ((month, split, record, note) for record, note in origins[:, [RECORD, NOTE]].tolist())


def build_notes_tracer(notes: NotesDeclaration, store: ArtifactStore) -> CohortTracer:
    """Return the tracer of a dataset of notes.

    Args:
        notes: The dataset.
        store: The store of its artifacts.
    """
    return CohortTracer(
        notes,
        store,
        splits=list(notes.splits),
        months=notes.months.expected_keys,
        directories=[notes.artifact(DIRECTORIES[format]) for format in notes.formats],
        bundle=partial(load_declared_tokenizer, notes.tokenizer),
        key=notes.patient_key.load,
    )


def build_mixture_tracer(replay: MixtureDeclaration, store: ArtifactStore) -> CohortTracer:
    """Return the tracer of a mixture.

    Args:
        replay: The mixture.
        store: The store of its directory, and of the datasets that it combines.
    """
    directory = replay.artifact(DIRECTORIES[replay.format])
    return CohortTracer(replay, store, splits=replay.splits, months=(), directories=[directory])
