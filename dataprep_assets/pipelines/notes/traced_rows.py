"""The rows of notes as `dataprep trace` needs them: a month's, those of its shards, and those of a directory.

Read only from receipts, `origins.bin` and `provenance.json`, by ranges if they are in a bucket.

Entry points: `TracedMonth`, `TracedDirectory`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import PurePosixPath

import numpy as np

from dataprep_assets.errors import IntegrityError, NotFoundError
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.handle import ArtifactHandle
from dataprep_assets.pipelines.notes.linked_directory import DirectoryFacts
from dataprep_assets.pipelines.notes.packed_files import (
    ORIGINS,
    PACKED_COHORTS,
    PATIENTS,
    PackedCohortFacts,
    in_split,
    read_patients,
)
from dataprep_assets.pipelines.notes.provenance import PROVENANCE, ShardOrigin, read_provenance
from dataprep_assets.pipelines.notes.row_origins import Origins, parse_origins
from dataprep_assets.pipelines.notes.sharded_cohort import COHORT_SHARDS, CohortShardsFacts


@dataclass(frozen=True, kw_only=True)
class RowOfMonth:
    """A packed row: `row` counts from 0 within a split of a dataset's month."""

    dataset: str
    month: str
    split: str
    row: int


_File = tuple[str, str, str, str]
"""Dataset, month and path of a file of a month's shards, with its digest: two of them may have the same bytes."""


@dataclass(frozen=True, kw_only=True)
class TracedShard:
    """A file of a month's shards: rows `first` to `stop` of the split are in it, in order."""

    artifact: Artifact
    file: str
    sha256: str
    first: int
    stop: int


class TracedMonth:
    """One packed cohort, and the shards that are made of it."""

    def __init__(self, store: ArtifactStore, dataset: str, month: str) -> None:
        """Open it; raises MissingArtifactError when it is not there."""
        self._store, self.dataset, self.month = store, dataset, month
        self.handle = ArtifactHandle.of(store, Artifact(dataset=dataset, name=PACKED_COHORTS, partition=month))
        self.facts = PackedCohortFacts.of(self.handle.receipt)
        # by split, read when first asked for: one question may be about many notes of a month
        self._origins: dict[str, Origins] = {}

    def file(self, split: str, name: str) -> str:
        """The path in the artifact of a split's file."""
        return in_split(list(self.facts.splits), split, name)

    def origins(self, split: str) -> Origins:
        """The origins of a split's segments.

        Raises IntegrityError for a month that was packed before origins were kept.
        """
        if split not in self._origins:
            name = self.file(split, ORIGINS)
            if not any(record.path == name for record in self.handle.receipt.files):
                raise IntegrityError(
                    f"trace: {self.handle.artifact} was packed without {ORIGINS}, so its rows cannot be traced. Run "
                    f"{self.dataset} again: its months are packed again, to the same rows"
                )
            self._origins[split] = parse_origins(self.handle.read(name), f"{self.handle.artifact}/{name}")
        return self._origins[split]

    def patient(self, split: str, digest: bytes) -> int | None:
        """The place of a patient in a split's `patients.bin`; None if no row is of this patient."""
        name = self.file(split, PATIENTS)
        digests = read_patients(self._store.local(self.handle.artifact, [name]) / name)
        at = [place for place, one in enumerate(digests) if one.tobytes() == digest]
        return at[0] if at else None

    @cached_property
    def stale(self) -> tuple[Artifact, ...]:
        """Its shards that were made of other rows."""
        return tuple(a for a, content, _ in self._shards if content != self.handle.receipt.content)

    def shards(self, split: str) -> Iterator[TracedShard]:
        """The files of a split, in every present format, that were made from these rows."""
        for _, content, files in self._shards:
            if content == self.handle.receipt.content:
                yield from (shard for name, shard in files if name == split)

    @cached_property
    def _shards(self) -> list[tuple[Artifact, str, list[tuple[str, TracedShard]]]]:
        """For each artifact of shards: the content of the rows it was made from, and split and file of each shard."""
        every = [Artifact(dataset=self.dataset, name=name, partition=self.month) for name in COHORT_SHARDS.values()]
        found = []
        for artifact, receipt in zip(every, self._store.receipts(every), strict=True):
            if receipt is None:
                continue
            facts, files = CohortShardsFacts.of(receipt), []
            for split, of in facts.splits.items():
                stops = list(accumulate(of.shard_lengths, initial=0))
                prefix = in_split(list(facts.splits), split, "")
                # numbers in names have the same width, so names sort by number
                records = sorted((r for r in receipt.files if r.path.startswith(prefix)), key=lambda r: r.path)
                for record, first, stop in zip(records, stops[:-1], stops[1:], strict=True):
                    shard = TracedShard(
                        artifact=artifact, file=record.path, sha256=record.sha256, first=first, stop=stop
                    )
                    files.append((split, shard))
            found.append((artifact, receipt.inputs[PACKED_COHORTS], files))
        return found


