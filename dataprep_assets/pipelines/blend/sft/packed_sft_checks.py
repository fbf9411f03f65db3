"""All checks of a shard of packed chat data: of its rows and of its text.

The file is read once for all checks (`OpenedShard.scan`). A row is a row of the Parquet file, and a sequence is a part
of a row. Both are numbered from 0. A shard that is empty according to its receipt has no Parquet file and passes.

`answers_in_loss` compares the loss mask with the source rows without a template. It is independent of `round_trip`,
which repeats the computation of the mask and therefore cannot find an error in the computation.

`answers_in_loss` decodes each run of trained labels in the sampled sequences. The run must begin with one of the
openings in the plan, followed by a complete answer of its row, and must contain one stop token. Answers that are marked
as not trained do not count. With `unprompted_header`, an answer that is the first message may follow any text.
Some answers are counted but not compared, because a template may change or omit their text: answers with reasoning in
their text, calls without text, and all answers of a template that rewrites its input.

Entry points: `PACKED_SFT_CHECKS`, `open_shard`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.bounds import report_progress
from dataprep_assets.engine.artifact.losses import find_ledger_imbalance, find_unbalanced_lines
from dataprep_assets.engine.checks.check import (
    EVERY_DOCUMENT,
    FILES_INTACT,
    NO_RETRACTED,
    REBUILD,
    Check,
    Finding,
    build_verdict,
    require_ledger,
)
from dataprep_assets.engine.checks.scratch_rebuild import (
    choose_compared_by_content,
    find_byte_differences,
    rebuild_artifact,
)
from dataprep_assets.errors import CertificateError, count_of
from dataprep_assets.formats.packed_rows import open_packed_file
from dataprep_assets.formats.row_origins import ORIGINS
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import RETRACTED, Ledger
from dataprep_assets.pipelines.blend.removal.retracted_rows import ABOUT, no_retracted_row
from dataprep_assets.pipelines.blend.screening.recorded_rules import load_recorded_rules
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan, load_conversation_renderer
from dataprep_assets.pipelines.blend.sft.opened_shard import OpenedShard, SampledSequence
from dataprep_assets.pipelines.blend.sft.packing import build_sft_shard
from dataprep_assets.pipelines.blend.sft.shard import PACKED, QUARANTINE, SftShard
from dataprep_assets.pipelines.blend.sft.source_rows import read_quarantine
from dataprep_assets.pipelines.blend.sft.spool import load_tools
from dataprep_assets.pipelines.blend.sft.trained_turns import CLOSE, OPEN, build_turn_table, find_runs
from dataprep_assets.stream.stream_losses import build_losses_check, losses_within_limit
from dataprep_assets.tokenization.bundle import TokenizerBundle, load_cached
from dataprep_assets.tokenization.certificate import CertifiedEncoder, refuse_engine
from dataprep_assets.tokenization.chat.mask import ChatEncoder, align_with_labels
from dataprep_assets.tokenization.chat.messages import Conversation, Refusal, is_trained
from dataprep_assets.tokenization.chat.rendering import RenderedConversation, keep_used_part
from dataprep_assets.tokenization.engines import ReferenceEngine


def ledger_balances(shard: OpenedShard) -> Finding:
    """Check that every row is a conversation or was dropped for a reason, in total and for each source.

    The quarantine must have the same counts of dropped rows, without retracted rows.
    """
    ledger = require_ledger(shard.receipt)
    return build_verdict(
        _find_ledger_defects(shard, ledger),
        f"{count_of(ledger.rows_in, 'row')} read: {count_of(ledger.documents, 'conversation')} and "
        f"{count_of(sum(ledger.dropped.values()), 'dropped row')}. The counts add up for each source file.",
        REBUILD,
        facts={
            "rows_in": ledger.rows_in,
            "conversations": ledger.documents,
            "dropped": sum(ledger.dropped.values()),
            **{f"dropped_{reason}": count for reason, count in ledger.dropped.items()},
        },
    )


def _find_ledger_defects(shard: OpenedShard, ledger: Ledger) -> Iterator[str]:
    """Yield a sentence for each count that differs between the ledger, the sources' facts and the quarantine."""
    name, sources = shard.name, shard.facts.sources
    yield from find_ledger_imbalance(shard.receipt)
    yield from find_unbalanced_lines(shard.receipt, [source.to_json() for source in sources], "conversations")
    quarantine_counts = Counter((row["file"], row["reason"]) for row in read_quarantine(shard.directory / QUARANTINE))
    source_counts: Counter[tuple[str, str]] = Counter()
    for source in sources:
        # Exclude retracted rows, which are not in the quarantine.
        counts = {(source.file, reason): n for reason, n in source.dropped.items() if reason != RETRACTED}
        source_counts.update(counts)
    for key in sorted(set(quarantine_counts) | set(source_counts)):
        if quarantine_counts[key] != source_counts[key]:
            yield (
                f"{name}: {key[0]}: {count_of(source_counts[key], 'row was', 'rows were')} dropped as {key[1]}, but "
                f"{QUARANTINE} lists {quarantine_counts[key]:,}"
            )
    for field, total in (("rows_in", ledger.rows_in), ("conversations", ledger.documents), ("tokens", ledger.tokens)):
        if (source_total := sum(getattr(source, field) for source in sources)) != total:
            yield (
                f"{name}: the sum of `{field}` over the source files is {source_total:,}, but the ledger has {total:,}"
            )


