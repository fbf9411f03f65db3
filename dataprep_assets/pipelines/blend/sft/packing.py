"""Packing of a shard's spools into its files, and the commit of the shard.

The files are `packed.parquet` (`formats/packed_rows.py`; absent without sequences, because readers refuse an empty
file), `origins.npy` (`formats/row_origins.py`: source ordinal, row, and number of the sequence in its conversation),
`row_ids.npy` (`blend/removal/row_ids.py`) and `quarantine.jsonl`.
"""

import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.artifact.build import WrittenFiles, ensure_built
from dataprep_assets.engine.checks.check import require_ledger
from dataprep_assets.errors import BadRecordError, FormatError, count_of
from dataprep_assets.formats.flat_bins import read_ranges
from dataprep_assets.formats.packed_rows import compute_padded_lengths, pad_segments, write_rows
from dataprep_assets.formats.row_origins import ORIGINS, write_origins
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.commit import sweep
from dataprep_assets.integrity.receipt import LOSSES, Ledger, Receipt, Verification
from dataprep_assets.packing.algorithms import pack_items
from dataprep_assets.packing.bins import Bins, measure_fill
from dataprep_assets.packing.row_layout import RowLayout, lay_out_whole
from dataprep_assets.pipelines.blend.removal.row_ids import write_row_ids
from dataprep_assets.pipelines.blend.sft import spool
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatSource
from dataprep_assets.pipelines.blend.sft.shard import (
    PACKED,
    QUARANTINE,
    PackedSftFacts,
    PackedSourceFacts,
    SftShard,
)
from dataprep_assets.pipelines.blend.sft.source_rows import read_quarantine
from dataprep_assets.pipelines.blend.sft.spool import SpoolFacts, get_spool_artifact, spool_source
from dataprep_assets.sources.readers.unreadable import format_budget_advice
from dataprep_assets.stores.files import concatenate
from dataprep_assets.stream.token_stream import Fetch, fetch_missing
from dataprep_assets.table import format_share


def pack_shard(shard: SftShard, verification: Verification = "full") -> Receipt:
    """Pack the spools of a shard, commit the shard, and delete the spools; return the receipt (a worker's task).

    Raises BadRecordError if more rows were dropped than the budget allows, and MissingArtifactError if a spool is
    missing.
    """

    def write(staged: Path) -> WrittenFiles:
        return _ShardPacking(shard).write(staged)

    # Compare again, because a worker that died after its commit may have built the shard with other ids.
    shard = shard.compare_existing()
    # Commit the shard before discarding its spools, because a run that is killed between these steps would otherwise
    # lose both. The next run discards the spools of a finished shard.
    receipt, _ = ensure_built(shard.recipe, shard.store, write, verification)
    discard_spools(shard)
    return receipt


def build_sft_shard(shard: SftShard, verification: Verification, fetch: Fetch | None) -> tuple[Receipt, bool]:
    """Build a whole shard on the worker's machine (a worker's task).

    Args:
        shard: The shard to build.
        verification: How thoroughly a finished shard is verified before it is reused.
        fetch: Fetches source files that are missing in this machine's mirror.

    Returns:
        The receipt, and whether the shard was reused.
    """
    if (receipt := find_current_sft_shard(shard, verification)) is not None:
        return receipt, True
    fetch_missing(shard.sources, fetch)
    for source in shard.sources:
        spool_source(shard.plan, source, shard.scratch, shard.artifact)
    return pack_shard(shard, verification), False


def find_current_sft_shard(shard: SftShard, verification: Verification) -> Receipt | None:
    """Return the receipt of an up-to-date shard, and delete its spools; None if it must be built (a worker's task)."""
    if (receipt := shard.store.find_current(shard.artifact, shard.key, verification)) is not None:
        discard_spools(shard)
    return receipt


def discard_spools(shard: SftShard) -> None:
    """Delete the spools of a shard, and files that killed runs left next to them."""
    folders = [get_spool_artifact(shard.artifact, source.ordinal).directory(shard.scratch) for source in shard.sources]
    sweep(folders)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)  # a reused shard may have no spools


