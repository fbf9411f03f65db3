"""What a `defs.yaml` says about documents: what is looked at, which are kept, and how much may go.

The field descriptions are the YAML reference. Columns and types are known from the declaration alone, so a rule is
checked before anything runs.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from dataprep_assets.curation.declared_tagger import NAME
from dataprep_assets.curation.duplicates.banding import PROMISED, Banding, banding_for
from dataprep_assets.curation.duplicates.kept_set import AcrossSplits
from dataprep_assets.curation.duplicates.signatures import Kind, SignatureSettings
from dataprep_assets.curation.duplicates.words import Normalization
from dataprep_assets.curation.rules import Rule, parse
from dataprep_assets.curation.selection import RESERVED
from dataprep_assets.curation.table import ColumnType
from dataprep_assets.engine.yaml.declared_model import Declared
from dataprep_assets.errors import ConfigError

RuleName = Annotated[str, Field(pattern=NAME)]


class PriorityColumn(Declared):
    """A column that decides which of two documents that are alike is kept."""

    column: str = Field(description="A column of the table of documents, carried or of a tagger.")
    order: Literal["highest", "lowest"] | tuple[str, ...] = Field(
        "highest",
        description="Which value is kept first: `highest`, `lowest`, or a list of texts in their order, such as "
        "sources. A row without a value, or with one that is not listed, comes last.",
    )


class DuplicatesDeclaration(Declared):
    """Which documents are alike, and which of them is kept."""

    kind: Kind = Field(
        "near",
        description="`near`: texts whose shingles overlap by `threshold` or more, found by MinHash and verified; "
        "`exact`: only equal texts.",
    )
    normalize: Normalization | None = Field(
        None,
        description="What is compared: `words` (words, signs and symbols, in one case and Unicode form), `space` (the "
        "text except white space), `none` (the text). Line ends and Unicode's form (NFC) never count. Default: "
        "`words`; of `exact`, `none`.",
    )
    threshold: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Jaccard similarity of two texts' shingles from which on they are alike; default 0.8.",
    )
    shingle: int | None = Field(None, ge=1, le=64, description="Words of a shingle; default 5.")
    permutations: int | None = Field(
        None, ge=16, le=1024, description="Values of a MinHash signature, which is cut into bands; default 128."
    )
    priority: Literal["oldest"] | PriorityColumn = Field(
        "oldest",
        description="Which of two is kept: that which was there before, by the runs that brought their files, or by a "
        "`column`. Ties are decided by what they say.",
    )
    across_splits: AcrossSplits = Field(
        "block",
        description="Documents of different splits that are alike: `block` the run, with the pairs; `drop` from the "
        "split that is declared first, so from train; `ignore`.",
    )
    against: tuple[str, ...] = Field(
        (),
        description="Other corpora and releases of the same storage that declare `duplicates` with the same settings: "
        "what is like a document that one of them keeps goes, whatever the priority.",
    )
    recall: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Smallest share of planted near-duplicates, of those at or above the threshold, that has to be "
        "found; default: 0.05 less than the bands promise.",
    )

    @field_validator("against")
    @classmethod
    def _once(cls, against: tuple[str, ...]) -> tuple[str, ...]:
        if twice := [name for name in dict.fromkeys(against) if against.count(name) > 1]:
            raise ValueError(f"`{twice[0]}` is given twice; leave one out")
        return against

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        if self.kind == "exact":
            given = [n for n in ("threshold", "shingle", "permutations", "recall") if getattr(self, n) is not None]
            if given:
                raise ValueError(f"`{given[0]}` has no effect on `kind: exact`; leave it out, or give `kind: near`")
        elif float(self.banding.chance(self.similarity)) < PROMISED:
            raise ValueError(
                f"{self.permutations} permutations find {float(self.banding.chance(self.similarity)):.0%} of the pairs "
                f"at the threshold {self.similarity}; give more of them, or a higher threshold"
            )
        return self

    @property
    def similarity(self) -> float:
        """The Jaccard similarity from which on two documents are alike."""
        return 1.0 if self.kind == "exact" else 0.8 if self.threshold is None else self.threshold

    @property
    def normalization(self) -> Normalization:
        """What texts are compared by."""
        return self.normalize or ("none" if self.kind == "exact" else "words")

    @property
    def banding(self) -> Banding:
        """How signatures are cut into bands."""
        return banding_for(self.similarity, self.permutations or 128)

    def signing(self, key: bytes | None, key_digest: str | None) -> SignatureSettings:
        """What decides signatures.

        Args:
            key: The secret of keyed hashes, if any.
            key_digest: What stands for it in keys.
        """
        return SignatureSettings(
            kind=self.kind,
            normalization=self.normalization,
            shingle=self.shingle or 5,
            banding=self.banding,
            key=key,
            key_digest=key_digest,
        )

    def check_column(self, columns: Mapping[str, ColumnType]) -> None:
        """Raise ConfigError if the column of the priority is not there, or has no such order."""
        if self.priority == "oldest":
            return
        name, listed = self.priority.column, not isinstance(self.priority.order, str)
        if name not in columns:
            raise ConfigError(
                f"duplicates.priority.column: there is no column {name!r}. Columns: {', '.join(sorted(columns))}"
            )
        if listed != (columns[name] == "string"):
            wanted = "a list of its values in `order`" if columns[name] == "string" else "`highest` or `lowest`"
            raise ConfigError(f"duplicates.priority.order: {name} is a {columns[name]}: give {wanted}")


class BudgetDeclaration(Declared):
    """How much rules may drop: more than that is a blocking check, before anything is tokenized."""

    per_source: float | None = Field(
        None, ge=0, le=1, description="Largest share that rules drop of a source; those of under 20 documents are one."
    )
    per_rule: dict[RuleName, Annotated[float, Field(ge=0, le=1)]] = Field(
        default_factory=dict,
        description="Rule → the largest share of all documents, and of all bytes, that it drops; `duplicate` counts as "
        "one.",
    )


class FloorDeclaration(Declared):
    """The least that a tagger has to find of cases of which the truth is known: less is a blocking check."""

    recall: float = Field(0.9, ge=0, le=1, description="Least share of the planted cases that it finds, of each kind.")
    precision: float = Field(
        0.9, ge=0, le=1, description="Least share of cases among what it finds in them and in the hard negatives."
    )


def rules_of(
    keep: Mapping[str, str], drop: Mapping[str, str], columns: Mapping[str, ColumnType]
) -> dict[str, tuple[bool, Rule]]:
    """Name of each rule → whether it names what is kept, and its expression; in the order in which they are asked.

    Raises ConfigError for a name that is used twice or is a reason already, and those of `parse`.
    """
    found = {}
    for keeps, rules in ((True, keep), (False, drop)):
        for name, text in rules.items():
            where = f"{'keep' if keeps else 'drop'}.{name}"
            if name in found:
                raise ConfigError(
                    f"{where}: there is a rule of this name in `keep`; its name is the reason, so rename it"
                )
            if name in RESERVED:
                raise ConfigError(f"{where}: the ledger has a reason of this name already; rename the rule")
            found[name] = (keeps, parse(text, columns, where))
    return found
