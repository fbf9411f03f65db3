"""One change a round: what is announced, what is rebuilt, what the change decides, and a build from scratch."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dataprep_assets.graph.rebuild import rebuild_of
from dataprep_assets.graph.status import Stale, stale, unplanned
from dataprep_assets.pipelines.corpus.dataset import corpus_specs
from dataprep_assets.pipelines.corpus.manifest import load_manifest
from dataprep_assets.planning.cost import Machine
from dataprep_assets_tests.bench.changes.corpus import DATASET, Corpus
from dataprep_assets_tests.bench.changes.decided import decided, rebuilt
from dataprep_assets_tests.bench.changes.mutations import KINDS, Happened
from dataprep_assets_tests.pipelines.corpus.pipeline import debris, products, run_pipeline

__all__ = ["Round", "rounds"]

_MACHINE = Machine(cores=1, bandwidth=125e6)


@dataclass
class Round:
    """One change and what came of it. `mismatches` are sentences; none is right."""

    number: int
    kind: str
    what: str
    announced: int = 0
    provisional: int = 0
    built: int = 0
    reused: int = 0
    mismatches: list[str] = field(default_factory=list)


def rounds(folder: Path, count: int, seed: int) -> Iterator[Round]:
    """Build a corpus in a folder, change it `count` times, and yield each round as it is judged."""
    corpus = Corpus(folder, seed)
    first = run_pipeline(corpus.declared(), corpus.root)
    assert first.failed == {}, first.failed
    manifest = load_manifest(corpus.declared(), corpus.store)
    corpus.state.plan = {key: [entry.relpath for entry in manifest.shard(key)] for key in manifest.plan}
    kinds: list[str] = []
    for number in range(1, count + 1):
        if not kinds:  # every kind once, in another order each time
            kinds = sorted(KINDS)
            corpus.rng.shuffle(kinds)
        yield _round(corpus, number, kinds.pop())


def _round(corpus: Corpus, number: int, kind: str) -> Round:
    before = decided(corpus.state)
    happened = KINDS[kind](corpus)
    wanted = rebuilt(before, decided(corpus.state)) | happened.damaged
    specs = corpus_specs(corpus.declared())
    announced = {_short(w.stale): w.stale for w in rebuild_of(specs, corpus.store, _MACHINE).works}
    outcome = run_pipeline(corpus.declared(), corpus.root)
    made = set(outcome.built)
    judged = Round(
        number=number,
        kind=kind,
        what=happened.what,
        announced=len(announced),
        provisional=sum(one.provisional for one in announced.values()),
        built=len(made),
        reused=len(outcome.reused),
    )
    certain = {name for name, one in announced.items() if not one.provisional}
    found = judged.mismatches
    found += [f"failed: {name}: {error}" for name, error in outcome.failed.items()]
    found += [f"rebuilt, not announced: {name}" for name in sorted(made - announced.keys())]
    found += [f"announced ({announced[name].reason}), not rebuilt: {name}" for name in sorted(certain - made)]
    found += [f"rebuilt, not decided by the change: {name}" for name in sorted(made - wanted)]
    found += [f"decided by the change, not rebuilt: {name}" for name in sorted(wanted - made)]
    found += _untrue(announced, happened)
    found += [f"stale after the run: {one}" for one in stale(specs, corpus.store)]
    found += _other_bytes(corpus)
    found += [f"left behind: {name}" for name in debris(corpus.root)]
    return judged


def _short(one: Stale) -> str:
    return one.name.removeprefix(f"{DATASET}/")


def _untrue(announced: dict[str, Stale], happened: Happened) -> Iterator[str]:
    """Reasons that are not the true one: the change itself, or an input that is announced as well."""
    inherited = {f"its input {one.name} is stale" for one in announced.values()}
    for name, one in announced.items():
        if one.kind == "input changed" and one.reason in inherited:
            continue
        prefixes = sorted((p for p in happened.because if name.startswith(p)), key=len, reverse=True)
        if not prefixes:
            yield f"{name}: nothing of it changed, told is {one.kind}: {one.reason}"
            continue
        kind, part = happened.because[prefixes[0]]
        if one.kind != kind or part not in one.reason:
            yield f"{name}: told is {one.kind}: {one.reason}; true is {kind}: {part}"


def _other_bytes(corpus: Corpus) -> Iterator[str]:
    """Files that a build from scratch of the same manifest has otherwise."""
    scratch = corpus.folder / "scratch"
    shutil.copytree(corpus.root / DATASET / "manifest", scratch / DATASET / "manifest")
    outcome = run_pipeline(corpus.declared(), scratch)
    yield from (f"from scratch, failed: {name}: {error}" for name, error in outcome.failed.items())
    left = tuple(f"{one}/" for one in unplanned(corpus_specs(corpus.declared()), corpus.store))
    here = {n: data for n, data in products(corpus.root).items() if not n.startswith(left)}
    there = products(scratch)
    shutil.rmtree(scratch)
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            yield f"other than from scratch: {name}"
