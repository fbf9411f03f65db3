"""The keys that all declarations share: the dataset's name, owners and storage, options for reading files, workers."""

import os
import re
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, field_validator, model_validator

from dataprep_assets.engine.checks.check import SAMPLE, Level
from dataprep_assets.engine.privacy import SMALL_CELL
from dataprep_assets.engine.yaml.automation import DURATIONS, Automation, parse_duration
from dataprep_assets.engine.yaml.declaration_model import DeclarationModel
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Verification
from dataprep_assets.integrity.storage import Storage
from dataprep_assets.project import read_project
from dataprep_assets.sources.readers.read_options import ReadOptions
from dataprep_assets.stores.files import expand_path

if TYPE_CHECKING:
    from dataprep_assets.execution.pool import TaskEngine

# These options are for reading files whose format is not evident from the files themselves.
#
# Corpora, releases, datasets of a blend and benchmarks declare these options under the same keys.


class ReadingDeclaration(DeclarationModel):
    """Delimiters between the documents of a text file and between the values of a table."""

    text_separator: str | None = Field(
        None,
        min_length=1,
        description=(
            'Text between two documents of a `.txt` file, such as `"\\n"`. Default: each file is one document.'
        ),
    )
    csv_delimiter: str | None = Field(
        None,
        pattern=r'^[^"\r\n]$',
        description="Character between the values of a row. Default: a comma in `.csv` files, a tab in `.tsv` files.",
    )
    csv_quotes: bool | None = Field(
        None,
        description=(
            "Whether quotes enclose values in `.csv` and `.tsv` files. Default: `true`. By default, a `.tsv` file in "
            "which quotes may be ordinary characters is refused."
        ),
    )

    @property
    def reading(self) -> ReadOptions:
        """The declared options, for files whose format is not evident."""
        return ReadOptions(
            text_separator=self.text_separator, csv_delimiter=self.csv_delimiter, csv_quotes=self.csv_quotes
        )


_OWNER = re.compile(r"team:.+|[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}")
"""Matches owners that Dagster accepts."""


class Attribution(DeclarationModel):
    """Attribution of a source for the data card, which only a person can provide. It does not affect any bytes."""

    license: str | None = Field(
        None,
        min_length=1,
        description="License of the source, for the data card: an SPDX expression, or text. Default: not declared.",
    )
    citation: str | None = Field(
        None, min_length=1, description="Citation of the source in BibTeX, for the data card. Default: none."
    )
    homepage: str | None = Field(
        None, pattern=r"^https?://", description="URL of the source's home page, for the data card. Default: none."
    )

    @property
    def unattributed(self) -> Self:
        """A copy without the attribution, so that declarations that read the same data compare equal."""
        return self.model_copy(update=dict.fromkeys(Attribution.model_fields))


ATTRIBUTION = frozenset(Attribution.model_fields)
"""The YAML keys of `Attribution`, which are excluded from every artifact's key."""


class Creator(DeclarationModel):
    """A creator of a dataset."""

    name: str = Field(min_length=1, description="Name of the person or organization.")
    kind: Literal["organization", "person"] = Field(
        "organization", description="Type of the creator: `organization` or `person`."
    )
    url: str | None = Field(None, pattern=r"^https?://", description="URL of the creator's home page. Default: none.")


class CardDeclaration(Attribution):
    """Entries of the data card for the built dataset. Croissant requires or recommends each of them."""

    license: str | None = Field(
        None,
        min_length=1,
        description="License of the built dataset: an SPDX expression, or text. Default: the licenses of its sources.",
    )
    citation: str | None = Field(
        None, min_length=1, description="Citation of the built dataset, in BibTeX. Default: none."
    )
    homepage: str | None = Field(
        None, pattern=r"^https?://", description="URL of the built dataset's home page. Default: none."
    )
    creators: tuple[Creator, ...] = Field(
        (), description="People and organizations that created the dataset. Default: none."
    )
    published: date | None = Field(None, description="Date of publication, as YYYY-MM-DD. Default: none.")
    version: str | None = Field(
        None, pattern=r"^\d+\.\d+\.\d+$", description="Version of the dataset, as MAJOR.MINOR.PATCH. Default: none."
    )


