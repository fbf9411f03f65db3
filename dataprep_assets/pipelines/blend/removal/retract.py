"""Retraction of rows by a list of ids: the rows are looked up, counted by shard, and added to the retraction list.

The index of a finished shard has every row that the shard read, including dropped rows. A row that no shard has read is
looked up in the source, because a removal request must also apply to rows of future shards.

Entry point: `retract_rows`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from dataprep_assets.curation.documents import FileDocuments
from dataprep_assets.curation.id_list import IdLine, match_lines, read_ids
from dataprep_assets.curation.retractions import add_retractions, hash_id_value, read_retractions
from dataprep_assets.engine.trace.retraction import NOT_BUILT, RetractedAmount, RetractionResult
from dataprep_assets.errors import ConfigError, DataprepError
from dataprep_assets.integrity.artifacts import ArtifactHandle, ArtifactStore
from dataprep_assets.integrity.receipt import RETRACTED
from dataprep_assets.pipelines.blend.data_blend import BlendDataset
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.losses import parse_dataset_name
from dataprep_assets.pipelines.blend.plan.discovery import DiscoveredDataset, open_place
from dataprep_assets.pipelines.blend.plan.plan import has_blend_plan, load_blend_plan
from dataprep_assets.pipelines.blend.plan.planner import discover_datasets, restore_planned_dataset
from dataprep_assets.pipelines.blend.removal.row_ids import (
    DocumentIndex,
    RowIndex,
    describe_missing_id_key,
    load_blend_ids,
    open_index,
)
from dataprep_assets.pipelines.blend.stage_shards import SHARDS
from dataprep_assets.planning.manifest import ManifestEntry
from dataprep_assets.sources.access import find_copies
from dataprep_assets.sources.readers.records import RecordFields
from dataprep_assets.stream.stream_tracer import find_quarantined
from dataprep_assets.stream.token_stream import SourcePart
from dataprep_assets.tokenization.document_ids import DocumentIds, RowIds

_COUNT_NOUNS = {"pretrain": ("document", "token"), "sft": ("conversation",), "pairs": ("pair",), "rl": ("record",)}
"""Stage → nouns for the counts of a shard."""


@dataclass(frozen=True, kw_only=True)
class _SearchedShard:
    """A finished shard with its index. `datasets` are its dataset's names, with and without the split.

    `is_planned` is False for a shard that is not in the current plan.
    """

    handle: ArtifactHandle
    index: RowIndex | DocumentIndex
    datasets: frozenset[str]
    is_planned: bool

    @property
    def partition(self) -> str:
        """The shard's partition key."""
        return str(self.handle.artifact.partition)

    def find_reason(self, line: int) -> str:
        """Return the reason why the row in a line of the index is not in the shard."""
        entry = find_quarantined(self.handle, *self.index.locate_row(line))
        if entry is not None:
            return str(entry["reason"])
        return RETRACTED if self.removed_ids else "left out"

    @property
    def removed_ids(self) -> Sequence[str]:
        """The ids whose rows were left out of the shard, because they were on the list when the shard was built."""
        removed_ids: Sequence[str] = self.handle.receipt.facts.get("retracted", ())
        return removed_ids


@dataclass(frozen=True, kw_only=True)
class _NamedRow:
    """A row that a line of the list of ids names: the hash of its id, and its dataset's name.

    `is_unread` is True if no shard has read the row.
    """

    hash: str
    dataset: str
    is_unread: bool = False


def retract_rows(
    blend: BlendDeclaration, store: ArtifactStore, path: Path, *, strict: bool = False
) -> RetractionResult:
    """Add the rows that a list of ids names to a blend's retraction list; return the counts for the report.

    Args:
        blend: The declaration.
        store: The store of the blend's shards.
        path: The path of the list of ids.
        strict: Whether to write nothing unless every line is found or was already retracted.

    Raises ConfigError if the list has ids but the blend has no `id_field`, if several datasets have a listed file, or
    if a sensitive blend has no key. Raises the errors of `read_ids` and `add_retractions`, and other DataprepErrors if
    a row cannot be read from its source.
    """
    assert blend.retractions is not None, "a located declaration has a list"
    ids = load_blend_ids(blend)
    if ids is None:
        raise ConfigError(describe_missing_id_key(blend))
    lines = read_ids(path)
    lookup = _RowLookup(blend, store, ids)
    rows = [lookup.find_row(line) for line in lines]
    listed_before = read_retractions(blend.retractions, ids).keys()
    new_hashes = {row.hash for row in rows if row is not None} - listed_before
    # Also count rows that were already listed, because the shards may still contain them.
    amounts, held_hashes, files = lookup.count({row.hash for row in rows if row is not None})
    reasons = lookup.find_left_out_reasons(new_hashes - held_hashes)
    # Also report rows that no shard has read, but prefer the reason in a shard's index, which is more precise.
    reasons = {row.hash: NOT_BUILT for row in rows if row is not None and row.is_unread} | reasons
    reasons = {row_hash: reason for row_hash, reason in reasons.items() if row_hash in new_hashes - held_hashes}
    hashes = [None if row is None else row.hash for row in rows]
    line_matches = match_lines(lines, hashes, known_hashes={*held_hashes, *reasons}, listed_before=listed_before)
    return RetractionResult(
        list=blend.retractions,
        given=len(lines),
        already=len(line_matches.already),
        found=len(line_matches.found),
        added=add_retractions(blend.retractions, ids, () if strict and line_matches.unknown else line_matches.listed),
        not_found=line_matches.not_found(sensitive=blend.sensitive),
        counted=_COUNT_NOUNS[blend.stage],
        held=tuple(amounts),
        left_out=dict(Counter(reasons.values()).most_common()),
        artifact=SHARDS[blend.stage].name,
        partitions="shard",
        kept="If rows with a listed id or hash appear later, they are dropped",
        files=frozenset(files.values()),
        copies=lookup.list_copies(files),
    )


