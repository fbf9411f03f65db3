"""One change per round: the announcements of `status`, the rebuilds of `run`, whether these were necessary, and all
bytes.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

from dataprep_assets.integrity.receipt import NAME
from dataprep_assets_tests.fakes.hub_server import HubServer
from dataprep_assets_tests.pipelines.corpus.pipeline import debris
from dataprep_assets_tests.tools.bench.changes.corpus import Corpus
from dataprep_assets_tests.tools.bench.changes.mutations import Step, kinds
from dataprep_assets_tests.tools.bench.changes.project import Made, Project, last_lines, made
from dataprep_assets_tests.tools.bench.changes.training import Training

_FRAMED = ("key", "recipe", "dataset", "artifact", "partition", "schema_version", "inputs", "sources")
_OF_THAT_TIME = ("reference_documents", "sampled_documents")
"""Counts in a ledger that describe how a shard's documents were encoded and compared, not which they are."""


@dataclass
class Round:
    """A change with its results. `mismatches` are sentences; none means success."""

    number: int
    kind: str
    dataset: str
    steps: list[str] = field(default_factory=list)
    announced: int = 0
    built: int = 0
    kept: int = 0
    mismatches: list[str] = field(default_factory=list)
    training: dict[str, int] = field(default_factory=dict)
    """The situations that the schedule has met so far."""

    @property
    def stuck(self) -> bool:
        """Whether a dataset did not recover from the change."""
        return any(one.startswith("dead end") for one in self.mismatches)


def rounds(folder: Path, count: int, seed: int, *, check_every: int = 10, only: Sequence[str] = ()) -> Iterator[Round]:
    """Make a project with a corpus on the disk, one on a hub and one that selects its documents, change one of them
    `count` times, yield each round.

    Every kind comes once, in an order of the seed, before any comes again. After `check_every` rounds of a corpus, and
    after the last, its files are compared with a build from scratch. A corpus that is stuck is built anew.
    """
    rng = random.Random(seed)
    with HubServer({"README.md": b""}, repo_id="org/imports") as hub:
        project = Project.made(folder)
        corpora = [
            project.corpus("harvest", folder / "harvest", seed),
            project.corpus("imports", folder / "imports", seed + 1, hub),
            project.corpus("orchard", folder / "orchard", seed + 2, selects=True),
        ]
        for corpus in corpora:
            project.command("run", corpus).check_returncode()
        training = Training(project, [corpora[2], corpora[0]], seed)
        since = dict.fromkeys(corpora, 0)
        ahead: list[tuple[str, Corpus]] = []
        for number in range(1, count + 1):
            if not ahead:
                ahead = [(k, c) for c in corpora for k in kinds(c) if not only or any(k.startswith(o) for o in only)]
                rng.shuffle(ahead)
            kind, corpus = ahead.pop()
            judged = Round(number, kind, corpus.name)
            for step in kinds(corpus)[kind](corpus):
                judged.steps.append(step.what)
                if not judged.stuck:  # after a step that got stuck, the change is only reverted
                    _judge(project, corpus, step, judged)
            since[corpus] += 1
            last = number == count or kind.startswith("unseen: ")
            if since[corpus] >= check_every or last or judged.stuck:
                for one in corpora if number == count else [corpus]:
                    if since[one]:
                        _compared(project, one, judged, folder / "scratch", since[one])
                        since[one] = 0
            judged.mismatches += training.judge()
            judged.training = dict(training.counts)
            yield judged


def _judge(project: Project, corpus: Corpus, step: Step, judged: Round) -> None:
    """Act as a user does after a change, and record mistakes."""
    found = judged.mismatches
    for name, *options in step.commands:
        if (done := project.command(name, corpus, *options)).returncode:
            found.append(f"{name}: rc {done.returncode}: {last_lines(done.stderr or done.stdout)}")
    before = made(corpus.root / corpus.name)
    left = _unplanned(corpus, before)
    try:
        announced = project.announced(corpus)
    except CalledProcessError as error:
        found.append(f"run --dry-run: rc {error.returncode}: {last_lines(error.stderr or error.stdout)}")
        announced = {}
    done = project.command("run", corpus)
    failed = done.returncode != 0
    if failed:
        if not step.unseen:
            found.append(f"{step.what}: run: rc {done.returncode}: {last_lines(done.stdout + done.stderr)}")
        again = project.command("run", corpus)
        if again.returncode:
            why = last_lines(again.stdout + again.stderr)
            found.append(f"dead end: {step.what}: the next run: rc {again.returncode}: {why}")
            return
    after = made(corpus.root / corpus.name)
    built = {name for name, one in after.items() if name not in before or before[name].written != one.written}
    judged.announced += len(announced)
    judged.built += len(built)
    judged.kept += len(after) - len(built)
    status = project.command("status", corpus)
    if status.returncode or "everything is up to date" not in status.stdout:
        found.append(f"after the run, status: rc {status.returncode}: {last_lines(status.stdout + status.stderr)}")
    found += [f"left behind: {name}" for name in debris(corpus.root / corpus.name)]
    verified = project.command("verify", corpus)
    if verified.returncode and not step.unseen:
        found.append(f"{step.what}: verify: rc {verified.returncode}: {last_lines(verified.stdout + verified.stderr)}")
    if failed or step.unseen:
        return
    certain = {name for name, one in announced.items() if not one["provisional"] and name in {*before, *after}}
    found += [f"made again, not announced: {name}" for name in sorted(built - announced.keys())]
    found += [f"announced ({announced[name]['reason']}), not made again: {name}" for name in sorted(certain - built)]
    found += [f"damaged, not made again: {name}" for name in sorted(step.damaged - built)]
    found += _untrue(announced, _unplanned(corpus, before), left, step)
    found += _needless(built, before, after, step)
    if corpus.selects:
        found += _tokenized_again(built, before, after, step)


