"""The keys of `defs.yaml` about benchmarks: the items to search for, and the action for documents with an item.

The field descriptions are the YAML reference.
"""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from dataprep_assets.curation.benchmarks.benchmarks import BENCHMARK, COLUMNS, OVERLAP, BenchmarkTagger
from dataprep_assets.curation.benchmarks.files import check_address, is_elsewhere
from dataprep_assets.curation.benchmarks.items import BenchmarkSet
from dataprep_assets.curation.declaration import ColumnName
from dataprep_assets.engine.yaml.declaration import ReadingDeclaration
from dataprep_assets.engine.yaml.declared_model import Declared
from dataprep_assets.errors import ConfigError
from dataprep_assets.stores.connect import is_bucket


class DeclaredSet(ReadingDeclaration):
    """A benchmark whose items must not occur in the documents."""

    path: str = Field(
        description="A file in any source format, with one item per row: relative to this YAML, "
        "`hf://datasets/organization/name@revision/file`, `s3://bucket/file` or `gs://bucket/file`."
    )
    cache_dir: Path | None = Field(
        None,
        description="Download folder, relative to this YAML; required for object storage. Default for the Hub: the "
        "standard cache.",
    )
    fields: tuple[str, ...] = Field(
        (), description="Fields to search for. Default: all that contain text, also in lists or objects."
    )

    @model_validator(mode="after")
    def _is_reachable(self) -> Self:
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

    def benchmark(self, name: str, folder: Path) -> BenchmarkSet:
        """Return the set under this name; paths are relative to a folder."""
        if not is_elsewhere(self.path):
            return BenchmarkSet(name=name, path=folder / self.path, fields=self.fields, reading=self.reading)
        cache_dir = None if self.cache_dir is None else folder / self.cache_dir
        return BenchmarkSet(name=name, path=self.path, cache_dir=cache_dir, fields=self.fields, reading=self.reading)


class DecontaminateDeclaration(Declared):
    """Benchmarks to search for in the documents, and the action for documents that contain an item."""

    sets: dict[ColumnName, str | DeclaredSet] = Field(
        min_length=1,
        description="Name of each benchmark → its file of items, also `hf://…`, or `{path: …, fields: […]}`.",
    )
    ngram: int = Field(8, ge=2, le=64, description="Words per n-gram.")
    min_words: int = Field(
        13,
        ge=2,
        description="Minimum number of words in a text that is searched for by itself. Shorter texts of an item are "
        "searched for together: this many words of them, or all if they have fewer, but at least `ngram`.",
    )
    containment: float | None = Field(
        None,
        gt=0,
        le=1,
        description="A document contains an item if it has at least this share of the item's n-grams; default 0.5.",
    )
    coverage: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Smallest share of each benchmark's items that must be searched for; a smaller share blocks the "
        "run. Items with too few words are not searched for. Default 0.9.",
    )
    action: Literal["drop", "block", "tag"] = Field(
        "drop",
        description="Action for a document that contains an item: `drop` it with the reason `benchmark`, `block` the "
        "run and show the pairs, or only `tag` it in the columns `benchmark` and `benchmark_overlap`.",
    )

    @field_validator("sets", mode="after")
    @classmethod
    def _files(cls, sets: dict[str, str | DeclaredSet]) -> dict[str, str | DeclaredSet]:
        """Validate the short form like the long one."""
        for declared_set in sets.values():
            if isinstance(declared_set, str):
                DeclaredSet(path=declared_set)
        return sets

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        if self.min_words < self.ngram:
            raise ValueError(
                f"`min_words: {self.min_words}` has no effect, because a text with fewer than `ngram: {self.ngram}` "
                "words is one n-gram. Set at least that"
            )
        if self.action == "tag" and self.containment is not None:
            raise ValueError("`containment` has no effect with `action: tag`. Remove it, and use it in a rule")
        if self.action == "tag" and self.coverage is not None:
            raise ValueError("`coverage` has no effect with `action: tag`. Remove it")
        return self

    @property
    def share(self) -> float:
        """Minimum share of an item's n-grams for which a document contains the item."""
        return 0.5 if self.containment is None else self.containment

    @property
    def least_covered(self) -> float:
        """Minimum share of a set's items that must be searched for."""
        return 0.9 if self.coverage is None else self.coverage

    @property
    def rule(self) -> str:
        """The rule expression that is true for a document with an item."""
        return f"{OVERLAP} >= {self.share}"

    def tagger(self, folder: Path) -> BenchmarkTagger:
        """Return the tagger that searches for the items; paths are relative to a folder."""
        sets = [
            (DeclaredSet(path=declared_set) if isinstance(declared_set, str) else declared_set).benchmark(name, folder)
            for name, declared_set in self.sets.items()
        ]
        return BenchmarkTagger(
            name=BENCHMARK, columns=COLUMNS, sets=tuple(sets), ngram=self.ngram, least=self.min_words
        )
