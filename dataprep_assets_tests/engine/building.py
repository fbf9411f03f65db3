"""Build all artifacts of a list of specs in order, as `dataprep run` does, but without Dagster and without checks."""

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
"""One dataset of each kind."""
COMPARED, _SHELF = "sample_duplicates, compared", "sample_duplicates, others"
"""The deduplication sample, compared with a second dataset that keeps some of the same pages."""
_PACKED = ("sample_blend_sft", "sample_blend_pairs")
RESTS_ON = {"sample_schedule": "sample_corpus", COMPARED: _SHELF}
"""Dataset → the dataset that is its source."""


def find_sample(name: str) -> Dataset:
    """Return one of this project's datasets, the corpus over a small part of its files, packed blends in fewer shards,
    or a variant of the deduplication sample.
    """
    if name in (COMPARED, _SHELF):
        return _like_duplicates(name)
    declarations = open_declarations(find_project(str(CHECKOUT)))
    dataset = declarations.load(declarations.files[name])
    assert isinstance(dataset, Dataset)
    if name in _PACKED:
        # The tolerance is high, because only whole shards are chosen.
        return redeclare(dataset, dump_declaration(dataset) | {"num_shards": 2, "tolerance": 0.9})
    return shrink_corpus(dataset) if name == SAMPLE.name else dataset


def shrink_corpus(corpus: Dataset, **more: Any) -> Dataset:
    """Return the sample corpus over the first documents of its files, with `more` declared."""
    value = dump_declaration(corpus)
    return redeclare(corpus, {**value, "source": {**value["source"], "path": str(SMALL)}, **more})


def dump_declaration(dataset: Dataset) -> dict[str, Any]:
    """Return the declaration of a dataset as JSON."""
    value: dict[str, Any] = dataset.declaration.model_dump(mode="json", by_alias=True)
    return value


def redeclare(dataset: Dataset, value: Any) -> Dataset:
    """Return a dataset of the same kind with a different declaration.

    Raises ValidationError or DataprepError if that is invalid.
    """
    made = find_dataset_class(dataset.component)(type(dataset.declaration).model_validate(value))
    assert isinstance(made, Dataset)
    return made


def _like_duplicates(name: str) -> Dataset:
    dataset = find_sample("sample_duplicates")
    value = dump_declaration(dataset)
    # Remove `decontaminate`, because the benchmark has items of the original sample.
    value |= {"decontaminate": None, "budget": {}}
    if name == COMPARED:
        value["duplicates"]["against"] = ["shelf"]
    else:
        value |= {"dataset": "shelf", "drop": {"most": "row > 8"}}
    return redeclare(dataset, value)


def build_source(name: str, store: ArtifactStore) -> Dataset:
    """Return one of this project's datasets, after building the dataset that is its source."""
    dataset = find_sample(name)
    for one in filter(None, (RESTS_ON.get(name), name)):
        build_all(find_sample(one).specs, store)
    return dataset


def build_all(
    specs: Sequence[ArtifactSpec],
    store: ArtifactStore,
    some: Iterable[tuple[ArtifactSpec, Sequence[str]]] | None = None,
    *,
    workers: int = 1,
) -> list[str]:
    """Build all artifacts, or `some` with their partitions, and return the names of the rebuilt ones.

    Raises the first error of a partition.
    """
    built = []
    for spec, partitions in iterate_builds(specs, store) if some is None else some:
        for outcome in spec.build(BuildRequest(store=store, partitions=partitions, workers=workers)):
            if outcome.error is not None:
                raise outcome.error
            if not outcome.reused:
                built.append("/".join(filter(None, (spec.name, outcome.partition))))
    return built


Keys = tuple[str | int, ...]
"""The keys and positions that lead to a value in a JSON value."""


def find_leaves(value: Any, path: Keys = (), *, flags: bool = False) -> Iterator[tuple[Keys, Any]]:
    """Yield every number and text (and, with `flags`, every boolean) of a JSON value, with its path."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from find_leaves(inner, (*path, key), flags=flags)
    elif value is not None and (flags or not isinstance(value, bool)):
        yield path, value


def find_failed_checks(spec: ArtifactSpec, store: ArtifactStore) -> set[str]:
    """Return the blocking checks that fail.

    Other checks do not run, and this process runs them, because a pool starts slowly.
    """
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
