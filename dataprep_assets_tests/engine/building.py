"""All artifacts of a list of specs, built in order as `dataprep run` does, without Dagster and without checks."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from dataprep_assets.components import find_dataset_class
from dataprep_assets.declarations import open_declarations
from dataprep_assets.engine.artifact.build import iterate_builds
from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest
from dataprep_assets.engine.checks.verdicts import CheckGroup, PartitionChecks
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.project import find_project
from dataprep_assets_tests.conftest import CHECKOUT
from dataprep_assets_tests.samples import SAMPLE, SMALL

SAMPLES = (
    "sample_corpus",
    "sample_duplicates",
    "sample_notes",
    "sample_release",
    "sample_tasks",
    "sample_blend_pretrain",
    "sample_blend_sft",
    "sample_blend_pairs",
    "sample_blend_rl",
    "sample_schedule",
)
"""One of each kind of dataset."""
COMPARED, _SHELF = "sample_duplicates, compared", "sample_duplicates, others"
"""The sample of duplicates, compared with another dataset that keeps some of the same pages."""
RESTS_ON = {"sample_schedule": "sample_corpus", COMPARED: _SHELF}
"""Dataset → the one that is its source."""


def sample(name: str) -> Dataset:
    """One of this project's datasets, the corpus over its small part, or one of the two like that of duplicates."""
    if name in (COMPARED, _SHELF):
        return _like_duplicates(name)
    declarations = open_declarations(find_project(str(CHECKOUT)))
    dataset = declarations.load(declarations.files[name])
    assert isinstance(dataset, Dataset)
    return over_small_part(dataset) if name == SAMPLE.name else dataset


def over_small_part(corpus: Dataset, **more: Any) -> Dataset:
    """The sample corpus over the first documents of its files, with `more` declared."""
    value = declared(corpus)
    return redeclared(corpus, {**value, "source": {**value["source"], "path": str(SMALL)}, **more})


def declared(dataset: Dataset) -> dict[str, Any]:
    """The declaration of a dataset, as JSON."""
    value: dict[str, Any] = dataset.declaration.model_dump(mode="json", by_alias=True)
    return value


def redeclared(dataset: Dataset, value: Any) -> Dataset:
    """A dataset of the same kind with another declaration; ValidationError or DataprepError if it is not allowed."""
    made = find_dataset_class(dataset.component)(type(dataset.declaration).model_validate(value))
    assert isinstance(made, Dataset)
    return made


def _like_duplicates(name: str) -> Dataset:
    dataset = sample("sample_duplicates")
    value = declared(dataset)
    # items of benchmarks are those of the sample itself
    value |= {"decontaminate": None, "budget": {}}
    if name == COMPARED:
        value["duplicates"]["against"] = ["shelf"]
    else:
        value |= {"dataset": "shelf", "drop": {"most": "row > 8"}}
    return redeclared(dataset, value)


def with_its_source(name: str, store: ArtifactStore) -> Dataset:
    """One of this project's datasets, of which all is built."""
    dataset = sample(name)
    for one in filter(None, (RESTS_ON.get(name), name)):
        build_all(sample(one).specs, store)
    return dataset


def build_all(
    specs: Sequence[ArtifactSpec],
    store: ArtifactStore,
    some: Iterable[tuple[ArtifactSpec, Sequence[str]]] | None = None,
    *,
    workers: int = 1,
) -> list[str]:
    """Names of the artifacts that were built anew, of all or `some` with their partitions; raises the first error of a
    partition."""
    built = []
    for spec, partitions in iterate_builds(specs, store) if some is None else some:
        for outcome in spec.build(BuildRequest(store=store, partitions=partitions, workers=workers)):
            if outcome.error is not None:
                raise outcome.error
            if not outcome.reused:
                built.append("/".join(filter(None, (spec.name, outcome.partition))))
    return built


Keys = tuple[str | int, ...]
"""The way to a value in a JSON value."""


def leaves(value: Any, path: Keys = (), *, flags: bool = False) -> Iterator[tuple[Keys, Any]]:
    """Every number and text (and, with `flags`, every boolean) below a JSON value, with the way to it."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(inner, (*path, key), flags=flags)
    elif value is not None and (flags or not isinstance(value, bool)):
        yield path, value


def failed(spec: ArtifactSpec, store: ArtifactStore) -> set[str]:
    """The blocking proofs that fail. No other is asked, and this process asks: a pool's start takes longer."""
    asked = replace(spec, check_groups=[one for group in spec.check_groups for one in _blocking(group)])
    slots = [slot for slot in spec.slots(store) if slot is not None]
    blocking = {proof.name for proof in spec.checks if proof.blocking}
    found = dict(asked.examine(store, slots))
    assert found.keys() == blocking
    return {name for name, finding in found.items() if not finding.passed and not finding.warning}


def _blocking(group: CheckGroup) -> Iterator[CheckGroup]:
    checks = tuple(check for check in group.checks if check.blocking)
    if checks and isinstance(group, PartitionChecks):
        yield replace(group, checks=checks, workers=lambda _store, _partitions: None)
    elif checks:
        yield replace(group, checks=checks)
