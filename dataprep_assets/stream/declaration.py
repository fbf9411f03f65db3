"""What the declarations of corpora, releases, notes and blends share: sources, the tokenizer, the rules of documents.

Their field descriptions are the YAML reference. Paths are resolved against the folder of the YAML; none enters a key.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dataprep_assets.engine.yaml.declaration import Attribution, resolved
from dataprep_assets.engine.yaml.declared_model import Declared
from dataprep_assets.sources.readers.row_files import MAX_RECORD_BYTES
from dataprep_assets.stores.connect import BUCKET_URL, Access

RETRACTIONS = "retracted.jsonl"


class LocalSource(Attribution):
    """A local folder. Files are verified in place, never copied."""

    kind: Literal["local"] = Field(description="`local`: a folder of this machine.")
    path: Path = Field(description="Folder that holds the files; relative paths are relative to this YAML.")
    follow_links: bool = Field(
        False, description="Whether links may lead out of the folder. Whoever can make one there chooses what is read."
    )


class HubSource(Attribution):
    """A dataset repository on a Hugging Face hub, mirrored into the standard cache."""

    kind: Literal["hub"] = Field(description="`hub`: a dataset repository of the Hugging Face hub.")
    repo: str = Field(pattern=r"^[\w.-]+/[\w.-]+$", description="`organization/name` of the dataset repository.")
    revision: str = Field(
        description="Branch, tag or commit; pin a 40-digit commit so that nothing can move under you."
    )
    endpoint: str | None = Field(None, description="The hub's URL; default: HF_ENDPOINT or the public hub.")
    allow_http: bool = Field(
        False, description="Whether the hub may be http:// beyond this machine: keys travel in the clear."
    )
    cache_dir: Path | None = Field(
        None,
        description="Cache folder, relative to this YAML; default: HF_HUB_CACHE, HF_HOME/hub or ~/.cache.",
    )


class HubCacheSource(Attribution):
    """An already mirrored Hugging Face cache folder, used offline."""

    kind: Literal["hf_cache"] = Field(description="`hf_cache`: a repository in the hub's cache on this machine.")
    path: Path = Field(description="The `datasets--organization--name` folder.")
    revision: str = Field("main", description="Branch (read from refs/) or commit.")
    follow_links: bool = Field(
        False, description="Whether links may lead out of the cache. Whoever can make one there chooses what is read."
    )


class ObjectStoreSource(Attribution):
    """A prefix of a bucket on S3, R2, MinIO or GCS, mirrored. Credentials come from the environment alone."""

    kind: Literal["object_store"] = Field(description="`object_store`: a prefix of an S3 or GCS bucket.")
    url: str = Field(
        pattern=BUCKET_URL,
        description="`s3://bucket/prefix` or `gs://bucket/prefix`; the prefix may be left out.",
    )
    cache_dir: Path = Field(description="Folder for the mirror; relative paths are relative to this YAML.")
    endpoint_url: str | None = Field(
        None,
        description="With s3://: the store's URL, never with credentials; default: DATAPREP_ENDPOINT_URL, the account "
        "R2_DATASET_ACCOUNT_ID, else AWS S3. The variables R2_DATASET_… are used for the store that they name; any "
        "other is reached with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE.",
    )
    allow_http: bool = Field(
        False, description="Whether the store may be http:// beyond this machine: keys travel in the clear."
    )
    access: Access = Field(
        "keys",
        description="`keys`: with the environment's credentials; `anonymous`: a public bucket, without any; "
        "`requester_pays`: with credentials whose owner pays for the requests.",
    )
    region: str = Field(
        "auto", description="With s3://: region; `auto` suits R2, and where no endpoint is named leaves it to boto3."
    )


class AssetSource(Attribution):
    """The files of a Dagster asset, wherever its latest materialization put them: another tool's output, say."""

    kind: Literal["asset"] = Field(description="`asset`: the files of a Dagster asset.")
    key: tuple[str, ...] = Field(
        min_length=1, description="The asset's key, such as `[team, cleaned]`. Files of a partition are below its key."
    )
    path: str | None = Field(
        None,
        min_length=1,
        description="Where its files are, if its metadata has no `path` or `uri`: a folder or file, relative to this "
        "YAML, `s3://` or `gs://`; `{partition}` in it stands for each partition.",
    )
    cache_dir: Path | None = Field(
        None,
        description="Folder for the mirror, needed for files in a bucket, and only there; relative to this YAML.",
    )
    follow_links: bool = Field(
        False, description="Whether links may lead out of the folder. Whoever can make one there chooses what is read."
    )

    @property
    def mirrored(self) -> bool:
        """Whether its files are in a bucket."""
        return self.cache_dir is not None

    def located(self, folder: Path) -> Self:
        """The same with relative paths resolved against `folder`."""
        path, cache_dir = self.path, self.cache_dir
        if path is not None and "://" not in path:
            path = str(resolved(Path(path), folder))
        return self.model_copy(
            update={"path": path, "cache_dir": None if cache_dir is None else resolved(cache_dir, folder)}
        )


