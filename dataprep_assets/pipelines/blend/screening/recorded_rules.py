"""The results of rules that a finished shard has recorded, so that a rebuild for a check has the same rows.

A rule may use a tagger that depends on time or chance. The check `rules_applied` compares the recorded results with the
rules, so other checks must not compare them again.

Entry point: `load_recorded_rules`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dataprep_assets.pipelines.blend.screening.row_rules import RowRules
from dataprep_assets.pipelines.blend.sft.source_rows import read_quarantine


@dataclass(frozen=True, kw_only=True)
class RecordedRules(RowRules):
    """Rules whose results are already known. Instances are picklable.

    Attributes:
        reasons: Source file and row number → the rule that dropped the row.
    """

    reasons: Mapping[tuple[str, int], str] = field(repr=False)

    def find_reasons(self, rows: Sequence[Any], file: str, numbers: Sequence[int]) -> list[str | None]:
        return [self.reasons.get((file, number)) for number in numbers]


def load_recorded_rules(rules: RowRules | None, quarantine: Path) -> RecordedRules | None:
    """Return the rules of a shard with the results in its quarantine file; None if it has no rules."""
    if rules is None:
        return None
    reasons = {(row["file"], row["row"]): row["reason"] for row in read_quarantine(quarantine)}
    return RecordedRules(
        keep=rules.keep,
        drop=rules.drop,
        columns=rules.columns,
        reasons={location: reason for location, reason in reasons.items() if reason in rules.names},
    )
