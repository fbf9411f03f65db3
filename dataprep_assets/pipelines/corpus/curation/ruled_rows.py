"""What the retraction list, the rules and the duplicates that were found make of the rows of a shard's tags: said once.

The selection drops by it, `dataprep documents` counts what it would drop, and what rules keep is compared with others.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.rules import ruled
from dataprep_assets.curation.selection import DUPLICATE
from dataprep_assets.curation.table import side_by_side
from dataprep_assets.integrity.receipt import RETRACTED
from dataprep_assets.pipelines.corpus.curation.tagged_shard import ROWS, file_of
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.duplicates.removed_duplicates import NONE_REMOVED, RemovedRows
from dataprep_assets.pipelines.corpus.source.listed_rows import are_listed, listed_ids


@dataclass(frozen=True, kw_only=True)
class RuledRows:
    """Some rows of a shard's tags, in their order.

    Attributes:
        table: The columns that were asked for, and those of the rules: a `pyarrow.Table`.
        good: Which rows are no bad records: shape `(rows,)`.
        listed: Which rows are on the retraction list: shape `(rows,)`.
        rule: The number of the first rule that drops each, -1 for none; shape `(rows,)`.
        names: Names of the rules.
        alike: Place of a duplicate → the kept document that stands for it, and how alike they are.
    """

    table: Any
    good: NDArray[np.bool_]
    listed: NDArray[np.bool_]
    rule: NDArray[np.int64]
    names: tuple[str, ...]
    alike: Mapping[int, tuple[str, float]]

    @cached_property
    def reasons(self) -> list[str | None]:
        """Why each row is dropped; None for what is kept, and for bad records, which have reasons of their own.

        A retraction is the reason before a rule, so that every removal shows as one; a rule before a duplicate, because
        only what rules keep is compared with others.
        """
        reasons: list[str | None] = [None] * len(self.good)
        # what is written later wins
        for position in self.alike:
            reasons[position] = DUPLICATE
        for position in np.flatnonzero(self.rule >= 0).tolist():
            reasons[position] = self.names[self.rule[position]]
        for position in np.flatnonzero(self.listed).tolist():
            reasons[position] = RETRACTED
        for position in np.flatnonzero(~self.good).tolist():
            reasons[position] = None
        return reasons


def ruled_rows(
    corpus: CorpusDeclaration, tags: Path, columns: Collection[str], removed: RemovedRows = NONE_REMOVED
) -> Iterator[RuledRows]:
    """The rows of a shard, and what becomes of each by the rules and the retraction list as they are now.

    Args:
        corpus: The dataset.
        tags: The directory of the shard's tags.
        columns: The columns that are wanted beside those of the rules.
        removed: The rows of the shard that go as duplicates.

    Raises FormatError if a file cannot be read.
    """
    rules, hashes, start = corpus.rules, listed_ids(corpus), 0
    column_names = {"bad", *columns, *(column for _, rule in rules.values() for column in rule.columns)}
    column_names |= {"id"} if len(hashes) else set()
    # files of taggers whose columns nobody asks for are not opened
    files = [ROWS, *(file_of(tagger) for tagger in corpus.taggers if column_names & tagger.columns.keys())]
    for table in side_by_side([tags / file for file in files], sorted(column_names)):
        yield RuledRows(
            table=table,
            good=table["bad"].is_null().to_numpy(),
            listed=are_listed(table["id"], hashes) if len(hashes) else np.zeros(table.num_rows, np.bool_),
            rule=ruled(table, rules) if rules else np.full(table.num_rows, -1),
            names=tuple(rules),
            # arguments are evaluated from the left: the first one is where this piece begins
            alike=removed.among(start, start := start + table.num_rows),
        )