def counts_match(shard: OpenedShard) -> Finding:
    """Check that the counts of rows, sequences and tokens and the fill match the receipt.

    An empty shard must not have a file.
    """
    name, facts, ledger = shard.name, shard.facts, require_ledger(shard.receipt)
    if facts.empty:
        exists = (shard.directory / PACKED).exists()
        return build_verdict(
            [f"{name}: is declared empty, but {PACKED} exists"] * exists, "The shard is empty and has no file.", REBUILD
        )
    scan = shard.scan
    tokens, trained_tokens = scan.tokens, scan.trained
    counts = {"bins": scan.bins, "sequences": scan.sequences, "tokens": tokens, "trained_tokens": trained_tokens}
    defects = [
        f"{name}: `{fact}` is {count} in {PACKED}, but {getattr(facts, fact)} in the receipt"
        for fact, count in counts.items()
        if count != getattr(facts, fact)
    ]
    if ledger.tokens != tokens:
        defects.append(f"{name}: {PACKED} has {count_of(tokens, 'token')}, but the ledger has {ledger.tokens}")
    fill = tokens / (scan.bins * facts.pack_size) if scan.bins else 1.0
    # Allow a difference of 1e-6, because the receipt's value is rounded to six decimals.
    if abs(fill - facts.fill) > 1e-6:
        defects.append(f"{name}: rows are filled to {fill:.6f}, but the receipt has a fill of {facts.fill}")
    return build_verdict(
        defects,
        f"{count_of(scan.bins, 'row contains', 'rows contain')} {count_of(scan.sequences, 'sequence')} and "
        f"{count_of(tokens, 'token')}, of which {count_of(trained_tokens, 'is', 'are')} trained. The rows are filled "
        f"to {fill:.4f}.",
        REBUILD,
        facts={
            **counts,
            "fill": round(fill, 6),
            "trained_share": round(trained_tokens / tokens, 6) if tokens else 0.0,
        },
    )


def rows_valid(shard: OpenedShard) -> Finding:
    """Check that rows match the schema and that row groups have the declared size.

    In every row, the starts increase strictly from 0, the mask is 0 or 1, and it is 0 at the end of each sequence. No
    row is longer than the pack size. Every sequence has a trained token, unless the declaration allows otherwise.
    """
    facts = shard.facts
    if facts.empty:
        return Finding(passed=True, summary="The shard is empty.")
    max_rows, scan = facts.row_group_bins, shard.scan
    sizes, defects = scan.group_sizes, []
    if any(size != max_rows for size in sizes[:-1]) or not 0 < sizes[-1] <= max_rows:
        defects.append(
            f"{shard.name}: has row groups of {', '.join(map(str, sorted(set(sizes))))} rows, but the "
            f"declared size is {max_rows}"
        )
    defects += [f"{shard.name}: {PACKED}: {defect}" for defect in scan.defects]
    return build_verdict(
        defects,
        f"{count_of(scan.bins, 'row follows', 'rows follow')} the schema; the longest row has "
        f"{count_of(scan.longest, 'token')}, of at most {facts.pack_size}.",
        REBUILD,
        facts={"rows": scan.bins, "row_groups": len(sizes), "longest_row": scan.longest},
    )


