"""Proofs on one shard of packed chat data that need its text: decoded sequences, and comparison with source rows.

Entry points: `decoded_mask`, `round_trip`; `bracketed` shows one sequence.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, zip_longest

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.bounds import alive
from dataprep_assets.errors import CertificateError
from dataprep_assets.formats.packed_sft import PackedRows, open_packed
from dataprep_assets.graph.finding import REBUILD, Finding, Row, judged, verdict
from dataprep_assets.graph.made_again import by_content, made_again, other_bytes
from dataprep_assets.graph.proof_level import EVERY_DOCUMENT
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.blend.sft.chat_plan import conversation_renderer
from dataprep_assets.pipelines.blend.sft.opened_shard import OpenedShard, SampledSequence
from dataprep_assets.pipelines.blend.sft.packing import build_sft_shard
from dataprep_assets.pipelines.blend.sft.shard import ORIGINS, PACKED
from dataprep_assets.pipelines.blend.sft.spool import load_tools
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import CertifiedEncoder, refused_outright
from dataprep_assets.tokenization.chat.mask import ChatEncoder, label_aligned
from dataprep_assets.tokenization.chat.messages import Refusal, read_conversation
from dataprep_assets.tokenization.chat.rendering import Rendered

OPEN, CLOSE = "⟦", "⟧"
"""Brackets around the trained tokens of a decoded sequence."""
SHOWN_CHARACTERS = 4000
"""Most characters of a decoded sequence; of a longer one the end is shown, with the last answer."""


@judged
def decoded_mask(packed: OpenedShard, *, sensitive: bool = False) -> Finding:
    """Show a few decoded sequences, spread over the shard, with the trained text between ⟦ and ⟧; `sensitive` shows
    lengths alone. Fails when a decoded sequence has nothing to train, unless the declaration keeps such.
    """
    if packed.facts.empty:
        return Finding(passed=True, summary="An empty shard, nothing to show.")
    table: list[Row] = []
    defects = []
    for sample in packed.to_show:
        trained = int(sample.mask.sum())
        row: dict[str, str | int | float] = {
            "row": sample.row,
            "sequence": sample.number,
            "tokens": len(sample.tokens),
            "trained": trained,
        }
        if not sensitive:
            row["text"] = bracketed(sample.tokens, sample.mask, packed.bundle)[-SHOWN_CHARACTERS:]
        table.append(row)
        if not trained and not packed.untrained_allowed:
            defects.append(f"{packed.name}: row {sample.row}: sequence {sample.number} has nothing to train")
    return verdict(
        defects, f"{len(table)} sequences decoded, trained text between {OPEN} and {CLOSE}.", REBUILD, table=table
    )


def bracketed(tokens: NDArray[np.int32], mask: NDArray[np.uint8], bundle: TokenizerBundle) -> str:
    """The text of a sequence with brackets around the labels that its mask trains.

    `tokens` (int32) and the label-aligned `mask` (uint8) have one element for each token; `bundle` is the tokenizer.
    """
    trained = np.zeros(len(tokens), np.bool_)
    # label i is token i + 1: shifted back, so that the brackets stand around tokens
    trained[1:] = mask[:-1] == 1
    cuts = [0, *(np.flatnonzero(np.diff(trained.astype(np.int8))) + 1).tolist(), len(tokens)]
    pieces = []
    for start, stop in pairwise(cuts):
        text = bundle.decode(tokens[start:stop])
        pieces.append(f"{OPEN}{text}{CLOSE}" if start < stop and trained[start] else text)
    return "".join(pieces)


@judged
def round_trip(packed: OpenedShard) -> Finding:
    """Sampled sequences are those of their source rows: rendered again, encoded again, masked again.

    Also: every sequence has an origin, and no two have the same. With every document, the whole shard is made again
    and has these rows, in this order. Messages name files and rows, never text.
    """
    if packed.facts.empty:
        return Finding(passed=True, summary="An empty shard, nothing to compare.")
    name, origins, sequences = packed.name, packed.origins, packed.facts.sequences
    defects: list[str] = []
    if len(origins) != sequences:
        defects.append(f"{name}: {ORIGINS} has {len(origins)} lines for {sequences} sequences")
    elif len(np.unique(origins, axis=0)) != len(origins):
        defects.append(f"{name}: {ORIGINS} names one sequence of a conversation twice")
    else:
        defects += _differences(packed)
    every = packed.plan.level == EVERY_DOCUMENT
    if every and not defects:
        defects += made_otherwise(packed)
    compared = sequences if every else min(packed.compared, len(origins))
    return verdict(
        [f"{name}: {d}" if not d.startswith(name) else d for d in defects],
        f"{compared} of {len(origins)} sequences are those of their source rows.",
        REBUILD,
        facts={"documents": len(origins), "documents_compared": compared, "level": packed.plan.level},
    )


def made_otherwise(packed: OpenedShard) -> Iterator[str]:
    """How the shard differs from what is made again of its sources: rows, origins, quarantine."""
    if packed.shard is None:
        raise ValueError("every document of a shard is made again by what describes it")
    shard = packed.shard

    def build(store: ArtifactStore) -> None:
        build_sft_shard(replace(shard, store=store), "full", None)

    with made_again(shard.artifact, shard.store, build) as folder:
        # as arrays, a row group at a time: another version of a library may write the same rows in other bytes
        for number, (held, made) in enumerate(
            zip_longest(open_packed(packed.directory / PACKED), open_packed(folder / PACKED)), 1
        ):
            alive()
            if held is None or made is None or not _equal(held, made):
                yield f"row group {number} of {PACKED} is not what is made again of the sources"
                break
        yield from other_bytes(packed.directory, folder, left_out=by_content(packed.receipt, {PACKED}))


def _equal(held: PackedRows, made: PackedRows) -> bool:
    names = ("tokens", "mask", "starts", "rows", "heads")
    return all(np.array_equal(getattr(held, name), getattr(made, name)) for name in names)


def _differences(packed: OpenedShard) -> Iterator[str]:
    plan, wanted = packed.plan, dict(packed.compared_by_row)
    renderer = conversation_renderer(plan, packed.bundle)
    again: list[tuple[SampledSequence, str, Rendered]] = []
    for source in packed.sources:
        left = dict(wanted.pop(source.ordinal, {}))
        for row, values in packed.compared_rows[source.ordinal].items():
            where, samples = f"{source.label}: row {row}", left.pop(row)
            conversation = read_conversation(values, plan.fields, plan.choices)
            rendered = conversation if isinstance(conversation, Refusal) else renderer.render(conversation)
            if isinstance(rendered, Refusal):
                yield f"{where} is packed, but is not a conversation: {rendered}"
                continue
            for sample in samples:
                turn = int(packed.origins[sample.number, 2])
                if turn < len(rendered.sequences):
                    one = Rendered((rendered.sequences[turn],), rendered.mark)
                    again.append((sample, f"{where}, sequence {turn}", one))
                else:
                    yield f"{where}: has no sequence {turn}"
        for row in sorted(left):
            yield f"{source.label}: row {row} is packed, but the source has no such row"
    for ordinal in sorted(wanted):
        yield f"{ORIGINS} names source {ordinal}, which this shard does not have"
    yield from _not_the_same(packed, again)


def _not_the_same(packed: OpenedShard, again: list[tuple[SampledSequence, str, Rendered]]) -> Iterator[str]:
    """The sequences that are encoded again in another way than they are packed, a few of them by the reference. Each
    comes with its place and what the template makes of it."""
    refused = refused_outright(packed.bundle, "text", "tokenizers", "a proof encodes with the reference")
    reference = ChatEncoder(packed.bundle, CertifiedEncoder(packed.bundle, "text", refused), packed.plan.structure)
    try:
        _, engine, _ = load_tools(packed.plan)
    except CertificateError:  # the engine is another one than was certified: `engine_certificate` says so
        engine = reference
    few = [one for one in again if one[0].number in packed.by_reference]
    for encoder, some in ((reference, few), (engine, again)):
        yield from _not_as_encoded(packed, encoder, some)


def _not_as_encoded(
    packed: OpenedShard, encoder: ChatEncoder, again: list[tuple[SampledSequence, str, Rendered]]
) -> Iterator[str]:
    encoded = encoder.encode([rendered for *_, rendered in again])
    limit = min(packed.plan.max_doc_tokens or packed.plan.pack_size, packed.plan.pack_size)
    bounds = pairwise(encoded.offsets.tolist())
    for (sample, where, _), (start, end) in zip(again, bounds, strict=True):
        # cut as in the spool; with `too_long: drop` nothing longer was packed
        stop = min(end, start + limit)
        mask = label_aligned(encoded.trained[start:stop], np.array([0, stop - start]))
        held = (("ids", encoded.tokens[start:stop], sample.tokens), ("loss mask", mask, sample.mask))
        for what, made, packed_as in held:
            if not np.array_equal(made, packed_as):
                yield f"{where}: its {what} differ from those in row {sample.row} of {PACKED}"
