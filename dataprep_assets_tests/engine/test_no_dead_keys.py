"""No key of a declaration leaves an artifact up to date with a failing check (the other half of `test_no_dead_ends`).

Every key of the samples' declarations gets other values, one at a time. Then either each artifact is out of date, or
its blocking checks give the same result as before. Otherwise `dataprep run` would fail from then on without building
anything.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dataprep_assets.engine.artifact.build import find_ancestors
from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.staleness.status import decide_slots
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets_tests.engine.building import (
    SAMPLES,
    Keys,
    build_all,
    build_source,
    dump_declaration,
    find_failed_checks,
    find_leaves,
    find_sample,
    redeclare,
    shrink_corpus,
)
from dataprep_assets_tests.engine.halves import find_culprits

SELECTED = "sample_corpus, selected"
"""The sample corpus with a document table: taggers, rules, budgets, deduplication."""
JUDGES = {
    "budget*": "says what passes, as a tolerance does: the drops are as they are, and a person decides",
    "floors*": "the same, of what a tagger finds of planted cases",
    "duplicates.recall": "the same, of planted near-duplicates",
    "tolerance": "says what passes: the shares are as they are, and a person decides",
    "dataset": "another name is another dataset",
    "storage*": "another place",
    "sensitive": "closes no file that is there: users set permissions, and `permissions_private` checks them",
}
"""Keys that the tests do not change, and the reasons."""


@dataclass(frozen=True)
class Change:
    """A different value for a key, with its path."""

    path: Keys
    value: Any

    @property
    def key(self) -> str:
        """The key as text."""
        return ".".join(map(str, self.path))


@dataclass(frozen=True)
class Changed:
    """A dataset with a changed declaration, and the artifacts of the unchanged one."""

    dataset: Dataset
    store: LocalArtifacts

    def specs(self, changes: Iterable[Change]) -> Sequence[ArtifactSpec]:
        """Return the specs of the changed declaration. Raises ValidationError or DataprepError if it is invalid."""
        value: Any = dump_declaration(self.dataset)
        for change in changes:
            value = replace(value, change.path, change.value)
        return redeclare(self.dataset, value).specs

    def changes(self) -> Iterator[Change]:
        """Return every key with other valid values."""
        for path, inner in find_leaves(dump_declaration(self.dataset), flags=True):
            if any(fnmatch(Change(path, None).key, one) for one in JUDGES):
                continue
            tried: list[Any] = [not inner] if isinstance(inner, bool) else []
            tried += [inner + 1, inner / 2] if isinstance(inner, float) else []
            tried += [inner + 1, inner * 2] if type(inner) is int else [f"{inner}0"] if isinstance(inner, str) else []
            yield from self._allowed(inner, [Change(path, other) for other in tried if other != inner])

    def _allowed(self, value: Any, tried: Iterable[Change]) -> Iterator[Change]:
        """Yield the first valid value; all other names for a key that takes a name, and one other for a list of
        names.
        """
        for change in tried:
            try:
                self.specs([change])
            except ValidationError as error:
                names = str(error.errors()[0].get("ctx", {}).get("expected", "")).replace(" or ", ", ").split(", ")
            except DataprepError:
                continue
            else:
                yield change
                return
            for name in (one.strip("'") for one in names if one.startswith("'") and one != repr(value)):
                with suppress(ValidationError, DataprepError):
                    self.specs([other := Change(change.path, name)])
                    yield other
                    if isinstance(change.path[-1], int):
                        return

    def current(self, changes: Iterable[Change], artifact: tuple[str, ...] | None = None) -> Iterator[ArtifactSpec]:
        """Return the artifacts, with all their inputs, that a run would leave unchanged, among all or for one artifact
        and its inputs.
        """
        left: set[ArtifactSpec] = set()  # artifacts that a run rebuilds or reports as broken
        specs = self.specs(changes)
        if artifact is not None:
            judged = {spec for spec in specs if tuple(spec.path) == artifact}
            judged |= find_ancestors(judged)
            specs = [spec for spec in specs if spec in judged]
        for spec in specs:
            try:
                if find_ancestors([spec]) & left or self._is_stale(spec):
                    left.add(spec)
                elif spec.checks and spec.kept:
                    yield spec
            except DataprepError:
                left.add(spec)

    def _is_stale(self, spec: ArtifactSpec) -> bool:
        # Compare only sizes, because no test of this module damages files.
        found = decide_slots(spec, self.store, spec.slots(self.store), verification="size")
        return any(one.is_stale for one in found.values())

    def red(self, artifact: tuple[str, ...], changes: Sequence[Change]) -> set[str] | None:
        """Return the blocking checks of an artifact that fail because of some changes; None if the changes are not
        allowed together or make the artifact out of date.
        """
        with suppress(ValidationError, DataprepError):
            spec = next((one for one in self.current(changes, artifact) if tuple(one.path) == artifact), None)
            return None if spec is None else find_failed_checks(spec, self.store)
        return None


def replace(value: Any, path: Sequence[str | int], other: Any) -> Any:
    """Return the value with a replacement at the end of a path."""
    if not path:
        return other
    copy: Any = dict(value) if isinstance(value, Mapping) else list(value)
    copy[path[0]] = replace(value[path[0]], path[1:], other)
    return copy


def declare_selected() -> Dataset:
    """Declare the dataset that `SELECTED` describes."""
    return shrink_corpus(
        find_sample("sample_corpus"),
        tag=["gopher", "personal"],
        drop={"long": "characters > 3000"},
        budget={"per_rule": {"long": 0.9}},
        duplicates={"across_splits": "ignore"},
        views=["nanogpt"],
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SAMPLES, SELECTED])
def test_values_that_a_blocking_check_takes_from_the_declaration_are_in_the_recipe(name: str, tmp_path: Path) -> None:
    store = LocalArtifacts(tmp_path / "artifacts")
    if name == SELECTED:
        build_all((dataset := declare_selected()).specs, store)
    else:
        dataset = build_source(name, store)
    changed = Changed(dataset, store)
    assert [one for one in changed.current([]) if find_failed_checks(one, store)] == []
    unmoved: defaultdict[tuple[tuple[str, ...], int], list[Change]] = defaultdict(list)
    times: Counter[Keys] = Counter()
    for change in changed.changes():
        times[change.path] += 1  # number the values of each key
        for spec in changed.current([change]):
            unmoved[tuple(spec.path), times[change.path]].append(change)
    found = [
        f"{change.key}: {'/'.join(artifact)}: {sorted(names)}"
        for (artifact, _), changes in unmoved.items()
        for change, names in find_culprits(changes, partial(changed.red, artifact))
    ]
    assert found == []
    assert len(times) >= 5