def ids_in_vocabulary(shard: OpenedShard) -> Finding:
    """Check that every id is from 0 to `len(tokenizer) - 1`, and that the range of the ids matches the ledger."""
    ledger, scan, size = require_ledger(shard.receipt), shard.scan, shard.bundle.vocab_size
    defects = [
        f"{shard.name}: row {row} has the id {token}, but ids must be 0 to {size - 1}" for row, token in scan.beyond
    ]
    if (scan.low, scan.high) != (ledger.min_id, ledger.max_id):
        defects.append(
            f"{shard.name}: ids are {scan.low} to {scan.high}, but the ledger has {ledger.min_id} to {ledger.max_id}"
        )
    return build_verdict(
        defects,
        f"Ids are {scan.low} to {scan.high}, below the vocabulary size {size}.",
        REBUILD,
        facts={"vocab_size": str(size)},
    )


def stop_tokens_in_loss(shard: OpenedShard) -> Finding:
    """Check that every run of trained labels ends with a stop token, except in truncated sequences.

    The check fails for a mask that is not shifted or is shifted twice, because its runs do not end with the stop token.
    """
    facts, stops = shard.facts, shard.sound_scan.stops
    allowed = facts.truncated + facts.truncated_to_pack_size
    defects = [
        (
            f"{shard.name}: row {row}: the trained labels up to position {token} end with id {label}, not with a "
            f"stop token ({facts.stop_token}). This row group has {count_of(count, 'such answer')}"
        )
        for row, token, label, count in stops.wrong
    ]
    if stops.unfinished > allowed:
        defects.append(
            f"{shard.name}: {count_of(stops.unfinished, 'sequence ends', 'sequences end')} inside an answer, but "
            f"only {count_of(allowed, 'was', 'were')} truncated"
        )
    return build_verdict(
        defects,
        f"{count_of(stops.runs - stops.unfinished, 'answer ends', 'answers end')} with a stop token "
        f"({facts.stop_token}); {count_of(stops.unfinished, 'other was', 'others were')} truncated before it.",
        REBUILD,
        facts={"answers": stops.runs, "answers_without_stop_token": stops.unfinished, "truncated_sequences": allowed},
    )


def no_repeated_special_tokens(shard: OpenedShard) -> Finding:
    """Check that no special token is followed by the same token, as if template and tokenizer both added BOS or EOS.

    If special tokens are allowed in messages, repeated tokens are only counted, because a message may contain them.
    """
    scan = shard.sound_scan
    repeat_counts, first_place = scan.doubled, scan.doubled_at
    if first_place is not None and shard.plan.choices.special_literals == "special":
        return Finding(
            passed=True,
            summary=(
                f"{count_of(repeat_counts.total(), 'special token is', 'special tokens are')} repeated, which is "
                "allowed because messages may contain special tokens."
            ),
            facts={"repeated_special_tokens": repeat_counts.total()},
        )
    defects = []
    if first_place is not None:
        names = {token.id: token.content for token in shard.bundle.special_tokens}
        counts = ", ".join(
            f"{names[token]!r} {count_of(count, 'time')}" for token, count in repeat_counts.most_common()
        )
        defects.append(
            f"{shard.name}: repeated special tokens: {counts}; the first repetition is at token {first_place[1]} of "
            f"row {first_place[0]}"
        )
    return build_verdict(
        defects,
        "No special token is followed by the same token.",
        "The template writes a token twice. Correct the template",
        facts={"repeated_special_tokens": repeat_counts.total()},
    )


