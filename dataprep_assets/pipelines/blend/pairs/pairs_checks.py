"""All checks of a shard of preference pairs.

The file is read once for all checks (`OpenedPairs.scan`). Rows are numbered from 0. A shard that is empty according to
its receipt has no Parquet file and passes.

`round_trip` reads sampled source rows again and encodes them with the reference engine. An error in the rendering
itself would affect both sides of this comparison. `rendering_matches` therefore renders the stored messages a second
time, independently of the first: it applies the template to the whole conversation without searching for answers, and
encodes the text with the reference engine. Two kinds of rows cannot be compared: rows in which a message contains the
text of a special token, which the reference would match, and rows in which the template writes the answer differently
than after the generation prompt. The finding counts the skipped rows.

Entry points: `PAIRS_CHECKS`, `OpenedPairs`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.artifact.losses import find_ledger_imbalance, find_unbalanced_lines, find_wrong_quarantine
from dataprep_assets.engine.checks.check import (
    EVERY_DOCUMENT,
    FILES_INTACT,
    NO_RETRACTED,
    REBUILD,
    SAMPLED,
    SHOWN,
    Check,
    Finding,
    OpenedPartition,
    build_verdict,
    require_ledger,
)
from dataprep_assets.engine.checks.scratch_rebuild import (
    choose_compared_by_content,
    find_byte_differences,
    rebuild_artifact,
)
from dataprep_assets.errors import count_of
from dataprep_assets.formats.conversations.preference_rows import SIDES, Answer, PreferenceRow, read_preferences
from dataprep_assets.formats.row_origins import ORIGINS, Origins, read_origins
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import RETRACTED
from dataprep_assets.pipelines.blend.duplicates.duplicate_rows import DuplicateRows
from dataprep_assets.pipelines.blend.pairs.encoding import PreferenceEncoder, is_plain, render_preference
from dataprep_assets.pipelines.blend.pairs.shard import (
    PAIRS_FILE,
    QUARANTINE,
    PairsFacts,
    PairsShard,
    build_pairs_shard,
)
from dataprep_assets.pipelines.blend.removal.retracted_rows import ABOUT, no_retracted_row
from dataprep_assets.pipelines.blend.screening.contamination import KeptRowSearch, describe_origin
from dataprep_assets.pipelines.blend.screening.recorded_rules import load_recorded_rules
from dataprep_assets.pipelines.blend.screening.row_rules import RowRules
from dataprep_assets.pipelines.blend.screening.row_screen import RowScreen
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan, ChatSource, load_conversation_renderer
from dataprep_assets.stream.stream_losses import build_losses_check, losses_within_limit
from dataprep_assets.tokenization.bundle import TokenizerBundle, load_cached
from dataprep_assets.tokenization.certificate import CertifiedEncoder, refuse_engine
from dataprep_assets.tokenization.chat.lost_text import find_strings
from dataprep_assets.tokenization.chat.mask import ChatEncoder
from dataprep_assets.tokenization.chat.messages import Conversation, Preference, Refusal, read_preference
from dataprep_assets.tokenization.chat.template import TemplateRenderError, compile_template, get_template_variables
from dataprep_assets.tokenization.engines import ReferenceEngine


@dataclass(kw_only=True)
class _FileScan:
    """Content of a shard's file.

    Attributes:
        counts: Counts of rows and tokens, with the names of the receipt's facts.
        longest: Length of the longest row in tokens.
        low, high: Smallest and largest token id; None without tokens.
        groups: Number of rows of each row group.
        invalid: A sentence for each defect of a row.
        equal: A sentence for each row with equal sides.
        samples: Sampled rows, by number.
    """

    counts: Counter[str] = field(default_factory=Counter)
    longest: int = 0
    low: int | None = None
    high: int | None = None
    groups: list[int] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)
    equal: list[str] = field(default_factory=list)
    samples: dict[int, PreferenceRow] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.counts["pairs"]


class OpenedPairs(OpenedPartition[PairsShard]):
    """A shard of preference pairs that is opened for checks."""

    @cached_property
    def facts(self) -> PairsFacts:
        """Facts in the shard's receipt. Raises IntegrityError if a fact is missing."""
        return PairsFacts.from_receipt(self.receipt)

    @property
    def bundle(self) -> TokenizerBundle:
        """The tokenizer with which the shard was built."""
        return load_cached(self.planned.plan.tokenizer)

    @cached_property
    def origins(self) -> Origins:
        """The ordinal of the source file and the row in it, for each row. Raises FormatError if the file is damaged."""
        return read_origins(self.directory / ORIGINS, 2)

    @property
    def kept_origins(self) -> Origins:
        """The origins of the rows; none for an empty shard, which has no file of origins."""
        return np.empty((0, 2), np.int64) if self.facts.empty else self.origins

    @property
    def sources(self) -> Sequence[ChatSource]:
        """The shard's source files."""
        return self.planned.sources

    @property
    def plan(self) -> ChatPlan:
        """The plan with which the shard was built."""
        return self.planned.plan

    def read_source(self, source: ChatSource, rows: set[int]) -> Iterator[tuple[int, Preference | Refusal]]:
        """Yield the preferences in some rows of a source file, with their row numbers."""
        plan = self.plan
        for block in source.read_rows(only=rows, as_json=plan.choices.reads_json) if rows else ():
            for number, values in zip(block.numbers, block.rows, strict=True):
                yield number, read_preference(values, plan.fields, plan.choices)

    @property
    def row_rules(self) -> RowRules | None:
        return self.plan.rules

    @property
    def duplicates(self) -> DuplicateRows | None:
        """The rows that are dropped as duplicates."""
        return self.plan.duplicates

    @property
    def screen(self) -> RowScreen | None:
        return self.planned.plan.screen

    def search_kept_rows(self, search: KeptRowSearch) -> None:
        for rows in () if self.facts.empty else read_preferences(self.directory / PAIRS_FILE):
            for row in rows:
                search.add(search.screen.select_texts(_restore_preference(row)))
        search.flush()
        labels = {source.ordinal: source.label for source in self.planned.sources}
        search.locate_leaks(lambda number: describe_origin(labels, self.origins, number))

    @property
    def is_exhaustive(self) -> bool:
        """Whether all rows are compared instead of a sample."""
        return self.planned.plan.level == EVERY_DOCUMENT

    @cached_property
    def scan(self) -> _FileScan:
        """The file's content, which is empty for an empty shard. Raises FormatError if the file cannot be read."""
        scan = _FileScan()
        if self.facts.empty:
            return scan
        total = self.facts.pairs
        sample_size = total if self.is_exhaustive else min(SAMPLED, total)
        numbers = {(total - 1) * i // max(1, sample_size - 1) for i in range(sample_size)}
        for rows in read_preferences(self.directory / PAIRS_FILE):
            scan.groups.append(len(rows))
            for row in rows:
                number = scan.rows
                _count_row(scan, row)
                scan.invalid += [f"row {number}: {defect}" for defect in _find_defects(row, self.facts.max_length)]
                if _has_equal_sides(row):
                    scan.equal.append(f"row {number}: the chosen and the rejected answer are equal")
                if number in numbers:
                    scan.samples[number] = row
        return scan


def _restore_preference(row: PreferenceRow) -> Preference:
    """Return the preference of a stored row."""
    sides = [
        None if answer is None else Conversation([*row.prompt, *answer.messages], row.tools, kwargs=dict(row.kwargs))
        for answer in (row.chosen_answer, row.rejected_answer)
    ]
    return Preference(chosen_side=sides[0], rejected_side=sides[1], prompt=len(row.prompt))


def _count_row(scan: _FileScan, row: PreferenceRow) -> None:
    """Update the counts, the maximum length and the range of ids of a scan with a row."""
    lengths = [0 if answer is None else len(answer.ids) for answer in (row.chosen_answer, row.rejected_answer)]
    is_pair = row.chosen_answer is not None and row.rejected_answer is not None
    scan.counts.update(
        pairs=1,
        labeled=not is_pair,
        plain=is_plain(row),
        tokens=row.tokens,
        prompt_tokens=len(row.prompt_ids),
        chosen_tokens=lengths[0],
        rejected_tokens=lengths[1],
        trained_tokens=sum(int((answer.mask == 1).sum()) for answer in row.answers),
        chosen_longer=is_pair and lengths[0] > lengths[1],
        rejected_longer=is_pair and lengths[0] < lengths[1],
    )
    scan.longest = max(scan.longest, row.length)
    for ids in (row.prompt_ids, *(answer.ids for answer in row.answers)):
        if len(ids):
            low, high = int(ids.min()), int(ids.max())
            scan.low = low if scan.low is None else min(scan.low, low)
            scan.high = high if scan.high is None else max(scan.high, high)


def _find_defects(row: PreferenceRow, max_length: int) -> Iterator[str]:
    """Yield the defects of a row: an empty part, an invalid mask, an answer with a wrong role, or too many tokens."""
    if not row.prompt or not len(row.prompt_ids):
        yield "the prompt is empty"
    for name in SIDES:
        answer = row.get_side(name)
        if answer is None:
            continue
        if not answer.messages or not len(answer.ids):
            yield f"the {name} answer is empty"
        elif len(answer.mask) != len(answer.ids) or not np.isin(answer.mask, (0, 1)).all():
            yield f"{name}_mask must have a 0 or 1 for each token id"
        elif not answer.mask.any():
            yield f"the {name} answer has no trained tokens"
        elif answer.messages[0].get("role") != "assistant" or answer.messages[-1].get("role") != "assistant":
            yield f"the {name} answer does not begin and end with an assistant message"
    if row.length > max_length:
        yield f"the row has {count_of(row.length, 'token')}, more than `max_length: {max_length}`"


def _has_equal_sides(row: PreferenceRow) -> bool:
    if len(row.answers) < 2:
        return False
    answer, other_answer = row.answers
    return answer.messages == other_answer.messages or np.array_equal(answer.ids, other_answer.ids)


def ledger_balances(shard: OpenedPairs) -> Finding:
    """Check that each row read is a pair or was dropped for a reason: in total, per source, and in the quarantine."""
    ledger, receipt = require_ledger(shard.receipt), shard.receipt
    lines = [source.to_json() for source in shard.facts.sources]
    dropped_count = sum(ledger.dropped.values())

    def find_defects() -> Iterator[str]:
        yield from find_ledger_imbalance(receipt)
        yield from find_unbalanced_lines(receipt, lines, "pairs")
        for name, total in (("rows_in", ledger.rows_in), ("pairs", ledger.documents), ("tokens", ledger.tokens)):
            if (source_total := sum(line[name] for line in lines)) != total:
                yield (
                    f"{shard.name}: the sum of `{name}` over the source files is {source_total:,}, but the ledger has "
                    f"{total:,}"
                )
        quarantined_count = dropped_count - ledger.dropped.get(RETRACTED, 0)
        yield from find_wrong_quarantine(receipt, shard.directory / QUARANTINE, quarantined_count)

    return build_verdict(
        find_defects(),
        f"{count_of(ledger.rows_in, 'row')} read: {count_of(ledger.documents, 'pair')} and "
        f"{count_of(dropped_count, 'dropped row')}. The counts add up for each source file.",
        REBUILD,
        facts={
            "rows_in": ledger.rows_in,
            "pairs": ledger.documents,
            "dropped": dropped_count,
            **{f"dropped_{reason}": count for reason, count in ledger.dropped.items()},
        },
    )


def counts_match(shard: OpenedPairs) -> Finding:
    """Check that the numbers of rows and tokens equal those in the receipt, and that an empty shard has no file."""
    name, facts, ledger = shard.name, shard.facts, require_ledger(shard.receipt)
    if facts.empty:
        exists = (shard.directory / PAIRS_FILE).exists()
        defects = [f"{name}: is declared empty, but {PAIRS_FILE} exists"] * exists
        return build_verdict(defects, "The shard is empty and has no file.", REBUILD)
    scan = shard.scan
    counts = {**scan.counts, "longest": scan.longest}
    defects = [
        f"{name}: `{what}` is {count} in {PAIRS_FILE}, but {getattr(facts, what)} in the receipt"
        for what, count in counts.items()
        if count != getattr(facts, what)
    ]
    if (ledger.documents, ledger.tokens) != (scan.rows, scan.counts["tokens"]):
        defects.append(
            f"{name}: the ledger has {count_of(ledger.documents, 'pair')} and {count_of(ledger.tokens, 'token')}, but "
            f"{PAIRS_FILE} has {count_of(scan.rows, 'pair')} and {count_of(scan.counts['tokens'], 'token')}"
        )
    sizes = scan.groups
    if any(size != facts.row_group_size for size in sizes[:-1]) or not 0 < sizes[-1] <= facts.row_group_size:
        defects.append(f"{name}: row groups do not have the declared size of {count_of(facts.row_group_size, 'row')}")
    return build_verdict(
        defects,
        f"{count_of(scan.rows, 'row contains', 'rows contain')} {count_of(scan.counts['tokens'], 'token')}, as in the "
        "receipt.",
        REBUILD,
        facts={"pairs": scan.rows, "tokens": scan.counts["tokens"], "trained_tokens": scan.counts["trained_tokens"]},
    )


def rows_complete(shard: OpenedPairs) -> Finding:
    """Check that no prompt and no answer is empty, that masks fit their ids, and that no pair is too long."""
    scan = shard.scan
    return build_verdict(
        (f"{shard.name}: {defect}" for defect in scan.invalid),
        f"{count_of(scan.rows, 'row has', 'rows have')} a prompt and complete answers; the longest row has "
        f"{count_of(scan.longest, 'token')}, of at most {shard.facts.max_length:,}.",
        REBUILD,
        facts={"rows": scan.rows, "tokens_of_longest_pair": scan.longest},
    )


def sides_differ(shard: OpenedPairs) -> Finding:
    """Check that the answers of every pair differ, as messages and as ids."""
    scan = shard.scan
    pairs = scan.rows - scan.counts["labeled"]
    return build_verdict(
        (f"{shard.name}: {defect}" for defect in scan.equal),
        f"The answers of {count_of(pairs, 'pair')} differ.",
        REBUILD,
        facts={"pairs": pairs},
    )


def ids_in_vocabulary(shard: OpenedPairs) -> Finding:
    """Check that every id is between 0 and `len(tokenizer) - 1`, and that the range of ids equals the ledger's."""
    ledger, scan, size = require_ledger(shard.receipt), shard.scan, shard.bundle.vocab_size
    defects = []
    if scan.low is not None and scan.high is not None and (scan.low < 0 or scan.high >= size):
        defects.append(f"{shard.name}: ids are {scan.low} to {scan.high}, but must be 0 to {size - 1}")
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


class _SecondRendering:
    """Second rendering of stored rows: each conversation as a whole, encoded with the reference engine."""

    def __init__(self, shard: OpenedPairs) -> None:
        plan, bundle = shard.planned.plan, shard.bundle
        self._plan = plan
        self._renderer = compile_template(
            plan.template, get_template_variables(bundle), plan.template_date, plan.template_kwargs
        )
        flagged = replace(bundle, structure=tuple(token.content for token in plan.structure))
        self._engine = ReferenceEngine(flagged, "match")
        self._literals = [token.content for token in (*bundle.special_tokens, *plan.structure)]

    def encode_sides(self, row: PreferenceRow) -> list[list[NDArray[np.uint32]]] | None:
        """Return the possible ids of each side with its prompt; None if the row cannot be compared.

        There are several possibilities, because the tokens at the end of the prompt depend on where the text is split.
        """
        sides = []
        for answer in row.answers:
            texts = self._render_texts(row, answer)
            if texts is None:
                return None
            sides.append([np.concatenate([self._encode(text) for text in parts]) for parts in texts])
        return sides

    def _render_texts(self, row: PreferenceRow, answer: Answer) -> list[tuple[str, ...]] | None:
        messages = [*row.prompt, *answer.messages]
        if any(
            literal in text for text in find_strings([messages, row.tools, row.kwargs]) for literal in self._literals
        ):
            return None
        conversation = Conversation(messages, row.tools, form="pairs", kwargs=dict(row.kwargs))
        thinking = conversation.has_reasoning or any("</think>" in str(m.get("content")) for m in messages)
        try:
            text = self._render(messages, row, prompt=False, thinking=thinking)
            prompts = [self._render(row.prompt, row, prompt=True, thinking=mode) for mode in (True, False)]
        except TemplateRenderError:
            return None
        splits = [(prompt, text[len(prompt) :]) for prompt in dict.fromkeys(prompts) if text.startswith(prompt)]
        return [(text,), *splits] if splits else None

    def _render(self, messages: list[dict[str, object]], row: PreferenceRow, *, prompt: bool, thinking: bool) -> str:
        applied = self._plan.form.apply_form(messages)
        return self._renderer.render(applied, row.tools, prompt=prompt, thinking=thinking, kwargs=dict(row.kwargs))

    def _encode(self, text: str) -> NDArray[np.uint32]:
        return self._engine.encode([text])[0]


def prompts_shared(shard: OpenedPairs) -> Finding:
    """Check that each side of the sampled rows begins with the prompt's ids in a second rendering."""
    rendering, compared_count, skipped_count, defects = _SecondRendering(shard), 0, 0, list[str]()
    for number, row in shard.scan.samples.items():
        if (sides := rendering.encode_sides(row)) is None:
            skipped_count += 1
            continue
        compared_count += 1
        defects += [
            f"{shard.name}: row {number}: the {name} side does not begin with the prompt's ids"
            for name, possible_ids in zip(_list_side_names(row), sides, strict=True)
            if not any(np.array_equal(ids[: len(row.prompt_ids)], row.prompt_ids) for ids in possible_ids)
        ]
    return build_verdict(
        defects,
        f"Both sides of {count_of(compared_count, 'row')} begin with the prompt's tokens; "
        f"{count_of(skipped_count, 'row')} could not be compared.",
        REBUILD,
        facts={"compared": compared_count, "not_compared": skipped_count},
    )


def rendering_matches(shard: OpenedPairs) -> Finding:
    """Check that the ids of each side of the sampled rows equal the ids of a second rendering."""
    rendering, compared_count, skipped_count, defects = _SecondRendering(shard), 0, 0, list[str]()
    for number, row in shard.scan.samples.items():
        if (sides := rendering.encode_sides(row)) is None:
            skipped_count += 1
            continue
        compared_count += 1
        for name, answer, possible_ids in zip(_list_side_names(row), row.answers, sides, strict=True):
            stored_ids = np.concatenate([row.prompt_ids, answer.ids])
            # Allow an additional stop token at the end, because the build adds one if the template does not write it.
            if not any(_is_equal_to_stop(stored_ids, ids, shard) for ids in possible_ids):
                defects.append(
                    f"{shard.name}: row {number}: the ids of the {name} side differ from the template's text"
                )
    return build_verdict(
        defects,
        f"The ids of {count_of(compared_count, 'row')} match the template's text of the messages; "
        f"{count_of(skipped_count, 'row')} could not be compared.",
        REBUILD,
        facts={"compared": compared_count, "not_compared": skipped_count},
    )


def _is_equal_to_stop(stored_ids: NDArray[np.int32], ids: NDArray[np.uint32], shard: OpenedPairs) -> bool:
    stops = shard.planned.plan.stops
    added = [token.id for token in (stops.after_answer, stops.after_call) if token is not None]
    return np.array_equal(stored_ids, ids) or (
        len(stored_ids) == len(ids) + 1 and int(stored_ids[-1]) in added and np.array_equal(stored_ids[:-1], ids)
    )


def _list_side_names(row: PreferenceRow) -> list[str]:
    return [name for name in SIDES if row.get_side(name) is not None]


def round_trip(shard: OpenedPairs) -> Finding:
    """Check that sampled rows (or all rows) equal their source rows, encoded again with the reference engine."""
    if shard.facts.empty:
        return Finding(passed=True, summary="The shard is empty: nothing to compare.")
    defects = list(islice(_find_differences(shard), SHOWN))
    if shard.is_exhaustive and not defects:

        def build(store: ArtifactStore) -> None:
            rules = load_recorded_rules(shard.plan.rules, shard.directory / QUARANTINE)
            build_pairs_shard(replace(shard.planned, store=store, plan=replace(shard.plan, rules=rules)))

        with rebuild_artifact(shard.planned.artifact, shard.planned.store, build) as folder:
            defects += find_byte_differences(
                shard.directory, folder, left_out=choose_compared_by_content(shard.receipt, {PAIRS_FILE})
            )
    compared_count = len(shard.scan.samples)
    return build_verdict(
        (f"{shard.name}: {defect}" for defect in defects),
        f"Compared {compared_count} of {count_of(shard.scan.rows, 'row')} with the source rows: all match.",
        REBUILD,
        facts={"documents": shard.scan.rows, "documents_compared": compared_count, "level": shard.planned.plan.level},
    )


def _find_differences(shard: OpenedPairs) -> Iterator[str]:
    """Yield differences between sampled rows and their source rows, encoded again with the reference engine."""
    origins, scan = shard.origins, shard.scan
    if len(origins) != scan.rows:
        yield f"{ORIGINS} has {count_of(len(origins), 'line')}, but {PAIRS_FILE} has {count_of(scan.rows, 'row')}"
        return
    if len(np.unique(origins, axis=0)) != len(origins):
        yield f"{ORIGINS} lists a source row twice"
        return
    plan, bundle = shard.planned.plan, shard.bundle
    certificate = refuse_engine(bundle, "text", "tokenizers", "a check encodes with the reference")
    encoder = PreferenceEncoder(ChatEncoder(bundle, CertifiedEncoder(bundle, "text", certificate), plan.structure))
    renderer = load_conversation_renderer(plan, bundle, is_marked=False)
    by_source: dict[int, dict[int, int]] = {}
    for number in scan.samples:
        ordinal, row = origins[number].tolist()
        by_source.setdefault(ordinal, {})[row] = number
    for source in shard.planned.sources:
        numbers = by_source.pop(source.ordinal, {})
        for row, preference in shard.read_source(source, set(numbers)):
            number, location = numbers.pop(row), f"{source.label}: row {row}"
            rendered = preference if isinstance(preference, Refusal) else render_preference(renderer, preference)
            if isinstance(rendered, Refusal):
                yield f"{location} is stored as a pair, but should have been rejected ({rendered})"
                continue
            (expected_row,) = encoder.encode([rendered])
            if parts := list(expected_row.find_differences(scan.samples[number])):
                yield f"{location}: differs from row {number} of {PAIRS_FILE} in the {' and '.join(parts)}"
        for row in sorted(numbers):
            yield f"{source.label}: row {row} is stored as a pair, but does not exist in the source"
    for ordinal in sorted(by_source):
        yield f"{ORIGINS} lists source file {ordinal}, which this shard does not have"


def _no_retracted_row(shard: OpenedPairs) -> Finding:
    plan, sources = shard.planned.plan, shard.planned.sources
    return no_retracted_row(shard.directory, shard.receipt, plan.retractions, sources, as_json=plan.choices.reads_json)


def _losses_within_limit(shard: OpenedPairs) -> Finding:
    return losses_within_limit(shard.receipt, shard.planned.plan.max_loss)


PAIRS_CHECKS: tuple[Check[OpenedPairs], ...] = (
    FILES_INTACT,
    Check(
        "ledger_balances",
        "The count of rows read equals the pairs plus the rows dropped for each reason, in total and per source file.",
        ledger_balances,
    ),
    Check("counts_match", "The row and token counts match the receipt.", counts_match),
    Check(
        "rows_complete",
        "No prompt or answer is empty, and no pair is longer than `max_length`. Every mask has a 0 or 1 for "
        "each id, and at least one 1.",
        rows_complete,
    ),
    Check("sides_differ", "The chosen and the rejected answer of every pair differ.", sides_differ),
    Check("ids_in_vocabulary", "Every token id in the file is below `len(tokenizer)`.", ids_in_vocabulary),
    build_losses_check(_losses_within_limit),
    Check(
        "prompts_shared",
        (
            "In sampled pairs (or all pairs), each side, rendered together with the prompt, begins with the "
            "prompt's tokens."
        ),
        prompts_shared,
        samples=True,
    ),
    Check(
        "rendering_matches",
        (
            "Rendering the messages of sampled pairs (or all pairs) and encoding them with the reference engine "
            "gives the stored ids."
        ),
        rendering_matches,
        samples=True,
    ),
    Check(
        "round_trip",
        "Rendering and encoding a sample of source rows (or all rows) again reproduces the stored pairs.",
        round_trip,
        samples=True,
    ),
    Check(NO_RETRACTED, ABOUT, _no_retracted_row),
)