def _direct(step: Step, name: str) -> tuple[str, tuple[str, ...]] | None:
    prefixes = sorted((prefix for prefix in step.because if name.startswith(prefix)), key=len, reverse=True)
    return step.because[prefixes[0]] if prefixes else None


def _unplanned(corpus: Corpus, names: Iterable[str]) -> list[str]:
    """Return the shards that the current manifest does not plan."""
    return [name for name in names if name.partition("/")[2] not in ("", *corpus.splits(), *corpus.plan())]


def _untrue(
    announced: Mapping[str, dict[str, Any]], gone: Sequence[str], left: Sequence[str], step: Step
) -> Iterator[str]:
    """Return reasons that are wrong: neither the change itself nor an input that is announced or was removed."""
    for name, one in announced.items():
        kind, reason = one["kind"], one["reason"]
        if kind == "input changed" and any(other in reason for other in (*announced, *gone) if other != name):
            continue
        # Accept any reason for the card, because the card describes all other artifacts.
        if name == "data_card" and len(announced) > 1:
            continue
        if (direct := _direct(step, name)) is None:
            yield f"{step.what}: nothing of {name} changed, told is {kind}: {reason}"
        elif direct[0] == "missing" and name in left:
            continue  # a new shard has the name of an obsolete shard, which still exists with other files
        elif direct[1] and any(part in reason for part in direct[1]):
            # Accept a different kind of reason, because the reason may also name a key that was changed in an earlier
            # round.
            continue
        elif direct[1] or (direct[0] and kind != direct[0]):
            yield f"{step.what}: {name}: told is {kind}: {reason}; true is {direct[0]}: {' or '.join(direct[1])}"


def _needless(built: set[str], before: Mapping[str, Made], after: Mapping[str, Made], step: Step) -> Iterator[str]:
    """Return artifacts that were rebuilt although neither the change nor new content of an input requires it."""
    for name in sorted(built):
        if name not in before or name in step.damaged or _direct(step, name) is not None:
            continue
        if name == "data_card" and len(built) > 1:
            continue
        # A changed ledger justifies a rebuild. For example, a bad row that is also a duplicate gets a different reason,
        # which the ledgers of all downstream artifacts repeat.
        was, now = (
            (made[name].receipt.get("recipe", {}).get("upstream"), made[name].receipt.get("ledger"))
            for made in (before, after)
        )
        if was == now:
            yield f"{step.what}: made again without need: {name}"


def _tokenized_again(
    built: set[str], before: Mapping[str, Made], after: Mapping[str, Made], step: Step
) -> Iterator[str]:
    """Return shards that were tokenized again although their dropped rows and all other inputs are unchanged."""
    for name in sorted(built):
        if name.startswith("token_bins/") and name in before and name not in step.damaged:
            key = before[name].receipt.get("key")
            if key is not None and key == after[name].receipt["key"]:
                yield f"{step.what}: tokenized again with the same key: {name}"


def _compared(project: Project, corpus: Corpus, judged: Round, folder: Path, since: int) -> None:
    """Compare with a build from scratch in another project; if it differs, or is stuck, start again from nothing."""
    found = judged.mismatches
    if not judged.stuck:
        scratch = project.copied(folder, corpus)
        done = scratch.command("run", corpus)
        if done.returncode:
            found.append(f"from scratch: rc {done.returncode}: {last_lines(done.stdout + done.stderr)}")
        differ = list(_differences(corpus, project, scratch))
        found += [f"other than from scratch (within {since} rounds): {one}" for one in differ]
        if not differ:
            return
    project.forget(corpus)
    if (done := project.command("run", corpus)).returncode:
        raise RuntimeError(f"round {judged.number}: {corpus.name} cannot be built from nothing: {done.stderr[-2000:]}")


def _differences(corpus: Corpus, project: Project, scratch: Project) -> Iterator[str]:
    """Files of planned artifacts that differ, and what their receipts have to say alike.

    A receipt also says how the artifact came to be: when and by which versions (`measured`), which certificate its
    engine had, and how many of its documents the reference encoded or compared. A shard that is rightly kept keeps
    those of then. All else is the same as from scratch.
    """
    here, there = (made(one.root / corpus.name) for one in (project, scratch))
    for name, other in there.items():
        if name not in here:
            yield f"{name}: is not there"
            continue
        ours, theirs = here[name].files(), other.files()
        yield from (f"{name}/{file}" for file in sorted({*ours, *theirs}) if ours.get(file) != theirs.get(file))
        for part, mine, wanted in _parts(here[name].receipt, other.receipt):
            if mine != wanted:
                yield f"{name}/{NAME}: {part}: {_first(mine, wanted)}"


def _parts(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for part in _FRAMED:
        yield part, one.get(part), other.get(part)
    for part, left_out in (("facts", ("certificate",)), ("ledger", _OF_THAT_TIME)):
        told = [
            {name: value for name, value in (receipt.get(part) or {}).items() if name not in left_out}
            for receipt in (one, other)
        ]
        yield part, *told


def _first(one: Any, other: Any) -> str:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in sorted({*one, *other}):
            if one.get(key) != other.get(key):
                return f"{key}: {_first(one.get(key), other.get(key))}"
    return f"{one!s:.80} here, {other!s:.80} there"
