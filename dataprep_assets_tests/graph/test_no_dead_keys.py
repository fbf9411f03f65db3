"""No key of a declaration leaves an artifact current and red for ever (the other half of `test_no_dead_ends`).

Every key of the samples' declarations gets other values, one after another. Then each artifact is out of date, or its
blocking proofs say what they said before: else `dataprep run` would fail from then on, and build nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dataprep_assets.components import dataset_type
from dataprep_assets.errors import DataprepError
from dataprep_assets.graph.dataset import Dataset
from dataprep_assets.graph.declaration import DatasetDeclaration
from dataprep_assets.graph.order import ancestors
from dataprep_assets.graph.spec import ArtifactSpec
from dataprep_assets.graph.status import to_build
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets_tests.graph.building import SAMPLES, build_all, failed, sample, with_its_source
from dataprep_assets_tests.graph.building import leaves as leaves_of

SELECTED = "sample_corpus, selected"
"""The sample corpus with a table of documents: taggers, rules, budgets, duplicates."""
JUDGES = {
    "budget*": "says what passes, as a tolerance does: the drops are as they are, and a person decides",
    "floors*": "the same, of what a tagger finds of planted cases",
    "duplicates.recall": "the same, of planted near-duplicates",
    "tolerance": "says what passes: the shares are as they are, and a person decides",
    "dataset": "another name is another dataset",
    "storage*": "another place",
    "sensitive": "closes no file that is there: its permissions are a person's to take, and `closed_to_others` says so",
}
"""Keys that are left alone, and why."""


def others(model: type[DatasetDeclaration], value: Mapping[str, Any], path: Sequence[str | int]) -> Iterator[Any]:
    """Declarations in which one value is another one that is allowed."""
    inner: Any = value
    for key in path:
        inner = inner[key]
    tried = [not inner] if isinstance(inner, bool) else [inner + 1, inner / 2] if isinstance(inner, float) else []
    tried += [inner + 1, inner * 2] if type(inner) is int else [f"{inner}0"] if isinstance(inner, str) else []
    for other in tried:
        try:
            yield model.model_validate(replaced(value, path, other))
            return
        except ValidationError as error:
            allowed = str(error.errors()[0].get("ctx", {}).get("expected", "")).replace(" or ", ", ").split(", ")
        except DataprepError:
            continue
        for name in (one.strip("'") for one in allowed if one.startswith("'") and one.strip("'") != inner):
            with suppress(ValidationError, DataprepError):
                yield model.model_validate(replaced(value, path, name))


def replaced(value: Any, path: Sequence[str | int], other: Any) -> Any:
    """The same value with another one at the end of a path."""
    if not path:
        return other
    copy = dict(value) if isinstance(value, Mapping) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], other)
    return copy


def red(specs: Sequence[ArtifactSpec], store: LocalArtifacts) -> Iterator[str]:
    """The artifacts that are current, and their blocking proofs that fail."""
    left: set[ArtifactSpec] = set()  # those that a run makes again, or says what is wrong with
    for spec in specs:
        try:
            if ancestors([spec]) & left or to_build(spec, store, spec.slots(store)):
                left.add(spec)
            elif spec.proofs is not None and spec.kept and (names := failed(spec, store)):
                yield f"{'/'.join(spec.path)}: {sorted(names)}"
        except DataprepError:
            left.add(spec)


def selected() -> Dataset:
    """See `SELECTED`."""
    corpus = sample("sample_corpus")
    more = {
        "tag": ["gopher", "personal"],
        "drop": {"long": "characters > 3000"},
        "budget": {"per_rule": {"long": 0.9}},
        "duplicates": {"across_splits": "ignore"},
        "views": ["nanogpt"],
    }
    value = {**corpus.declaration.model_dump(mode="json", by_alias=True), **more}
    return dataset_type(corpus.component)(type(corpus.declaration).model_validate(value))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SAMPLES, SELECTED])
def test_what_a_blocking_proof_takes_from_the_declaration_is_part_of_the_recipe(name: str, tmp_path: Path) -> None:
    store = LocalArtifacts(tmp_path / "artifacts")
    if name == SELECTED:
        build_all((dataset := selected()).specs, store)
    else:
        dataset = with_its_source(name, store)
    kind = dataset_type(dataset.component)
    assert list(red(dataset.specs, store)) == []
    value = dataset.declaration.model_dump(mode="json", by_alias=True)
    found, turned = [], 0
    for path, _ in leaves_of(value, flags=True):
        dotted = ".".join(map(str, path))
        if any(fnmatch(dotted, one) for one in JUDGES):
            continue
        for other in others(type(dataset.declaration), value, path):
            turned += 1
            found += [f"{dotted}: {one}" for one in red(kind(other).specs, store)]
    assert found == []
    assert turned >= 5
