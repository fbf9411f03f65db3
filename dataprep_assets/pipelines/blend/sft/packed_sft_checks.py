"""All checks of a shard of packed chat data: those on its rows, and those that need its text.

The file is read once for all of them (`OpenedShard.scan`). A row is a row of the Parquet file, a sequence one of the
conversations' sequences in it; both are counted from 0. A shard whose receipt says that it is empty has no Parquet file
and passes.

`answers_in_loss` compares the loss mask with the source rows independently, without any template. `round_trip` makes a
mask again in the same way, so an error in that way would be in both. Here the trained labels of sampled sequences are
decoded, and each run of them must begin with the text of an answer of its row, preceded by nothing except an opening
that `chat_plan` proved (`plan.openings`), contain that answer to its end, and contain one stop token. An answer that
says of itself that it is not trained is none of them. With `unprompted_header`, an answer that is the first message is
trained with all that the template writes before it, whatever that is. An answer whose text a template may change or
leave out (reasoning within it, no text beside a call, a template that rewrites its input) is not compared; the finding
says how many are.

Entry points: `PACKED_SFT_CHECKS`, `open_shard`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.bounds import alive
from dataprep_assets.engine.artifact.losses import unbalanced, unbalanced_lines
from dataprep_assets.engine.checks.check import (
    EVERY_DOCUMENT,
    FILES_INTACT,
    REBUILD,
    Check,
    Finding,
    Row,
    ledger_of,
    verdict,
)
from dataprep_assets.engine.checks.scratch_rebuild import by_content, made_again, other_bytes
from dataprep_assets.errors import CertificateError, count_of
from dataprep_assets.formats.packed_rows import open_packed
from dataprep_assets.formats.row_origins import ORIGINS
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Ledger
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan, conversation_renderer
from dataprep_assets.pipelines.blend.sft.opened_shard import OpenedShard, SampledSequence
from dataprep_assets.pipelines.blend.sft.packing import build_sft_shard
from dataprep_assets.pipelines.blend.sft.shard import PACKED, QUARANTINE, SftShard
from dataprep_assets.pipelines.blend.sft.spool import load_tools, read_quarantine
from dataprep_assets.stream.stream_losses import losses_check, losses_within_limit
from dataprep_assets.tokenization.bundle import TokenizerBundle, loaded_once
from dataprep_assets.tokenization.certificate import CertifiedEncoder, refused_outright
from dataprep_assets.tokenization.chat.mask import ChatEncoder, label_aligned
from dataprep_assets.tokenization.chat.messages import Refusal, is_trained, read_conversation
from dataprep_assets.tokenization.chat.rendering import RenderedConversation, used_part
from dataprep_assets.tokenization.engines import ReferenceEngine


def ledger_balances(packed: OpenedShard) -> Finding:
    """Every row is a conversation or a drop with a reason: in total, for each source, and in the quarantine."""
    ledger = ledger_of(packed.receipt)
    return verdict(
        _unbalanced(packed, ledger),
        f"{count_of(ledger.rows_in, 'row is', 'rows are')} {count_of(ledger.documents, 'conversation')} and "
        f"{count_of(sum(ledger.dropped.values()), 'drop')}, in total and per source.",
        REBUILD,
        facts={
            "rows_in": ledger.rows_in,
            "conversations": ledger.documents,
            "dropped": sum(ledger.dropped.values()),
            **{f"dropped_{reason}": count for reason, count in ledger.dropped.items()},
        },
    )


def _unbalanced(packed: OpenedShard, ledger: Ledger) -> Iterator[str]:
    name, sources = packed.name, packed.facts.sources
    yield from unbalanced(packed.receipt)
    yield from unbalanced_lines(packed.receipt, [source.to_json() for source in sources], "conversations")
    quarantine_counts = Counter((row["file"], row["reason"]) for row in read_quarantine(packed.directory / QUARANTINE))
    source_counts: Counter[tuple[str, str]] = Counter()
    for source in sources:
        source_counts.update({(source.file, reason): count for reason, count in source.dropped.items()})
    for key in sorted(set(quarantine_counts) | set(source_counts)):
        if quarantine_counts[key] != source_counts[key]:
            yield (
                f"{name}: {key[0]}: {count_of(source_counts[key], 'row')} dropped as {key[1]}, but {QUARANTINE} has "
                f"{quarantine_counts[key]}"
            )
    for field, total in (("rows_in", ledger.rows_in), ("conversations", ledger.documents), ("tokens", ledger.tokens)):
        if (source_total := sum(getattr(source, field) for source in sources)) != total:
            yield f"{name}: {field} of the sources sum to {source_total}, but the ledger has {total}"


def counts_match(packed: OpenedShard) -> Finding:
    """Rows, sequences, tokens, trained tokens and fill equal the receipt; an empty shard has no file."""
    name, facts, ledger = packed.name, packed.facts, ledger_of(packed.receipt)
    if facts.empty:
        exists = (packed.directory / PACKED).exists()
        return verdict(
            [f"{name}: declared empty, but {PACKED} exists"] * exists, "The shard is empty and has no file.", REBUILD
        )
    scan = packed.scan
    tokens, trained_tokens = scan.tokens, scan.trained
    counts = {"bins": scan.bins, "sequences": scan.sequences, "tokens": tokens, "trained_tokens": trained_tokens}
    defects = [
        f"{name}: {PACKED} has {count} {what}, but the receipt {getattr(facts, what)}"
        for what, count in counts.items()
        if count != getattr(facts, what)
    ]
    if ledger.tokens != tokens:
        defects.append(f"{name}: {PACKED} has {count_of(tokens, 'token')}, but the ledger {ledger.tokens}")
    filled = tokens / (scan.bins * facts.pack_size) if scan.bins else 1.0
    # the receipt has six decimals
    if abs(filled - facts.fill) > 1e-6:
        defects.append(f"{name}: rows are filled to {filled:.6f}, but the receipt has {facts.fill}")
    return verdict(
        defects,
        f"{count_of(scan.bins, 'row holds', 'rows hold')} {count_of(scan.sequences, 'sequence')}, "
        f"{count_of(tokens, 'token')} of which {trained_tokens} are trained; fill "
        f"{filled:.4f}.",
        REBUILD,
        facts={
            **counts,
            "fill": round(filled, 6),
            "trained_share": round(trained_tokens / tokens, 6) if tokens else 0.0,
        },
    )


def rows_valid(packed: OpenedShard) -> Finding:
    """Exact schema; in every row starts increase strictly from 0, the mask is 0 or 1 and 0 at each sequence's end,
    every sequence has a trained token unless the declaration keeps others, and no row is longer than the pack size. Row
    groups have the declared size.
    """
    facts = packed.facts
    if facts.empty:
        return Finding(passed=True, summary="The shard is empty.")
    max_rows, scan = facts.row_group_bins, packed.scan
    sizes, defects = scan.group_sizes, []
    if any(size != max_rows for size in sizes[:-1]) or not 0 < sizes[-1] <= max_rows:
        defects.append(
            f"{packed.name}: row groups of {', '.join(map(str, sorted(set(sizes))))} rows, but {max_rows} are declared"
        )
    defects += [f"{packed.name}: {PACKED}: {defect}" for defect in scan.defects]
    return verdict(
        defects,
        f"{count_of(scan.bins, 'row is', 'rows are')} as the trainer needs them; the longest has {scan.longest} of "
        f"{count_of(facts.pack_size, 'token')}.",
        REBUILD,
        facts={"rows": scan.bins, "row_groups": len(sizes), "longest_row": scan.longest},
    )


def ids_in_vocabulary(packed: OpenedShard) -> Finding:
    """Every id is 0 or more and below `len(tokenizer)`, and their range is the ledger's."""
    ledger, scan, size = ledger_of(packed.receipt), packed.scan, packed.bundle.vocab_size
    defects = [f"{packed.name}: row {row} has id {token}, outside [0, {size})" for row, token in scan.beyond]
    if (scan.low, scan.high) != (ledger.min_id, ledger.max_id):
        defects.append(
            f"{packed.name}: ids are in [{scan.low}, {scan.high}], but the ledger has [{ledger.min_id}, "
            f"{ledger.max_id}]"
        )
    return verdict(
        defects,
        f"Ids are in [{scan.low}, {scan.high}], below {size}.",
        REBUILD,
        facts={"vocab_size": str(size)},
    )


