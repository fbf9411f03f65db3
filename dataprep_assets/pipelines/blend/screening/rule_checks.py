"""The check that the rules dropped the right rows of a shard, which computes the columns of its source rows again.

Entry points: `RULES_APPLIED`, `list_rule_checks`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dataprep_assets.bounds import report_progress
from dataprep_assets.engine.checks.check import REBUILD, UNREPEATABLE, Check, Finding, build_verdict
from dataprep_assets.errors import count_of
from dataprep_assets.formats.row_origins import Origins
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.screening.contamination import BATCH
from dataprep_assets.pipelines.blend.screening.row_rules import Row, RowRules
from dataprep_assets.pipelines.blend.sft.source_rows import read_quarantine
from dataprep_assets.sources.readers.read_options import RowRange
from dataprep_assets.stream.token_stream import SourcePart
from dataprep_assets.tokenization.chat.messages import Refusal

QUARANTINE = "quarantine.jsonl"


class LocatedShard(Protocol):
    """A shard of conversations, pairs or records that is opened for checks, with the origins of its rows."""

    @property
    def name(self) -> str: ...
    @property
    def directory(self) -> Path: ...
    @property
    def sources(self) -> Sequence[SourcePart]: ...
    @property
    def kept_origins(self) -> Origins:
        """The ordinal of the source file and the row in it, for each kept row or part of it."""
        ...


class RuledShard(LocatedShard, Protocol):
    """A shard with rules for its rows."""

    @property
    def row_rules(self) -> RowRules | None:
        """The declared rules."""
        ...

    def read_source(self, source: Any, rows: set[int]) -> Iterator[tuple[int, Row | Refusal]]:
        """Yield some rows of a source file, with their numbers."""
        ...


@dataclass(frozen=True)
class _Mistake:
    """A row whose recorded reason is not the rules' result; whether it may be due to a tagger that varies."""

    sentence: str
    may_be_chance: bool = False


def _find_wrong_decisions(shard: RuledShard, decisions: dict[str, dict[int, str | None]]) -> Iterator[_Mistake]:
    """Yield each row whose recorded reason (None for kept rows) is not the rules' result."""
    rules = shard.row_rules
    assert rules is not None, "only for blends with rules"
    unread = {label: set(reasons_of_rows) for label, reasons_of_rows in decisions.items()}
    for source in shard.sources:
        reasons_of_rows = decisions.get(source.label, {})
        range_ = source.rows or RowRange()
        rows = {row for row in reasons_of_rows if row >= range_.first and row < (range_.stop or row + 1)}
        unread[source.label] -= rows
        read_rows = shard.read_source(source, set(rows))
        while batch := list(islice(read_rows, BATCH)):
            report_progress()
            readable = {number: row for number, row in batch if not isinstance(row, Refusal)}
            rows -= readable.keys()
            reasons = rules.find_reasons([*readable.values()], source.label, [*readable])
            results = {n: reason for n, reason in zip(readable, reasons, strict=True) if reason != reasons_of_rows[n]}
            wrong_rows = [readable[number] for number in results]
            sure_reasons = rules.repeatable.find_reasons(wrong_rows, source.label, [*results])
            for (number, reason), sure_reason in zip(results.items(), sure_reasons, strict=True):
                stored_reason = reasons_of_rows[number]
                yield _Mistake(
                    f"{shard.name}: {source.label}: row {number} {_describe_mistake(stored_reason, reason)}",
                    may_be_chance(rules, stored_reason, sure_reason),
                )
        for number in sorted(rows):
            yield _Mistake(f"{shard.name}: {source.label}: row {number} can no longer be read from its source")
    for label, numbers in unread.items():
        for number in sorted(numbers):
            yield _Mistake(f"{shard.name}: {label}: row {number} is not in the sources of the shard")


def may_be_chance(rules: RowRules, stored_reason: str | None, sure_reason: str | None) -> bool:
    """Return whether the rules may have had a recorded result.

    `sure_reason` is the result of only the rules without chance, which no other rule can turn into a kept row.
    """
    if stored_reason == sure_reason:
        return True
    if stored_reason is None or stored_reason in rules.repeatable.names:
        return False
    return sure_reason is None or rules.names.index(stored_reason) < rules.names.index(sure_reason)


def _describe_mistake(stored_reason: str | None, reason: str | None) -> str:
    result = "no rule drops it" if reason is None else f"the rule {reason!r} drops it"
    return f"{'was kept' if stored_reason is None else f'was dropped by the rule {stored_reason!r}'}, but {result}"


def find_rule_mistakes(shard: RuledShard) -> Finding:
    """Check that the rules drop exactly the rows that were dropped by rules, among these and the kept rows."""
    names = () if shard.row_rules is None else shard.row_rules.names
    labels = {source.ordinal: source.label for source in shard.sources}
    decisions: dict[str, dict[int, str | None]] = {label: {} for label in labels.values()}
    for ordinal, number in np.unique(shard.kept_origins[:, :2], axis=0).tolist():
        decisions.setdefault(labels.get(ordinal, f"source file {ordinal}"), {})[number] = None
    kept_count = sum(map(len, decisions.values()))
    dropped_rows = [row for row in read_quarantine(shard.directory / QUARANTINE) if row["reason"] in names]
    for row in dropped_rows:
        decisions.setdefault(row["file"], {})[row["row"]] = row["reason"]
    # List the rows last whose result may be due to chance.
    mistakes = sorted(_find_wrong_decisions(shard, decisions), key=lambda mistake: mistake.may_be_chance)
    is_chance = bool(mistakes) and mistakes[0].may_be_chance
    return build_verdict(
        (mistake.sentence for mistake in mistakes),
        f"{count_of(len(names), 'rule')}, applied again to the source rows, drop the same "
        f"{count_of(len(dropped_rows), 'row')} and keep the same {kept_count:,}.",
        UNREPEATABLE if is_chance else REBUILD,
        facts={"kept": kept_count, "dropped": len(dropped_rows)},
        warning=is_chance,
    )


RULES_APPLIED: Check[RuledShard] = Check(
    "rules_applied",
    "Applying `keep` and `drop` again to the source rows keeps every row of the shard, and drops every row that a rule "
    "dropped, for the same reason.",
    find_rule_mistakes,
    version=2,
)


def list_rule_checks(blend: BlendDeclaration) -> tuple[Check[RuledShard], ...]:
    """Return the check of the rules if the blend declares any."""
    return (RULES_APPLIED,) if blend.keep or blend.drop else ()