def sampled_sequences_trained(shard: OpenedShard) -> Finding:
    """Check that every sampled sequence has trained tokens, unless the declaration keeps sequences without them.

    The finding has a table of the trained tokens by kind of turn, with one decoded sequence of each kind.
    """
    if shard.facts.empty:
        return Finding(passed=True, summary="The shard is empty: nothing to show.")
    samples = shard.shown_sequences
    defects = [
        f"{shard.name}: row {sample.row}: sequence {sample.number} has no trained tokens"
        for sample in samples
        if not sample.mask.any() and not shard.untrained_allowed
    ]
    return build_verdict(
        defects,
        f"Decoded {count_of(len(samples), 'sequence')}; the trained text is between {OPEN} and {CLOSE}.",
        REBUILD,
        table=build_turn_table(shard),
    )


def round_trip(shard: OpenedShard) -> Finding:
    """Check that rendering, encoding and masking source rows again reproduces the sampled sequences.

    Every sequence must also have a different origin. At the level `every document`, the whole shard is rebuilt and must
    have the same rows in the same order. Messages name files and rows, but never contain text.
    """
    if shard.facts.empty:
        return Finding(passed=True, summary="The shard is empty: nothing to compare.")
    name, origins, sequences = shard.name, shard.origins, shard.facts.sequences
    defects: list[str] = []
    if len(origins) != sequences:
        defects.append(
            f"{name}: {ORIGINS} has {count_of(len(origins), 'line')}, but the receipt has "
            f"{count_of(sequences, 'sequence')}"
        )
    elif len(np.unique(origins, axis=0)) != len(origins):
        defects.append(f"{name}: {ORIGINS} lists a sequence of a conversation twice")
    else:
        defects += _find_differences(shard)
    is_exhaustive = shard.plan.level == EVERY_DOCUMENT
    if is_exhaustive and not defects:
        defects += find_rebuild_differences(shard)
    compared_count = sequences if is_exhaustive else min(shard.compared, len(origins))
    return build_verdict(
        [f"{name}: {d}" if not d.startswith(name) else d for d in defects],
        f"Compared {compared_count} of {count_of(len(origins), 'sequence')} with the source rows: all match.",
        REBUILD,
        facts={"documents": len(origins), "documents_compared": compared_count, "level": shard.plan.level},
    )


def find_rebuild_differences(opened_shard: OpenedShard) -> Iterator[str]:
    """Rebuild the shard from its sources; yield the differences in its rows, origins and quarantine."""
    if opened_shard.shard is None:
        raise ValueError("a shard must be rebuilt as a whole")
    shard = opened_shard.shard

    def build(store: ArtifactStore) -> None:
        rules = load_recorded_rules(shard.plan.rules, opened_shard.directory / QUARANTINE)
        build_sft_shard(replace(shard, store=store, plan=replace(shard.plan, rules=rules)), "full", None)

    with rebuild_artifact(shard.artifact, shard.store, build) as folder:
        # Compare rows as arrays, because different library versions may write the same rows as different bytes.
        for number, (stored_group, rebuilt_group) in enumerate(
            zip_longest(open_packed_file(opened_shard.directory / PACKED), open_packed_file(folder / PACKED)), 1
        ):
            report_progress()
            if stored_group is None or rebuilt_group is None or not stored_group.equals(rebuilt_group):
                yield f"row group {number} of {PACKED} differs from a rebuild from the sources"
                break
        yield from find_byte_differences(
            opened_shard.directory, folder, left_out=choose_compared_by_content(opened_shard.receipt, {PACKED})
        )