def stop_tokens_in_loss(packed: OpenedShard) -> Finding:
    """Every run of trained labels ends with the stop token; only sequences that were cut may end inside an answer.

    A mask that was not shifted, or shifted twice, fails here: its runs end beside the stop token.
    """
    facts, stops = packed.facts, packed.sound_scan.stops
    allowed = facts.truncated + facts.truncated_to_pack_size
    defects = [
        (
            f"{packed.name}: row {row}: the trained labels that end at token {token} end with id {label}, not with "
            f"a stop token ({facts.stop_token}) ({count} times in this row group)"
        )
        for row, token, label, count in stops.wrong
    ]
    if stops.unfinished > allowed:
        defects.append(
            f"{packed.name}: {count_of(stops.unfinished, 'sequence ends', 'sequences end')} inside an answer, but "
            f"only {allowed} were truncated"
        )
    return verdict(
        defects,
        f"{count_of(stops.runs - stops.unfinished, 'answer ends', 'answers end')} with a stop token "
        f"({facts.stop_token}); {stops.unfinished} were truncated before it.",
        REBUILD,
        facts={"answers": stops.runs, "unfinished": stops.unfinished, "truncated": allowed},
    )


def no_repeated_special_tokens(packed: OpenedShard) -> Finding:
    """No special token is followed by itself in a sequence: a template and a tokenizer that both add BOS or EOS.

    Where literals are special, what people wrote may be special as well: then doubled tokens may be theirs, and are
    only counted.
    """
    scan = packed.sound_scan
    doubled, first_place = scan.doubled, scan.doubled_at
    if first_place is not None and packed.plan.choices.special_literals == "special":
        return Finding(
            passed=True,
            summary=(
                f"{count_of(doubled.total(), 'special token is', 'special tokens are')} repeated: special tokens in "
                "texts are allowed here."
            ),
            facts={"doubled": doubled.total()},
        )
    defects = []
    if first_place is not None:
        names = {token.id: token.content for token in packed.bundle.special_tokens}
        counts = ", ".join(f"{names[token]!r} {count_of(count, 'time')}" for token, count in doubled.most_common())
        defects.append(
            f"{packed.name}: repeated special tokens: {counts}; first in row {first_place[0]}, {first_place[1]}"
        )
    return verdict(
        defects,
        "No special token is followed by itself.",
        "The template writes a token twice. Correct the template",
        facts={"doubled": doubled.total()},
    )


