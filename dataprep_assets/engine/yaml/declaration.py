"""The keys that all declarations share: the dataset's name, owners and storage, options for reading files, workers."""

import os
import re
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, field_validator

from dataprep_assets.engine.checks.check import SAMPLE, Level
from dataprep_assets.engine.privacy import SMALL_CELL
from dataprep_assets.engine.yaml.automation import DURATIONS, Automation, seconds_of
from dataprep_assets.engine.yaml.declared_model import Declared
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Verification
from dataprep_assets.integrity.storage import Storage
from dataprep_assets.stores.files import expanded

if TYPE_CHECKING:
    from dataprep_assets.execution.pool import TaskEngine
    from dataprep_assets.sources.readers.input_format import ReadOptions

# Options for reading files whose format is not evident from the files themselves.
#
# They are the same wherever such files are declared: corpora, releases, the datasets of a blend, benchmarks.


class ReadingDeclaration(Declared):
    """Delimiters between the documents of a text file and between the values of a table."""

    text_separator: str | None = Field(
        None,
        min_length=1,
        description='Text between two documents of a `.txt`, e.g. `"\\n"`; default: each file is one document.',
    )
    csv_delimiter: str | None = Field(
        None, pattern=r'^[^"\r\n]$', description="Character between fields of `.csv`, `.tsv`; default: a comma, a tab."
    )
    csv_quotes: bool | None = Field(
        None,
        description="Whether quotes enclose values of `.csv`, `.tsv`; default: yes, unless a `.tsv` appears unquoted.",
    )

    @property
    def reading(self) -> "ReadOptions":
        """The declared options, for files whose format is not evident."""
        # the import is local, because every command loads this module and the readers load their libraries
        from dataprep_assets.sources.readers.input_format import ReadOptions

        return ReadOptions(
            text_separator=self.text_separator, csv_delimiter=self.csv_delimiter, csv_quotes=self.csv_quotes
        )


_OWNER = re.compile(r"team:.+|[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}")
"""Matches owners that Dagster accepts."""

_FORMER_CHECK_NAMES = {
    "eye_test": "looks_like_text",
    "repeats": "epochs_within_limit",
    "rows_filled": "packing_efficient",
    "sample_ids_repeat": "samples_unique",
    "tfds_reads": "readable_by_tfds",
}
"""Former names of non-blocking checks → current names: `accept` allows both, because declarations use either."""


class Attribution(Declared):
    """Attribution of a source for the data card, which only a person can provide. It does not affect any bytes."""

    license: str | None = Field(
        None, min_length=1, description="License of the source, for the data card: an SPDX expression, or text."
    )
    citation: str | None = Field(None, min_length=1, description="Citation of the source, for the data card: BibTeX.")
    homepage: str | None = Field(
        None, pattern=r"^https?://", description="Home page of the source, for the data card: a URL."
    )

    @property
    def unattributed(self) -> Self:
        """A copy without the attribution, so that declarations that read the same data compare equal."""
        return self.model_copy(update=dict.fromkeys(Attribution.model_fields))


ATTRIBUTION = frozenset(Attribution.model_fields)
"""The YAML keys of `Attribution`, which are excluded from every artifact's key."""


class Creator(Declared):
    """A creator of a dataset."""

    name: str = Field(min_length=1, description="Name of the person or organization.")
    kind: Literal["organization", "person"] = Field("organization", description="`organization` or `person`.")
    url: str | None = Field(None, pattern=r"^https?://", description="Home page of the person or organization.")


class CardDeclaration(Attribution):
    """Entries of the data card for the built dataset. Croissant requires each of them."""

    license: str | None = Field(
        None, min_length=1, description="License of the built dataset; default: the licenses of its sources."
    )
    creators: tuple[Creator, ...] = Field((), description="Creators of the dataset.")
    published: date | None = Field(None, description="Date of its publication.")
    version: str | None = Field(None, pattern=r"^\d+\.\d+\.\d+$", description="Its version, MAJOR.MINOR.PATCH.")


class ProvingDeclaration(Declared):
    """How much of finished artifacts is checked, and when checks are repeated."""

    level: Level = Field(
        SAMPLE,
        description="Documents that checks rebuild from the source and compare: a `sample` of 460 per shard, or "
        "`every_document`, which takes about as long as building.",
    )
    again_every: str | None = Field(
        None,
        description="Age after which the next run repeats checks: `30d`, `12h`; default: never, a verdict is valid "
        "until something changes.",
    )

    @field_validator("again_every")
    @classmethod
    def _a_duration(cls, again_every: str | None) -> str | None:
        if again_every is not None and seconds_of(again_every) is None:
            raise ValueError(f"must be a duration, not {again_every!r}: {DURATIONS}")
        return again_every

    def since(self, now: float) -> float:
        """Return the earliest time, in seconds since 1970, of verdicts that still count."""
        return 0.0 if self.again_every is None else now - (seconds_of(self.again_every) or 0)