def _find_differences(shard: OpenedShard) -> Iterator[str]:
    """Yield the differences between sampled sequences and their source rows, which are rendered and encoded again."""
    plan, samples_by_source = shard.plan, dict(shard.compared_by_row)
    renderer = load_conversation_renderer(plan, shard.bundle)
    comparisons: list[tuple[SampledSequence, str, RenderedConversation]] = []
    for source in shard.sources:
        samples_by_row = dict(samples_by_source.pop(source.ordinal, {}))
        for row, conversation in shard.compared_conversations[source.ordinal].items():
            location, samples = f"{source.label}: row {row}", samples_by_row.pop(row)
            rendered = (
                conversation if isinstance(conversation, Refusal) else keep_used_part(renderer.render(conversation))
            )
            if isinstance(rendered, Refusal):
                yield f"{location} is packed, but should have been rejected ({rendered})"
                continue
            for sample in samples:
                index = int(shard.origins[sample.number, 2])
                if index < len(rendered.sequences):
                    sequence = RenderedConversation((rendered.sequences[index],), rendered.mark)
                    comparisons.append((sample, f"{location}, sequence {index}", sequence))
                else:
                    yield (
                        f"{location}: sequence {index} (counted from 0) is packed, but the row has only "
                        f"{count_of(len(rendered.sequences), 'sequence')}"
                    )
        for row in sorted(samples_by_row):
            yield f"{source.label}: row {row} is packed, but does not exist in the source"
    for ordinal in sorted(samples_by_source):
        yield f"{ORIGINS} lists source file {ordinal}, which this shard does not have"
    yield from _find_encoding_differences(shard, comparisons)


def _find_encoding_differences(
    shard: OpenedShard, samples: list[tuple[SampledSequence, str, RenderedConversation]]
) -> Iterator[str]:
    """Encode samples again, and a few of them also with the reference engine; yield differences from the packed ids.

    Each sample is a packed sequence, its location and its new rendering.
    """
    certificate = refuse_engine(shard.bundle, "text", "tokenizers", "a check encodes with the reference")
    reference = ChatEncoder(shard.bundle, CertifiedEncoder(shard.bundle, "text", certificate), shard.plan.structure)
    try:
        _, engine, _ = load_tools(shard.plan)
    except CertificateError:
        # Use the reference instead, because `engine_certificate` already reports that the engine has changed.
        engine = reference
    reference_samples = [sample for sample in samples if sample[0].number in shard.reference_numbers]
    for encoder, encoder_samples in ((reference, reference_samples), (engine, samples)):
        yield from _find_encoder_differences(shard, encoder, encoder_samples)


def _find_encoder_differences(
    shard: OpenedShard, encoder: ChatEncoder, samples: list[tuple[SampledSequence, str, RenderedConversation]]
) -> Iterator[str]:
    encoded = encoder.encode([rendered for *_, rendered in samples])
    limit = min(shard.plan.max_doc_tokens or shard.plan.pack_size, shard.plan.pack_size)
    bounds = pairwise(encoded.offsets.tolist())
    for (sample, location, _), (start, end) in zip(samples, bounds, strict=True):
        # Truncate as the spool does. With `too_long: drop`, longer sequences are not packed, so they are not samples.
        stop = min(end, start + limit)
        mask = align_with_labels(encoded.trained[start:stop], np.array([0, stop - start]))
        pairs = (("ids differ", encoded.tokens[start:stop], sample.tokens), ("loss mask differs", mask, sample.mask))
        for difference, encoded_part, packed_part in pairs:
            if not np.array_equal(encoded_part, packed_part):
                yield f"{location}: its {difference} from row {sample.row} of {PACKED}"


_BEGINNING = 40
"""Number of characters that identify the beginning of an answer."""
_TAGS = ("<think>", "</think>", "<tool_call>")


def answers_in_loss(shard: OpenedShard) -> Finding:
    """Check that the trained parts of sampled sequences are answers of their source rows, by comparing only their text.

    Messages name files and rows, but never contain text.
    """
    if shard.facts.empty:
        return Finding(passed=True, summary="The shard is empty: nothing to compare.")
    comparison = _AnswerComparison(shard.plan, shard.bundle)
    defects: list[str] = []
    for source in shard.sources:
        samples = shard.compared_by_row.get(source.ordinal, {})
        for row, conversation in shard.compared_conversations[source.ordinal].items():
            if isinstance(conversation, Refusal):
                continue  # `round_trip` reports a row that is not a conversation
            for sample in samples[row]:
                defects_of_sample = comparison.find_defects(conversation, sample)
                defects += [f"{shard.name}: {source.label}: row {row}: {defect}" for defect in defects_of_sample]
    return build_verdict(
        defects,
        f"Compared {count_of(comparison.compared, 'trained answer')} with the source rows: all match; "
        f"{count_of(comparison.others, 'other answer')} could not be compared by text.",
        "The template writes answers differently from its generation prompt. Correct it, or look at the text shown by "
        "`sampled_sequences_trained`",
        facts={"compared": comparison.compared, "not_compared": comparison.others},
    )