OPEN, CLOSE = "⟦", "⟧"
"""Brackets around the trained tokens of a decoded sequence."""
SHOWN_CHARACTERS = 4000
"""Most characters of a decoded sequence; of a longer one the end is shown, with the last answer."""


def sampled_sequences_trained(packed: OpenedShard) -> Finding:
    """Show a few decoded sequences, spread over the shard, with the trained text between ⟦ and ⟧. Fails when
    a decoded sequence has nothing to train, unless the declaration keeps such."""
    if packed.facts.empty:
        return Finding(passed=True, summary="The shard is empty: nothing to show.")
    table: list[Row] = []
    defects = []
    for sample in packed.to_show:
        label_count = int(sample.mask.sum())
        row: dict[str, str | int | float] = {
            "row": sample.row,
            "sequence": sample.number,
            "tokens": len(sample.tokens),
            "trained": label_count,
            "text": bracketed(sample.tokens, sample.mask, packed.bundle)[-SHOWN_CHARACTERS:],
        }
        table.append(row)
        if not label_count and not packed.untrained_allowed:
            defects.append(f"{packed.name}: row {sample.row}: sequence {sample.number} has no trained tokens")
    return verdict(
        defects,
        f"{count_of(len(table), 'sequence')} decoded, trained text between {OPEN} and {CLOSE}.",
        REBUILD,
        table=table,
    )


