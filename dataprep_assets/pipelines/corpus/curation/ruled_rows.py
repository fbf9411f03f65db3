"""Effect of the retraction list, the rules and the duplicates on the rows of a shard's tags.

This is the only implementation: the selection drops rows with it, `dataprep documents` predicts drops with it, and
deduplication finds the rows to compare with it.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.budgets.counts import COUNT_COLUMNS
from dataprep_assets.curation.rules import find_dropping_rules
from dataprep_assets.curation.selection import DUPLICATE
from dataprep_assets.curation.table import read_joined_tables
from dataprep_assets.integrity.receipt import RETRACTED
from dataprep_assets.pipelines.corpus.curation.tagged_shard import ROWS, name_tagger_file
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.duplicates.removed_duplicates import NONE_REMOVED, RemovedRows
from dataprep_assets.pipelines.corpus.source.listed_rows import are_listed, read_listed_ids


@dataclass(frozen=True, kw_only=True)
class RuledRows:
    """Block of consecutive rows of a shard's tags.

    Attributes:
        table: The requested columns and the columns of the rules: a `pyarrow.Table`.
        good: Mask of the rows that are not bad records: shape `(rows,)`.
        listed: Mask of the rows on the retraction list: shape `(rows,)`.
        rule: Number of the first rule that drops each row, -1 for none: shape `(rows,)`.
        names: Names of the rules.
        representatives: Position of a duplicate → the kept document that represents it, and their similarity.
    """

    table: Any
    good: NDArray[np.bool_]
    listed: NDArray[np.bool_]
    rule: NDArray[np.int64]
    names: tuple[str, ...]
    representatives: Mapping[int, tuple[str, float]]

    @cached_property
    def reasons(self) -> list[str | None]:
        """Reason for dropping each row; None for kept rows, and for bad records, which have their own reasons.

        Retraction ranks before rules, so that every removal is visible. Rules rank before `duplicate`, because only
        rows that the rules keep are compared.
        """
        reasons: list[str | None] = [None] * len(self.good)
        # Assign the reasons in ascending rank, because later assignments overwrite earlier ones.
        for position in self.representatives:
            reasons[position] = DUPLICATE
        for position in np.flatnonzero(self.rule >= 0).tolist():
            reasons[position] = self.names[self.rule[position]]
        for position in np.flatnonzero(self.listed).tolist():
            reasons[position] = RETRACTED
        for position in np.flatnonzero(~self.good).tolist():
            reasons[position] = None
        return reasons

    @property
    def counted_columns(self) -> dict[str, list[Any]]:
        """Values of the columns by which drops are counted, of the rows that are not bad records."""
        names = [name for name in COUNT_COLUMNS if name in self.table.column_names]
        return {name: self.table[name].filter(self.good).to_pylist() for name in names}

    @property
    def good_reasons(self) -> list[str | None]:
        """Reasons of the rows that are not bad records."""
        return list(compress(self.reasons, self.good))


def read_ruled_rows(
    corpus: CorpusDeclaration, tags: Path, columns: Collection[str], rows: RemovedRows = NONE_REMOVED
) -> Iterator[RuledRows]:
    """Yield the rows of a shard in blocks, with the effect of the current rules and retraction list on each row.

    Args:
        corpus: The dataset.
        tags: The directory of the shard's tags.
        columns: Columns to read in addition to the rules' columns.
        rows: The rows of the shard that are removed as duplicates.

    Raises FormatError if a file cannot be read.
    """
    rules, hashes, start = corpus.rules, read_listed_ids(corpus), 0
    column_names = {"bad", *columns, *(column for _, rule in rules.values() for column in rule.columns)}
    column_names |= {"id"} if len(hashes) else set()
    # Skip the file of a tagger that has none of the requested columns, because it would add nothing to the table.
    files = [ROWS, *(name_tagger_file(tagger) for tagger in corpus.taggers if column_names & tagger.columns.keys())]
    for table in read_joined_tables([tags / file for file in files], sorted(column_names)):
        yield RuledRows(
            table=table,
            good=table["bad"].is_null().to_numpy(),
            listed=are_listed(table["id"], hashes) if len(hashes) else np.zeros(table.num_rows, np.bool_),
            rule=find_dropping_rules(table, rules) if rules else np.full(table.num_rows, -1),
            names=tuple(rules),
            # Arguments are evaluated from left to right, so the first `start` is the position of this table's first
            # row.
            representatives=rows.select_rows(start, start := start + table.num_rows),
        )