@dataclass(frozen=True, kw_only=True)
class _Linked:
    """A shard of a directory under its name there, with the number of rows of the split before it."""

    name: str
    origin: ShardOrigin
    before: int


class TracedDirectory:
    """A directory of one dataset or of several: maps each of its shards to a month's file."""

    def __init__(self, store: ArtifactStore, artifact: Artifact) -> None:
        """Open it; raises MissingArtifactError when it is not there."""
        self.handle = ArtifactHandle.of(store, artifact)
        self.facts = DirectoryFacts.of(self.handle.receipt)
        provenance = read_provenance(store.local(artifact, [PROVENANCE]) / PROVENANCE)
        self._splits: dict[str, list[_Linked]] = {}
        for split, entries in provenance.items():
            before = list(accumulate((origin.rows for _, origin in entries), initial=0))[:-1]
            self._splits[split] = [
                _Linked(name=name, origin=origin, before=rows)
                for (name, origin), rows in zip(entries, before, strict=True)
            ]
        # a month's file → where the shard is: several times where a combination repeats it
        self._by_file: dict[_File, list[tuple[str, _Linked]]] = {}
        for split, linked in self._splits.items():
            for one in linked:
                file = (one.origin.dataset, one.origin.partition, one.origin.source_shard, one.origin.sha256)
                self._by_file.setdefault(file, []).append((split, one))

    def of_row(self, split: str, row: int) -> tuple[ShardOrigin, int]:
        """The shard that holds a row of a split, counted from 0, and the row in it; raises NotFoundError for none."""
        linked = self._splits.get(split, [])
        count = linked[-1].before + linked[-1].origin.rows if linked else 0
        if not 0 <= row < count:
            raise NotFoundError(
                f"trace: no row {row} in {self.handle.artifact}, {split}, which has {count}, counted from 0"
            )
        # the last shard that begins at or before the row
        at = int(np.searchsorted([one.before for one in linked], row, side="right")) - 1
        return linked[at].origin, row - linked[at].before

    def named(self, name: str) -> Iterator[tuple[str, ShardOrigin]]:
        """The shards with this file name, here or in their month, with or without its suffix; with their splits."""
        for split, linked in self._splits.items():
            for one in linked:
                source = PurePosixPath(one.origin.source_shard)
                if name in (one.name, str(source), source.name, source.stem):
                    yield split, one.origin

    def holding(self, shard: TracedShard) -> Iterator[tuple[str, str, int]]:
        """Where a month's file is, as it is now: split, path in the artifact, rows of the split before it."""
        file = (shard.artifact.dataset, str(shard.artifact.partition), shard.file, shard.sha256)
        for split, one in self._by_file.get(file, ()):
            folder = f"{self.facts.directory}/" if self.facts.directory else ""
            yield split, f"{folder}{one.name}", one.before