def bracketed(tokens: NDArray[np.int32], mask: NDArray[np.uint8], bundle: TokenizerBundle) -> str:
    """The text of a sequence with brackets around the labels that its mask trains.

    `tokens` (int32) and the label-aligned `mask` (uint8) have one element for each token; `bundle` is the tokenizer.
    """
    token_mask = np.zeros(len(tokens), np.bool_)
    # label i is token i + 1: shifted back, so that the brackets stand around tokens
    token_mask[1:] = mask[:-1] == 1
    cuts = [0, *(np.flatnonzero(np.diff(token_mask.astype(np.int8))) + 1).tolist(), len(tokens)]
    pieces = []
    for start, stop in pairwise(cuts):
        text = bundle.decode(tokens[start:stop])
        pieces.append(f"{OPEN}{text}{CLOSE}" if start < stop and token_mask[start] else text)
    return "".join(pieces)


def round_trip(packed: OpenedShard) -> Finding:
    """Sampled sequences are those of their source rows: rendered again, encoded again, masked again.

    Also: every sequence has an origin, and no two have the same. With every document, the whole shard is made again
    and has these rows, in this order. Messages name files and rows, never text.
    """
    if packed.facts.empty:
        return Finding(passed=True, summary="The shard is empty: nothing to compare.")
    name, origins, sequences = packed.name, packed.origins, packed.facts.sequences
    defects: list[str] = []
    if len(origins) != sequences:
        defects.append(f"{name}: {ORIGINS} has {count_of(len(origins), 'line')} for {count_of(sequences, 'sequence')}")
    elif len(np.unique(origins, axis=0)) != len(origins):
        defects.append(f"{name}: {ORIGINS} has one sequence of a conversation twice")
    else:
        defects += _differences(packed)
    is_exhaustive = packed.plan.level == EVERY_DOCUMENT
    if is_exhaustive and not defects:
        defects += made_otherwise(packed)
    compared_count = sequences if is_exhaustive else min(packed.compared, len(origins))
    return verdict(
        [f"{name}: {d}" if not d.startswith(name) else d for d in defects],
        f"{compared_count} of {count_of(len(origins), 'sequence matches', 'sequences match')} their source rows.",
        REBUILD,
        facts={"documents": len(origins), "documents_compared": compared_count, "level": packed.plan.level},
    )


def made_otherwise(packed: OpenedShard) -> Iterator[str]:
    """Yield how the shard differs from what is made again of its sources: rows, origins, quarantine."""
    if packed.shard is None:
        raise ValueError("a shard must be rebuilt as a whole")
    shard = packed.shard

    def build(store: ArtifactStore) -> None:
        build_sft_shard(replace(shard, store=store), "full", None)

    with made_again(shard.artifact, shard.store, build) as folder:
        # as arrays, a row group at a time: another version of a library may write the same rows in other bytes
        for number, (stored_group, rebuilt_group) in enumerate(
            zip_longest(open_packed(packed.directory / PACKED), open_packed(folder / PACKED)), 1
        ):
            alive()
            if stored_group is None or rebuilt_group is None or not stored_group.equals(rebuilt_group):
                yield f"row group {number} of {PACKED} differs from the one rebuilt from the sources"
                break
        yield from other_bytes(packed.directory, folder, left_out=by_content(packed.receipt, {PACKED}))


