"""Declarations shared by corpora, releases, notes and blends: sources, the tokenizer and the document policies.

The field descriptions are the YAML reference. Paths are resolved against the folder of the YAML and do not enter keys.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dataprep_assets.engine.yaml.declaration import Attribution, resolve_path
from dataprep_assets.engine.yaml.declared_model import Declared
from dataprep_assets.sources.readers.row_files import MAX_RECORD_BYTES
from dataprep_assets.stores.connect import BUCKET_URL, Access

RETRACTIONS = "retracted.jsonl"


class LocalSource(Attribution):
    """A local folder. Files are verified in place, never copied."""

    kind: Literal["local"] = Field(description="`local`: a folder on this machine.")
    path: Path = Field(description="Folder with the files, relative to this YAML.")
    follow_links: bool = Field(
        False,
        description="Whether links may lead out of the folder. Users who can create links there can then make "
        "any file be read.",
    )


class HubSource(Attribution):
    """A dataset repository on the Hugging Face Hub, mirrored into the Hub's cache."""

    kind: Literal["hub"] = Field(description="`hub`: a dataset repository on the Hugging Face Hub.")
    repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$", description="`organization/name` of the dataset repository.")
    revision: str = Field(description="Branch, tag or commit; pin a 40-digit commit so that the data cannot change.")
    endpoint: str | None = Field(None, description="URL of the Hub; default: HF_ENDPOINT or the public Hub.")
    allow_http: bool = Field(
        False, description="Whether a Hub on another machine may use http://, which sends credentials unencrypted."
    )
    cache_dir: Path | None = Field(
        None,
        description="Cache folder, relative to this YAML; default: HF_HUB_CACHE, HF_HOME/hub or ~/.cache.",
    )


class HubCacheSource(Attribution):
    """A repository that is already in the Hub's cache, used offline."""

    kind: Literal["hf_cache"] = Field(description="`hf_cache`: a repository in the Hub's cache on this machine.")
    path: Path = Field(description="The `datasets--organization--name` folder.")
    revision: str = Field("main", description="Branch (read from refs/) or commit.")
    follow_links: bool = Field(
        False,
        description="Whether links may lead out of the cache. Users who can create links there can then make "
        "any file be read.",
    )


class ObjectStoreSource(Attribution):
    """A prefix of a bucket on S3, R2, MinIO or GCS, mirrored. Credentials come only from the environment."""

    kind: Literal["object_store"] = Field(description="`object_store`: a prefix of an S3 or GCS bucket.")
    url: str = Field(
        pattern=BUCKET_URL,
        description="`s3://bucket/prefix` or `gs://bucket/prefix`; the prefix is optional.",
    )
    cache_dir: Path = Field(description="Folder for the mirror, relative to this YAML.")
    endpoint_url: str | None = Field(
        None,
        description="With s3://: URL of the store, without credentials; default: DATAPREP_ENDPOINT_URL, the account "
        "R2_DATASET_ACCOUNT_ID, else AWS S3. The R2_DATASET_… variables apply only to the store that "
        "they name. Other stores use AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE.",
    )
    allow_http: bool = Field(
        False, description="Whether a store on another machine may use http://, which sends credentials unencrypted."
    )
    access: Access = Field(
        "keys",
        description="`keys`: use the environment's credentials; `anonymous`: a public bucket, without credentials; "
        "`requester_pays`: the owner of the credentials pays for the requests.",
    )
    region: str = Field(
        "auto", description="With s3://: region; `auto` suits R2, and without an endpoint uses boto3's default."
    )


class AssetSource(Attribution):
    """The files of a Dagster asset's latest materialization, such as the output of a different tool."""

    kind: Literal["asset"] = Field(description="`asset`: the files of a Dagster asset.")
    key: tuple[str, ...] = Field(
        min_length=1, description="Key of the asset, such as `[team, cleaned]`. Files of a partition are below its key."
    )
    path: str | None = Field(
        None,
        min_length=1,
        description="Location of its files, if its metadata has no `path` or `uri`: a folder or file, relative to "
        "this YAML, `s3://` or `gs://`. `{partition}` is replaced by each partition.",
    )
    cache_dir: Path | None = Field(
        None,
        description="Folder for the mirror, only for files in a bucket, where it is required; relative to this YAML.",
    )
    follow_links: bool = Field(
        False,
        description="Whether links may lead out of the folder. Users who can create links there can then make "
        "any file be read.",
    )

    @property
    def mirrored(self) -> bool:
        """Whether the asset's files are in a bucket."""
        return self.cache_dir is not None

    def located(self, folder: Path) -> Self:
        """Return this source with relative paths resolved against `folder`."""
        path, cache_dir = self.path, self.cache_dir
        if path is not None and "://" not in path:
            path = str(resolve_path(Path(path), folder))
        return self.model_copy(
            update={"path": path, "cache_dir": None if cache_dir is None else resolve_path(cache_dir, folder)}
        )


Source = Annotated[
    LocalSource | HubSource | HubCacheSource | ObjectStoreSource | AssetSource, Field(discriminator="kind")
]


class TokenizerDeclaration(Declared):
    """The tokenizer, its location, and the engine that runs it."""

    path: Path | None = Field(None, description="Folder with tokenizer.json; relative to this YAML.")
    repo: str | None = Field(None, description="Hub repository of the tokenizer, instead of `path`.")
    revision: str | None = Field(None, description="Commit of `repo`; required with it.")
    name: str | None = Field(
        None, description="Name written to meta.pkl; default: the name of the folder or repository."
    )
    engine: Literal["fastokens", "tokenizers"] = Field(
        "fastokens",
        description="`fastokens`: the fast engine if it is certified for this tokenizer, else the reference "
        "(`tokenizers`).",
    )
    refuse: tuple[str, ...] = Field((), description="Document classes always sent to the reference engine.")
    max_loss: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Maximum share of unknown tokens, and of dropped characters, without a warning.",
    )

    @model_validator(mode="after")
    def _one_place(self) -> "TokenizerDeclaration":
        if (self.path is None) == (self.repo is None):
            raise ValueError("set exactly one of `path` (a folder) and `repo` (with `revision`)")
        if self.repo is not None and not self.revision:
            raise ValueError("`repo` needs `revision`. Pin the commit of the files")
        if self.repo is None and self.revision is not None:
            raise ValueError("`revision` cannot be combined with `path`. Remove it, or set `repo`")
        return self

    def located(self, folder: Path) -> Self:
        """Return this declaration with a relative `path` resolved against `folder`."""
        return self if self.path is None else self.model_copy(update={"path": resolve_path(self.path, folder)})


class DocumentPolicy(Declared):
    """Tokens around a document, and special tokens in it."""

    separator: str = Field(
        "auto",
        description="Token appended to every document; `auto`: the tokenizer's EOS, unless it ends a chat turn (then "
        "an error).",
    )
    bos: str = Field("none", description="Token put before every document: `none`, `auto` or its content.")
    special_tokens: Literal["text", "match"] = Field(
        "text", description="Literal special tokens in documents: encode as ordinary `text`, or `match` the special id."
    )


class BadRecordPolicy(Declared):
    """Action for records that cannot become documents."""

    policy: Literal["fail", "drop"] = Field(
        "fail", description="`fail` at the first bad record; or `drop`, count and quarantine bad records."
    )
    budget: float = Field(0.001, ge=0, le=1, description="With `drop`: maximum share of dropped rows per shard.")
    max_record_bytes: int = Field(
        MAX_RECORD_BYTES,
        ge=1024,
        le=1 << 30,
        description="Longer records are bad (`too_large`). A worker keeps several records in memory.",
    )
