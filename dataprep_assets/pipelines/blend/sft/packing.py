"""Packs the spools of a shard into its files, and commits it.

Files: `packed.parquet` (`formats/packed_rows.py`; absent when no sequence is left: a reader refuses an empty file),
`origins.npy` (`formats/row_origins.py`: source ordinal, row, sequence of the conversation) and `quarantine.jsonl`.
"""

import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.artifact.build import WrittenFiles, ensure
from dataprep_assets.engine.checks.check import ledger_of
from dataprep_assets.errors import BadRecordError, FormatError, count_of
from dataprep_assets.formats.flat_bins import read_ranges
from dataprep_assets.formats.packed_rows import write_rows
from dataprep_assets.formats.row_origins import ORIGINS, write_origins
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.commit import sweep
from dataprep_assets.integrity.receipt import LOSSES, Ledger, Receipt, Verification
from dataprep_assets.packing.algorithms import pack
from dataprep_assets.packing.bins import Bins, fill
from dataprep_assets.packing.row_layout import RowLayout, packed_whole
from dataprep_assets.pipelines.blend.sft import spool
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatSource
from dataprep_assets.pipelines.blend.sft.shard import (
    PACKED,
    QUARANTINE,
    PackedSftFacts,
    PackedSourceFacts,
    SftShard,
)
from dataprep_assets.pipelines.blend.sft.spool import CHOSEN, SpoolFacts, read_quarantine, spool_artifact, spool_source
from dataprep_assets.stores.files import concatenate
from dataprep_assets.stream.token_stream import Fetch, fetch_missing


def pack_shard(shard: SftShard, verification: Verification = "full") -> Receipt:
    """A worker's task: pack the spools of a shard and commit it; then delete the spools.

    Raises BadRecordError when more rows were dropped than the budget allows, MissingArtifactError without spools.
    """

    def write(staged: Path) -> WrittenFiles:
        return _Packing(shard).write(staged)

    # Committed first: a kill in between leaves spools of a finished shard, which the next run deletes when it finds the
    # shard current. In the other order a kill would cost the whole shard.
    receipt, _ = ensure(shard.recipe, shard.store, write, verification)
    discard_spools(shard)
    return receipt


def build_sft_shard(shard: SftShard, verification: Verification, fetch: Fetch | None) -> tuple[Receipt, bool]:
    """A worker's task: all of a shard, on the machine where it lands.

    Args:
        shard: What to build.
        verification: How thoroughly a finished one is read before it is reused.
        fetch: Fetches the source files that this machine's mirror does not have.

    Returns:
        The receipt, and whether the shard was reused.
    """
    if (receipt := current_sft_shard(shard, verification)) is not None:
        return receipt, True
    fetch_missing(shard.sources, fetch)
    for source in shard.sources:
        spool_source(shard.plan, source, shard.scratch, shard.artifact)
    return pack_shard(shard, verification), False


def current_sft_shard(shard: SftShard, verification: Verification) -> Receipt | None:
    """A worker's task: the receipt of a current shard, which needs its spools no more; None if it has to be made."""
    if (receipt := shard.store.current(shard.artifact, shard.key, verification)) is not None:
        discard_spools(shard)
    return receipt


def discard_spools(shard: SftShard) -> None:
    """Delete the spools of a shard, and what killed runs left beside them."""
    folders = [spool_artifact(shard.artifact, source.ordinal).directory(shard.scratch) for source in shard.sources]
    sweep(folders)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)  # a shard that was reused has none