def _differences(packed: OpenedShard) -> Iterator[str]:
    plan, samples_by_source = packed.plan, dict(packed.compared_by_row)
    renderer = conversation_renderer(plan, packed.bundle)
    comparisons: list[tuple[SampledSequence, str, RenderedConversation]] = []
    for source in packed.sources:
        samples_by_row = dict(samples_by_source.pop(source.ordinal, {}))
        for row, values in packed.compared_rows[source.ordinal].items():
            where, samples = f"{source.label}: row {row}", samples_by_row.pop(row)
            conversation = read_conversation(values, plan.fields, plan.choices)
            rendered = conversation if isinstance(conversation, Refusal) else used_part(renderer.render(conversation))
            if isinstance(rendered, Refusal):
                yield f"{where} is packed, but is not a conversation: {rendered}"
                continue
            for sample in samples:
                index = int(packed.origins[sample.number, 2])
                if index < len(rendered.sequences):
                    sequence = RenderedConversation((rendered.sequences[index],), rendered.mark)
                    comparisons.append((sample, f"{where}, sequence {index}", sequence))
                else:
                    yield f"{where}: has no sequence {index}"
        for row in sorted(samples_by_row):
            yield f"{source.label}: row {row} is packed, but does not exist in the source"
    for ordinal in sorted(samples_by_source):
        yield f"{ORIGINS} lists source {ordinal}, which this shard does not have"
    yield from _not_the_same(packed, comparisons)


def _not_the_same(packed: OpenedShard, again: list[tuple[SampledSequence, str, RenderedConversation]]) -> Iterator[str]:
    """The sequences that are encoded again in another way than they are packed, a few of them by the reference. Each
    comes with its place and what the template makes of it."""
    certificate = refused_outright(packed.bundle, "text", "tokenizers", "a check encodes with the reference")
    reference = ChatEncoder(packed.bundle, CertifiedEncoder(packed.bundle, "text", certificate), packed.plan.structure)
    try:
        _, engine, _ = load_tools(packed.plan)
    except CertificateError:  # the engine is another one than was certified: `engine_certificate` says so
        engine = reference
    few = [sample for sample in again if sample[0].number in packed.by_reference]
    for encoder, samples in ((reference, few), (engine, again)):
        yield from _not_as_encoded(packed, encoder, samples)


def _not_as_encoded(
    packed: OpenedShard, encoder: ChatEncoder, again: list[tuple[SampledSequence, str, RenderedConversation]]
) -> Iterator[str]:
    encoded = encoder.encode([rendered for *_, rendered in again])
    limit = min(packed.plan.max_doc_tokens or packed.plan.pack_size, packed.plan.pack_size)
    bounds = pairwise(encoded.offsets.tolist())
    for (sample, where, _), (start, end) in zip(again, bounds, strict=True):
        # cut as in the spool; with `too_long: drop` nothing longer was packed
        stop = min(end, start + limit)
        mask = label_aligned(encoded.trained[start:stop], np.array([0, stop - start]))
        pairs = (("ids", encoded.tokens[start:stop], sample.tokens), ("loss mask", mask, sample.mask))
        for what, encoded_part, packed_as in pairs:
            if not np.array_equal(encoded_part, packed_as):
                yield f"{where}: its {what} differ from those in row {sample.row} of {PACKED}"


_BEGINNING = 40
"""Characters by which the beginning of an answer is recognized."""
_TAGS = ("<think>", "</think>", "<tool_call>")


def answers_in_loss(packed: OpenedShard) -> Finding:
    """The trained parts of sampled sequences are answers of their source rows, found only by their text.

    Messages name files and rows, never text.
    """
    if packed.facts.empty:
        return Finding(passed=True, summary="The shard is empty: nothing to compare.")
    comparison = _Comparison(packed.plan, packed.bundle)
    defects: list[str] = []
    for source in packed.sources:
        samples = packed.compared_by_row.get(source.ordinal, {})
        for row, values in packed.compared_rows[source.ordinal].items():
            for sample in samples[row]:
                defects_of_sample = comparison.wrong(values, sample)
                defects += [f"{packed.name}: {source.label}: row {row}: {defect}" for defect in defects_of_sample]
    return verdict(
        defects,
        f"{count_of(comparison.compared, 'trained answer matches', 'trained answers match')} their source rows; "
        f"{comparison.others} have no text of their own to compare.",
        "The template writes answers differently from its generation prompt. Correct it, or look at the text shown by "
        "`sampled_sequences_trained`",
        facts={"compared": comparison.compared, "not_compared": comparison.others},
    )


