"""No artifact is current and red for ever: a blocking proof compares with nothing that its artifact's recipe ignores.

Every claim in the receipt of every input of every artifact of the samples is changed, one after another, as if the
input had been made again and told something else with the same content. Then either the artifact is out of date, or
its blocking proofs say what they said before.
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
from dataprep_assets_tests.engine.building import COMPARED, SAMPLES, Keys, failed, leaves, with_its_source
from dataprep_assets_tests.engine.halves import culprits
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
"""Claims that do not change alone → what decides them: it is in the keys of all that is made of the artifact."""


@dataclass(frozen=True)
class Claim:
    """A value in the receipt of an input, and the way to it."""

    source: str
    receipt: Path
    path: Keys
    value: Any

    @property
    def name(self) -> str:
        """The input and the way, as one would write them."""
        return f"{self.source}.{'.'.join(map(str, self.path))}"


def claims_of(spec: ArtifactSpec, store: LocalArtifacts) -> Iterator[Claim]:
    """The claims in the receipts of the inputs of an artifact that can change alone."""
    for source in spec.inputs:
        if (receipt := a_receipt(source, store)) is not None:
            value = json.loads(receipt.read_bytes())
            for path, old in leaves({name: value[name] for name in CLAIMS}):
                claim = Claim(source.name, receipt, path, old)
                if not any(fnmatch(claim.name, one) for one in DECIDED):
                    yield claim


def set_at(receipt: dict[str, Any], path: Keys, value: Any) -> None:
    for key in path[:-1]:
        receipt = receipt[key]  # type: ignore[index]
    receipt[path[-1]] = value  # type: ignore[index]


@contextmanager
def changed(claims: Iterable[Claim]) -> Iterator[None]:
    """Have receipts with other claims."""
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


def ignored(spec: ArtifactSpec, store: LocalArtifacts) -> Iterator[str]:
    """The claims whose change an artifact's recipe ignores and its blocking proofs do not."""

    def stale(some: Sequence[Claim]) -> set[str]:
        with changed(some):
            return {"stale"} if is_stale(spec, store) else set()

    def red(some: Sequence[Claim]) -> set[str] | None:
        with changed(some):
            return None if is_stale(spec, store) else failed(spec, store)

    claims = list(claims_of(spec, store))
    moved = {claim for claim, _ in culprits(claims, stale)}
    for claim, names in culprits([claim for claim in claims if claim not in moved], red):
        yield f"{spec.name} of {claim.name}: {sorted(names)}"


def is_stale(spec: ArtifactSpec, store: LocalArtifacts) -> bool:
    """Whether any of its partitions cannot stay, with its inputs as they are."""
    found = decide_slots(spec, store, spec.slots(store), verification="size")  # nothing damages its files
    return any(one.is_stale for one in found.values())


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
        found += ignored(spec, store)
    assert found == []
