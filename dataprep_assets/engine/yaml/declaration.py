"""The keys that declarations share: the dataset's name, owners and storage, how files are read, who does the work."""

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

# The keys that say of files how they are read, where files do not say it themselves.
#
# They are the same wherever such files are declared: corpora, releases, the datasets of a blend, benchmarks.


class ReadingDeclaration(Declared):
    """How the documents of a text file, and the values of a table, are told apart."""

    text_separator: str | None = Field(
        None, min_length=1, description='Text between two documents of a `.txt`, as `"\\n"`; default: a file is one.'
    )
    csv_delimiter: str | None = Field(
        None, pattern=r'^[^"\r\n]$', description="Character between fields of `.csv`, `.tsv`; default: a comma, a tab."
    )
    csv_quotes: bool | None = Field(
        None, description="Whether quotes enclose values of `.csv`, `.tsv`; default: yes, unless a `.tsv` seems not to."
    )

    @property
    def reading(self) -> "ReadOptions":
        """What it says of files that do not say it themselves."""
        # every command loads this module, and readers load their libraries
        from dataprep_assets.sources.readers.input_format import ReadOptions

        return ReadOptions(
            text_separator=self.text_separator, csv_delimiter=self.csv_delimiter, csv_quotes=self.csv_quotes
        )


_OWNER = re.compile(r"team:.+|[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}")
"""What Dagster accepts as an owner."""


class Attribution(Declared):
    """What a data card says of a source that only a person knows. None of it decides a byte of the data."""

    license: str | None = Field(
        None, min_length=1, description="Licence of the source, for the data card: an SPDX expression, or words."
    )
    citation: str | None = Field(None, min_length=1, description="How to cite the source, for the data card: BibTeX.")
    homepage: str | None = Field(
        None, pattern=r"^https?://", description="Where the source is described, for the data card: a URL."
    )

    @property
    def unattributed(self) -> Self:
        """A copy without the attribution, so that declarations that read the same data compare equal."""
        return self.model_copy(update=dict.fromkeys(Attribution.model_fields))


ATTRIBUTION = frozenset(Attribution.model_fields)
"""The YAML keys of `Attribution`, which are left out of every artifact's key."""


class Creator(Declared):
    """Who made a dataset."""

    name: str = Field(min_length=1, description="Name of the person or organization.")
    kind: Literal["organization", "person"] = Field("organization", description="`organization` or `person`.")
    url: str | None = Field(None, pattern=r"^https?://", description="Their page.")


class CardDeclaration(Attribution):
    """What the data card says of the dataset that is made; Croissant asks for each of these."""

    license: str | None = Field(
        None, min_length=1, description="Licence of the dataset as it is made; default: those of its sources."
    )
    creators: tuple[Creator, ...] = Field((), description="Who made it.")
    published: date | None = Field(None, description="Date of its publication.")
    version: str | None = Field(None, pattern=r"^\d+\.\d+\.\d+$", description="Its version, MAJOR.MINOR.PATCH.")


class ProvingDeclaration(Declared):
    """How much is proven, and when it is proven again."""

    level: Level = Field(
        SAMPLE,
        description="How many documents the checks make again from the source and compare: a `sample` of 460 a shard, "
        "or `every_document`, which takes about as long as building.",
    )
    again_every: str | None = Field(
        None,
        description="Verdicts older than this are given anew by the next run: `30d`, `12h`; default: never, a verdict "
        "holds while nothing changes.",
    )

    @field_validator("again_every")
    @classmethod
    def _a_duration(cls, again_every: str | None) -> str | None:
        if again_every is not None and seconds_of(again_every) is None:
            raise ValueError(f"{again_every!r} is not a duration: give {DURATIONS}")
        return again_every

    def since(self, now: float) -> float:
        """Verdicts from before this time, in seconds since 1970, no longer count."""
        return 0.0 if self.again_every is None else now - (seconds_of(self.again_every) or 0)


