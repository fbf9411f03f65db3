"""The keys of `defs.yaml` about benchmarks: the items to search for, and the action for texts with an item.

The field descriptions are the YAML reference.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from dataprep_assets.curation.benchmarks.columns import BENCHMARK, COLUMNS, OVERLAP
from dataprep_assets.curation.declaration import ColumnName
from dataprep_assets.engine.yaml.declaration import ReadingDeclaration
from dataprep_assets.engine.yaml.declaration_model import DeclarationModel
from dataprep_assets.errors import ConfigError
from dataprep_assets.stores.connect import is_bucket

# Import these modules only where they are used, because they load slowly and most commands only validate the keys.
if TYPE_CHECKING:
    from dataprep_assets.curation.benchmarks.benchmarks import BenchmarkTagger
    from dataprep_assets.curation.benchmarks.items import BenchmarkSet
    from dataprep_assets.curation.rewriters.rewriting import Rewriting


class DeclaredSet(ReadingDeclaration):
    """A benchmark whose items must not occur in the documents."""

    path: str = Field(
        description=(
            "File with one item per row, in any source format: a path relative to this YAML, "
            "`hf://datasets/organization/name@revision/file`, `s3://bucket/file` or `gs://bucket/file`."
        )
    )
    cache_dir: Path | None = Field(
        None,
        description=(
            "Download folder, relative to this YAML. Required for object storage. Default for `hf://`: the Hub's "
            "standard cache."
        ),
    )
    fields: tuple[str, ...] = Field(
        (), description="Fields of an item to search for. Default: all fields with text, including nested ones."
    )

    @model_validator(mode="after")
    def _require_reachable_file(self) -> Self:
        from dataprep_assets.curation.benchmarks.files import check_address, is_elsewhere

        if not is_elsewhere(self.path):
            if self.cache_dir is not None:
                raise ValueError("`cache_dir` has no effect on a local file. Remove it")
            return self
        try:
            check_address(self.path)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if is_bucket(self.path) and self.cache_dir is None:
            raise ValueError(f"{self.path}: `cache_dir` is required. Set it to a download folder")
        return self

    def build_set(self, name: str, folder: Path) -> "BenchmarkSet":
        """Return the set under this name; paths are relative to a folder."""
        from dataprep_assets.curation.benchmarks.files import is_elsewhere
        from dataprep_assets.curation.benchmarks.items import BenchmarkSet

        if not is_elsewhere(self.path):
            return BenchmarkSet(name=name, path=folder / self.path, fields=self.fields, reading=self.reading)
        cache_dir = None if self.cache_dir is None else folder / self.cache_dir
        return BenchmarkSet(name=name, path=self.path, cache_dir=cache_dir, fields=self.fields, reading=self.reading)


class DecontaminateDeclaration(DeclarationModel):
    """Benchmarks to search for in the documents, and what happens to documents that contain an item."""

    sets: dict[ColumnName, str | DeclaredSet] = Field(
        min_length=1,
        description="Name of a benchmark → the file with its items: a path, `hf://…`, or `{path: …, fields: […]}`.",
    )
    ngram: int = Field(
        8, ge=2, le=64, description="Words per n-gram. A text and an item are compared by their n-grams."
    )
    min_words: int = Field(
        13,
        ge=2,
        description=(
            "Texts of at least this many words are searched for individually. An item's shorter texts are combined: a "
            "text must contain this many of their words, or all of them if there are fewer. Combined texts of "
            "fewer than `ngram` words are not searched for."
        ),
    )
    containment: float | None = Field(
        None,
        gt=0,
        le=1,
        description="A text contains an item if it has at least this share of the item's n-grams. Default: 0.5.",
    )
    coverage: float | None = Field(
        None,
        ge=0,
        le=1,
        description=(
            "Minimum share of each benchmark's items that are searched for. Items with too few words are skipped. A "
            "blocking check fails below it. Default: 0.9."
        ),
    )
    action: Literal["drop", "block", "tag"] = Field(
        "drop",
        description=(
            "Action for a document that contains an item. `drop`: it is dropped, with the reason `benchmark`. "
            "`block`: the run stops and shows the matches. `tag`: the columns `benchmark` and `benchmark_overlap` "
            "show it."
        ),
    )

    @field_validator("sets", mode="after")
    @classmethod
    def _validate_files(cls, sets: dict[str, str | DeclaredSet]) -> dict[str, str | DeclaredSet]:
        """Validate a set in its short form in the same way as in its long form."""
        for declared_set in sets.values():
            if isinstance(declared_set, str):
                DeclaredSet(path=declared_set)
        return sets

    @model_validator(mode="after")
    def _require_effect(self) -> Self:
        if self.min_words < self.ngram:
            raise ValueError(
                f"`min_words: {self.min_words}` has no effect, because a text with fewer than `ngram: {self.ngram}` "
                f"words is one n-gram. Set it to at least {self.ngram}"
            )
        if self.action == "tag" and self.containment is not None:
            raise ValueError(
                "`containment` has no effect with `action: tag`. Remove it, and use the column `benchmark_overlap` in "
                "a rule"
            )
        if self.action == "tag" and self.coverage is not None:
            raise ValueError("`coverage` has no effect with `action: tag`. Remove it")
        return self

    @property
    def share(self) -> float:
        """Minimum share of an item's n-grams in a document that counts as containing the item."""
        return 0.5 if self.containment is None else self.containment

    @property
    def least_covered(self) -> float:
        """Minimum share of a set's items that must be searchable."""
        return 0.9 if self.coverage is None else self.coverage

    @property
    def rule(self) -> str:
        """The rule expression that is true for a document with an item."""
        return f"{OVERLAP} >= {self.share}"

    def build_tagger(self, folder: Path, rewriting: "Rewriting | None") -> "BenchmarkTagger":
        """Return the tagger that searches rewritten texts for the items; paths are relative to a folder."""
        from dataprep_assets.curation.benchmarks.benchmarks import BenchmarkTagger

        sets = tuple(self.build_sets(folder, rewriting))
        return BenchmarkTagger(name=BENCHMARK, columns=COLUMNS, sets=sets, ngram=self.ngram, min_words=self.min_words)

    def build_sets(self, folder: Path, rewriting: "Rewriting | None") -> "Iterator[BenchmarkSet]":
        """Yield the declared sets, whose items are rewritten as texts are; paths are relative to a folder."""
        for name, declared_set in self.sets.items():
            declaration = DeclaredSet(path=declared_set) if isinstance(declared_set, str) else declared_set
            yield replace(declaration.build_set(name, folder), rewriting=rewriting)


TextChoice = Literal["all", "questions", "answers", "first_question"]


class RowDecontaminateDeclaration(DecontaminateDeclaration):
    """Benchmarks to search for in rows with messages, and what happens to rows that contain an item."""

    text: TextChoice = Field(
        "all",
        description=(
            "Texts of a row to search in. `all`: every text, including reasoning and tool results. `questions`: "
            "messages of the user. `answers`: messages of the assistant, and expected answers. `first_question`: the "
            "first message of the user."
        ),
    )
    action: Literal["drop", "block"] = Field(
        "drop",
        description=(
            "Action for a row that contains an item. `drop`: it is dropped, with the reason `benchmark`. `block`: the "
            "run stops and shows the matches."
        ),
    )

    def key_parts(self) -> dict[str, Any]:
        """Return the values that decide which rows are dropped, except the items and their n-grams."""
        return {"text": self.text, "containment": self.share, "action": self.action}