class ChecksDeclaration(DeclarationModel):
    """Number of documents that the checks rebuild, and how often checks are repeated."""

    level: Level = Field(
        SAMPLE,
        description=(
            "How many documents checks rebuild from the source and compare. `sample`: 460 per shard. "
            "`every_document`: all, which takes about as long as the build."
        ),
    )
    again_every: str | None = Field(
        None,
        description=(
            "Age at which the next run repeats a check, such as `30d` or `12h`. Default: a check runs again only "
            "when its artifact or inputs change."
        ),
    )

    @field_validator("again_every")
    @classmethod
    def _validate_duration(cls, again_every: str | None) -> str | None:
        if again_every is not None and parse_duration(again_every) is None:
            raise ValueError(f"must be a duration, not {again_every!r}: {DURATIONS}")
        return again_every

    def find_earliest_valid_time(self, now: float) -> float:
        """Return the earliest time, in seconds since 1970, of verdicts that are still valid."""
        return 0.0 if self.again_every is None else now - (parse_duration(self.again_every) or 0)


class WandbDeclaration(DeclarationModel):
    """A Weights & Biases project. Credentials come only from wandb's settings."""

    project: str = Field(min_length=1, description="Name of the project.")
    entity: str | None = Field(
        None, min_length=1, description="User or team that owns the project. Default: the default of your account."
    )
    mode: Literal["online", "offline"] | None = Field(
        None,
        description=(
            "`online` sends the data. `offline` writes them to `WANDB_DIR` (else `./wandb`), for `wandb sync`. "
            "Default: `WANDB_MODE`."
        ),
    )


class LineageDeclaration(DeclarationModel):
    """Systems that receive events about each built artifact, with its inputs and digests."""

    openlineage: str | None = Field(
        None,
        min_length=1,
        description=(
            "URL of a server that receives OpenLineage events, or a file to which they are appended. Needs the extra "
            "`openlineage`. The key of a server is read from `OPENLINEAGE_API_KEY`. "
            "Default: no events."
        ),
    )
    wandb: WandbDeclaration | None = Field(
        None,
        description=(
            "Weights & Biases project that receives a reference to each built artifact. Needs the extra `wandb`. "
            "Default: no references."
        ),
    )

    @model_validator(mode="after")
    def _require_system(self) -> Self:
        if self.openlineage is None and self.wandb is None:
            raise ValueError("names no system. Add `openlineage` or `wandb`, or remove `lineage`")
        return self

    @field_validator("openlineage")
    @classmethod
    def _refuse_credentials(cls, openlineage: str | None) -> str | None:
        # The message omits the URL, because it may contain a secret, and warnings show the URL.
        if openlineage is None:
            return None
        is_url = re.fullmatch(r"https?://[^/\s@?#]+(/[^\s?#]*)?", openlineage)
        # A host with a port would otherwise be the name of a file.
        if not is_url and ("://" in openlineage or re.fullmatch(r"[\w.-]+:\d+(/.*)?", openlineage)):
            raise ValueError(
                "must be a file or a URL that begins with http:// or https://, without credentials and parameters. Set "
                "the key of the server in OPENLINEAGE_API_KEY"
            )
        return openlineage


