"""Declarations shared by corpora, releases, notes and blends: sources, the tokenizer and the document policies.

The field descriptions are the YAML reference. Paths are resolved against the folder of the YAML and do not enter keys.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dataprep_assets.engine.yaml.declaration import Attribution, resolve_path
from dataprep_assets.engine.yaml.declaration_model import DeclarationModel
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.sources.readers.read_options import MAX_RECORD_BYTES
from dataprep_assets.stores.connect import BUCKET_URL, Access

RETRACTIONS = "retracted.jsonl"


class LocalSource(Attribution):
    """A local folder. Its files are verified in place and never copied."""

    kind: Literal["local"] = Field(description="`local`: a folder on this machine.")
    path: Path = Field(description="Folder with the files. A relative path is relative to this YAML.")
    follow_links: bool = Field(
        False,
        description=(
            "Whether symbolic links may point outside the folder. If so, anyone who can create links there can "
            "make dataprep read any file."
        ),
    )


class HubSource(Attribution):
    """A dataset repository on the Hugging Face Hub, downloaded to the Hub's cache."""

    kind: Literal["hub"] = Field(description="`hub`: a dataset repository on the Hugging Face Hub.")
    repo: str = Field(
        pattern=r"^[\w.-]+/[\w.-]+$", description="Name of the dataset repository, as `organization/name`."
    )
    revision: str = Field(
        description="Branch, tag or commit. Use a 40-digit commit, because branches and tags can change."
    )
    endpoint: str | None = Field(None, description="URL of the Hub. Default: `HF_ENDPOINT`, else the public Hub.")
    allow_http: bool = Field(
        False,
        description=(
            "Whether a Hub on another machine may be reached over `http://`, which sends credentials unencrypted."
        ),
    )
    cache_dir: Path | None = Field(
        None,
        description=(
            "Cache folder, relative to this YAML. Default: `HF_HUB_CACHE`, else `hub` in `HF_HOME`, else the "
            "Hub's cache in `~/.cache`."
        ),
    )


class HubCacheSource(Attribution):
    """A dataset repository that is already in the Hub's cache. It is read without network access."""

    kind: Literal["hf_cache"] = Field(description="`hf_cache`: a repository in the Hub's cache on this machine.")
    path: Path = Field(description="Folder of the repository in the cache, named `datasets--organization--name`.")
    revision: str = Field("main", description="Branch or commit. A branch is looked up in the cache's `refs` folder.")
    follow_links: bool = Field(
        False,
        description=(
            "Whether symbolic links may point outside the cache. If so, anyone who can create links there can "
            "make dataprep read any file."
        ),
    )


class ObjectStoreSource(Attribution):
    """Files in a bucket on S3, R2, MinIO or GCS, copied to a local folder. Credentials come from the environment."""

    kind: Literal["object_store"] = Field(description="`object_store`: files in an S3 or GCS bucket.")
    url: str = Field(
        pattern=BUCKET_URL,
        description=(
            "Location of the files: `s3://bucket/prefix` or `gs://bucket/prefix`. Without a prefix, all files in "
            "the bucket."
        ),
    )
    cache_dir: Path = Field(description="Folder for the local copies, relative to this YAML.")
    endpoint_url: str | None = Field(
        None,
        description=(
            "URL of the object storage, only for `s3://`. Default: `DATAPREP_ENDPOINT_URL`, else the R2 account "
            "in `R2_DATASET_ACCOUNT_ID`, else AWS S3. The `R2_DATASET_…` credentials are used only for the store "
            "that these variables name. Other stores use `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, or "
            "`AWS_PROFILE`."
        ),
    )
    allow_http: bool = Field(
        False,
        description="Whether an endpoint on another machine may use `http://`, which sends credentials unencrypted.",
    )
    access: Access = Field(
        "keys",
        description=(
            "How requests are authenticated. `keys`: with credentials from the environment. `anonymous`: without "
            "credentials, for public buckets. `requester_pays`: with credentials, and your account pays for the "
            "requests."
        ),
    )
    region: str = Field(
        "auto",
        description=(
            "Region of the bucket, only for `s3://`. `auto` works for R2; for AWS, it means boto3's default region."
        ),
    )


class AssetSource(Attribution):
    """The files that the latest materialization of a Dagster asset wrote, such as the output of a different tool."""

    kind: Literal["asset"] = Field(description="`asset`: the files of a Dagster asset.")
    key: tuple[str, ...] = Field(
        min_length=1,
        description=(
            "Key of the asset, such as `[team, cleaned]`. If the asset has partitions, the path of each file "
            "begins with its partition key."
        ),
    )
    path: str | None = Field(
        None,
        min_length=1,
        description=(
            "Location of the files: a folder or file relative to this YAML, `s3://…` or `gs://…`. `{partition}` "
            "is replaced by each partition key. Default: `path` or `uri` in the asset's metadata."
        ),
    )
    cache_dir: Path | None = Field(
        None,
        description=(
            "Folder for local copies, relative to this YAML. Required for files in a bucket, and not allowed for "
            "others."
        ),
    )
    follow_links: bool = Field(
        False,
        description=(
            "Whether symbolic links may point outside the folder. If so, anyone who can create links there can "
            "make dataprep read any file."
        ),
    )

    @property
    def mirrored(self) -> bool:
        """Whether the asset's files are in a bucket."""
        return self.cache_dir is not None

    def resolve_paths(self, folder: Path) -> Self:
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