@dataclass(frozen=True)
class _Answer:
    """The text of one answer. `first` are texts with which it may begin."""

    first: tuple[str, ...]
    whole: str
    calls: bool


class _Comparison:
    """Compares sequences with their rows, and counts."""

    def __init__(self, plan: ChatPlan, bundle: TokenizerBundle) -> None:
        self._plan, self._bundle = plan, bundle
        flagged = replace(bundle, structure=tuple(token.content for token in plan.structure))
        self._engine = ReferenceEngine(flagged, "text")
        self.compared = self.others = 0

    def wrong(self, values: dict[str, Any], sample: SampledSequence) -> Iterator[str]:
        """A sentence for each trained run that is not an answer of the row."""
        conversation = read_conversation(values, self._plan.fields, self._plan.choices)
        if isinstance(conversation, Refusal):
            return  # reported by `round_trip`
        answers = [m for m in conversation.messages if m["role"] == "assistant" and is_trained(m)]
        is_unprompted = self._plan.choices.unprompted_header and conversation.messages[0]["role"] == "assistant"
        as_given = [_text_of(message, str.strip) for message in answers]
        given_back: list[_Answer | None] | None = None
        for start, stop in _runs(sample.mask):
            labels = sample.tokens[start:stop]
            text, is_cut = self._bundle.decode(labels), stop == len(sample.tokens) and not self._ends(labels)
            targets, is_whole = as_given, is_unprompted and start == 1  # the first token is nobody's label
            if not self._is_any(text, targets, is_cut, is_whole):
                # most tokenizers give a text back as it was, so few answers have to be encoded to know
                given_back = given_back or [_text_of(message, self._given_back) for message in answers]
                targets = given_back
            if self._is_any(text, targets, is_cut, is_whole):
                self.compared += 1
                if self._holds_several(labels):
                    yield (
                        f"the trained text from token {start} of sequence {sample.number} on continues after a stop "
                        "token"
                    )
            elif not self._plan.openings or (is_whole and is_cut) or any(s is None or s.calls for s in targets):
                self.others += 1
            else:
                yield f"the trained text from token {start} of sequence {sample.number} on is not one of its answers"

    def _given_back(self, text: str) -> str:
        """A text after encoding and decoding, because some tokenizers normalize."""
        return self._bundle.decode(self._engine.encode([text.strip()])[0]).strip() if text.strip() else ""

    def _is_any(self, text: str, answers: Sequence[_Answer | None], is_cut: bool, is_whole: bool) -> bool:
        if is_whole:  # what precedes the first of the row's answers is no other's
            answers = answers[:1]
        return any(answer is not None and self._is_answer(text, answer, is_cut, is_whole) for answer in answers)

    def _is_answer(self, text: str, said: _Answer, is_cut: bool, is_whole: bool) -> bool:
        if is_whole:
            tails = [text[position:] for beginning in said.first if (position := text.find(beginning)) >= 0]
            return any(said.whole in b or (is_cut and said.whole.startswith(b.rstrip("\ufffd"))) for b in tails)
        bodies = [text[len(o) :].lstrip() for o in self._plan.openings if text.startswith(o)]
        if is_cut:
            # the cut may go through a character of several tokens, of which the first decode to U+FFFD
            bodies = [body.rstrip("\ufffd") for body in bodies]
            return any(b[:_BEGINNING].startswith(f) or f.startswith(b) for b in bodies for f in said.first)
        begins = any(body.startswith(beginning) for body in bodies for beginning in said.first)
        return (begins or said.calls) and said.whole in text

    def _ends(self, labels: NDArray[np.int32]) -> bool:
        # what the template writes behind the stop token may be trained, too
        tail = len(self._plan.turn_end) + 1
        return bool(np.isin(labels[-tail:], [token.id for token in self._plan.stops.tokens]).any())

    def _holds_several(self, labels: NDArray[np.int32]) -> bool:
        if self._plan.choices.special_literals == "special":
            return False  # what people wrote may hold one
        # a thought or a call within an answer may end with another of the stop tokens
        return int(np.count_nonzero(labels == self._plan.stop.id)) > 1


