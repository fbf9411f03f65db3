"""Proofs about the order of documents in a split: how mixed it is, and where source files end."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.graph.finding import SHOWN, Finding, Row, judged, ledger_of, name_of, verdict
from dataprep_assets.integrity.receipt import Receipt

_REBUILD = "Materialize `combined_bins` of this split again"


@judged
def shuffle_quality(receipts: Sequence[Receipt]) -> Finding:
    """How mixed the order is, from the receipts of the shards: runs of documents of one file, and of one chunk.

    A report: any order passes. It fails if the files' documents or tokens do not sum to the shard's.
    """
    defects = []
    for receipt in receipts:
        ledger = ledger_of(receipt)
        for field in ("documents", "tokens"):
            if (total := sum(line[field] for line in receipt.sources)) != getattr(ledger, field):
                defects.append(
                    f"{name_of(receipt)}: {field} of its {len(receipt.sources)} files sum to {total}, the "
                    f"ledger has {getattr(ledger, field)}"
                )
    return _order_report(defects, [line for receipt in receipts for line in receipt.sources])


@judged
def source_run_length(ends: NDArray[np.uint64], sources: Sequence[Mapping[str, Any]]) -> Finding:
    """How long runs of one source are in the combined stream: `sources` lines in order against the document ends.

    A report, as `shuffle_quality`. It fails, naming the file, when a file's last document does not end where the sums
    of tokens say.
    """
    defects = []
    document = tokens = 0
    for line in sources:
        document, tokens = document + line["documents"], tokens + line["tokens"]
        held = int(ends[document - 1]) if 0 < document <= len(ends) else 0 if document == 0 else None
        if held != tokens:
            where = "is beyond the last" if held is None else f"ends at token {held}"
            place = f"{line['file']}: its last document, {document - 1}"
            defects.append(f"{place}, {where}; the sources sum to {tokens} tokens")
            # the first is told: those after it are shifted, too
            break
    if document != len(ends) and not defects:
        defects.append(f"the sources sum to {document} documents, there are {len(ends)} document ends")
    return _order_report(defects, sources)


def _order_report(defects: Sequence[str], sources: Sequence[Mapping[str, Any]]) -> Finding:
    # a file without documents ends no run
    lines = [line for line in sources if line["documents"]]
    files = _runs(lines, lambda line: str(line["file"]))
    chunks = _runs(lines, lambda line: str(PurePosixPath(line["file"]).parent))
    facts: dict[str, int | float | str] = {
        "documents": sum(line["documents"] for line in lines),
        "tokens": sum(line["tokens"] for line in lines),
    }
    for kind, runs in (("file", files), ("chunk", chunks)):
        facts |= {
            f"{kind}_runs": len(runs),
            f"mean_documents_per_{kind}_run": round(sum(r["documents"] for r in runs) / max(len(runs), 1), 2),
            f"mean_tokens_per_{kind}_run": round(sum(r["tokens"] for r in runs) / max(len(runs), 1), 2),
            f"longest_{kind}_run_tokens": max((r["tokens"] for r in runs), default=0),
        }
    table: Sequence[Row] = sorted(chunks, key=lambda r: -int(r["tokens"]))[:SHOWN]
    return verdict(
        defects,
        f"{facts['documents']} documents lie in {len(files)} runs of one file and {len(chunks)} runs of "
        f"one chunk, {facts['mean_tokens_per_file_run']} tokens a file run: shuffle when training.",
        f"Totals and order disagree. {_REBUILD}",
        facts=facts,
        table=[{"defect": d} for d in defects[:SHOWN]] or table,
    )


def _runs(lines: Sequence[Mapping[str, Any]], name: Callable[[Mapping[str, Any]], str]) -> list[dict[str, Any]]:
    """Neighbouring lines of the same source joined: its name, documents and tokens."""
    grouped = ((source, list(members)) for source, members in groupby(lines, name))
    return [
        {"source": source, **{k: sum(m[k] for m in members) for k in ("documents", "tokens")}}
        for source, members in grouped
    ]