class DatasetDeclaration(Declared):
    """The keys that the YAML of every component accepts."""

    dataset: str = Field(
        pattern=r"^[A-Za-z][A-Za-z0-9_]*$",
        description="Name of the dataset and of its group in the UI: a letter, then letters, digits and `_`.",
    )
    description: str = Field("", description="Shown in the UI.")
    owners: tuple[str, ...] = Field((), description="E-mail addresses, or `team:name`.")
    storage: str | None = Field(
        None, description="Location of the artifacts: a folder, `s3://bucket/prefix` or `gs://bucket/prefix`."
    )
    verify: Verification = Field(
        "full",
        description="Verification of finished artifacts: `full` compares digests; `size` compares only sizes, for "
        "very large local trees.",
    )
    prove: ProvingDeclaration = Field(
        ProvingDeclaration(),
        description="How much of finished artifacts is checked, and when checks are repeated although nothing has "
        "changed.",
    )
    workers: int | None = Field(
        None, ge=1, description="Worker processes; default: DATAPREP_WORKERS, else one per core."
    )
    sensitive: bool = Field(
        False, description="Keeps texts and identifiers out of every log, event, metadata and plot."
    )
    small_cell: int = Field(
        SMALL_CELL,
        ge=1,
        description="For a `sensitive` dataset, counts below this limit are shown as `< 11` (or the configured limit).",
    )
    card: CardDeclaration = Field(CardDeclaration(), description="Entries of the data card that are not in receipts.")
    accept: dict[str, str] = Field(
        default_factory=dict,
        description="Non-blocking checks whose failure is accepted: name → reason. They pass and show the reason.",
    )

    automation: Automation | None = Field(
        None,
        description="Automation: polling for new files, schedule, freshness, notifications of failures.",
    )

    @field_validator("owners")
    @classmethod
    def _as_dagster_has_them(cls, owners: tuple[str, ...]) -> tuple[str, ...]:
        for owner in owners:
            if not _OWNER.fullmatch(owner):
                raise ValueError(f"{owner!r} is not an owner. Use an e-mail address, or a team as `team:name`")
        return owners

    @field_validator("accept")
    @classmethod
    def _with_reasons(cls, accept: dict[str, str]) -> dict[str, str]:
        for name, why in accept.items():
            if not why.strip():
                raise ValueError(f"accept.{name}: the reason is empty. Write why the failure is acceptable")
        return {_FORMER_CHECK_NAMES.get(name, name): why for name, why in accept.items()}

    def located(self, folder: Path) -> Self:
        """Return a copy with relative paths resolved against `folder`."""
        if self.storage is None or "://" in self.storage:
            return self
        return self.model_copy(update={"storage": str(resolve_path(Path(self.storage), folder))})

    def store(self, storage: Storage) -> ArtifactStore:
        """Return the store of its artifacts."""
        return storage.artifacts(self.storage, private=self.sensitive)

    def holding_retracted(self, store: ArtifactStore, unplanned: Iterable[Artifact]) -> list[Artifact]:
        """Return unused artifacts that contain, or may contain, data on the dataset's retraction list.

        Args:
            store: Where the artifacts are stored.
            unplanned: The artifacts that are in no plan any more. Not iterated if nothing is retracted.
        """
        return []

    def artifact(self, name: str, partition: str | None = None) -> Artifact:
        """Return the identifier of one of this dataset's artifacts."""
        return Artifact(dataset=self.dataset, name=name, partition=partition)


def resolve_path(path: Path, folder: Path) -> Path:
    """Resolve a declared path against the folder of its YAML, unless it is absolute or starts with `~`.

    Raises ConfigError for a path that no file can have.
    """
    full_path = expanded(path)
    # `Path.resolve` is not used, because it raises for a link that points to itself
    return full_path if full_path.is_absolute() else Path(os.path.realpath(folder / full_path))


# Datasets whose heavy steps are tasks of an engine (`execution.pool`): worker processes or Ray.
#
# Entry point: `MadeByEngine`.


class MadeByEngine(DatasetDeclaration):
    """A dataset whose shards or months are built and checked by workers. This setting does not affect its bytes."""

    run_on: Literal["processes", "ray"] | None = Field(
        None,
        description="Where shards (for notes: months) are built and checked: worker `processes` on the run's "
        "machine, or tasks of a `ray` cluster (RAY_ADDRESS, else one for the run); default: "
        "DATAPREP_ENGINE, else `processes`.",
    )

    @property
    def engine(self) -> "TaskEngine":
        """The engine that runs its tasks."""
        from dataprep_assets.execution.pool import TaskEngine

        return TaskEngine(self.run_on)
