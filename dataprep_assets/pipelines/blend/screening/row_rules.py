"""The rules that drop rows of a blend before they are rendered, and the columns that the rules use.

Entry points: `RowColumns`, `load_row_columns`, `build_row_preparation`; `RowRules`, `load_row_rules`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dataprep_assets.curation.benchmarks.decontamination import TextChoice
from dataprep_assets.curation.declaration import RuleText, add_tagger_columns, parse_rules
from dataprep_assets.curation.table import COLUMN_DESCRIPTIONS as TABLE_DESCRIPTIONS
from dataprep_assets.curation.table import Columns
from dataprep_assets.curation.tagging import describe_tagger_columns
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.rl.record_parts import PartPaths
from dataprep_assets.pipelines.blend.screening import conversation_columns, row_texts
from dataprep_assets.pipelines.blend.screening.conversation_columns import (
    COLUMN_DESCRIPTIONS,
    COLUMNS,
    measure_rows,
    select_text,
)
from dataprep_assets.tokenization.chat.messages import Conversation, Preference

# Import the modules only for type checking, because they load slowly and most blends have no taggers.
if TYPE_CHECKING:
    import pyarrow as pa

    from dataprep_assets.curation.rules import Rule
    from dataprep_assets.curation.tagging import BatchTagger

Row = Conversation | Preference | dict[str, Any]
"""A conversation, a preference or an RL record."""


@dataclass(frozen=True, kw_only=True)
class RowColumns:
    """The columns of the rows of a dataset. Instances are picklable.

    Attributes:
        taggers: The taggers, in the order of their columns.
        texts: Tagger → the texts of a row that it reads. Default: all.
        dataset: The dataset, which is the value of the column `source`.
        sensitive: Whether messages must not show values.
        paths: Locations of the prompt and the expected answer in RL records; None for other stages.
    """

    taggers: "tuple[BatchTagger, ...]"
    texts: Mapping[str, TextChoice]
    dataset: str
    sensitive: bool
    paths: PartPaths | None = None

    @property
    def types(self) -> Columns:
        """Name → type of the columns, in order."""
        return add_tagger_columns(COLUMNS, self.taggers)

    @property
    def descriptions(self) -> dict[str, str]:
        """Column of the document table → a sentence about it."""
        return {**TABLE_DESCRIPTIONS, **COLUMN_DESCRIPTIONS, **describe_tagger_columns(self.taggers)}

    @property
    def unrepeatable(self) -> frozenset[str]:
        """Names of the columns whose taggers may return different values for the same row."""
        return frozenset(name for tagger in self.taggers if not tagger.repeats for name in tagger.columns)

    def key_parts(self) -> dict[str, Any]:
        """Return the values that determine the columns, in addition to the rows."""
        return {
            "version": [conversation_columns.VERSION, row_texts.VERSION],
            "taggers": [[*tagger.key_parts, self.texts.get(tagger.name, "all")] for tagger in self.taggers],
            "source": self.dataset,
            **({} if self.paths is None else {"prompt": self.paths.prompt, "answer": self.paths.answer}),
        }

    def read(self, row: Row) -> Conversation | Preference:
        """Return a row, or an RL record as a conversation."""
        if not isinstance(row, dict):
            return row
        assert self.paths is not None, "only RL has records"
        return row_texts.read_record(row, self.paths)

    def compute(self, rows: Sequence[Row], file: str, numbers: Sequence[int]) -> "pa.Table":
        """Return the columns of some rows, which do not depend on the order and the number of the rows.

        Args:
            rows: The rows.
            file: Their source file, for messages.
            numbers: Their row numbers in the file.

        Raises TaggingError, naming the row, for a tagger that fails.
        """
        # Import the modules here, because most blends have no columns.
        from dataprep_assets.curation.table import DocumentBatch, build_table
        from dataprep_assets.curation.tagging import compute_tags

        contents = [self.read(row) for row in rows]
        values = measure_rows(contents, self.dataset)
        carried = {**values, "row": list(numbers)}
        for tagger in self.taggers:
            texts = [select_text(content, self.texts.get(tagger.name, "all")) for content in contents]
            # Leave out rows without a text, whose values are null.
            good = [index for index, text in enumerate(texts) if text]
            batch = DocumentBatch(carried, good, [texts[index] for index in good], file, COLUMNS)
            if good:
                tags = compute_tags(tagger, batch, sensitive=self.sensitive)
            else:
                tags = {name: [] for name in tagger.columns}
            values |= {name: batch.expand_to_rows(column) for name, column in tags.items()}
        return build_table(values, self.types)


def load_row_columns(blend: BlendDeclaration, dataset: str = "") -> RowColumns:
    """Return the columns of the rows of a dataset, with all declared taggers."""
    return RowColumns(
        taggers=tuple(blend.taggers),
        texts=blend.tag_text,
        dataset=dataset,
        sensitive=blend.sensitive,
        paths=PartPaths.from_options(blend.rl_options) if blend.stage == "rl" else None,
    )


def build_row_preparation(blend: BlendDeclaration) -> Callable[[], object] | None:
    """Return a function that loads what all declared taggers need, so that workers share it; None without taggers."""
    if not blend.tag:
        return None
    # Import the module here, because most blends have no taggers.
    from dataprep_assets.curation.tagging import build_preparation

    return build_preparation(blend.taggers)


@dataclass(frozen=True, kw_only=True)
class RowRules:
    """The declared rules for the rows of a dataset. Instances are picklable.

    Attributes:
        keep: Name → expression of the rules that every kept row matches.
        drop: Name → expression of the rules that no kept row matches.
        columns: The columns that the rules may use.
    """

    keep: Mapping[str, RuleText]
    drop: Mapping[str, RuleText]
    columns: RowColumns

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the rules in the order of evaluation, which are the reasons for dropping rows."""
        return (*self.keep, *self.drop)

    @property
    def repeatable(self) -> "RowRules":
        """The rules whose result for a row is always the same."""
        unrepeatable = self.columns.unrepeatable
        names = {name for name, (_, rule) in self._parse().items() if not rule.columns & unrepeatable}
        keep, drop = ({name: text for name, text in rules.items() if name in names} for rules in (self.keep, self.drop))
        return replace(self, keep=keep, drop=drop)

    def key_parts(self) -> dict[str, Any]:
        """Return the values that are part of a shard's key, under one name."""
        rules = {"keep": list(self.keep.items()), "drop": list(self.drop.items())}
        return {"rules": {**rules, **self.columns.key_parts()}}

    def find_reasons(self, rows: Sequence[Row], file: str, numbers: Sequence[int]) -> list[str | None]:
        """Return the rule that drops each row; None for kept rows. The arguments are the same as for `compute`."""
        if not rows or not self.names:
            return [None] * len(rows)
        # Import the module here, because most blends have no rules.
        from dataprep_assets.curation.rules import find_dropping_rules

        names, table = self.names, self.columns.compute(rows, file, numbers)
        numbers_of_rules = find_dropping_rules(table, self._parse()).tolist()
        return [None if number < 0 else names[number] for number in numbers_of_rules]

    def _parse(self) -> "dict[str, tuple[bool, Rule]]":
        return parse_rules(self.keep, self.drop, self.columns.types)


def load_row_rules(blend: BlendDeclaration, dataset: str = "") -> RowRules | None:
    """Return the rules of a blend for the rows of a dataset; None if it has no rules."""
    if not (blend.keep or blend.drop):
        return None
    columns = load_row_columns(blend, dataset)
    used_columns = {column for _, rule in blend.rules.values() for column in rule.columns}
    # Leave out the other taggers, because their columns decide nothing.
    taggers = tuple(tagger for tagger in columns.taggers if used_columns & tagger.columns.keys())
    return RowRules(keep=blend.keep, drop=blend.drop, columns=replace(columns, taggers=taggers))
