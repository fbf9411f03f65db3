"""No key of a declaration leaves an artifact current and red for ever (the other half of `test_no_dead_ends`).

Every key of the samples' declarations gets other values, one after another. Then each artifact is out of date, or its
blocking proofs say what they said before: else `dataprep run` would fail from then on, and build nothing.
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
    declared,
    failed,
    leaves,
    over_small_part,
    redeclared,
    sample,
    with_its_source,
)
from dataprep_assets_tests.engine.halves import culprits

SELECTED = "sample_corpus, selected"
"""The sample corpus with a table of documents: taggers, rules, budgets, duplicates."""
JUDGES = {
    "budget*": "says what passes, as a tolerance does: the drops are as they are, and a person decides",
    "floors*": "the same, of what a tagger finds of planted cases",
    "duplicates.recall": "the same, of planted near-duplicates",
    "tolerance": "says what passes: the shares are as they are, and a person decides",
    "dataset": "another name is another dataset",
    "storage*": "another place",
    "sensitive": "closes no file that is there: users set permissions, and `permissions_private` checks them",
}
"""Keys that are left alone, and why."""


@dataclass(frozen=True)
class Change:
    """Another value for a key, which is the way to it."""

    path: Keys
    value: Any

    @property
    def key(self) -> str:
        """The key as one would write it."""
        return ".".join(map(str, self.path))


@dataclass(frozen=True)
class Changed:
    """A dataset whose declaration is changed, and the artifacts of the unchanged one."""

    dataset: Dataset
    store: LocalArtifacts

    def specs(self, changes: Iterable[Change]) -> Sequence[ArtifactSpec]:
        """The artifacts as they are declared then; ValidationError or DataprepError if that is not allowed."""
        value: Any = declared(self.dataset)
        for change in changes:
            value = replaced(value, change.path, change.value)
        return redeclared(self.dataset, value).specs

    def changes(self) -> Iterator[Change]:
        """Every key with other values that are allowed."""
        for path, inner in leaves(declared(self.dataset), flags=True):
            if any(fnmatch(Change(path, None).key, one) for one in JUDGES):
                continue
            tried: list[Any] = [not inner] if isinstance(inner, bool) else []
            tried += [inner + 1, inner / 2] if isinstance(inner, float) else []
            tried += [inner + 1, inner * 2] if type(inner) is int else [f"{inner}0"] if isinstance(inner, str) else []
            yield from self._allowed(inner, [Change(path, other) for other in tried if other != inner])

    def _allowed(self, value: Any, tried: Iterable[Change]) -> Iterator[Change]:
        """The first that is allowed; of a key that takes a name, all the other names, of a list of names one."""
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
        """The artifacts that a run would leave as they are, with all that they are made of; of all, or of an artifact
        and what it is made of."""
        left: set[ArtifactSpec] = set()  # those that a run makes again, or says what is wrong with
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
        found = decide_slots(spec, self.store, spec.slots(self.store), verification="size")  # nothing damages its files
        return any(one.is_stale for one in found.values())

    def red(self, artifact: tuple[str, ...], changes: Sequence[Change]) -> set[str] | None:
        """The blocking proofs of an artifact that some changes turn red; None if they are not allowed together, or make
        it out of date."""
        with suppress(ValidationError, DataprepError):
            spec = next((one for one in self.current(changes, artifact) if tuple(one.path) == artifact), None)
            return None if spec is None else failed(spec, self.store)
        return None


def replaced(value: Any, path: Sequence[str | int], other: Any) -> Any:
    """The same value with another one at the end of a path."""
    if not path:
        return other
    copy: Any = dict(value) if isinstance(value, Mapping) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], other)
    return copy


def selected() -> Dataset:
    """See `SELECTED`."""
    return over_small_part(
        sample("sample_corpus"),
        tag=["gopher", "personal"],
        drop={"long": "characters > 3000"},
        budget={"per_rule": {"long": 0.9}},
        duplicates={"across_splits": "ignore"},
        views=["nanogpt"],
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SAMPLES, SELECTED])
def test_what_a_blocking_proof_takes_from_the_declaration_is_part_of_the_recipe(name: str, tmp_path: Path) -> None:
    store = LocalArtifacts(tmp_path / "artifacts")
    if name == SELECTED:
        build_all((dataset := selected()).specs, store)
    else:
        dataset = with_its_source(name, store)
    changed = Changed(dataset, store)
    assert [one for one in changed.current([]) if failed(one, store)] == []
    unmoved: defaultdict[tuple[tuple[str, ...], int], list[Change]] = defaultdict(list)
    times: Counter[Keys] = Counter()
    for change in changed.changes():
        times[change.path] += 1  # of one key, one value at a time
        for spec in changed.current([change]):
            unmoved[tuple(spec.path), times[change.path]].append(change)
    found = [
        f"{change.key}: {'/'.join(artifact)}: {sorted(names)}"
        for (artifact, _), changes in unmoved.items()
        for change, names in culprits(changes, partial(changed.red, artifact))
    ]
    assert found == []
    assert len(times) >= 5
