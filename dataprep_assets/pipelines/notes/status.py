"""Which artifacts of a dataset of notes are not what the declaration asks for now, without building anything."""

from collections.abc import Iterator

from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import sha256_file
from dataprep_assets.pipelines.notes.cohort_shards import COHORT_SHARDS, shards_key
from dataprep_assets.pipelines.notes.cohort_source import list_cohorts
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration, ReplayDeclaration
from dataprep_assets.pipelines.notes.engine_certificate import certificate_key, load_certificate, notes_plan
from dataprep_assets.pipelines.notes.packed_cohorts import PACKED_COHORTS, cohort_key
from dataprep_assets.pipelines.notes.privacy import unquoting
from dataprep_assets.pipelines.notes.replay import replay_key
from dataprep_assets.pipelines.notes.tfds_directory import DIRECTORIES, directory_key

__all__ = ["stale", "stale_replay", "sweep_dataset", "sweep_replay"]


def stale(notes: NotesDeclaration, store: ArtifactStore) -> Iterator[str]:
    """Names of artifacts that are missing, damaged or out of date, in build order; nothing when all is up to date.

    Reads artifacts as thoroughly as `verify` declares, and cohort files whole. What is downstream of a stale artifact
    is not examined: it is yielded as soon as its inputs are right.
    """
    certificate = notes.artifact("engine_certificate")
    if store.current(certificate, certificate_key(notes)) is None:
        yield str(certificate)
        return
    behind = list(_stale_months(notes, store))
    yield from behind
    if behind:
        return
    for format in notes.formats:
        directory = notes.artifact(DIRECTORIES[format])
        if store.current(directory, directory_key(notes, store, format), notes.verify) is None:
            yield str(directory)


def _stale_months(notes: NotesDeclaration, store: ArtifactStore) -> Iterator[str]:
    plan = notes_plan(notes, load_certificate(notes, store))
    files = list_cohorts(notes)
    for month in notes.months.expected:
        packed = notes.artifact(PACKED_COHORTS, month)
        receipt = None
        if month in files:
            path = files[month].fetch()
            with unquoting(month):
                key = cohort_key(plan, month, sha256_file(path))
            receipt = store.current(packed, key, notes.verify)
        if receipt is None:
            yield str(packed)
            continue
        for format in notes.formats:
            shards = notes.artifact(COHORT_SHARDS[format], month)
            if store.current(shards, shards_key(notes, format, receipt), notes.verify) is None:
                yield str(shards)


def stale_replay(replay: ReplayDeclaration, store: ArtifactStore) -> Iterator[str]:
    """The name of the combination when it is missing, damaged or out of date, or its sources cannot be combined."""
    artifact = replay.artifact(DIRECTORIES[replay.format])
    try:
        current = store.current(artifact, replay_key(replay, store), replay.verify)
    except DataprepError:  # sources that are missing or unequal: building it says which
        current = None
    if current is None:
        yield str(artifact)


def sweep_dataset(notes: NotesDeclaration, store: ArtifactStore) -> None:
    """Remove what killed runs left beside the artifacts of a dataset of which nothing is stale."""
    partitioned = [PACKED_COHORTS, *(COHORT_SHARDS[format] for format in notes.formats)]
    artifacts = [notes.artifact(name, month) for name in partitioned for month in notes.months.expected]
    artifacts += [notes.artifact(name) for name in ("engine_certificate", *(DIRECTORIES[f] for f in notes.formats))]
    store.sweep(artifacts)


def sweep_replay(replay: ReplayDeclaration, store: ArtifactStore) -> None:
    """Remove what killed runs left beside a combination that is not stale."""
    store.sweep([replay.artifact(DIRECTORIES[replay.format])])
