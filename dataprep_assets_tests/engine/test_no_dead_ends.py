"""No artifact is current and red for ever: a blocking proof compares with nothing that its artifact's recipe ignores.

Every claim in the receipt of every input of every artifact of the samples is changed, one after another, as if the
input had been made again and told something else with the same content. Then either the artifact is out of date, or
its blocking proofs say what they said before.
"""

import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.artifact.spec import ArtifactSpec, AssetInput, DatasetInput
from dataprep_assets.engine.staleness.status import decisions_of
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets_tests.engine.building import COMPARED, SAMPLES, Keys, failed, leaves, with_its_source
from dataprep_assets_tests.faults.edits import edit_receipt

CLAIMS = ("inputs", "facts", "ledger", "sources", "recipe", "measured")
DECIDED = {
    "token_bins.sources.*.documents": "its own content: `separators_match_documents` holds them to it",
    "token_bins.sources.*.tokens": "its own content, likewise",
    "combined_bins.facts.eos_token_id": "its own content: meta.json has it, and `meta_matches` compares",
    "*_shards.ledger.*": "its own content: its rows are counted by `rows_valid`",
    "*_shards.facts.splits.*": "its own content: `equals_packed_rows` rebuilds them with these rows and sizes",
    "indexed_bins.ledger.m*_id": "its own content: `ids_in_vocabulary` compares",
    "packed_sft.ledger.m*_id": "its own content, likewise",
    "packed_sft.facts.bins": "its own content: the rows of the Parquet file",
    "indexed_bins.ledger.source_bytes": "the plan, which has the digests of the sources and is in the key of a blend",
    "indexed_bins.ledger.*_documents": "the plan, and the version of the step",
    "packed_sft.ledger.source_bytes": "the plan",
    "packed_sft.ledger.*_documents": "the plan",
    "indexed_bins.facts.*": "its own content: its files, which `splits_disjoint` opens by them",
    "rl_jsonl.facts.file": "its own content, likewise",
    "rl_jsonl.ledger.source_bytes": "the plan",
    "rl_jsonl.ledger.*_documents": "the plan",
    "signatures.facts.*": "its own content: the sizes of its arrays, which duplicates opens by them",
}
"""Claims that do not change alone → what decides them: it is in the keys of all that is made of the artifact."""


def changed(value: Any) -> Any:
    return value + 1 if isinstance(value, int | float) else f"{value}0"


def set_at(receipt: dict[str, Any], path: Keys, value: Any) -> None:
    for key in path[:-1]:
        receipt = receipt[key]  # type: ignore[index]
    receipt[path[-1]] = value  # type: ignore[index]


def ignored(spec: ArtifactSpec, store: LocalArtifacts, receipt: Path, paths: Mapping[Keys, Any]) -> Iterator[str]:
    """The claims whose change an artifact's recipe ignores and its blocking proofs do not."""
    good = receipt.read_bytes()

    def red(some: Mapping[Keys, Any]) -> set[str]:
        edit_receipt(receipt, lambda value: [set_at(value, path, changed(old)) for path, old in some.items()] and None)
        try:
            return set() if is_stale(spec, store) else failed(spec, store)
        finally:
            receipt.write_bytes(good)

    def current(some: Mapping[Keys, Any]) -> bool:
        edit_receipt(receipt, lambda value: [set_at(value, path, changed(old)) for path, old in some.items()] and None)
        try:
            return not is_stale(spec, store)
        finally:
            receipt.write_bytes(good)

    left = {path: old for path, old in paths.items() if current({path: old})}
    if left and (red(left) or not current(left)):
        for path, old in left.items():
            if names := red({path: old}):
                yield f"{'.'.join(map(str, path))}: {sorted(names)}"


def is_stale(spec: ArtifactSpec, store: LocalArtifacts) -> bool:
    """Whether any of its partitions cannot stay, with its inputs as they are."""
    return any(one.is_stale for one in decisions_of(spec, store, spec.slots(store)).values())


def a_receipt(source: ArtifactSpec | DatasetInput | AssetInput, store: LocalArtifacts) -> Path | None:
    """Of an input, or of its first partition."""
    if isinstance(source, DatasetInput):
        folder = store.root / source.dataset / source.name
        return min(folder.glob("receipt.json"), default=None) or min(folder.glob(f"{source.split}*/receipt.json"))
    if isinstance(source, ArtifactSpec) and source.kept:
        return store.directory(source.artifacts(store)[0]) / "receipt.json"
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SAMPLES, COMPARED])
def test_what_a_blocking_proof_compares_with_is_part_of_the_recipe(name: str, tmp_path: Path) -> None:
    store, found = LocalArtifacts(tmp_path / "artifacts"), []
    specs = with_its_source(name, store).specs
    if name == COMPARED:  # the rest is as in the sample
        specs = [spec for spec in specs if any(isinstance(source, DatasetInput) for source in spec.inputs)]
        assert specs
    for spec in specs:
        if not spec.checks or not spec.kept:
            continue
        assert failed(spec, store) == set(), spec.path
        for source in spec.inputs:
            if (receipt := a_receipt(source, store)) is not None:
                value = json.loads(receipt.read_bytes())
                claims = {
                    path: old
                    for path, old in leaves({name: value[name] for name in CLAIMS})
                    if not any(fnmatch(f"{source.name}.{'.'.join(map(str, path))}", one) for one in DECIDED)
                }
                found += [f"{spec.name} of {source.name}: {one}" for one in ignored(spec, store, receipt, claims)]
    assert found == []
