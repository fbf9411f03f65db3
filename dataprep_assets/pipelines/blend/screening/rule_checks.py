"""The check that the rules dropped the right rows of a shard, which computes the columns of its source rows again.

Entry points: `RULES_APPLIED`, `list_rule_checks`.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np

from dataprep_assets.bounds import report_progress
from dataprep_assets.engine.checks.check import REBUILD, Check, Finding, build_verdict
from dataprep_assets.errors import count_of
from dataprep_assets.formats.row_origins import Origins
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.screening.contamination import BATCH
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan, ChatSource
from dataprep_assets.pipelines.blend.sft.source_rows import read_quarantine
from dataprep_assets.tokenization.chat.messages import Conversation, Preference, Refusal

QUARANTINE = "quarantine.jsonl"


class RuledShard(Protocol):
    """A shard of conversations or pairs that is opened for checks."""

    @property
    def name(self) -> str: ...
    @property
    def directory(self) -> Path: ...
    @property
    def sources(self) -> Sequence[ChatSource]: ...
    @property
    def plan(self) -> ChatPlan: ...
    @property
    def kept_origins(self) -> Origins:
        """The ordinal of the source file and the row in it, for each kept row or part of it."""
        ...

    def read_source(
        self, source: ChatSource, rows: set[int]
    ) -> Iterator[tuple[int, Conversation | Preference | Refusal]]:
        """Yield some rows of a source file, with their numbers."""
        ...


def _find_wrong_decisions(shard: RuledShard, decisions: dict[str, dict[int, str | None]]) -> Iterator[str]:
    """Yield a sentence for each row whose recorded reason (None for kept rows) is not the rules' result."""
    rules = shard.plan.rules
    assert rules is not None, "only for blends with rules"
    for source in shard.sources:
        reasons_of_rows = decisions.get(source.label, {})
        rows = {row for row in reasons_of_rows if row >= source.rows.first and row < (source.rows.stop or row + 1)}
        read_rows = shard.read_source(source, set(rows))
        while batch := list(islice(read_rows, BATCH)):
            report_progress()
            readable = [(number, row) for number, row in batch if not isinstance(row, Refusal)]
            numbers = [number for number, _ in readable]
            reasons = rules.find_reasons([row for _, row in readable], source.label, numbers)
            rows -= set(numbers)
            for number, reason in zip(numbers, reasons, strict=True):
                if reason != (stored_reason := reasons_of_rows[number]):
                    mistake = _describe_mistake(stored_reason, reason)
                    yield f"{shard.name}: {source.label}: row {number} {mistake}"
        for number in sorted(rows):
            yield f"{shard.name}: {source.label}: row {number} can no longer be read from its source"


def _describe_mistake(stored_reason: str | None, reason: str | None) -> str:
    result = "no rule drops it" if reason is None else f"the rule {reason!r} drops it"
    return f"{'was kept' if stored_reason is None else f'was dropped by the rule {stored_reason!r}'}, but {result}"


def find_rule_mistakes(shard: RuledShard) -> Finding:
    """Check that the rules drop exactly the rows that were dropped by rules, among these and the kept rows."""
    names = shard.plan.rule_names
    labels = {source.ordinal: source.label for source in shard.sources}
    decisions: dict[str, dict[int, str | None]] = {label: {} for label in labels.values()}
    for ordinal, number in np.unique(shard.kept_origins[:, :2], axis=0).tolist():
        decisions.setdefault(labels.get(ordinal, f"source file {ordinal}"), {})[number] = None
    kept_count = sum(map(len, decisions.values()))
    dropped_rows = [row for row in read_quarantine(shard.directory / QUARANTINE) if row["reason"] in names]
    for row in dropped_rows:
        decisions.setdefault(row["file"], {})[row["row"]] = row["reason"]
    return build_verdict(
        _find_wrong_decisions(shard, decisions),
        f"{count_of(len(names), 'rule')}, applied again to the source rows, drop the same "
        f"{count_of(len(dropped_rows), 'row')} and keep the same {kept_count:,}.",
        REBUILD,
        facts={"kept": kept_count, "dropped": len(dropped_rows)},
    )


RULES_APPLIED: Check[RuledShard] = Check(
    "rules_applied",
    "Applying `keep` and `drop` again to the source rows keeps every row of the shard, and drops every row that a rule "
    "dropped, for the same reason.",
    find_rule_mistakes,
)


def list_rule_checks(blend: BlendDeclaration) -> tuple[Check[RuledShard], ...]:
    """Return the check of the rules if the blend declares any."""
    return (RULES_APPLIED,) if blend.keep or blend.drop else ()