class DatasetDeclaration(Declared):
    """The keys that the YAML of every component has."""

    dataset: str = Field(
        pattern=r"^[A-Za-z][A-Za-z0-9_]*$",
        description="Name of the dataset and of its group in the UI: a letter, then letters, digits and `_`.",
    )
    description: str = Field("", description="Shown in the UI.")
    owners: tuple[str, ...] = Field((), description="E-mail addresses, or `team:name`.")
    storage: str | None = Field(
        None, description="Where the artifacts go: a folder, `s3://bucket/prefix` or `gs://bucket/prefix`."
    )
    verify: Verification = Field(
        "full",
        description="How finished artifacts are verified: `full` compares digests; `size` compares sizes alone, for "
        "very large local trees.",
    )
    prove: ProvingDeclaration = Field(
        ProvingDeclaration(),
        description="How much of finished artifacts is proven, and when again although nothing has changed.",
    )
    workers: int | None = Field(None, ge=1, description="Worker processes; default: DATAPREP_WORKERS, else one a core.")
    sensitive: bool = Field(False, description="No text and no identifier in any log, event, metadata or plot.")
    small_cell: int = Field(
        SMALL_CELL,
        ge=1,
        description="Of a `sensitive` dataset, counts below this are shown as `< 11` (or what it says).",
    )
    card: CardDeclaration = Field(CardDeclaration(), description="What the data card says that no receipt knows.")
    accept: dict[str, str] = Field(
        default_factory=dict,
        description="Checks that only warn and whose failure is accepted: name → why. They pass, and show the reason.",
    )

    automation: Automation | None = Field(
        None,
        description="What the dataset does by itself: look for new files, schedule, freshness, telling of failures.",
    )

    @field_validator("owners")
    @classmethod
    def _as_dagster_has_them(cls, owners: tuple[str, ...]) -> tuple[str, ...]:
        for owner in owners:
            if not _OWNER.fullmatch(owner):
                raise ValueError(f"{owner!r} is not an owner: give an e-mail address, or a team as `team:name`")
        return owners

    @field_validator("accept")
    @classmethod
    def _with_reasons(cls, accept: dict[str, str]) -> dict[str, str]:
        for name, why in accept.items():
            if not why.strip():
                raise ValueError(f"accept.{name}: say why, for those who read the check later")
        return accept

    def located(self, folder: Path) -> Self:
        """A copy with relative paths resolved against `folder`."""
        if self.storage is None or "://" in self.storage:
            return self
        return self.model_copy(update={"storage": str(resolved(Path(self.storage), folder))})

    def store(self, storage: Storage) -> ArtifactStore:
        """Where its artifacts are."""
        return storage.artifacts(self.storage, private=self.sensitive)

    def holding_retracted(self, store: ArtifactStore, unplanned: Iterable[Artifact]) -> list[Artifact]:
        """What nothing reads any more and holds, or may hold, something on the dataset's retraction list.

        Args:
            store: Where the artifacts are.
            unplanned: The artifacts that are in no plan any more; not asked for if nothing is retracted.
        """
        return []

    def artifact(self, name: str, partition: str | None = None) -> Artifact:
        """The name of one of this dataset's artifacts."""
        return Artifact(dataset=self.dataset, name=name, partition=partition)


def resolved(path: Path, folder: Path) -> Path:
    """Resolve a declared path against the folder of its YAML, unless it is absolute or starts with `~`.

    Raises ConfigError for a path that no file can have.
    """
    found = expanded(path)
    # not `resolve`, which raises for a link that leads to itself
    return found if found.is_absolute() else Path(os.path.realpath(folder / found))


# Who makes a dataset whose heavy steps are tasks of an engine (`execution.pool`): worker processes or Ray.
#
# Entry point: `MadeByEngine`.


class MadeByEngine(DatasetDeclaration):
    """A dataset whose shards, or months, are made and proven by workers. None of this decides a byte of it."""

    run_on: Literal["processes", "ray"] | None = Field(
        None,
        description="Who makes and proves the shards (of notes: the months): worker `processes` of the run's machine, "
        "or the tasks of a `ray` cluster (RAY_ADDRESS, else one for the run); default: DATAPREP_ENGINE, else "
        "`processes`.",
    )

    @property
    def engine(self) -> "TaskEngine":
        """Who makes it."""
        from dataprep_assets.execution.pool import TaskEngine

        return TaskEngine(self.run_on)