class _Packing:
    """Packs the spools of one shard."""

    def __init__(self, shard: SftShard) -> None:
        self._shard = shard
        scratch = LocalArtifacts(shard.scratch)
        artifacts = [spool_artifact(shard.artifact, source.ordinal) for source in shard.sources]
        self._receipts = [scratch.require(artifact) for artifact in artifacts]
        self._facts = [SpoolFacts.of(receipt) for receipt in self._receipts]
        self._ledgers = [ledger_of(receipt) for receipt in self._receipts]
        self._folders = [scratch.directory(artifact) for artifact in artifacts]
        for source, receipt in zip(shard.sources, self._receipts, strict=True):
            # the original uses any spool that it finds; our key contains the settings of the spool
            if receipt.key != spool.spool_key(shard.plan, source):
                raise FormatError(f"{receipt.artifact} {receipt.partition}: built with other settings. Spool it again")

    def write(self, staged: Path) -> WrittenFiles:
        """Write the files of the artifact, and return what the receipt says about them."""
        shard, plan = self._shard, self._shard.plan
        ledger = Ledger.total(self._ledgers)
        ledger.balance(str(shard.artifact))
        self._check_budget(ledger)
        lengths = self._join_arrays(spool.LENGTHS, np.uint32).astype(np.int64)
        bins = pack(lengths, plan.pack_size, shard.packing.algorithm, seed=shard.packing.seed)
        if len(lengths):
            layout = packed_whole(bins, lengths)
            self._write_rows(staged, layout)
            self._write_origins(staged, layout)
        quarantine = b"".join(f.read_bytes() for d in self._folders if (f := d / QUARANTINE).exists())
        if quarantine:
            (staged / QUARANTINE).write_bytes(quarantine)
        return WrittenFiles(
            inputs={source.label: source.sha256 for source in shard.sources}
            | {"tokenizer": plan.tokenizer_digest, "chat_template": plan.template.digest},
            facts=self._packed_facts(ledger, lengths, bins),
            ledger=ledger,
        )

    def _packed_facts(self, ledger: Ledger, lengths: NDArray[np.int64], bins: Bins) -> PackedSftFacts:
        shard, plan, spooled = self._shard, self._shard.plan, self._facts
        drops = sum((Counter(facts.sequences_dropped) for facts in spooled), Counter[str]())
        cuts = sum((Counter(facts.conversations_cut) for facts in spooled), Counter[str]())
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
            pack_size=plan.pack_size,
            fill=round(fill(bins, lengths, plan.pack_size), 6),
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
            certificate=plan.certificate,
            sources=tuple(_source_facts(source, facts, row_ledger) for source, facts, row_ledger in parts),
        )

    def _join_arrays(self, name: str, dtype: type[np.generic]) -> NDArray[Any]:
        parts = [np.fromfile(folder / name, dtype) for folder in self._folders]
        # a shard may have no source file, and NumPy joins no empty list
        return np.concatenate(parts) if parts else np.zeros(0, dtype)

    def _write_rows(self, staged: Path, layout: RowLayout) -> None:
        """Write the packed file. Spools are joined by the kernel, and read a row group at a time."""
        size, reads = int(layout.lengths.sum()), []
        for name, dtype in ((spool.TOKENS, "<i4"), (spool.MASKS, "u1")):
            concatenate([folder / name for folder in self._folders], staged / name)
            if (item_count := (staged / name).stat().st_size // np.dtype(dtype).itemsize) != size:
                raise FormatError(
                    f"spool {name}: inconsistent: {count_of(item_count, 'item')}, but the lengths add up to {size}. "
                    "Run again"
                )
            reads.append(partial(read_ranges, staged / name, dtype))
        packing = self._shard.packing
        write_rows(staged / PACKED, layout.blocks(packing.row_group_bins, *reads), compression=packing.compression)
        # joined for the packing alone; whatever is in the folder is committed
        for name in (spool.TOKENS, spool.MASKS):
            (staged / name).unlink()

    def _write_origins(self, staged: Path, layout: RowLayout) -> None:
        ordinals = np.repeat([source.ordinal for source in self._shard.sources], [f.sequences for f in self._facts])
        origins = self._join_arrays(spool.ORIGINS, np.int64).reshape(-1, 2)
        write_origins(staged / ORIGINS, [ordinals[layout.items], origins[layout.items]])

    def _check_budget(self, ledger: Ledger) -> None:
        bad = {reason: count for reason, count in ledger.dropped.items() if reason not in CHOSEN}
        total = sum(bad.values())
        if total > self._shard.budget * ledger.rows_in:
            raise BadRecordError(
                f"{self._shard.artifact}: {total} of {count_of(ledger.rows_in, 'row')} would be dropped {bad}, more "
                f"than the budget of {self._shard.budget:.4%}. First error: {self._first_bad()}. Correct the source, "
                "or raise `bad_records.budget`"
            )

    def _first_bad(self) -> str:
        for folder in self._folders:
            for row in read_quarantine(folder / QUARANTINE):
                if row["reason"] not in CHOSEN:
                    message = "" if row["message"] is None else f", message {row['message']}"
                    words = f" {row['words']!r}" if row["words"] else ""
                    return f"{row['file']}, row {row['row']}, byte {row['byte']}{message}: {row['reason']}{words}"
        return "not in the quarantine"


def _source_facts(source: ChatSource, facts: SpoolFacts, ledger: Ledger) -> PackedSourceFacts:
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
        # only what there is, so that the lines of most tokenizers stay short
        **{name: count for name in LOSSES if (count := getattr(ledger, name))},
    )
