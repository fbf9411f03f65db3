"""Artifact `<dataset>/rl_manifest`: the manifest of the latest blend run, under a fixed path for trainers.

A blend run is named after its content, so its folder changes with the data. Nemotron's RL recipes read the
`manifest.json` in a declared folder (`${manifest:<folder>,train}`). Declare this artifact's folder. It contains two of
the run's files (`trainer_entry.py`): `manifest.json`, and `shards.json` with the shards of each split.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.metadata_values import ShownValue
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest
from dataprep_assets.engine.checks.check import (
    FILES_INTACT,
    Check,
    Finding,
    OpenedArtifact,
    build_verdict,
    describe_artifact,
)
from dataprep_assets.engine.checks.verdicts import WholeArtifactChecks
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.integrity.artifacts import ArtifactStore, FileRef
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.blend import find_blend_run
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.output.run_layout import read_json_object
from dataprep_assets.pipelines.blend.output.trainer_entry import MANIFEST, RL_MANIFEST, SHARDS
from dataprep_assets.stores.files import digest_value

VERSION = 2
_FILES = (MANIFEST, SHARDS)


class RlManifestFacts(Facts):
    """Facts of the manifest, which identify its blend run."""

    run_hash: str


def build_rl_manifest_spec(blend: BlendDeclaration, *, run: ArtifactSpec) -> ArtifactSpec:
    """Return the spec of the manifest of a blend's `run`."""
    return ArtifactSpec(
        declaration=blend,
        name=RL_MANIFEST,
        version=VERSION,
        description="`manifest.json` of the latest run, at a path that does not change.",
        kinds={"json"},
        inputs=(run,),
        # A lock must not compare the bytes of the manifest, because it contains the trainer's paths, which differ
        # between machines.
        names_places=frozenset(),
        recipes=lambda store, _: [_build_recipe(blend, store)],
        build=partial(_build_manifest, blend),
        metadata=_build_metadata,
        check_groups=(
            WholeArtifactChecks(
                checks=_CHECKS,
                open=lambda store, _: OpenedRlManifest(blend.artifact(RL_MANIFEST), store, blend).with_local_files(),
            ),
        ),
    )


def _build_recipe(blend: BlendDeclaration, store: ArtifactStore) -> Recipe:
    run = find_blend_run(blend, store)
    content = store.require(run).content
    return Recipe(
        artifact=blend.artifact(RL_MANIFEST),
        key=digest_value([RL_MANIFEST, VERSION, content]),
        version=VERSION,
        upstream={f"{run.name}/{run.partition}": content},
    )


def _build_manifest(blend: BlendDeclaration, request: BuildRequest) -> Iterator[Outcome]:
    yield Outcome.from_receipt(*build_rl_manifest(blend, request.store))


def build_rl_manifest(blend: BlendDeclaration, store: ArtifactStore) -> tuple[Receipt, bool]:
    """Build the artifact with the manifest of the committed plan's blend run.

    Returns the receipt, and whether the artifact was reused. Raises MissingArtifactError if the run is not built.
    """
    run = find_blend_run(blend, store)
    run_receipt = store.require(run)

    def write(staged: Path) -> WrittenFiles:
        return WrittenFiles(
            inputs={str(run): run_receipt.content},
            facts=RlManifestFacts(run_hash=str(run.partition)),
            joined=tuple(store.join(staged, name, [FileRef(run, run_receipt.file(name))]) for name in _FILES),
        )

    return ensure_built(_build_recipe(blend, store), store, write, blend.verify)


def _build_metadata(_: ArtifactStore, receipt: Receipt) -> Mapping[str, ShownValue]:
    return {"run_hash": RlManifestFacts.from_receipt(receipt).run_hash}


@dataclass(frozen=True)
class OpenedRlManifest(OpenedArtifact):
    """A manifest that is opened for checks."""

    blend: BlendDeclaration


def points_to_latest_run(manifest: OpenedRlManifest) -> Finding:
    """Check that the manifest belongs to the committed plan's run, and names only files of that run."""
    directory, receipt = manifest.directory, manifest.receipt
    run = find_blend_run(manifest.blend, manifest.store)
    run_receipt = manifest.store.require(run)
    files = {record.path for record in run_receipt.files}
    value = read_json_object(directory / MANIFEST)
    defects = [
        f"{describe_artifact(receipt)}: {name} differs from the file of {run}"
        for name in _FILES
        if receipt.file(name).sha256 != run_receipt.file(name).sha256
    ]
    if value.get("run_hash") != run.partition:
        defects.append(
            f"{describe_artifact(receipt)}: belongs to the run {value.get('run_hash')}, but the plan's run is "
            f"{run.partition}"
        )
    if (receipt_hash := RlManifestFacts.from_receipt(receipt).run_hash) != run.partition:
        defects.append(
            f"{describe_artifact(receipt)}: its receipt has the run {receipt_hash}, but the plan's run is "
            f"{run.partition}"
        )
    for key in ("train", "val", "test"):
        path = value.get(key)
        if not isinstance(path, str):
            defects.append(f"{describe_artifact(receipt)}: {key} is not a string")
        # Compare only the part of the path after the run's name, because the trainer may find the storage at a
        # different root.
        elif path and path.partition(f"/{run}/")[2] not in files:
            defects.append(f"{describe_artifact(receipt)}: {key} is {path}, which is not a file of {run}")
    return build_verdict(
        defects,
        f"The manifest belongs to the run {run.partition}, and all its files exist.",
        "Rebuild rl_manifest",
        facts={"files": len(files)},
    )


_CHECKS: tuple[Check[OpenedRlManifest], ...] = (
    FILES_INTACT,
    Check(
        "points_to_latest_run",
        "The manifest belongs to the plan's run, and every file that it names exists.",
        points_to_latest_run,
    ),
)
