"""A Dagster project over notes, as a user has it: declarations in, runs on a real instance, results out."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import dagster as dg

from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.engine.staleness.status import remove_leftovers
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.orchestration.component import DatasetComponent
from dataprep_assets.orchestration.partitions import asset_key, job_name
from dataprep_assets.pipelines.notes.component import CombinedCohorts, PackedCohorts
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.pipelines.notes.replay.replay_declaration import MixtureDeclaration
from dataprep_assets.resources import StorageResource
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, written
from dataprep_assets_tests.pipelines.notes.pipeline import KEY, SAMPLE
from dataprep_assets_tests.project import Bound, evaluated, new_instance, range_tags
from dataprep_assets_tests.samples import SAMPLE as CORPUS

QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def notes_attributes(source: Path = SAMPLE, **changes: Any) -> dict[str, Any]:
    """The attributes of the sample's notes; `changes` replace top-level keys."""
    return {
        "dataset": "notes",
        "sensitive": False,
        "source": {"kind": "local", "path": str(source)},
        "cohorts": {
            "fields": {
                "birth_date": "birth_date",
                "patient": {"colour": "favourite_colour"},
                "note": {"kind": "type", "author": "author", "when": "date"},
            }
        },
        "months": {"first": "2010-11", "last": "2011-02"},
        "template": {"header": "{kind}, {when}, {author}, likes {colour}\n", "defaults": {"colour": "none"}},
        "tokenizer": {"path": str(CORPUS / "tokenizer"), "name": "sample"},
        "document": {"separator": "<|endoftext|>"},
        "pad": {"token": "<|pad|>"},
        "patient_key": {"public": KEY},
        "splits": {"train": 0.8, "val": 0.2},
        "row_length": 128,
        "rows_per_shard": 8,
        "sample_rate": 0.05,
        "workers": 1,
        **changes,
    }


def plain_attributes(source: Path, months: Sequence[str], **changes: Any) -> dict[str, Any]:
    """Attributes for cohorts of the test's own, as `clinic` writes them: no header, one split."""
    base: dict[str, Any] = {
        "cohorts": {},
        "template": {},
        "months": {"first": months[0], "last": months[-1]},
        "row_length": 32,
        "rows_per_shard": 4,
        "splits": {"train": 1.0},
        "tokenizer": {"path": str(CORPUS / "tokenizer"), "name": "sample", "engine": "tokenizers"},
    }
    return notes_attributes(source, **(base | changes))


def tiny_cohorts(folder: Path, months: Sequence[str]) -> Path:
    """A folder with a patient of one note for each month."""
    return written(folder, {month: [patient(f"id of {month}", note(f"tea and cake of {month}"))] for month in months})


@dataclass
class NotesProject:
    """Some datasets' definitions, their instance and their storage."""

    components: tuple[DatasetComponent, ...]
    instance: dg.DagsterInstance
    root: Path
    _bound: Bound = field(default_factory=Bound, init=False, repr=False, compare=False)

    @cached_property
    def storage(self) -> StorageResource:
        """Where its artifacts are, as a resource."""
        return StorageResource(root=str(self.root))

    @property
    def notes(self) -> NotesDeclaration:
        """The first dataset's declaration."""
        found = self.components[0].declaration
        assert isinstance(found, NotesDeclaration)
        return found

    def key(self, name: str) -> dg.AssetKey:
        """The key of one of the first dataset's assets."""
        return dg.AssetKey([self.notes.dataset, name])

    @property
    def store(self) -> LocalArtifacts:
        """Where artifacts are."""
        return LocalArtifacts(self.root)

    @property
    def definitions(self) -> dg.Definitions:
        """The components' definitions bound to the storage."""
        return self._bound.definitions(self.components, self.storage)

    def run(self, names: Sequence[str | dg.AssetKey], months: Sequence[str] | None = None) -> dg.ExecuteInProcessResult:
        """Materialize assets with their checks, for a range of months where they are partitioned."""
        job = self.definitions.resolve_implicit_global_asset_job_def()
        return job.execute_in_process(
            asset_selection=[self.key(name) if isinstance(name, str) else name for name in names],
            tags=range_tags(months or ()),
            instance=self.instance,
            raise_on_error=False,
            run_config=QUIET,
        )

    def run_all(self) -> None:
        """Every component, each succeeding."""
        for component in self.components:
            outcome = self.build(component)
            assert outcome.success, failures(outcome)

    def build(self, component: DatasetComponent) -> dg.ExecuteInProcessResult:
        """The job of a dataset, which may fail."""
        job = self.definitions.resolve_job_def(job_name(component.declaration.dataset))
        return job.execute_in_process(instance=self.instance, raise_on_error=False, run_config=QUIET)

    def check(self, key: dg.AssetKey) -> dict[str, dg.AssetCheckEvaluation]:
        """The checks of one asset, on what there is now."""
        specs = [spec for component in self.components for spec in component.specs if asset_key(spec) == key]
        return {e.check_name: e for e in evaluated(specs, self.storage)}

    def directory(self, artifact: str, month: str | None = None) -> Path:
        """Where an artifact of the first dataset lies."""
        return self.store.directory(self.notes.artifact(artifact, month))


def failures(outcome: dg.ExecuteInProcessResult) -> str:
    """What the failed steps of a run said."""
    return " ".join(
        f"{event.step_failure_data.error} {event.step_failure_data.user_failure_data}"
        for event in outcome.all_events
        if event.is_step_failure
    )


@contextmanager
def notes_project(
    folder: Path, *attributes: Mapping[str, Any], replay: Mapping[str, Any] | None = None, home: Path | None = None
) -> Iterator[NotesProject]:
    """Datasets of notes, and a combination of them, in a folder, on a `new_instance`."""
    folder.mkdir(parents=True, exist_ok=True)
    components: list[DatasetComponent] = [
        PackedCohorts(validate_declaration(NotesDeclaration, one, folder / "defs.yaml")) for one in attributes
    ]
    if replay is not None:
        components.append(CombinedCohorts(validate_declaration(MixtureDeclaration, replay, folder / "defs.yaml")))
    with new_instance(home) as instance:
        yield NotesProject(tuple(components), instance, folder / "artifacts")


def main() -> None:
    """`python -m` this module with FOLDER: run the datasets of its `spec.json`, to be killed."""
    folder = Path(sys.argv[1])
    with notes_project(folder, *json.loads((folder / "spec.json").read_bytes())) as made:
        made.run_all()
        for component in made.components:
            remove_leftovers(component.specs, made.store)


if __name__ == "__main__":
    main()