@dataclass(frozen=True)
class _Answer:
    """The text of an answer. `first` are the texts with which it may begin; `calls` is True if it has tool calls."""

    first: tuple[str, ...]
    whole: str
    calls: bool


class _AnswerComparison:
    """Comparison of sequences with their source rows.

    `compared` is the number of trained runs that were compared, and `others` is the number of other trained runs.
    """

    def __init__(self, plan: ChatPlan, bundle: TokenizerBundle) -> None:
        self._plan, self._bundle = plan, bundle
        self.compared = self.others = 0

    @cached_property
    def _engine(self) -> ReferenceEngine:
        return ReferenceEngine(
            replace(self._bundle, structure=tuple(token.content for token in self._plan.structure)), "text"
        )

    def find_defects(self, conversation: Conversation, sample: SampledSequence) -> Iterator[str]:
        """Yield a sentence for each trained run that is not an answer of the conversation."""
        answers = [m for m in conversation.messages if m["role"] == "assistant" and is_trained(m)]
        is_unprompted = self._plan.choices.unprompted_header and conversation.messages[0]["role"] == "assistant"
        stripped_answers = [_read_answer(message, str.strip) for message in answers]
        decoded_answers: list[_Answer | None] | None = None
        for start, stop in find_runs(sample.mask):
            labels = sample.tokens[start:stop]
            text, is_cut = self._bundle.decode(labels), stop == len(sample.tokens) and not self._has_stop_at_end(labels)
            # A run from token 1 includes the beginning of the sequence, because the first token is never a label.
            targets, is_whole = stripped_answers, is_unprompted and start == 1
            if not self._is_any(text, targets, is_cut, is_whole):
                # Encode and decode the answers only if necessary, because encoding is slow, and most tokenizers do not
                # change a text.
                decoded_answers = decoded_answers or [
                    _read_answer(message, self._decode_encoded) for message in answers
                ]
                targets = decoded_answers
            if self._is_any(text, targets, is_cut, is_whole):
                self.compared += 1
                if self._has_too_many_stops(labels, sum(t is not None and t.whole in text for t in targets)):
                    yield (
                        f"the trained text from token {start} of sequence {sample.number} continues after a stop token"
                    )
            elif not self._plan.openings or (is_whole and is_cut) or any(s is None or s.calls for s in targets):
                self.others += 1
            else:
                yield f"the trained text from token {start} of sequence {sample.number} is not an answer of the row"

    def _decode_encoded(self, text: str) -> str:
        """Return a text after encoding and decoding, because some tokenizers normalize texts."""
        return self._bundle.decode(self._engine.encode([text.strip()])[0]).strip() if text.strip() else ""

    def _is_any(self, text: str, answers: Sequence[_Answer | None], is_cut: bool, is_whole: bool) -> bool:
        if is_whole:
            # Only the first answer of a row can be trained together with the text before it.
            answers = answers[:1]
        return any(answer is not None and self._is_answer(text, answer, is_cut, is_whole) for answer in answers)

    def _is_answer(self, text: str, answer: _Answer, is_cut: bool, is_whole: bool) -> bool:
        if is_whole:
            tails = [text[position:] for beginning in answer.first if (position := text.find(beginning)) >= 0]
            return any(answer.whole in b or (is_cut and answer.whole.startswith(b.rstrip("\ufffd"))) for b in tails)
        bodies = [text[len(o) :].lstrip() for o in self._plan.openings if text.startswith(o)]
        if is_cut:
            # Remove a final U+FFFD, which replaces a character whose last tokens were truncated.
            bodies = [body.rstrip("\ufffd") for body in bodies]
            return any(b[:_BEGINNING].startswith(f) or f.startswith(b) for b in bodies for f in answer.first)
        begins = any(body.startswith(beginning) for body in bodies for beginning in answer.first)
        return (begins or answer.calls) and answer.whole in text

    def _has_stop_at_end(self, labels: NDArray[np.int32]) -> bool:
        # Also search before the last token, because text after the stop token may be trained (`turn_end`).
        tail = len(self._plan.turn_end) + 1
        return bool(np.isin(labels[-tail:], [token.id for token in self._plan.stops.tokens]).any())

    def _has_too_many_stops(self, labels: NDArray[np.int32], answers: int) -> bool:
        if self._plan.choices.special_literals == "special":
            return False  # a message may itself contain a stop token
        # Count only the stop token of answers without calls, because reasoning or a call in an answer may end with a
        # different stop token. Allow one stop token per answer, because consecutive answers are one trained text if the
        # template marks their headers.
        return int(np.count_nonzero(labels == self._plan.stop.id)) > max(1, answers)


