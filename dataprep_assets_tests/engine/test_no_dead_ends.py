"""No artifact stays up to date with a failing check: blocking checks compare only with values in the artifact's recipe.

The tests change every claim in the receipts of all inputs of the samples' artifacts, one at a time, as if the input had
been rebuilt with the same content but another claim. Then either the artifact is out of date, or its blocking checks
give the same result as before.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.artifact.spec import ArtifactSpec, AssetInput, DatasetInput
from dataprep_assets.engine.staleness.status import decide_slots
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets_tests.engine.building import COMPARED, SAMPLES, Keys, build_source, find_failed_checks, find_leaves
from dataprep_assets_tests.engine.halves import find_culprits
from dataprep_assets_tests.faults.edits import edit_receipt

CLAIMS = ("inputs", "facts", "ledger", "sources", "recipe", "measured")
DECIDED = {
    "token_bins.sources.*.documents": "its own content: `separators_match_documents` holds them to it",
    "token_bins.sources.*.tokens": "its own content, likewise",
    "combined_bins.facts.eos_token_id": "its own content: meta.json has it, and `meta_matches` compares",
    "*_shards.ledger.*": "its own content: its rows are counted by `rows_valid`",
    "*_shards.facts.splits.*": "its own content: `matches_packed_rows` rebuilds them with these rows and sizes",
    "indexed_bins.ledger.m*_id": "its own content: `ids_in_vocabulary` compares",
    "packed_sft.ledger.m*_id": "its own content, likewise",
    "packed_sft.facts.bins": "its own content: the rows of the Parquet file",
    "indexed_bins.ledger.source_bytes": "the plan, which has the digests of the sources and is in the key of a blend",
    "indexed_bins.ledger.*_documents": "the plan, and the version of the step",
    "packed_sft.facts.sources.*.form": "the rows of the sources, whose digests the plan has",
    "packed_sft.ledger.source_bytes": "the plan",
    "packed_sft.ledger.*_documents": "the plan",
    "indexed_bins.facts.*": "its own content: its files, which `splits_disjoint` opens by them",
    "pairs.ledger.min_id": "its own content: the smallest id of its rows, which may be above the least of all shards",
    "rl_jsonl.facts.file": "its own content, likewise",
    "rl_jsonl.ledger.source_bytes": "the plan",
    "rl_jsonl.ledger.*_documents": "the plan",
    "signatures.facts.*": "its own content: the sizes of its arrays, which duplicates opens by them",
}
"""Claims that do not change by themselves → the deciding value, which is in the keys of all downstream artifacts."""


@dataclass(frozen=True)
class Claim:
    """A value in the receipt of an input, with its path."""

    source: str
    receipt: Path
    path: Keys
    value: Any

    @property
    def name(self) -> str:
        """The input and the path as text."""
        return f"{self.source}.{'.'.join(map(str, self.path))}"


def find_claims(spec: ArtifactSpec, store: LocalArtifacts) -> Iterator[Claim]:
    """Return the claims in the receipts of an artifact's inputs that can change by themselves."""
    for source in spec.inputs:
        if (receipt := read_receipt(source, store)) is not None:
            value = json.loads(receipt.read_bytes())
            for path, old in find_leaves({name: value[name] for name in CLAIMS}):
                claim = Claim(source.name, receipt, path, old)
                if not any(fnmatch(claim.name, one) for one in DECIDED):
                    yield claim


def set_at(receipt: dict[str, Any], path: Keys, value: Any) -> None:
    for key in path[:-1]:
        receipt = receipt[key]  # type: ignore[index]
    receipt[path[-1]] = value  # type: ignore[index]


@contextmanager
def change_claims(claims: Iterable[Claim]) -> Iterator[None]:
    """Make receipts with changed claims for the duration of the block."""
    of_receipt: defaultdict[Path, list[Claim]] = defaultdict(list)
    for claim in claims:
        of_receipt[claim.receipt].append(claim)
    good = {receipt: receipt.read_bytes() for receipt in of_receipt}

    def change(value: dict[str, Any], some: Iterable[Claim]) -> None:
        for one in some:
            set_at(value, one.path, one.value + 1 if isinstance(one.value, int | float) else f"{one.value}0")

    try:
        for receipt, some in of_receipt.items():
            edit_receipt(receipt, partial(change, some=some))
        yield
    finally:
        for receipt, data in good.items():
            receipt.write_bytes(data)


def find_ignored_claims(spec: ArtifactSpec, store: LocalArtifacts) -> Iterator[str]:
    """Return the claims that change the result of blocking checks although the artifact's recipe ignores them."""

    def stale(some: Sequence[Claim]) -> set[str]:
        with change_claims(some):
            return {"stale"} if is_stale(spec, store) else set()

    def red(some: Sequence[Claim]) -> set[str] | None:
        with change_claims(some):
            return None if is_stale(spec, store) else find_failed_checks(spec, store)

    claims = list(find_claims(spec, store))
    moved = {claim for claim, _ in find_culprits(claims, stale)}
    for claim, names in find_culprits([claim for claim in claims if claim not in moved], red):
        yield f"{spec.name} of {claim.name}: {sorted(names)}"


def is_stale(spec: ArtifactSpec, store: LocalArtifacts) -> bool:
    """Return whether any of its partitions is out of date, with unchanged inputs."""
    # Compare only sizes, because no test of this module damages files.
    found = decide_slots(spec, store, spec.slots(store), verification="size")
    return any(one.is_stale for one in found.values())


def read_receipt(source: ArtifactSpec | DatasetInput | AssetInput, store: LocalArtifacts) -> Path | None:
    """Return the receipt of an input, or of its first partition."""
    if isinstance(source, DatasetInput):
        folder = store.root / source.dataset / source.name
        return min(folder.glob("receipt.json"), default=None) or min(folder.glob(f"{source.split}*/receipt.json"))
    if isinstance(source, ArtifactSpec) and source.kept:
        return store.directory(source.artifacts(store)[0]) / "receipt.json"
    return None


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SAMPLES, COMPARED])
def test_values_that_a_blocking_check_compares_with_are_in_the_recipe(name: str, tmp_path: Path) -> None:
    store, found = LocalArtifacts(tmp_path / "artifacts"), []
    specs = build_source(name, store).specs
    if name == COMPARED:  # the other artifacts are the same as in the sample
        specs = [spec for spec in specs if any(isinstance(source, DatasetInput) for source in spec.inputs)]
        assert specs
    for spec in specs:
        if not spec.checks or not spec.kept:
            continue
        assert find_failed_checks(spec, store) == set(), spec.path
        found += find_ignored_claims(spec, store)
    assert found == []
