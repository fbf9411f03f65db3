"""The rules that drop rows of a blend before they are rendered, and the columns that the rules use.

Entry points: `RowRules`, `load_row_rules`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dataprep_assets.curation.benchmarks.decontamination import TextChoice
from dataprep_assets.curation.declaration import add_tagger_columns, parse_rules
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.screening import conversation_columns, row_texts
from dataprep_assets.pipelines.blend.screening.conversation_columns import COLUMNS, list_messages, measure_rows
from dataprep_assets.pipelines.blend.screening.row_texts import select_texts
from dataprep_assets.tokenization.chat.messages import Conversation, Preference

# Import the module only for type checking, because it loads slowly and most blends have no taggers.
if TYPE_CHECKING:
    from dataprep_assets.curation.tagging import BatchTagger


@dataclass(frozen=True, kw_only=True)
class RowRules:
    """The declared rules for the rows of a dataset. Instances are picklable.

    Attributes:
        keep: Name → expression of the rules that every kept row matches.
        drop: Name → expression of the rules that no kept row matches.
        taggers: The taggers whose columns the rules use.
        texts: Tagger → the texts of a row that it reads. Default: all.
        dataset: The dataset, which is the value of the column `source`.
        sensitive: Whether messages must not show values.
    """

    keep: Mapping[str, str]
    drop: Mapping[str, str]
    taggers: "tuple[BatchTagger, ...]"
    texts: Mapping[str, TextChoice]
    dataset: str
    sensitive: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the rules in the order of evaluation, which are the reasons for dropping rows."""
        return (*self.keep, *self.drop)

    def key_parts(self) -> dict[str, Any]:
        """Return the values that are part of a shard's key, under one name."""
        parts = {
            "version": [conversation_columns.VERSION, row_texts.VERSION],
            "keep": list(self.keep.items()),
            "drop": list(self.drop.items()),
            "taggers": [[*tagger.key_parts, self.texts.get(tagger.name, "all")] for tagger in self.taggers],
            "source": self.dataset,
        }
        return {"rules": parts}

    def find_reasons(
        self, rows: Sequence[Conversation | Preference], file: str, numbers: Sequence[int]
    ) -> list[str | None]:
        """Return the rule that drops each row; None for kept rows.

        The results do not depend on the order and the number of the rows.

        Args:
            rows: The conversations or preferences.
            file: Their source file, for messages.
            numbers: Their row numbers in the file.

        Raises TaggingError, naming the row, for a tagger that fails.
        """
        if not rows:
            return []
        # Import the modules here, because most blends have no rules.
        from dataprep_assets.curation.rules import find_dropping_rules
        from dataprep_assets.curation.table import DocumentBatch, build_table
        from dataprep_assets.curation.tagging import compute_tags

        values = measure_rows(rows, self.dataset)
        carried = {**values, "row": list(numbers)}
        for tagger in self.taggers:
            texts = [_select_text(row, self.texts.get(tagger.name, "all")) for row in rows]
            # Leave out rows without a text, whose values are null.
            good = [index for index, text in enumerate(texts) if text]
            batch = DocumentBatch(carried, good, [texts[index] for index in good], file, COLUMNS)
            if good:
                tags = compute_tags(tagger, batch, sensitive=self.sensitive)
            else:
                tags = {name: [] for name in tagger.columns}
            values |= {name: batch.expand_to_rows(column) for name, column in tags.items()}
        columns = add_tagger_columns(COLUMNS, self.taggers)
        rules = parse_rules(self.keep, self.drop, columns)
        names = self.names
        dropping = find_dropping_rules(build_table(values, columns), rules).tolist()
        return [None if number < 0 else names[number] for number in dropping]


def _select_text(row: Conversation | Preference, choice: TextChoice) -> str:
    """Return the selected texts of a row as one text, with the reasoning; empty if there are none."""
    side = row if isinstance(row, Conversation) else row.sides[0]
    # The first text is the one with the reasoning.
    return next(iter(select_texts(list_messages(row), choice, [side.tools, side.kwargs])), "")


def load_row_rules(blend: BlendDeclaration, dataset: str = "") -> RowRules | None:
    """Return the rules of a blend for the rows of a dataset; None if it has no rules."""
    if not (blend.keep or blend.drop):
        return None
    used_columns = {column for _, rule in blend.rules.values() for column in rule.columns}
    return RowRules(
        keep=blend.keep,
        drop=blend.drop,
        # Leave out the other taggers, because their columns decide nothing.
        taggers=tuple(tagger for tagger in blend.taggers if used_columns & tagger.columns.keys()),
        texts=blend.tag_text,
        dataset=dataset,
        sensitive=blend.sensitive,
    )