class _RowLookup:
    """Lookup of rows in the finished shards of a blend, and in its sources."""

    def __init__(self, blend: BlendDeclaration, store: ArtifactStore, ids: DocumentIds) -> None:
        self._blend, self._store, self._ids = blend, store, ids

    def find_row(self, line: IdLine) -> _NamedRow | None:
        """Return the row that a line names; None for a row of a file that does not exist or cannot be parsed."""
        if line.hash is not None:
            return _NamedRow(hash=line.hash, dataset="")
        if line.file is not None:
            return self._find_at(line, line.file)
        if self._ids.id_field is None:
            id_text = "" if self._blend.sensitive else f" ({line.id!r})"
            raise ConfigError(
                f"line {line.line}{id_text}: {self._blend.dataset} declares no `id_field`, so its rows have no ids. "
                "Write file:row, or the 16 hex digits of a row's hash"
            )
        return _NamedRow(hash=hash_id_value(line.id or "", self._ids), dataset="")

    def _find_at(self, line: IdLine, file: str) -> _NamedRow | None:
        # Prefer the shards of the current plan, because the file may have had other rows when an older plan was built.
        for is_planned in (True, False):
            shards = [shard for shard in self._shards if shard.is_planned == is_planned]
            named_rows = [
                row for shard in shards if (row := self._find_row_in_shard(shard, file, line.row)) is not None
            ]
            if named_rows:
                return self._require_one(line, named_rows)
        named_rows = list(self._find_rows_in_source(file, line.row))
        return self._require_one(line, named_rows) if named_rows else None

    def _require_one(self, line: IdLine, rows: Sequence[_NamedRow]) -> _NamedRow:
        if len({row.hash for row in rows}) > 1:
            datasets = sorted({row.dataset for row in rows})
            file_text = "" if self._blend.sensitive else f" {line.file}:"
            example = f"{datasets[0]}/…" if self._blend.sensitive else f"{datasets[0]}/{line.file}:{line.row}"
            raise ConfigError(
                f"line {line.line}:{file_text} several datasets have this file: {', '.join(datasets)}. Write {example}"
            )
        return rows[0]

    @staticmethod
    def _find_row_in_shard(shard: _SearchedShard, file: str, row: int) -> _NamedRow | None:
        for name in shard.index.files:
            if file == name or file in {f"{dataset}/{name}" for dataset in shard.datasets}:
                row_hash = shard.index.hash_at(name, row)
                if row_hash is not None:
                    return _NamedRow(hash=f"{row_hash:016x}", dataset=min(shard.datasets, key=len))
        return None

    def _find_rows_in_source(self, file: str, row: int) -> Iterator[_NamedRow]:
        """Yield the row `row` of each source file whose name is `file`."""
        for discovered in self._sources:
            dataset = discovered.unit.dataset
            for entry in discovered.entries:
                if file in (entry.relpath, f"{dataset.name}/{entry.relpath}"):
                    for row_hash in self._read_hashes(dataset, entry, row):
                        yield _NamedRow(hash=f"{row_hash:016x}", dataset=dataset.name, is_unread=True)

    def _read_hashes(self, dataset: BlendDataset, entry: ManifestEntry, row: int) -> Iterator[int]:
        blend, access = self._blend, open_place(dataset, self._blend.sources).access
        access.fetch([entry])
        part = SourcePart.from_entry(
            entry,
            access.path(entry),
            entry.sha256 or "",
            max_record_bytes=blend.bad_records.max_record_bytes,
            reading=dataset.reading,
        )
        with suppress(FileNotFoundError):  # the file was deleted after the source was listed
            if isinstance(self._ids, RowIds):
                rules = blend.rl_options.rules if blend.stage == "rl" else blend.chat_options.choices
                for block in part.read_rows(only={row}, as_json=rules.reads_json):
                    yield from map(self._ids.hash_row, block.rows)
            elif record := part.record_at(row, RecordFields(dataset.text_field, self._ids.id_field)):
                documents = FileDocuments.from_block(record, self._ids)
                yield from () if documents.ids is None else documents.ids.tolist()

    def count(self, hashes: set[str]) -> tuple[list[RetractedAmount], set[str], dict[str, str]]:
        """Return the amounts of kept rows with these hashes by shard, the rows' hashes, and their files' digests."""
        wanted_hashes = np.array(sorted(int(row_hash, 16) for row_hash in hashes), np.uint64)
        amounts, held_hashes, files = list[RetractedAmount](), set[str](), dict[str, str]()
        for shard in self._shards if hashes else ():
            lines = shard.index.find_lines(wanted_hashes)
            kept_lines = lines[shard.index.are_kept[lines]]
            if len(kept_lines):
                held_hashes |= {f"{row_hash:016x}" for row_hash in shard.index.hashes[kept_lines].tolist()}
                files |= shard.index.find_sources(kept_lines)
                counts = (len(kept_lines), *shard.index.count_tokens(kept_lines))
                amounts.append(RetractedAmount(partition=shard.partition, counts=counts, planned=shard.is_planned))
        return amounts, held_hashes, files

    def find_left_out_reasons(self, hashes: set[str]) -> dict[str, str]:
        """Return, by hash, the reason why a shard of the plan has left out a row that it has read."""
        wanted_hashes = np.array(sorted(int(row_hash, 16) for row_hash in hashes), np.uint64)
        reasons: dict[str, str] = {}
        for shard in self._shards if hashes else ():
            if shard.is_planned:
                # Include ids that are no longer on the list, because their rows stay left out until the next run.
                reasons |= dict.fromkeys(hashes.intersection(shard.removed_ids), RETRACTED)
                for line in shard.index.find_lines(wanted_hashes).tolist():
                    reasons.setdefault(f"{int(shard.index.hashes[line]):016x}", shard.find_reason(line))
        return reasons

    def list_copies(self, files: Mapping[str, str]) -> tuple[Path, ...]:
        """Return the paths of the mirrors' copies of source files; only their folders if the blend is sensitive."""
        copies: dict[Path, None] = {}
        for discovered in self._sources if files else ():
            access = open_place(discovered.unit.dataset, self._blend.sources).access
            names = [entry.relpath for entry in discovered.entries if entry.relpath in files]
            copies |= dict.fromkeys(find_copies(access, names, sensitive=self._blend.sensitive))
        return tuple(copies)

    @cached_property
    def _sources(self) -> list[DiscoveredDataset]:
        """The plan's datasets with their source files; the current datasets if there is no plan."""
        if has_blend_plan(self._blend, self._store):
            return [restore_planned_dataset(unit) for unit in load_blend_plan(self._blend, self._store).units]
        return discover_datasets(self._blend, {})

    @cached_property
    def _shards(self) -> list[_SearchedShard]:
        """Finished shards that have an index: first the plan's shards, then other shards with ids of the same kind."""
        blend, store = self._blend, self._store
        if not has_blend_plan(blend, store):
            return []
        plan, name = load_blend_plan(blend, store), SHARDS[blend.stage].name
        datasets = {key: frozenset({unit.name, unit.dataset.name}) for unit in plan.units for key in unit.partitions}
        # Do not suppress errors for planned shards, because listed rows in an unreadable shard would not be found.
        shards = [shard for key in plan.partitions for shard in self._open(key, datasets[key], is_planned=True)]
        for key in store.partitions(blend.dataset, name):
            if key not in datasets:
                with suppress(DataprepError, OSError):  # `find_unplanned_retracted` reports unreadable shards
                    shards += self._open(key, frozenset({parse_dataset_name(key)}), is_planned=False)
        return shards

    def _open(self, partition: str, datasets: frozenset[str], *, is_planned: bool) -> list[_SearchedShard]:
        artifact = self._blend.artifact(SHARDS[self._blend.stage].name, partition)
        receipt = self._store.receipt(artifact)
        index = None if receipt is None else open_index(self._store, artifact, receipt, self._ids)
        if receipt is None or index is None:
            return []
        handle = ArtifactHandle(self._store, artifact, receipt)
        return [_SearchedShard(handle=handle, index=index, datasets=datasets, is_planned=is_planned)]
