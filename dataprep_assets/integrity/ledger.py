"""The ledger: every row read became a document, or was dropped for a reason.

`rows_in = documents + Σ dropped[reason]` must hold for each source file, each shard and each dataset.
Ledgers add up, so that a shard's ledger is the sum of its files' and a dataset's the sum of its shards'.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

from dataprep_assets.errors import IntegrityError

LOSSES = ("unknown_tokens", "dropped_characters", "changed_characters")
"""The counts of what a tokenizer does not keep, which the line of a source file has where they are not 0."""
RETRACTED = "retracted"
"""The reason, in a ledger, for dropping documents on the dataset's retraction list."""
SELECTED = "selection"
"""The reason, in the ledger of a stream, for dropping rows that the dataset's selection drops.

The selection knows each row's own reason (a rule, `duplicate`, `retracted`): so a stream depends only on which rows are
dropped. `named_drops` puts the two together.
"""


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Counts of one unit of work. Units: rows, documents and tokens are counts; bytes are bytes.

    - `rows_in`: records found in the source; blank lines are not records and are counted beside them.
    - `tokens`: ids written, separators and BOS included; `separators`: document-end ids appended.
    - `literal_separators`: ids equal to the separator that came out of text (0 with the default policy).
    - `special_literals`: documents that hold a literal special token of the tokenizer.
    - `unknown_tokens`: ids that stand for what the tokenizer does not know; `dropped_characters`: characters other than
      white space that it leaves out; `changed_characters`: those that its normalizer makes others of.
    - `min_id`, `max_id`: range of the ids written; None for an empty stream.
    """

    rows_in: int = 0
    documents: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    blank_lines: int = 0
    empty_documents: int = 0
    tokens: int = 0
    separators: int = 0
    literal_separators: int = 0
    special_literals: int = 0
    reference_documents: int = 0
    sampled_documents: int = 0
    source_bytes: int = 0
    text_characters: int = 0
    unknown_tokens: int = 0
    dropped_characters: int = 0
    changed_characters: int = 0
    min_id: int | None = None
    max_id: int | None = None

    @property
    def of_documents(self) -> "Ledger":
        """The same without what says how the documents were read and encoded, not which they are.

        Artifacts that are made of other artifacts have this one, because a source file that is compressed again, or
        another sample to compare the engines on, changes nothing of them: they are not rebuilt.
        """
        return replace(self, reference_documents=0, sampled_documents=0, source_bytes=0)

    def balance(self, where: str) -> None:
        """Raise IntegrityError unless every row is accounted for."""
        accounted = self.documents + sum(self.dropped.values())
        if self.rows_in != accounted:
            raise IntegrityError(
                f"{where}: the ledger does not balance: {self.rows_in} rows in, but {self.documents} documents "
                f"+ {sum(self.dropped.values())} dropped = {accounted}. This is a bug or damage: rebuild the artifact"
            )

    def __add__(self, other: "Ledger") -> "Ledger":
        return Ledger.total((self, other))

    @classmethod
    def total(cls, ledgers: Iterable["Ledger"]) -> "Ledger":
        """The sum of many ledgers; the empty ledger for none."""
        # each field goes through all of them, and the caller may give a generator
        every = list(ledgers)
        dropped: Counter[str] = Counter()
        for one in every:
            dropped.update(one.dropped)
        return cls(
            **{name: sum(getattr(one, name) for one in every) for name in _COUNTS},
            dropped=dict(sorted(dropped.items())),
            min_id=min((one.min_id for one in every if one.min_id is not None), default=None),
            max_id=max((one.max_id for one in every if one.max_id is not None), default=None),
        )

    def named_drops(self, reasons: Mapping[str, int]) -> Self:
        """The ledger with these counts by reason of the selection, instead of the number of the rows it drops."""
        if not self.dropped.get(SELECTED):
            return self
        others = {reason: count for reason, count in self.dropped.items() if reason != SELECTED}
        return replace(self, dropped=dict(sorted((Counter(others) + Counter(reasons)).items())))

    def to_json(self) -> dict[str, Any]:
        """Plain builtins, for a receipt."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`; unknown keys raise IntegrityError (a newer or damaged receipt)."""
        try:
            return cls(**value)
        except TypeError as error:
            raise IntegrityError(f"not a ledger of this version: {error}") from error


_COUNTS = tuple(each.name for each in fields(Ledger) if each.name not in ("dropped", "min_id", "max_id"))
"""The fields of ledgers that are simply added."""
