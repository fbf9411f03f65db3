"""A tagger that is a function of the user's project, called in a worker with a batch of documents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dataprep_assets.curation.project_function import ProjectFunction
from dataprep_assets.curation.table import DocumentBatch, build_schema
from dataprep_assets.curation.tagging import BatchTagger


@dataclass(frozen=True, kw_only=True)
class FunctionTagger(BatchTagger):
    """A function of the user's project, `module:function`.

    It is called with a `pyarrow.Table` of `text` and the carried fields, and returns column → values.

    Attributes:
        function: The function.
        declared: The version that replaces the digest of its code; None to use the digest.
        files: Patterns of the files that it reads, as absolute paths.
    """

    function: str
    declared: str | None = None
    files: tuple[str, ...] = ()

    @cached_property
    def _code(self) -> ProjectFunction:
        return ProjectFunction(key="tag", name=self.function, declared=self.declared, files=self.files)

    @property
    def version(self) -> str:
        return self._code.version

    def explain_missing(self) -> str | None:
        return self._code.explain_missing()

    def load(self) -> None:
        """Import the function. Raises ConfigError if the import fails."""
        self._code.load()

    def tag_batch(self, batch: DocumentBatch) -> Mapping[str, Sequence[Any]]:
        import pyarrow as pa

        # Pass the schema, because Arrow cannot derive the type of a column whose values are all null in this batch.
        schema = build_schema({"text": "string", **{name: kind for name, kind in batch.types.items() if name != "bad"}})
        rows = {"text": batch.texts, **batch.good_rows}
        table = pa.table({name: rows[name] for name in schema.names}, schema=schema)
        with self._code.open() as function:
            columns: Mapping[str, Sequence[Any]] = function(table)
        return columns
