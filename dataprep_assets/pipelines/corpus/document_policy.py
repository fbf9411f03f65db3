"""What a corpus declares of its documents: how they are identified, and what the table of documents carries along."""

from typing import Self

from pydantic import (
    Field,
    model_validator,
)

from dataprep_assets.documents.table import DECIDED, OTHERS, CarriedFields, ColumnType, column_of
from dataprep_assets.graph.secret_key import EnvironmentKey
from dataprep_assets.stream.declaration import (
    DocumentPolicy,
)
from dataprep_assets.tokenization.document_ids import DocumentIds

_INSTEAD = {"id": "id_field", "source": "source_field"}
"""Column of the table of documents → the key that fills it from a field."""


class CorpusDocumentPolicy(DocumentPolicy):
    """What surrounds and identifies a document."""

    id_field: str | None = Field(
        None,
        min_length=1,
        description="Key (JSON) or column (Parquet) of the document's id, a string or an integer, which the index "
        "finds it by; default: by its text.",
    )
    id_key: EnvironmentKey | None = Field(
        None,
        description="Key of the index's hashes: without one a `sensitive` dataset has no index by id. The digests of "
        "its local source files are keyed with it, too, so a `sensitive` dataset of a local folder needs it.",
    )
    keep_fields: dict[str, ColumnType] | None = Field(
        None,
        description="Fields that the table of documents carries along: field → `string`, `integer`, `number` or "
        "`boolean`; a dot leads into an object (`meta.lang`). Values of CSV are read as their type. `{}` makes the "
        "table without any.",
    )
    url_field: str | None = Field(
        None, min_length=1, description="Field with the document's URL: the table has its `host`."
    )
    source_field: str | None = Field(
        None,
        min_length=1,
        description="Field that names the source that a document is from, for shares and budgets; default: the folder "
        "of its file.",
    )

    @model_validator(mode="after")
    def _columns_differ(self) -> Self:
        fields = {path: column_of(path) for path in self.keep_fields or ()}
        # functions and commands are given the text beside these columns, under the name `text`
        own = {*CarriedFields(text="", ids=None, url=self.url_field).columns, *DECIDED, *OTHERS, "text"}
        for path, column in fields.items():
            if column in own:
                instead = _INSTEAD.get(column)
                instead = instead if instead and getattr(self, instead) is None else None
                raise ValueError(
                    f"keep_fields: the table has a column {column!r} of its own; leave {path} out"
                    + (f", and set `document.{instead}: {path}`" if instead else "")
                )
            # as of `meta.lang` and `meta_lang`: a dot becomes `_`
            if [*fields.values()].count(column) > 1:
                raise ValueError(f"keep_fields: two fields become the column {column!r}; leave one out")
        return self

    def ids(self, *, sensitive: bool) -> DocumentIds | None:
        """How documents are identified in the index; None for a sensitive dataset without a key.

        Raises ConfigError when the key is not in the environment.
        """
        key = self.key()
        if key is None:
            return None if sensitive else DocumentIds(id_field=self.id_field)
        return DocumentIds(id_field=self.id_field, key=key)

    def key(self) -> bytes | None:
        """The declared key, if any; raises ConfigError when it is not in the environment."""
        return self.id_key.load("document.id_key") if self.id_key is not None else None