def _text_of(message: dict[str, Any], read: Callable[[str], str]) -> _Answer | None:
    """The text of a message, after `read`; None if a template may change it."""
    texts = [message.get(key) for key in ("reasoning_content", "content")]
    if not all(text is None or isinstance(text, str) for text in texts):
        return None
    reasoning, content = (read(text or "") for text in texts)
    if not content or any(tag in content for tag in _TAGS):
        return None
    beginnings = tuple(text[:_BEGINNING] for text in (reasoning, content) if text)
    return _Answer(beginnings, content, bool(message.get("tool_calls")))


def _runs(mask: NDArray[np.uint8]) -> Iterator[tuple[int, int]]:
    """The runs of trained labels of a sequence: first token and the one after the last."""
    # shifted back from labels to tokens; the one behind them, which is not trained, ends the last run
    token_mask = np.zeros(len(mask) + 1, np.int8)
    token_mask[1:-1] = mask[:-1]
    cuts = np.flatnonzero(np.diff(token_mask, prepend=np.int8(0)))
    yield from list(pairwise(cuts.tolist()))[::2]  # beginnings and ends alternate


def open_shard(shard: SftShard) -> OpenedShard:
    """Open a shard in a worker; raises MissingArtifactError or IntegrityError if it cannot be read."""
    return OpenedShard(
        directory=shard.store.local(shard.artifact),
        receipt=shard.store.require(shard.artifact),
        sources=shard.sources,
        plan=shard.plan,
        shard=shard,
        bundle=loaded_once(shard.plan.tokenizer),
    )


def _losses_within_limit(packed: OpenedShard) -> Finding:
    return losses_within_limit(packed.receipt, packed.plan.max_loss)


PACKED_SFT_CHECKS: tuple[Check[OpenedShard], ...] = (
    FILES_INTACT,
    Check(
        "ledger_balances",
        "Rows in = conversations + rows dropped by reason, in total and per source file.",
        ledger_balances,
    ),
    Check(
        "counts_match", "Row, sequence, token and trained-token counts and the fill match the receipt.", counts_match
    ),
    Check(
        "rows_valid",
        "Rows follow the schema: increasing sequence starts from 0, a 0/1 loss mask that is 0 at each end, and at "
        "least one trained token (unless configured otherwise).",
        rows_valid,
    ),
    Check("ids_in_vocabulary", "Every token id in the file is below len(tokenizer).", ids_in_vocabulary),
    Check(
        "stop_tokens_in_loss",
        "Every trained answer includes its stop token, so the loss mask is shifted exactly once.",
        stop_tokens_in_loss,
    ),
    Check("no_repeated_special_tokens", "No special token is followed by itself.", no_repeated_special_tokens),
    losses_check(_losses_within_limit),
    Check(
        "sampled_sequences_trained",
        "Every sampled sequence has trained text (shown between ⟦ and ⟧), unless the declaration keeps sequences "
        "without it.",
        sampled_sequences_trained,
    ),
    Check(
        "round_trip",
        "Rendering, encoding and masking a sample of sequences (or all) again reproduces the stored ones.",
        round_trip,
        samples=True,
    ),
    Check(
        "answers_in_loss",
        "The trained text of sampled sequences is exactly the answers in their source rows, compared as text.",
        answers_in_loss,
    ),
)