class HubPublication(DeclarationModel):
    """A dataset repository on the Hugging Face Hub to which a finished dataset is published."""

    hub: str = Field(
        pattern=r"^[\w.-]+/[\w.-]+$",
        description=(
            "Name of the dataset repository, as `organization/name`. It is created if it does not exist. "
            "`HF_TOKEN` needs write access to it."
        ),
    )
    private: bool = Field(
        True,
        description=(
            "Whether the repository is private. The visibility of an existing repository is never changed: if it "
            "differs, nothing is published."
        ),
    )
    project: str | None = Field(
        None,
        min_length=1,
        description=(
            "The project that owns the repository. Other projects cannot publish to it. Default: the name of the code "
            "location and the id in `pyproject.toml`, such as `my_data-3f9c01ab`. To publish to a repository of a "
            "different project, set the project that its `publication.json` names."
        ),
    )
    endpoint: str | None = Field(None, description="URL of the Hub. Default: `HF_ENDPOINT`, else the public Hub.")
    allow_http: bool = Field(
        False,
        description=(
            "Whether a Hub on another machine may be reached over `http://`, which sends credentials unencrypted."
        ),
    )

    def require_owner(self) -> str:
        """Return `project`. Raises ConfigError without one."""
        if self.project is None:
            raise ConfigError(
                "pyproject.toml has no project id, so another project of the same name could overwrite the "
                'publication. Add the table [tool.dataprep] with 8 random hex digits as id, such as id = "3f9c01ab". '
                "For an existing publication, instead set `publish.project` to the project that its publication.json "
                "names"
            )
        return self.project


class DatasetDeclaration(DeclarationModel):
    """The keys that the YAML of every component accepts."""

    dataset: str = Field(
        pattern=r"^[A-Za-z][A-Za-z0-9_]*$",
        description=(
            "Name of the dataset, and of its asset group in the UI. It begins with a letter, followed by "
            "letters, digits and `_`."
        ),
    )
    description: str = Field("", description="Description of the dataset, shown in the UI and on its data card.")
    owners: tuple[str, ...] = Field(
        (), description="Owners of the assets in the UI: e-mail addresses, or teams as `team:name`. Default: none."
    )
    storage: str | None = Field(
        None,
        description=(
            "Storage location of the artifacts: a folder, `s3://bucket/prefix` or `gs://bucket/prefix`. Default: "
            "the location in the environment variables, else `.dataprep/artifacts`."
        ),
    )
    verify: Verification = Field(
        "full",
        description=(
            "How finished artifacts are verified. `full` compares their digests with the receipts. `size` "
            "compares only file sizes, which is faster for very large local folders."
        ),
    )
    prove: ChecksDeclaration = Field(
        ChecksDeclaration(),
        description=(
            "How many documents the checks rebuild, and how often checks are repeated. Default: a sample of "
            "documents, and no repetition without changes."
        ),
    )
    workers: int | None = Field(
        None, ge=1, description="Number of worker processes. Default: `DATAPREP_WORKERS`, else one per core."
    )
    sensitive: bool = Field(
        False,
        description=(
            "With `true`, logs, events, metadata and plots contain no texts or identifiers, and local files are "
            "private."
        ),
    )
    small_cell: int = Field(
        SMALL_CELL,
        ge=1,
        description=(
            "With `sensitive: true`, counts below this limit are shown only as `< 11` (for the default limit)."
        ),
    )
    card: CardDeclaration = Field(
        CardDeclaration(),
        description=(
            "Additional entries for the data card that are not in the receipts, such as creators. Default: none."
        ),
    )
    publish: HubPublication | None = Field(
        None,
        description=(
            "Dataset repository to which the files for trainers, the data card and the receipts are published. Not "
            "allowed with `sensitive`. Default: nothing is published."
        ),
    )
    accept: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "Non-blocking checks whose failure you accept: name of the check → reason. They pass, and their "
            "result shows the reason. Default: none."
        ),
    )

    automation: Automation | None = Field(
        None,
        description="Automatic builds and notifications of failures. Without it, you start every build yourself.",
    )

    lineage: LineageDeclaration | None = Field(
        None, description="Lineage events about each built artifact. Default: no events."
    )

    @model_validator(mode="after")
    def _refuse_private_lineage(self) -> Self:
        if self.sensitive and self.lineage is not None:
            raise ValueError(
                "`lineage` cannot be combined with `sensitive: true`: reports on sensitive data must stay local. "
                "Remove one of them"
            )
        return self

    @field_validator("storage")
    @classmethod
    def _require_storage_url(cls, storage: str | None) -> str | None:
        if storage is not None and "://" in storage:
            # Import the module here, because most datasets declare no bucket.
            from dataprep_assets.stores.connect import split_storage_url

            try:
                split_storage_url(storage)
            except ConfigError as error:
                raise ValueError(str(error)) from None
        return storage

    @field_validator("owners")
    @classmethod
    def _normalize_owners(cls, owners: tuple[str, ...]) -> tuple[str, ...]:
        for owner in owners:
            if not _OWNER.fullmatch(owner):
                raise ValueError(f"{owner!r} is not an owner. Use an e-mail address, or a team as `team:name`")
        return owners

    @field_validator("accept")
    @classmethod
    def _require_reasons(cls, accept: dict[str, str]) -> dict[str, str]:
        for name, reason in accept.items():
            if not reason.strip():
                raise ValueError(f"accept.{name}: the reason is empty. Write why the failure is acceptable")
        return accept

    @model_validator(mode="after")
    def _forbid_publication_of_sensitive_data(self) -> Self:
        if self.sensitive and self.publish is not None:
            raise ValueError(
                "`publish` cannot be combined with `sensitive: true`: sensitive data is never published. Remove one of "
                "them"
            )
        return self

    def resolve_paths(self, folder: Path) -> Self:
        """Return a copy with relative paths resolved against `folder`, and with the owner of its publication."""
        changes: dict[str, object] = {}
        if self.storage is not None and "://" not in self.storage:
            changes["storage"] = str(resolve_path(Path(self.storage), folder))
        target = None if self.lineage is None else self.lineage.openlineage
        if self.lineage is not None and target is not None and "://" not in target:
            path = resolve_path(Path(target), folder)
            changes["lineage"] = self.lineage.model_copy(update={"openlineage": str(path)})
        if self.publish is not None and self.publish.project is None:
            project = next(filter(None, map(read_project, folder.resolve().parents)), None)
            if project is not None and project.id is not None:
                owner = f"{project.location}-{project.id}"
                changes["publish"] = self.publish.model_copy(update={"project": owner})
        return self.model_copy(update=changes) if changes else self

    def store(self, storage: Storage) -> ArtifactStore:
        """Return the store of its artifacts."""
        return storage.artifacts(self.storage, private=self.sensitive)

    def artifact(self, name: str, partition: str | None = None) -> Artifact:
        """Return the identifier of one of this dataset's artifacts."""
        return Artifact(dataset=self.dataset, name=name, partition=partition)