class _ShardPacking:
    """Packing of the spools of one shard."""

    def __init__(self, shard: SftShard) -> None:
        self._shard = shard
        scratch = LocalArtifacts(shard.scratch)
        artifacts = [get_spool_artifact(shard.artifact, source.ordinal) for source in shard.sources]
        self._receipts = [scratch.require(artifact) for artifact in artifacts]
        self._facts = [SpoolFacts.from_receipt(receipt) for receipt in self._receipts]
        self._ledgers = [require_ledger(receipt) for receipt in self._receipts]
        self._folders = [scratch.directory(artifact) for artifact in artifacts]
        for source, receipt in zip(shard.sources, self._receipts, strict=True):
            # Compare the keys, because a spool that was built with different settings must not be packed.
            if receipt.key != spool.compute_spool_key(shard.plan, source):
                raise FormatError(
                    f"{receipt.artifact} {receipt.partition}: built with different settings. Run the dataset again"
                )

    def write(self, staged: Path) -> WrittenFiles:
        """Write the files of the shard; return the facts for its receipt."""
        shard, plan = self._shard, self._shard.plan
        ledger = Ledger.total(self._ledgers)
        ledger.require_balance(str(shard.artifact))
        self._check_budget(ledger)
        lengths = self._join_arrays(spool.LENGTHS, np.uint32).astype(np.int64)
        bins = pack_items(
            self._measure_sequences(lengths), plan.pack_size, shard.packing.algorithm, seed=shard.packing.seed
        )
        if len(lengths):
            layout = lay_out_whole(bins, lengths)
            self._write_rows(staged, layout)
            self._write_origins(staged, layout)
        quarantine = b"".join(f.read_bytes() for d in self._folders if (f := d / QUARANTINE).exists())
        if quarantine:
            (staged / QUARANTINE).write_bytes(quarantine)
        row_ids = self._join_arrays(spool.ROW_IDS, np.int64).reshape(-1, 3)
        retracted = write_row_ids(staged, row_ids, plan.retractions)
        facts = self._sum_facts(ledger, lengths, bins)
        return WrittenFiles(
            inputs={source.label: source.sha256 for source in shard.sources}
            | {"tokenizer": plan.tokenizer_digest, "chat_template": plan.template.digest},
            facts=facts.model_copy(update={"retracted": retracted}) if retracted else facts,
            ledger=ledger,
            recipe=shard.finish(retracted),
        )

    def _measure_sequences(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of positions in a row that each sequence fills, including padding."""
        multiple = self._shard.packing.pad_to_multiple
        return lengths if multiple == 1 else compute_padded_lengths(lengths, multiple) - 1

    def _sum_facts(self, ledger: Ledger, lengths: NDArray[np.int64], bins: Bins) -> PackedSftFacts:
        """Return the facts of the shard, whose counts are sums over its spools."""
        shard, plan, spooled = self._shard, self._shard.plan, self._facts
        drops = sum((Counter(facts.sequences_dropped) for facts in spooled), Counter[str]())
        cuts = sum((Counter(facts.conversations_cut) for facts in spooled), Counter[str]())
        keys = sum((Counter(facts.unread_keys) for facts in spooled), Counter[str]())
        parts = zip(shard.sources, spooled, self._ledgers, strict=True)
        return PackedSftFacts(
            format="packed_sft_parquet",
            empty=not len(lengths),
            conversations=ledger.documents,
            sequences=len(lengths),
            bins=len(bins),
            tokens=ledger.tokens,
            trained_tokens=sum(facts.trained_tokens for facts in spooled),
            truncated=sum(facts.truncated for facts in spooled),
            truncated_to_pack_size=sum(facts.truncated_to_pack_size for facts in spooled),
            sequences_dropped=dict(sorted(drops.items())),
            conversations_cut=dict(sorted(cuts.items())),
            unread_keys=dict(sorted(keys.items())),
            pack_size=plan.pack_size,
            fill=round(measure_fill(bins, lengths, plan.pack_size), 6),
            packing_factor=round(len(lengths) / len(bins), 4) if len(bins) else 0.0,
            algorithm=shard.packing.algorithm,
            seed=shard.packing.seed,
            row_group_bins=shard.packing.row_group_bins,
            compression=shard.packing.compression,
            template=plan.template.name,
            template_digest=plan.template.digest,
            tokenizer_digest=plan.tokenizer_digest,
            stop_ids=tuple(token.id for token in plan.stops.tokens),
            stop_token=" ".join(token.content for token in plan.stops.tokens),
            template_writes=plan.capabilities.to_json(),
            template_differences=plan.differences,
            **{"turn_end": plan.turn_end} if plan.turn_end else {},
            **(
                {"pad_to_multiple": shard.packing.pad_to_multiple, "pad_id": shard.packing.pad_id}
                if shard.packing.pad_to_multiple > 1
                else {}
            ),
            certificate=plan.certificate,
            **({} if plan.screen is None else plan.screen.record_facts()),
            sources=tuple(_build_source_facts(source, facts, row_ledger) for source, facts, row_ledger in parts),
        )

    def _join_arrays(self, name: str, dtype: type[np.generic]) -> NDArray[Any]:
        parts = [np.fromfile(folder / name, dtype) for folder in self._folders]
        # Use an empty array if the shard has no source files, because NumPy cannot concatenate an empty list.
        return np.concatenate(parts) if parts else np.zeros(0, dtype)

    def _write_rows(self, staged: Path, layout: RowLayout) -> None:
        """Write the packed file, for which the spools are joined into one file and read one row group at a time."""
        size, reads = int(layout.lengths.sum()), []
        for name, dtype in ((spool.TOKENS, "<i4"), (spool.MASKS, "u1")):
            concatenate([folder / name for folder in self._folders], staged / name)
            if (item_count := (staged / name).stat().st_size // np.dtype(dtype).itemsize) != size:
                raise FormatError(
                    f"temporary file {name}: has {count_of(item_count, 'item')}, but the lengths add up to {size}. Run "
                    "the dataset again"
                )
            reads.append(partial(read_ranges, staged / name, dtype))
        packing = self._shard.packing
        blocks, is_padded = layout.blocks(packing.row_group_bins, *reads), packing.pad_to_multiple > 1
        if is_padded:
            assert packing.pad_id is not None, "padding has an id"
            blocks = (pad_segments(block, packing.pad_to_multiple, packing.pad_id) for block in blocks)
        write_rows(staged / PACKED, blocks, padded=is_padded, compression=packing.compression)
        # Remove the files that only packing uses, because every file in the folder is committed.
        for name in (spool.TOKENS, spool.MASKS):
            (staged / name).unlink()

    def _write_origins(self, staged: Path, layout: RowLayout) -> None:
        ordinals = np.repeat([source.ordinal for source in self._shard.sources], [f.sequences for f in self._facts])
        origins = self._join_arrays(spool.ORIGINS, np.int64).reshape(-1, 2)
        write_origins(staged / ORIGINS, [ordinals[layout.items], origins[layout.items]])

    def _check_budget(self, ledger: Ledger) -> None:
        is_bad = self._shard.plan.is_bad
        bad_counts = {reason: count for reason, count in ledger.dropped.items() if is_bad(reason)}
        total = sum(bad_counts.values())
        if total > self._shard.budget * ledger.rows_in:
            raise BadRecordError(
                f"{self._shard.artifact}: {total} of {count_of(ledger.rows_in, 'row')} would be dropped "
                f"({', '.join(f'{reason}: {count:,}' for reason, count in bad_counts.items())}), more than the budget "
                f"of {format_share(self._shard.budget)}. First error: "
                f"{self._describe_first_bad()}. {format_budget_advice(total, ledger.rows_in)}"
            )

    def _describe_first_bad(self) -> str:
        for folder in self._folders:
            for row in read_quarantine(folder / QUARANTINE):
                if self._shard.plan.is_bad(row["reason"]):
                    message = "" if row["message"] is None else f", message {row['message']}"
                    words = f" {row['words']!r}" if row["words"] else ""
                    byte = f", byte {row['byte']}" if row["byte"] >= 0 else ""
                    return f"{row['file']}, row {row['row']}{byte}{message}: {row['reason']}{words}"
        return "not in the quarantine"


def _build_source_facts(source: ChatSource, facts: SpoolFacts, ledger: Ledger) -> PackedSourceFacts:
    return PackedSourceFacts(
        file=source.label,
        ordinal=source.ordinal,
        sha256=source.sha256,
        rows=(source.rows.first, source.rows.stop),
        rows_in=ledger.rows_in,
        conversations=ledger.documents,
        dropped=dict(ledger.dropped),
        sequences=facts.sequences,
        tokens=ledger.tokens,
        form=facts.form,
        # Omit losses of 0 to keep receipts short, because most sources lose no text.
        **{name: count for name in LOSSES if (count := getattr(ledger, name))},
        **{"cuts": facts.conversations_cut} if facts.conversations_cut else {},
    )