class TokenizerDeclaration(DeclarationModel):
    """A tokenizer, and the engine that encodes text with it."""

    path: Path | None = Field(
        None,
        description=(
            "Folder with the `tokenizer.json`, relative to this YAML. The extra `transformers` also converts "
            "other forms. Required without `repo`."
        ),
    )
    repo: str | None = Field(None, description="Hub repository of the tokenizer. Required without `path`.")
    revision: str | None = Field(None, description="Commit of `repo`. Required with `repo`.")
    name: str | None = Field(
        None, description="Name of the tokenizer in `meta.pkl`. Default: the name of the folder or repository."
    )
    pattern: str | None = Field(
        None,
        min_length=1,
        description=(
            "Regular expression that splits text, only for a tiktoken file. Default: the expression in the code "
            "next to the file."
        ),
    )
    engine: Literal["fastokens", "tokenizers"] = Field(
        "fastokens",
        description=(
            "Tokenizer engine. `fastokens`: the fast engine, if it is certified for this tokenizer. "
            "`tokenizers`: always the reference."
        ),
    )
    refuse: tuple[str, ...] = Field(
        (),
        description=(
            "Classes of documents that only the reference engine encodes: `long`, `special_literal`, `ascii`, "
            "`unnormalized`, `east_asian`, `other_script`. Default: only the classes that the certificate lists."
        ),
    )
    max_loss: float = Field(
        0.01,
        ge=0,
        le=1,
        description=(
            "Maximum share of unknown tokens, and of characters that the tokenizer drops. A check warns above it."
        ),
    )

    @model_validator(mode="after")
    def _require_one_place(self) -> "TokenizerDeclaration":
        if (self.path is None) == (self.repo is None):
            raise ValueError("set exactly one of `path` (a folder) and `repo` (with `revision`)")
        if self.repo is not None and not self.revision:
            raise ValueError("`repo` needs `revision`. Pin the commit of the files")
        if self.repo is None and self.revision is not None:
            raise ValueError("`revision` cannot be combined with `path`. Remove it, or set `repo`")
        return self

    def resolve_paths(self, folder: Path) -> Self:
        """Return this declaration with a relative `path` resolved against `folder`."""
        return self if self.path is None else self.model_copy(update={"path": resolve_path(self.path, folder)})


class DocumentPolicy(DeclarationModel):
    """Tokens before and after each document, and special tokens in its text."""

    separator: str = Field(
        "auto",
        description=(
            "Token appended to every document. `auto`: the tokenizer's EOS; if EOS ends a chat turn, `auto` is "
            "an error."
        ),
    )
    bos: str = Field(
        "none", description="Token before every document: `none`, `auto` (the tokenizer's BOS), or the token's text."
    )
    special_tokens: Literal["text", "match"] = Field(
        "text",
        description=(
            "How the text of a special token in a document is encoded: as ordinary `text`, or as the special "
            "token's id (`match`)."
        ),
    )


class BadRecordPolicy(DeclarationModel):
    """Handling of records that cannot become documents."""

    policy: Literal["fail", "drop"] = Field(
        "fail",
        description=(
            "Action for bad records. `fail`: the build fails at the first one. `drop`: they are dropped, counted and "
            "listed in quarantine."
        ),
    )
    budget: float = Field(
        0.001,
        ge=0,
        le=1,
        description="Maximum share of dropped rows per shard, only for `policy: drop`. The build fails above it.",
    )
    max_record_bytes: int = Field(
        MAX_RECORD_BYTES,
        ge=1024,
        le=1 << 30,
        description=(
            "Maximum size of a record in bytes (default: 64 MiB). Larger records are bad, with the reason "
            "`too_large`. Each worker keeps several records in memory."
        ),
    )

    @model_validator(mode="after")
    def _require_effective_budget(self) -> Self:
        # Compare the value with the default, because a serialized declaration contains all keys.
        if self.policy == "fail" and self.budget != type(self).model_fields["budget"].default:
            raise ValueError("`budget` has no effect with `policy: fail`. Remove it, or set `policy: drop`")
        return self


def find_exceeded_budget(
    policy: Literal["fail", "drop"],
    budget: float,
    store: ArtifactStore,
    artifact: Artifact,
    is_bad: Callable[[str], bool],
) -> float | None:
    """Return the budget if a finished artifact exceeds it, so that its next build fails; otherwise None.

    The budget does not change bytes, so a larger one keeps a finished artifact. Therefore it is part of an artifact's
    key only if this function returns it.

    Args:
        policy: The action for bad records. With `fail`, no artifact has dropped any.
        budget: The maximum share of dropped rows.
        store: The store of the artifact.
        artifact: The artifact, whose receipt has a ledger.
        is_bad: Returns whether rows that are dropped for a reason use up the budget.
    """
    if policy == "fail":
        return None
    try:
        receipt = store.receipt(artifact)
    except (DataprepError, OSError):
        return None
    if receipt is None or receipt.ledger is None:
        return None
    bad_rows = sum(count for reason, count in receipt.ledger.dropped.items() if is_bad(reason))
    return budget if bad_rows > budget * receipt.ledger.rows_in else None
