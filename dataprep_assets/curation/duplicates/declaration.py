"""The keys of `duplicates`: which texts are duplicates, and which one of a group is kept.

Entry points: `DuplicatesDeclaration` for documents, `RowDuplicatesDeclaration` for rows with messages.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from dataprep_assets.curation.benchmarks.decontamination import TextChoice
from dataprep_assets.curation.duplicates.banding import PROMISED, Banding, choose_banding
from dataprep_assets.curation.duplicates.kinds import Kind, Normalization
from dataprep_assets.curation.table import ColumnType
from dataprep_assets.engine.yaml.declaration_model import DeclarationModel
from dataprep_assets.errors import ConfigError
from dataprep_assets.table import format_share

# Import the module only for type checking, because most commands only validate the keys.
if TYPE_CHECKING:
    from dataprep_assets.curation.duplicates.signatures import SignatureSettings

AcrossSplits = Literal["drop", "block", "ignore"]
"""Action for near-duplicates in different splits: drop one, fail a check, or ignore them."""


class PriorityColumn(DeclarationModel):
    """A column that decides which document of a group of duplicates is kept."""

    column: str = Field(description="Column of the document table: a kept field or a tagger's column.")
    order: Literal["highest", "lowest"] | tuple[str, ...] = Field(
        "highest",
        description=(
            "Which value is preferred: `highest`, `lowest`, or a list of strings with the preferred one first. "
            "Documents without a listed value come last."
        ),
    )


class DuplicateSearch(DeclarationModel):
    """Settings that decide which texts are duplicates, and how they are found."""

    kind: Kind = Field(
        "near",
        description=(
            "Which texts are duplicates. `near`: texts that share enough shingles (runs of words); see "
            "`threshold`. `exact`: only equal texts."
        ),
    )
    normalize: Normalization | None = Field(
        None,
        description=(
            "How texts are prepared for comparison. `words`: only words and symbols are compared, in the form "
            "NFKC, regardless of case and invisible characters. `space`: the kind and amount of white space are "
            "ignored. `none`: texts are unchanged, except for line endings and Unicode form (NFC). Default: `words` "
            "for `near`, `none` for `exact`."
        ),
    )
    threshold: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Minimum Jaccard similarity of the shingles of near-duplicates. Default: 0.8.",
    )
    shingle: int | None = Field(None, ge=1, le=64, description="Words per shingle. Default: 5.")
    permutations: int | None = Field(
        None,
        ge=16,
        le=1024,
        description=(
            "Number of values in a MinHash signature. More values find more near-duplicates and take longer. "
            "Default: 128."
        ),
    )
    across_splits: AcrossSplits = Field(
        "block",
        description=(
            "Action for near-duplicates in different splits. `block`: the run stops and shows the pairs. `drop`: "
            "they are dropped from the split that is declared first. `ignore`: they are kept."
        ),
    )
    recall: float | None = Field(
        None,
        gt=0,
        le=1,
        description=(
            "Minimum share of planted near-duplicates that must be found, at or above the threshold. A blocking "
            "check fails below it. Default: the share predicted for MinHash, minus 0.05."
        ),
    )

    @property
    def priority_column(self) -> PriorityColumn | None:
        """The column that decides which text of a group is kept; None if no column decides it."""
        return None

    @model_validator(mode="after")
    def _require_effect(self) -> Self:
        if self.kind == "exact":
            near_keys = [n for n in ("threshold", "shingle", "permutations", "recall") if getattr(self, n) is not None]
            if near_keys:
                raise ValueError(f"`{near_keys[0]}` has no effect with `kind: exact`. Remove it, or set `kind: near`")
        elif (probability := float(self.banding.match_probability(self.similarity))) < PROMISED:
            raise ValueError(
                f"{self.permutations} permutations find {format_share(probability)} "
                f"of the pairs at the threshold {self.similarity}, but must find {format_share(PROMISED)}. Raise "
                "`permutations` or `threshold`"
            )
        return self

    @property
    def similarity(self) -> float:
        """The Jaccard similarity at or above which two documents are near-duplicates."""
        return 1.0 if self.kind == "exact" else 0.8 if self.threshold is None else self.threshold

    @property
    def normalization(self) -> Normalization:
        """Normalization of texts before they are compared."""
        return self.normalize or ("none" if self.kind == "exact" else "words")

    @property
    def banding(self) -> Banding:
        """The split of signatures into bands."""
        return choose_banding(self.similarity, self.permutations or 128)

    def build_signature_settings(self, key: bytes | None, key_digest: str | None) -> "SignatureSettings":
        """Return the values that determine signatures.

        Args:
            key: The secret of keyed hashes, if any.
            key_digest: Digest that represents the secret in artifact keys.
        """
        from dataprep_assets.curation.duplicates.signatures import SignatureSettings

        return SignatureSettings(
            kind=self.kind,
            normalization=self.normalization,
            shingle=self.shingle or 5,
            banding=self.banding,
            key=key,
            key_digest=key_digest,
        )

    def check_column(self, columns: Mapping[str, ColumnType]) -> None:
        """Raise ConfigError if the column of the priority does not exist or cannot be ordered as declared."""
        if (priority := self.priority_column) is None:
            return
        name, is_list = priority.column, not isinstance(priority.order, str)
        if name not in columns:
            raise ConfigError(
                f"duplicates.priority.column: unknown column {name!r}. Available: {', '.join(sorted(columns))}"
            )
        if is_list != (columns[name] == "string"):
            expected_order = "a list of values" if columns[name] == "string" else "`highest` or `lowest`"
            raise ConfigError(
                f"duplicates.priority.order: must be {expected_order}, because {name!r} has the type {columns[name]}"
            )


class DuplicatesDeclaration(DuplicateSearch):
    """Rules for which documents are duplicates, and for which document of a group is kept."""

    priority: Literal["oldest"] | PriorityColumn = Field(
        "oldest",
        description=(
            "Which document of a group is kept. `oldest`: the document that the earliest run added. A `column`: "
            "the document that comes first in its order. Ties are broken by the text."
        ),
    )
    against: tuple[str, ...] = Field(
        (),
        description=(
            "Other datasets in the same storage with the same `duplicates` settings. Duplicates of documents "
            "that they keep are dropped, regardless of `priority`. Default: none."
        ),
    )

    @field_validator("against")
    @classmethod
    def _refuse_repetition(cls, against: tuple[str, ...]) -> tuple[str, ...]:
        if repeated_names := [name for name in dict.fromkeys(against) if against.count(name) > 1]:
            raise ValueError(f"{repeated_names[0]} is listed twice. Remove one")
        return against

    @property
    def priority_column(self) -> PriorityColumn | None:
        return None if self.priority == "oldest" else self.priority


class RowDuplicatesDeclaration(DuplicateSearch):
    """Rules for which rows with messages are duplicates, and for which row of a group is kept."""

    text: TextChoice = Field(
        "all",
        description=(
            "Texts of a row that are compared. `all`: all messages except system messages, and without declared tools, "
            "which many rows have in common. `questions`: messages of the user. `answers`: messages of the assistant. "
            "`first_question`: the first message of the user."
        ),
    )
    priority: PriorityColumn | None = Field(
        None,
        description=(
            "Column that decides which row of a group is kept. Default: no column; the row is chosen by its content. "
            "The choice never depends on the order and the names of the files, unless rows are equal."
        ),
    )

    def key_parts(self) -> dict[str, Any]:
        """Return the values that decide which rows are dropped, in addition to the signatures."""
        return {"text": self.text, "threshold": self.similarity, "across_splits": self.across_splits}

    @property
    def priority_column(self) -> PriorityColumn | None:
        return self.priority
