"""Assertions about views of a finished run, shared by the tests of every stage."""

from collections.abc import Sequence
from dataclasses import replace

from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.receipt import record_files
from dataprep_assets.pipelines.blend.component import TrainingBlend
from dataprep_assets.pipelines.blend.stage_views import VIEW_KINDS
from dataprep_assets.pipelines.blend.view import OpenedBlendView
from dataprep_assets_tests.pipelines.blend.dagster_blend import Blend


def find_in_view(made: Blend, store: LocalArtifacts, name: str) -> dict[str, Finding]:
    """Return the findings on a view whose receipt describes its current files."""
    declaration, artifact = made.declaration, made.declaration.artifact(name)
    kind = VIEW_KINDS[declaration.stage]
    opened = OpenedBlendView(artifact, store, kind.load(name), kind.load_splits(declaration, store), declaration)
    directory = store.directory(artifact)
    receipt = replace(store.require(artifact), files=record_files(directory))
    opened.__dict__.update(directory=directory, receipt=receipt)
    return {check.name: check.run(opened) for check in opened.view.checks}


def assert_views_change_no_other_artifact(made: Blend, names: Sequence[str]) -> None:
    """Assert that without its views the blend has equal keys of all other artifacts except the card."""
    plain = made.declaration.model_copy(update={"views": ()})
    specs = {spec.name: spec for spec in TrainingBlend(plain).specs}
    assert {spec.name for spec in made.component.specs} - specs.keys() == set(names)
    for spec in made.component.specs:
        if spec.name not in (*names, "data_card"):
            slots = spec.slots(made.store)
            assert [recipe.key for recipe in spec.recipes(made.store, slots)] == [
                recipe.key for recipe in specs[spec.name].recipes(made.store, slots)
            ]
