"""The declaration of a tokenized corpus, validated once, and the names of what is made from it.

This is the schema of `type: dataprep_assets.components.TokenizedCorpus`: its field descriptions are the YAML
reference. Paths are resolved against the folder of the YAML; none of them enters a key.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from dataprep_assets.errors import ConfigError
from dataprep_assets.graph.declaration import resolved
from dataprep_assets.graph.declared import Declared
from dataprep_assets.graph.engine_declaration import MadeByEngine
from dataprep_assets.graph.secret_key import EnvironmentKey
from dataprep_assets.graph.source_key import key_needed
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.views import VIEWS
from dataprep_assets.planning.shard_plan import ShardSizing
from dataprep_assets.sources.digests import SourceDigests
from dataprep_assets.sources.input_format import Reading
from dataprep_assets.stream.declaration import (
    RETRACTIONS,
    AssetSource,
    BadRecordPolicy,
    DocumentPolicy,
    HubCacheSource,
    HubSource,
    LocalSource,
    ObjectStoreSource,
    Source,
    TokenizerDeclaration,
)
from dataprep_assets.tokenization.document_ids import DocumentIds

if TYPE_CHECKING:
    View = str
else:
    View = Literal[tuple(VIEWS)]


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


class ShardPlanDeclaration(Declared):
    """How many shards a split is cut into."""

    target_bytes: int | None = Field(
        None, ge=1, description="Source bytes a shard; default 1 GiB, at most 4,000 shards."
    )
    count: int | None = Field(None, ge=1, description="Number of shards a split, instead of `target_bytes`.")
    on_change: Literal["append", "replan"] = Field(
        "append",
        description="When the source gained or lost files: `append` leaves every shard its files and makes new shards "
        "of new files; `replan` cuts all shards again.",
    )

    @model_validator(mode="after")
    def _one_size(self) -> "ShardPlanDeclaration":
        if self.target_bytes is not None and self.count is not None:
            raise ValueError("give `target_bytes` or `count`, not both")
        return self

    @property
    def sizing(self) -> ShardSizing:
        """The declared sizing as the shard plan takes it."""
        return ShardSizing(target_bytes=self.target_bytes, count=self.count)


class CorpusDeclaration(MadeByEngine):
    """One tokenized corpus, from source to trainer-ready bins."""

    source: Source = Field(description="Where the documents come from.")
    include: tuple[str, ...] = Field(
        ("**/*.jsonl.zst",),
        min_length=1,
        description="Globs of data files: `.jsonl`, `.parquet`, `.txt`, `.csv`, `.tsv`, `.arrow`, `.wet`, `.warc`; all "
        "but Parquet also `.zst` or `.gz`. `*` stays within one part of a path, `**/` spans any number.",
    )
    splits: dict[str, tuple[str, ...]] = Field(
        min_length=1, description="Split name → globs of its files; a file belongs to one split."
    )
    text_field: str = Field("text", description="Key (JSON) or column (Parquet, CSV, Arrow) of the document's text.")
    text_separator: str | None = Field(
        None,
        min_length=1,
        description='What stands between two documents of a `.txt`, such as `"<|endoftext|>"` or, for one a line, '
        '`"\\n"`; default: a file is a document.',
    )
    csv_delimiter: str | None = Field(
        None,
        pattern=r'^[^"\r\n]$',
        description="Character between two fields of a `.csv` or `.tsv`; default: a comma, or a tab.",
    )
    tokenizer: TokenizerDeclaration = Field(description="The tokenizer, and the engine that runs it.")
    document: CorpusDocumentPolicy = Field(
        CorpusDocumentPolicy(), description="Tokens around a document, special tokens in it, and its id."
    )
    dtype: Literal["auto", "uint16", "uint32"] = Field("auto", description="`auto`: uint16 when every id fits.")
    shards: ShardPlanDeclaration = Field(ShardPlanDeclaration(), description="How each split is cut into shards.")
    bad_records: BadRecordPolicy = Field(
        BadRecordPolicy(), description="Records that cannot be documents: stop at the first, or drop and count them."
    )
    retractions: Path | None = Field(
        None,
        description="List of the documents that are not to be in it, which `dataprep retract` writes; default: "
        "`retracted.jsonl` beside this YAML.",
    )
    views: tuple[View, ...] = Field(("nanogpt",), description="Trainer formats over the same token bytes.")
    olmo_sequence_length: int = Field(2048, ge=2, description="Sequence length declared in the olmo view.")
    mds_sequence_length: int = Field(2048, ge=1, description="Tokens of a sample in the mds view.")
    sample_rate: float = Field(0.0005, ge=0, le=1, description="Share of documents re-encoded by the reference engine.")

    @field_validator("splits")
    @classmethod
    def _split_names(cls, splits: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for name, globs in splits.items():
            if not name.isidentifier():
                raise ValueError(f"split name {name!r}: use letters, digits and '_', for example train, val, test")
            if not globs:
                raise ValueError(f"split {name!r} has no globs")
        return splits

    @field_validator("views")
    @classmethod
    def _usable_views(cls, views: tuple[View, ...]) -> tuple[View, ...]:
        from dataprep_assets.pipelines.corpus.corpus_view import view_named

        try:
            for name in views:
                view_named(name)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if twice := [name for name in dict.fromkeys(views) if views.count(name) > 1]:
            raise ValueError(f"`{twice[0]}` is given twice; leave one out")
        return views

    @model_validator(mode="after")
    def _id_is_not_the_text(self) -> Self:
        if self.document.id_field == self.text_field:
            raise ValueError(
                "`document.id_field` is `text_field`: leave it out, documents are found by their text then"
            )
        return self

    @model_validator(mode="after")
    def _key_of_sensitive_data(self) -> Self:
        if self.sensitive and self._reads_local_files and self.document.id_key is None:
            raise ValueError(key_needed("document.id_key", "DOCUMENT_KEY"))
        return self

    def source_digests(self) -> SourceDigests:
        """The digests of source files: keyed if the dataset is sensitive and its files are local.

        A hub or bucket lists digests of its own, which the manifest has to repeat. Raises ConfigError when the key is
        not in the environment.
        """
        keyed = self.sensitive and self._reads_local_files
        return SourceDigests(self.document.key() if keyed else None)

    @property
    def _reads_local_files(self) -> bool:
        source = self.source
        return isinstance(source, LocalSource) or (isinstance(source, AssetSource) and not source.mirrored)

    @property
    def reading(self) -> Reading:
        """What it says of files that do not say it themselves."""
        return Reading(text_separator=self.text_separator, csv_delimiter=self.csv_delimiter)

    @property
    def combines(self) -> bool:
        """Whether the shards of each split are joined into one file."""
        return True

    def holding_retracted(self, store: ArtifactStore, unplanned: Iterable[Artifact]) -> list[Artifact]:
        from dataprep_assets.pipelines.corpus.retracted_left import retracted_left

        return retracted_left(self, store, unplanned)

    def located(self, folder: Path) -> Self:
        source: Any = self.source
        if isinstance(source, LocalSource | HubCacheSource):
            source = source.model_copy(update={"path": resolved(source.path, folder)})
        elif isinstance(source, AssetSource):
            source = source.located(folder)
        elif isinstance(source, ObjectStoreSource | HubSource) and source.cache_dir is not None:
            source = source.model_copy(update={"cache_dir": resolved(source.cache_dir, folder)})
        changed = {
            "source": source,
            "tokenizer": self.tokenizer.located(folder),
            "retractions": resolved(self.retractions or Path(RETRACTIONS), folder),
        }
        return super().located(folder).model_copy(update=changed)
