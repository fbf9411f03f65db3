"""State files with values of wrong types: each command reports damage in a sentence, without a traceback.

Verdicts and ages are caches and count as absent. A receipt with a right digest counts as damage of its artifact.
"""

import copy
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.checks.results import read_results
from dataprep_assets.engine.lock.lock import encode_lock, lock_dataset, parse_lock
from dataprep_assets.engine.staleness.status import decide_checks, find_stale
from dataprep_assets.errors import DataprepError, FormatError
from dataprep_assets.integrity.artifacts import ArtifactStore, LocalArtifacts
from dataprep_assets.orchestration.checks import examine_artifact
from dataprep_assets.pipelines.corpus.curation.file_ages import compute_ages
from dataprep_assets.pipelines.corpus.source.manifest import load_manifest
from dataprep_assets.stores.files import digest_value
from dataprep_assets_tests.pipelines.corpus.selected import Selected

pytest.importorskip("rensa", reason="the extra `duplicates`")

WRONG: list[Any] = [None, True, 0, -1, 1.5, "", "x", [], [1], {}, {"x": 1}, [[["x"]]]]
ROUNDS = 30


def find_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values in a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from find_paths(item, (*path, key))


def mutate(value: Any, draw: random.Random) -> Any:
    """Return a copy in which one value has another type or is removed."""
    *parents, last = draw.choice([path for path in find_paths(value) if path])
    value = copy.deepcopy(value)
    holder = value
    for key in parents:
        holder = holder[key]
    if draw.random() < 0.2:
        del holder[last]
    else:
        holder[last] = draw.choice([wrong for wrong in WRONG if type(wrong) is not type(holder[last])])
    return value


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Selected:
    """Return a corpus with deduplication whose checks have been evaluated."""
    corpus = Selected(tmp_path_factory.mktemp("types"))
    texts = [f"Page {number} has a few words that no other page has, {number * 7919}." for number in range(12)]
    corpus.write({"train/a.jsonl": texts[:8], "train/b.jsonl": [*texts[8:], texts[0]]})
    corpus.build()
    for spec in corpus.specs().values():
        if spec.checks and all(corpus.store.intact_receipt(one) for one in _artifacts(spec, corpus.store)):
            examine_artifact(spec, corpus.store, spec.slots(corpus.store))
    return corpus


def _artifacts(spec: ArtifactSpec, store: ArtifactStore) -> list[Any]:
    return list(spec.artifacts(store))


def inspect(corpus: Selected) -> None:
    """Do all reads that the commands do with a dataset."""
    # Use a new object, because a store caches its reads.
    store, specs = LocalArtifacts(corpus.store.root), list(corpus.specs().values())
    list(find_stale(specs, store))
    for spec in specs:
        read_results(spec, store)
        try:
            slots = spec.slots(store)
        except DataprepError:  # the partitions are unknown without a valid plan
            continue
        decide_checks(spec, store, slots)
    compute_ages(corpus.corpus, store, load_manifest(corpus.corpus, store))


@pytest.mark.parametrize("name", ["verdict", "ages.json", "receipt.json"])
def test_a_value_of_another_type_is_damage(built: Selected, name: str) -> None:
    draw, root = random.Random(name), built.store.root
    pattern = ".findings/**/*.json" if name == "verdict" else f"**/{name}"
    paths = sorted(path for path in root.glob(f"pages/{pattern}"))
    assert paths
    for _ in range(ROUNDS):
        path = draw.choice(paths)
        before = path.read_bytes()
        value = mutate(json.loads(before), draw)
        if name == "receipt.json" and isinstance(value, dict) and "digest" in value:
            value["digest"] = digest_value({key: one for key, one in value.items() if key != "digest"})
        path.write_text(json.dumps(value))
        try:
            inspect(built)
        except DataprepError:
            assert name == "receipt.json", "caches are not damage"
        finally:
            path.write_bytes(before)


def test_a_lock_with_a_value_of_another_type_is_refused_or_gives_the_same_result(built: Selected) -> None:
    specs = [spec for spec in built.specs().values() if spec.name in ("manifest", "snapshot", "tags")]
    data, draw = encode_lock(lock_dataset(specs, built.store)), random.Random(1)
    for _ in range(5 * ROUNDS):
        with suppress(FormatError):
            encode_lock(parse_lock(json.dumps(mutate(json.loads(data), draw)).encode(), "dataset.lock"))