Source = Annotated[
    LocalSource | HubSource | HubCacheSource | ObjectStoreSource | AssetSource, Field(discriminator="kind")
]


class TokenizerDeclaration(Declared):
    """Which tokenizer, from where, and which engine may run it."""

    path: Path | None = Field(None, description="Folder with tokenizer.json; relative to this YAML.")
    repo: str | None = Field(None, description="Hub repository of the tokenizer, instead of `path`.")
    revision: str | None = Field(None, description="Commit of `repo`; required with it.")
    name: str | None = Field(None, description="Name written to meta.pkl; default: the folder's or repository's name.")
    engine: Literal["fastokens", "tokenizers"] = Field(
        "fastokens",
        description="`fastokens`: the fast engine where it is certified for this tokenizer, else the reference "
        "(`tokenizers`).",
    )
    refuse: tuple[str, ...] = Field((), description="Document classes always sent to the reference engine.")
    max_loss: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Largest share of unknown tokens, and of characters left out, without a warning.",
    )

    @model_validator(mode="after")
    def _one_place(self) -> "TokenizerDeclaration":
        if (self.path is None) == (self.repo is None):
            raise ValueError("give exactly one of `path` (a folder) and `repo` (with `revision`)")
        if self.repo is not None and not self.revision:
            raise ValueError("`repo` needs `revision`: pin the commit whose files you want")
        if self.repo is None and self.revision is not None:
            raise ValueError("`revision` has no effect on a folder; leave it out, or name a `repo`")
        return self

    def located(self, folder: Path) -> Self:
        """The same declaration with a relative path resolved against `folder`."""
        return self if self.path is None else self.model_copy(update={"path": resolved(self.path, folder)})


class DocumentPolicy(Declared):
    """What surrounds and what may be inside a document."""

    separator: str = Field(
        "auto",
        description="Token appended to every document; `auto`: the tokenizer's EOS, refused where it ends a chat turn.",
    )
    bos: str = Field("none", description="Token put before every document: `none`, `auto` or its content.")
    special_tokens: Literal["text", "match"] = Field(
        "text", description="Literal special tokens in documents: ordinary `text`, or a `match` for the special id."
    )


class BadRecordPolicy(Declared):
    """What happens to a record that cannot be a document."""

    policy: Literal["fail", "drop"] = Field("fail", description="`fail` at the first; or `drop`, count and quarantine.")
    budget: float = Field(0.001, ge=0, le=1, description="With `drop`: largest share of dropped rows in a shard.")
    max_record_bytes: int = Field(
        MAX_RECORD_BYTES,
        ge=1024,
        le=1 << 30,
        description="A longer record is bad: `too_large`. A worker holds several of them in memory.",
    )
