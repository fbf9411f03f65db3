"""Proofs on one shard of packed chat data that need its text: decoded sequences, and comparison with source rows.

Entry points: `decoded_mask`, `round_trip`; `bracketed` shows one sequence. `answer_proofs.py` builds on the samples.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import FormatError
from dataprep_assets.graph.finding import Finding, Row, judged, name_of, verdict
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan, ChatSource, conversation_renderer
from dataprep_assets.pipelines.blend.sft.row_proofs import sound_groups
from dataprep_assets.pipelines.blend.sft.shard import ORIGINS, PACKED, PackedSftFacts
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import CertifiedEncoder, refused_outright
from dataprep_assets.tokenization.chat.mask import ChatEncoder, label_aligned
from dataprep_assets.tokenization.chat.messages import Refusal, read_conversation

__all__ = [
    "CLOSE",
    "OPEN",
    "SampledSequence",
    "bracketed",
    "decoded_mask",
    "origins_of",
    "round_trip",
    "sampled_sequences",
    "source_rows",
]

OPEN, CLOSE = "⟦", "⟧"
"""Brackets around the trained tokens of a decoded sequence."""
SHOWN_CHARACTERS = 4000
"""Most characters of a decoded sequence; of a longer one the end is shown, with the last answer."""
_REBUILD = "Delete the shard's directory and materialize it again"


@judged
def decoded_mask(
    directory: Path,
    receipt: Receipt,
    bundle: TokenizerBundle,
    *,
    count: int = 4,
    sensitive: bool = False,
    untrained_allowed: bool = False,
) -> Finding:
    """Show a few decoded sequences, spread over the shard, with the trained text between ⟦ and ⟧.

    `directory` and `receipt` are the shard's, `bundle` is its tokenizer, `count` the number of sequences; `sensitive`
    shows lengths alone. Fails when a decoded sequence has nothing to train, unless that is allowed.
    """
    if PackedSftFacts.of(receipt).empty:
        return Finding(passed=True, summary="An empty shard, nothing to show.")
    table: list[Row] = []
    defects = []
    for sample in sampled_sequences(directory, receipt, count):
        trained = int(sample.mask.sum())
        row: dict[str, str | int | float] = {
            "row": sample.row,
            "sequence": sample.number,
            "tokens": len(sample.tokens),
            "trained": trained,
        }
        if not sensitive:
            row["text"] = bracketed(sample.tokens, sample.mask, bundle)[-SHOWN_CHARACTERS:]
        table.append(row)
        if not trained and not untrained_allowed:
            defects.append(f"{name_of(receipt)}: row {sample.row}: sequence {sample.number} has nothing to train")
    return verdict(
        defects, f"{len(table)} sequences decoded, trained text between {OPEN} and {CLOSE}.", _REBUILD, table=table
    )


def bracketed(tokens: NDArray[np.int32], mask: NDArray[np.uint8], bundle: TokenizerBundle) -> str:
    """The text of a sequence with brackets around the labels that its mask trains.

    `tokens` (int32) and the label-aligned `mask` (uint8) have one element for each token; `bundle` is the tokenizer.
    """
    trained = np.zeros(len(tokens), np.bool_)
    trained[1:] = mask[:-1] == 1
    cuts = [0, *(np.flatnonzero(np.diff(trained.astype(np.int8))) + 1).tolist(), len(tokens)]
    pieces = []
    for start, stop in pairwise(cuts):
        text = bundle.decode(tokens[start:stop])
        pieces.append(f"{OPEN}{text}{CLOSE}" if start < stop and trained[start] else text)
    return "".join(pieces)


@dataclass(frozen=True, eq=False)
class SampledSequence:
    """A sequence of a packed file: its number and its row, its ids (int32) and its label-aligned mask (uint8)."""

    number: int
    row: int
    tokens: NDArray[np.int32]
    mask: NDArray[np.uint8]


def sampled_sequences(directory: Path, receipt: Receipt, count: int) -> Iterator[SampledSequence]:
    """Sequences spread evenly over the packed file, the first and the last included."""
    total = PackedSftFacts.of(receipt).sequences
    wanted = {(total - 1) * i // max(1, count - 1) for i in range(count)} if total else set()
    first = 0
    for rows in sound_groups(directory, receipt):
        begins, ends = rows.sequence_bounds()
        for number in sorted(n for n in wanted if first <= n < first + len(begins)):
            start, stop = int(begins[number - first]), int(ends[number - first])
            row = rows.first + int(np.searchsorted(rows.heads, number - first, side="right")) - 1
            yield SampledSequence(number, row, rows.tokens[start:stop], rows.mask[start:stop])
        first += len(begins)


@judged
def round_trip(
    directory: Path,
    receipt: Receipt,
    sources: Sequence[ChatSource],
    plan: ChatPlan,
    bundle: TokenizerBundle,
    *,
    count: int = 64,
) -> Finding:
    """Sampled sequences are those of their source rows: rendered again, encoded by the reference, masked again.

    `directory` and `receipt` are the shard's, `sources` its source files, `plan` says how they were encoded, `bundle`
    is the tokenizer, `count` the number of sequences compared. Also: every sequence has an origin, and no two have the
    same. Messages name files and rows, never text.
    """
    facts = PackedSftFacts.of(receipt)
    if facts.empty:
        return Finding(passed=True, summary="An empty shard, nothing to compare.")
    name, origins = name_of(receipt), origins_of(directory)
    defects: list[str] = []
    if len(origins) != facts.sequences:
        defects.append(f"{name}: {ORIGINS} has {len(origins)} lines for {facts.sequences} sequences")
    elif len(np.unique(origins, axis=0)) != len(origins):
        defects.append(f"{name}: {ORIGINS} names one sequence of a conversation twice")
    else:
        samples = list(sampled_sequences(directory, receipt, count))
        defects += _differences(samples, origins, sources, plan, bundle)
    return verdict(
        [f"{name}: {d}" if not d.startswith(name) else d for d in defects],
        f"{min(count, len(origins))} of {len(origins)} sequences are those of their source rows.",
        _REBUILD,
        facts={"sequences": len(origins), "compared": min(count, len(origins))},
    )


def origins_of(directory: Path) -> NDArray[np.int64]:
    """For each packed sequence: ordinal of its source, row there, number within the row; int64, `(sequences, 3)`.

    Raises FormatError if the file is damaged or has another shape or dtype.
    """
    try:
        origins: NDArray[Any] = np.load(directory / ORIGINS, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise FormatError(f"{directory / ORIGINS}: cannot be read: {error}. {_REBUILD}") from error
    if origins.ndim != 2 or origins.shape[1] != 3 or origins.dtype != np.int64:
        raise FormatError(f"{directory / ORIGINS}: {origins.dtype} of shape {origins.shape}, not int64 triples")
    size = (directory / ORIGINS).stat().st_size
    if isinstance(origins, np.memmap) and (behind := size - origins.offset - origins.nbytes):
        raise FormatError(f"{directory / ORIGINS}: {behind} bytes behind the array. {_REBUILD}")
    return origins


def _differences(
    samples: list[SampledSequence],
    origins: NDArray[np.int64],
    sources: Sequence[ChatSource],
    plan: ChatPlan,
    bundle: TokenizerBundle,
) -> Iterator[str]:
    refused = refused_outright(bundle, "text", "tokenizers", "a proof encodes with the reference")
    renderer = conversation_renderer(plan, bundle)
    encoder = ChatEncoder(bundle, CertifiedEncoder(bundle, "text", refused))
    wanted: dict[int, dict[int, list[SampledSequence]]] = {}
    for sample in samples:
        ordinal, row, _ = origins[sample.number].tolist()
        wanted.setdefault(ordinal, {}).setdefault(row, []).append(sample)
    limit = min(plan.max_doc_tokens or plan.pack_size, plan.pack_size)
    for source in sources:
        left = wanted.pop(source.ordinal, {})
        for row, values in source_rows(source, set(left), plan):
            where = f"{source.label}: row {row}"
            conversation = read_conversation(values, plan.fields, plan.choices)
            rendered = conversation if isinstance(conversation, Refusal) else renderer.render(conversation)
            if isinstance(rendered, Refusal):
                yield f"{where} is packed, but is not a conversation: {rendered}"
                left.pop(row)
                continue
            encoded = encoder.encode([rendered])
            for sample in left.pop(row):
                turn = int(origins[sample.number, 2])
                if turn >= len(rendered.sequences):
                    yield f"{where}: has no sequence {turn}"
                    continue
                start = int(encoded.offsets[turn])
                stop = min(int(encoded.offsets[turn + 1]), start + limit)
                tokens, trained = encoded.tokens[start:stop], encoded.trained[start:stop]
                mask = label_aligned(trained, np.array([0, stop - start]))
                for what, made, held in (("ids", tokens, sample.tokens), ("loss mask", mask, sample.mask)):
                    if not np.array_equal(made, held):
                        yield f"{where}, sequence {turn}: its {what} differ from those in row {sample.row} of {PACKED}"
        for row in sorted(left):
            yield f"{source.label}: row {row} is packed, but the source has no such row"
    for ordinal in sorted(wanted):
        yield f"{ORIGINS} names source {ordinal}, which this shard does not have"


def source_rows(source: ChatSource, wanted: set[int], plan: ChatPlan) -> Iterator[tuple[int, dict[str, Any]]]:
    """The wanted rows of a source, by number."""
    if not wanted:
        return
    for block in source.read_rows(plan.fields.names):
        for number, values in zip(block.numbers, block.rows, strict=True):
            if number in wanted:
                yield number, values