def require_unique_views(views: tuple[str, ...]) -> tuple[str, ...]:
    """Return the views, for a validator; raise ValueError if one is listed twice."""
    if repeated_views := [view for view in dict.fromkeys(views) if views.count(view) > 1]:
        raise ValueError(f"`{repeated_views[0]}` is listed twice. Remove one")
    return views


def resolve_path(path: Path, folder: Path) -> Path:
    """Resolve a declared path against the folder of its YAML, unless it is absolute or starts with `~`.

    Raises ConfigError for a path that no file can have.
    """
    full_path = expand_path(path)
    # Use `realpath`, because `Path.resolve` raises an error for a link that points to itself.
    return full_path if full_path.is_absolute() else Path(os.path.realpath(folder / full_path))


# Datasets with this declaration run their heavy steps as tasks of an engine (`execution.pool`): worker processes or
# Ray.
#
# Entry point: `WorkersDeclaration`.


class WorkersDeclaration(DatasetDeclaration):
    """A dataset whose shards or months are built and checked by workers. This setting does not affect its bytes."""

    run_on: Literal["processes", "ray"] | None = Field(
        None,
        description=(
            "Where shards (for notes: months) are built and checked. `processes`: worker processes on the run's "
            "machine. `ray`: tasks on the Ray cluster at `RAY_ADDRESS`, else on a cluster started for the run. "
            "Default: `DATAPREP_ENGINE`, else `processes`."
        ),
    )

    @property
    def engine(self) -> "TaskEngine":
        """The engine that runs its tasks."""
        from dataprep_assets.execution.pool import TaskEngine

        return TaskEngine(self.run_on)