def _read_answer(message: dict[str, Any], read_text: Callable[[str], str]) -> _Answer | None:
    """Return the text of a message, to which `read_text` is applied; None if a template may change the text."""
    texts = [message.get(key) for key in ("reasoning_content", "content")]
    if not all(text is None or isinstance(text, str) for text in texts):
        return None
    reasoning, content = (read_text(text or "") for text in texts)
    if not content or any(tag in content for tag in _TAGS):
        return None
    beginnings = tuple(text[:_BEGINNING] for text in (reasoning, content) if text)
    return _Answer(beginnings, content, bool(message.get("tool_calls")))


def open_shard(shard: SftShard) -> OpenedShard:
    """Return a shard that is opened for checks, in a worker.

    Raises MissingArtifactError or IntegrityError if the shard cannot be read.
    """
    return OpenedShard(
        directory=shard.store.local(shard.artifact),
        receipt=shard.store.require(shard.artifact),
        sources=shard.sources,
        plan=shard.plan,
        shard=shard,
        bundle=load_cached(shard.plan.tokenizer),
    )


def _losses_within_limit(shard: OpenedShard) -> Finding:
    return losses_within_limit(shard.receipt, shard.plan.max_loss)


def _no_retracted_row(shard: OpenedShard) -> Finding:
    plan = shard.plan
    return no_retracted_row(
        shard.directory, shard.receipt, plan.retractions, shard.sources, as_json=plan.choices.reads_json
    )


PACKED_SFT_CHECKS: tuple[Check[OpenedShard], ...] = (
    FILES_INTACT,
    Check(
        "ledger_balances",
        "The count of rows read equals the conversations plus the rows dropped for each reason, in total and per "
        "source file.",
        ledger_balances,
    ),
    Check(
        "counts_match",
        ("The row, sequence, token and trained-token counts, and the fill rate of the rows, match the receipt."),
        counts_match,
    ),
    Check(
        "rows_valid",
        "In every row, the sequence starts increase from 0. The loss mask contains only 0 and 1, and is 0 at the end "
        "of each sequence. Every sequence has a trained token, unless configured otherwise.",
        rows_valid,
    ),
    Check("ids_in_vocabulary", "Every token id in the file is below `len(tokenizer)`.", ids_in_vocabulary),
    Check(
        "stop_tokens_in_loss",
        "Every trained answer includes its stop token, so the loss mask is shifted exactly once.",
        stop_tokens_in_loss,
    ),
    Check(
        "no_repeated_special_tokens",
        "No special token is followed by the same token, unless messages may contain special tokens.",
        no_repeated_special_tokens,
    ),
    build_losses_check(_losses_within_limit),
    Check(
        "sampled_sequences_trained",
        "Every sampled sequence has trained text, unless configured otherwise. The result shows it between ⟦ and ⟧.",
        sampled_sequences_trained,
        version=2,
    ),
    Check(
        "round_trip",
        "Rendering, encoding and masking a sample of sequences (or all sequences) again reproduces them.",
        round_trip,
        samples=True,
    ),
    Check(
        "answers_in_loss",
        "The trained text of sampled sequences is exactly the answers in their source rows, compared as text.",
        answers_in_loss,
    ),
    Check(NO_RETRACTED, ABOUT, _no_retracted_row),
)
