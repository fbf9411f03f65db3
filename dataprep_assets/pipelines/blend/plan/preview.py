"""Estimates what a blend will be, before anything is tokenized.

Rows and tokens are estimates from a sample of each dataset: its first, middle and last file if files are local, its
smallest one if they have to be fetched. A file that is read to its end is counted, not estimated.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dataprep_assets.bounds import report_position
from dataprep_assets.formats.flat_bins import token_dtype
from dataprep_assets.pipelines.blend.blend_sample import row_texts
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.discovery import open_place, present_part
from dataprep_assets.pipelines.blend.plan.fields import read_fields
from dataprep_assets.pipelines.blend.plan.plan import BlendPlan, PlannedUnit
from dataprep_assets.pipelines.blend.sft.sampled_tokens import row_counter
from dataprep_assets.pipelines.blend.stream import blend_dtype
from dataprep_assets.planning.blend import outlook, record_repeats, record_shares, requested_shares
from dataprep_assets.planning.manifest import ManifestEntry
from dataprep_assets.sources.access import SourceAccess
from dataprep_assets.sources.readers.rows import RowBlock, count_rows
from dataprep_assets.stream.tokenizer import load_bundle
from dataprep_assets.tokenization.engines import ReferenceEngine
from dataprep_assets.tokenization.unencodable import encode_or_name, row_of

FILES = 3
ROWS_PER_FILE = 2000
"""Rows that are read per file, which takes about a second."""
DOCUMENTS_PER_FILE = 100
"""The first of these rows are tokenized."""
_ARROW_BYTES = 16 << 20
"""Bytes that are read of an Arrow file at least: its batches end within pieces of a few MiB, which miscounts one."""


@dataclass(frozen=True, kw_only=True)
class SourcePreview:
    """The estimate of one dataset. All counts are estimates; `samples` are the training samples of its share.

    Of a trial (`sample`, `max_rows`) `rows`, `tokens` and the last two are what it reads; the shares, `epochs` and
    `samples` are those of the whole dataset, for which the blend is meant.
    """

    split: str
    name: str
    path: str
    weight: float
    files: int
    source_bytes: int
    rows: int
    tokens: int
    shards: int
    requested: float
    realisable: float
    epochs: float
    samples: int
    bytes_to_fetch: int
    disk_bytes: int

    @property
    def rounds_to_zero(self) -> bool:
        """Whether its share of the training is less than one sample, or it has no data."""
        return self.samples < 1


@dataclass(frozen=True)
class _Amount:
    rows: float
    tokens: float


def preview_blend(blend: BlendDeclaration, plan: BlendPlan) -> list[SourcePreview]:
    """The preview of every dataset, split by split."""
    amounts = {unit.name: _estimate(blend, unit) for unit in plan.units}
    found = []
    for split in dict.fromkeys(unit.home for unit in plan.units):
        units = [unit for unit in plan.units if unit.home == split]
        looks = _record_prospects(units, amounts) if blend.stage == "rl" else _token_prospects(blend, units, amounts)
        for unit, look in zip(units, looks, strict=True):
            part = _part(blend, unit, amounts[unit.name])
            amount = _Amount(rows=part * amounts[unit.name].rows, tokens=part * amounts[unit.name].tokens)
            chosen = {piece.entry for index in unit.chosen for piece in unit.shards[index].parts}
            access = open_place(unit.dataset, blend.sources).access
            found.append(
                SourcePreview(
                    split=split,
                    name=unit.name,
                    path=unit.dataset.path,
                    weight=unit.dataset.weight,
                    files=len(unit.entries),
                    source_bytes=unit.size_bytes,
                    rows=round(amount.rows),
                    tokens=round(amount.tokens),
                    shards=len(unit.chosen),
                    requested=look.requested,
                    realisable=look.realisable,
                    epochs=look.epochs,
                    samples=look.samples,
                    bytes_to_fetch=access.bytes_to_fetch([entry for entry in unit.entries if entry in chosen]),
                    disk_bytes=_disk_bytes(blend, part * unit.size_bytes, amount)
                    + _split_file_bytes(blend, units, part * unit.size_bytes, look.epochs),
                )
            )
    return found


@dataclass(frozen=True, kw_only=True)
class _Prospect:
    """The requested share of a dataset, and the share that its data allows."""

    requested: float
    realisable: float
    epochs: float
    samples: int


def _token_prospects(
    blend: BlendDeclaration, units: Sequence[PlannedUnit], amounts: Mapping[str, _Amount]
) -> list[_Prospect]:
    looks = outlook(
        requested_shares({unit.name: unit.dataset.weight for unit in units}),
        {unit.name: round(amounts[unit.name].tokens) for unit in units},
        train_tokens=blend.train_tokens,
        max_epochs=blend.max_epochs,
    )
    return [
        _Prospect(
            requested=look.requested,
            realisable=look.realisable,
            # infinite without tokens, which JSON does not have
            epochs=look.epochs if look.tokens else 0.0,
            samples=int(look.wanted_tokens // _filled(blend, look.tokens)) if look.tokens else 0,
        )
        for look in looks
    ]


def _record_prospects(units: Sequence[PlannedUnit], amounts: Mapping[str, _Amount]) -> list[_Prospect]:
    """For RL: every record as often as the weights say, and as often as files can be listed. A sample is a record."""
    weights = {unit.name: unit.dataset.weight for unit in units}
    rows = {unit.name: round(amounts[unit.name].rows) for unit in units}
    repeats = record_repeats(weights)
    requested, realisable = record_shares(rows, weights), record_shares(rows, repeats)
    return [
        _Prospect(
            requested=requested[name],
            realisable=realisable[name],
            epochs=float(repeats[name]) if rows[name] else 0.0,
            samples=rows[name] * repeats[name],
        )
        for name in weights
    ]


def _filled(blend: BlendDeclaration, tokens: int) -> int:
    """Tokens in a sample of a dataset with `tokens` tokens: a packed row may be partly filled, a sequence is full."""
    return min(sample_size(blend), tokens) if blend.stage == "sft" else sample_size(blend)


def sample_size(blend: BlendDeclaration) -> int:
    """Tokens of a training sample; for RL a sample is a record."""
    sizes = {"pretrain": blend.pretrain_options.sequence_length, "sft": blend.sft_options.pack_size, "rl": 1}
    return sizes[blend.stage]


def _part(blend: BlendDeclaration, unit: PlannedUnit, whole: _Amount) -> float:
    """The part of a dataset that its chosen shards read, if each has its first `max_rows` rows."""
    size = sum(unit.shards[index].total_bytes for index in unit.chosen)
    part = size / unit.size_bytes if unit.size_bytes else 1.0
    most = float("inf") if blend.max_rows is None else blend.max_rows * len(unit.chosen)
    return min(part, most / whole.rows) if whole.rows else part


def _disk_bytes(blend: BlendDeclaration, source_bytes: float, amount: _Amount) -> int:
    """Bytes of the shards: ids, ends and index; ids and mask, uncompressed; or as many bytes as the source."""
    if blend.stage == "pretrain":
        # a document takes 8 bytes for its end; in the idx 4 for its length, 8 each for its pointer and its index
        return round(amount.tokens * token_dtype(blend_dtype(blend)).itemsize + amount.rows * (8 + 4 + 8 + 8))
    return round(amount.tokens * (4 + 1)) if blend.stage == "sft" else round(source_bytes)


def _split_file_bytes(blend: BlendDeclaration, units: Sequence[PlannedUnit], source_bytes: float, epochs: float) -> int:
    """For RL: bytes of a dataset in the file of its split; 0 if that is a link to the only shard."""
    # two shards, or one read twice, are copied into a file of their own
    is_link = sum(len(other.chosen) for other in units) == 1 and epochs <= 1
    return 0 if blend.stage != "rl" or is_link else round(source_bytes * epochs)


def sampled_paths(blend: BlendDeclaration, unit: PlannedUnit) -> list[Path]:
    """The files in which to look for faults of a dataset: all local ones, else the one of the preview."""
    access = open_place(unit.dataset, blend.sources).access
    entries = _sampled_files(unit, access) if access.mirrored else unit.entries
    access.fetch(entries)
    return [access.path(entry) for entry in entries]


def _estimate(blend: BlendDeclaration, unit: PlannedUnit) -> _Amount:
    access = open_place(unit.dataset, blend.sources).access
    entries = _sampled_files(unit, access)
    access.fetch(entries)
    counter = row_counter(blend, unit.dataset) if blend.stage == "sft" and blend.tokenizer else None
    count = counter or partial(_tokens_a_row, blend, unit)
    estimates = [_estimate_file(blend, unit, entry, access, count) for entry in entries]
    sampled = sum(entry.size_bytes for entry in entries)
    scale = unit.size_bytes / sampled if sampled else 0.0
    return _Amount(rows=scale * sum(a.rows for a in estimates), tokens=scale * sum(a.tokens for a in estimates))


def _sampled_files(unit: PlannedUnit, access: SourceAccess) -> list[ManifestEntry]:
    if access.mirrored:
        # an unknown or empty file is tried last: it would tell nothing of the others
        return [min(unit.entries, key=lambda e: (e.size_bytes or 1 << 62, e.ordinal))]
    last = len(unit.entries) - 1
    return [unit.entries[i] for i in sorted({0, last // 2, last})][:FILES]


def _estimate_file(
    blend: BlendDeclaration,
    unit: PlannedUnit,
    entry: ManifestEntry,
    access: SourceAccess,
    tokens_a_row: Callable[[str, RowBlock], float],
) -> _Amount:
    """Rows and tokens of one file, from its first rows."""
    path = access.path(entry)
    columns = read_fields(blend, unit.dataset)
    reader = present_part(blend, unit.dataset, entry, path).read_rows(columns)
    first = RowBlock()
    enough = _ARROW_BYTES if entry.format == "arrow" else 0
    rows, looked_at, read, ended = 0, 0, 0, True
    for block in reader:
        # A piece of the file gives several blocks: rows are set against bytes where a piece ends, as the next begins.
        # When all bytes are read, what is left of the rows costs little, and makes the count exact.
        if reader.bytes_read > read:
            if rows >= ROWS_PER_FILE and read >= enough and reader.bytes_read < entry.size_bytes:
                ended = False
                break
            read = reader.bytes_read
        rows += len(block.rows)
        few = zip(block.rows, block.numbers, block.offsets, strict=True)
        for row, number, byte in itertools.islice(few, DOCUMENTS_PER_FILE - len(first.rows)):
            looked_at += 1
            if any(row_texts(blend, unit, row)):
                first.add(row, number, byte)
    if not ended:
        if entry.format == "parquet":
            # the footer tells it without reading a page
            rows = count_rows(path, format=entry.format, compression=None, label=entry.relpath)
        else:
            # both in bytes as stored: of a compressed file its rows per compressed byte
            rows = round(rows * entry.size_bytes / max(1, read))
    # rows without text have no tokens, and are as many among the others
    with_text = rows * len(first.rows) / max(1, looked_at)
    return _Amount(rows=rows, tokens=with_text * (tokens_a_row(entry.relpath, first) if first.rows else 0.0))


def _tokens_a_row(blend: BlendDeclaration, unit: PlannedUnit, label: str, some: RowBlock) -> float:
    if blend.tokenizer is None:
        return 0.0
    report_position(label, some.numbers[0])
    texts = ["\n".join(row_texts(blend, unit, row)) for row in some.rows]
    bundle = load_bundle(blend.tokenizer)
    encode = ReferenceEngine(bundle, "text").encode
    ids, _ = encode_or_name(encode, texts, bundle.name, lambda index: row_of(label, some.numbers[index]))
    options = blend.pretrain_options
    added = options.add_bos + options.add_eos if blend.stage == "pretrain" else 0
    return len(ids) / len(texts) + added
