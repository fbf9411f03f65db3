"""A training schedule over changing corpora: its reports, the reads of a revision, and the earlier reads.

A loop records every sample that it reads from the shards' own files. A document is identified by id and length, as in a
schedule: another text of equal length under the same id is the same document.
"""

import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.receipt import NAME
from dataprep_assets.serving.sampler.seen import SeenLedger, documents_of_step
from dataprep_assets.serving.sampler.training_data import TrainingData
from dataprep_assets_tests.pipelines.corpus.pipeline import debris
from dataprep_assets_tests.serving.training_runs import Loop
from dataprep_assets_tests.tools.bench.changes.corpus import Corpus
from dataprep_assets_tests.tools.bench.changes.project import Project, last_lines, made

_COMPARED = 12
"""The number of steps of earlier rounds that each round inspects."""


@dataclass(frozen=True)
class Shard:
    """A shard on the disk: its receipt's content and tokenizer, its tokens, ids and ends of documents."""

    content: str
    kind: tuple[str, str]
    tokens: NDArray[Any]
    ids: list[int]
    ends: list[int]

    @classmethod
    def read(cls, folder: Path) -> "Shard":
        """Read a shard of token bins."""
        receipt = json.loads((folder / NAME).read_bytes())
        dtype, read = receipt["facts"]["dtype"], np.fromfile
        return cls(
            content=receipt["content"],
            kind=(receipt["inputs"]["tokenizer"], dtype),
            tokens=read(folder / "tokens.bin", np.dtype(dtype).newbyteorder("<")),
            ids=read(folder / "document_ids.bin", "<u8").tolist(),
            ends=read(folder / "document_ends.bin", "<u8").tolist(),
        )

    @property
    def documents(self) -> list[tuple[int, int]]:
        """The id and length of each document."""
        return list(zip(self.ids, np.diff(self.ends, prepend=0).tolist(), strict=True))


Sources = dict[str, dict[str, Shard]]
"""Name of a source → its shards by name."""


@dataclass
class Step:
    """The reads of a step: the tokens, and the number of tokens of each document at each position."""

    tokens: NDArray[np.int64]
    documents: Counter[tuple[int, str]] = field(default_factory=Counter)


class Training:
    """A schedule in a project, with a loop that trains by it."""

    def __init__(self, project: Project, corpora: Sequence[Corpus], seed: int) -> None:
        self.project, self.corpora, self.random = project, corpora, random.Random(seed)
        self.name, self.begun, self.names = "", 0, dict.fromkeys(corpora, 0)
        self.counts = Counter[str]()
        self._begin()

    def _begin(self) -> None:
        """Declare a new run under a new name, because no step of it was trained on."""
        if self.name:
            shutil.rmtree(self.project.root / self.name)
            shutil.rmtree(self.project.defs / self.name)
        self.begun += 1
        self.name = f"vintage{self.begun}"
        packed = self.random.random() < 0.3
        self.settings: dict[str, Any] = {"batch": 3, "sequence_length": 32, "steps": 3000, "seed": 1, "weights": None}
        self.settings["samples"] = "documents" if packed else "windows"
        self.step, self.loop, self.numbers, self.token = 0, Loop(), dict[tuple[str, int, int], int](), 1
        self.before: list[Loop] = []
        self.wrote: dict[int, Step] = {}
        self.revised: Sources = {}
        self.scheduled: dict[str, Any] = {}
        self.declare()

    def sources(self) -> Sources:
        """Return the shards of each corpus that has the tokenizer of the first one, by the name of its source."""
        found: Sources = {}
        for corpus in self.corpora:
            bins = self.project.root / corpus.name / "token_bins"
            shards = {key: Shard.read(bins / key) for key in corpus.plan() if key.startswith("train-")}
            if not found or kind_of(shards) == kind_of(next(iter(found.values()))):
                found[f"{corpus.name}{self.names[corpus]}"] = shards
        return found

    def declare(self) -> Sources:
        """Write the YAML, and return the declaration."""
        found = self.sources()
        named = {f"{corpus.name}{self.names[corpus]}": corpus.name for corpus in self.corpora}
        settings = dict(self.settings)
        weights = settings.pop("weights")
        value = {
            "dataset": self.name,
            **settings,
            "most_epochs": 10_000,
            "sources": [
                {"dataset": named[name], "name": name, **({"weight": weights.get(name, 1.0)} if weights else {})}
                for name in found
            ],
        }
        body = {"type": "dataprep_assets.components.TrainingSchedule", "attributes": value}
        home = self.project.defs / self.name
        home.mkdir(parents=True, exist_ok=True)
        (home / "defs.yaml").write_text(json.dumps(body, indent=1) + "\n")
        return found

    def judge(self) -> Iterator[str]:
        """Act as a user who trains on changed corpora, and return mistakes."""
        if not self.scheduled:
            yield from self._made(self.declare())
            yield from self._train()
        self._set()
        found = self.declare()
        pending = self._pending(found)
        yield from self._told(pending)
        if pending and self.random.random() < 0.4:
            yield from self._revise(found)
        else:
            yield from self._left_alone(pending)
        verified = self.project.command("verify", self)
        if verified.returncode:
            yield f"schedule: verify: rc {verified.returncode}: {last_lines(verified.stdout + verified.stderr)}"
        yield from (f"left behind: {name}" for name in debris(self.project.root / self.name))
        yield from self._as_it_was()

    def _set(self) -> None:
        """Occasionally change the declaration."""
        if self.random.random() > 0.12:
            return
        names = ["batch", "seed", "steps", "sequence_length", "weights"]
        match self.random.choice(names):
            case "batch":
                self.settings["batch"] = self.random.randint(1, 6)
            case "seed":
                self.settings["seed"] += 1
            case "steps":
                self.settings["steps"] += 100
            case "weights":
                self.settings["weights"] = {name: self.random.uniform(0.1, 2) for name in self.sources()}
            case _ if self.settings["samples"] == "windows":
                self.settings["sequence_length"] = self.random.choice([16, 32, 40])

    def _pending(self, found: Sources) -> set[str]:
        """Return the keys and sources that differ from the last revision."""
        keys = {key for key, value in self.settings.items() if key != "weights" and value != self.scheduled[key]}
        # If weights are declared, a changed set of sources also changes the shares, because the share of a source
        # depends on the weights of all sources.
        weighed_otherwise = bool(self.settings["weights"]) and self.revised.keys() != found.keys()
        if weighed_otherwise or self.settings["weights"] != self.scheduled["weights"]:
            keys.add("of the samples")
        contents = [{name: {k: s.content for k, s in shards.items()} for name, shards in one.items()}
                    for one in (self.revised, found)]  # fmt: skip
        return keys | {name for name in {*self.revised, *found} if contents[0].get(name) != contents[1].get(name)}

    def _told(self, pending: set[str]) -> Iterator[str]:
        """Return changes that `status` does not report, and wrong reports."""
        status = self.project.command("status", self)
        # Changed sources make the checks of a schedule due, but do not cause a rebuild of the schedule.
        up_to_date = status.returncode == 0 and "everything is up to date" in status.stdout
        to_check = status.returncode == 1 and "nothing to build" in status.stdout
        if not (up_to_date or (pending and to_check)):
            yield f"schedule: status: rc {status.returncode}: {last_lines(status.stdout + status.stderr)}"
        told = [line for line in status.stdout.splitlines() if "not in the schedule yet" in line]
        # Do not expect a report about the samples, because changed weights may give the same shares as before.
        missing = sorted(p for p in pending - {"of the samples"} if not any(p in line for line in told))
        if missing:
            yield f"schedule: changed, not told: {', '.join(missing)}"
        if needless := [line for line in told if not any(one in line for one in pending)]:
            yield f"schedule: told, not changed: {needless[0]}"

    def _left_alone(self, pending: set[str]) -> Iterator[str]:
        """Assert that a run without a revision builds nothing, and that steps that need no changed data can be read."""
        before = made(self.project.root / self.name)
        done = self.project.command("run", self)
        if done.returncode:
            yield f"schedule: run: rc {done.returncode}: {last_lines(done.stdout + done.stderr)}"
        if made(self.project.root / self.name) != before:
            yield "schedule: made again without a revision"
        if bool(pending - {"of the samples"}) > ("not in the schedule yet" in done.stdout):
            yield "schedule: changed, not told by the run"
        if not pending and self.random.random() < 0.2:
            yield from self._train()

    def _revise(self, found: Sources) -> Iterator[str]:
        step = self.random.randrange(self.step) if self.step and self.random.random() < 0.15 else self.step
        options = ["--from-step", str(step), "--trained", str(max(self.wrote, default=-1) + 1)]
        for _ in range(len(found) + 1):
            done = self.project.command("schedule", self, *options)
            told = done.stdout + done.stderr
            if not done.returncode:
                break
            if "tokenizer" in told and self._other_tokenizer(found):
                self.counts["another tokenizer"] += 1
                self._begin()
                yield from self._made(self.declare())
                yield from self._train()
                return
            named = [c for c in self.corpora if f"source {c.name}{self.names[c]}: " in told]
            if "another `name`" in told and named and self._moved(f"{named[0].name}{self.names[named[0]]}", found):
                self.counts["moved"] += 1
                self.names[named[0]] += 1
                found = self.declare()
            elif "nothing has changed" in told:
                return  # the declared weights give the same shares as before
            else:
                yield f"schedule {' '.join(options)}: rc {done.returncode}: {last_lines(told)}"
                return
        if step and self._other_tokenizer(found):
            yield "schedule: goes on with another tokenizer"
        self.counts["revised"] += 1
        self.step = step
        self.wrote = {number: one for number, one in self.wrote.items() if number < step}
        if step < len(self.before):
            self.loop = self.before[step].copy()
            del self.before[step:]
        yield from self._made(found)
        yield from self._told(set())
        yield from self._train()

    def _other_tokenizer(self, found: Sources) -> bool:
        """Return whether the sources have another tokenizer than the ones that were read."""
        read, now = (kind_of(next(iter(one.values()))) for one in (self.revised, found))
        return read[0] != now[0]

    def _moved(self, name: str, found: Sources) -> bool:
        """Return whether an existing document of a source has moved."""
        then, now = (
            [(document, key) for key, shard in sorted(one[name].items()) for document in shard.documents]
            for one in (self.revised, found)
        )
        both = {document for document, _ in then} & {document for document, _ in now}
        return [one for one in then if one[0] in both] != [one for one in now if one[0] in both]

    def _made(self, found: Sources) -> Iterator[str]:
        """Run the schedule, which must build only the schedule."""
        try:
            announced = self.project.announced(self)
        except CalledProcessError as error:
            yield f"schedule: run --dry-run: {last_lines(error.stderr or error.stdout)}"
            announced = {}
        done = self.project.command("run", self)
        if done.returncode:
            yield f"schedule: run: rc {done.returncode}: {last_lines(done.stdout + done.stderr)}"
        if {*announced} != {"schedule"}:
            yield f"schedule: announced are {', '.join(announced) or 'none'}"
        self.revised, self.scheduled = found, dict(self.settings)
        for name, shards in found.items():
            self.loop.meet(name, [self._numbers(name, one) for s in shards.values() for one in s.documents])

    def _numbers(self, source: str, document: tuple[int, int]) -> range:
        """Return the unique numbers of a document's tokens."""
        first = self.numbers.setdefault((source, *document), self.token)
        self.token = max(self.token, first + document[1])
        return range(first, first + document[1])

    def _train(self) -> Iterator[str]:
        """Train some steps; return samples that differ from the shards, or that are repeated within an epoch."""
        data = TrainingData(str(self.project.root), self.name)
        numbered = {
            (name, key): [number for one in shard.documents for number in self._numbers(name, one)]
            for name, shards in self.revised.items()
            for key, shard in shards.items()
        }
        documents = {
            (name, key): np.repeat(np.array(shard.ids, np.uint64), [length for _, length in shard.documents]).tolist()
            for name, shards in self.revised.items()
            for key, shard in shards.items()
        }
        for step in range(self.step, min(self.step + self.random.randint(4, 40), data.steps)):
            self.before.append(self.loop.copy())
            batch, sources = data.batch(step), data.sampler.find_rule(step).revision.sources
            wrote, rows = Step(batch.tokens), dict[int, list[int]]()
            wanted = np.zeros_like(batch.tokens)
            spans = data.sampler.find_step_spans(step)
            for row, number, _, at, start, stop in zip(*(column.tolist() for column in spans), strict=True):
                place = (sources[number].name, sources[number].shards[at].name)
                held = rows.setdefault(row, [])
                wanted[row, len(held) : len(held) + stop - start] = self.revised[place[0]][place[1]].tokens[start:stop]
                held += numbered[place][start:stop]
                wrote.documents.update((row, f"{one:016x}") for one in documents[place][start:stop])
            if (batch.tokens != wanted).any():
                yield f"schedule: step {step} has tokens that the shards do not have there"
            for row in sorted(rows):
                yield from (f"schedule: step {step}: {one}" for one in self.loop.read(rows[row]))
            self.wrote[step] = wrote
            self.counts["samples"] += len(rows)
            self.step = step + 1

    def _as_it_was(self) -> Iterator[str]:
        """Check that earlier steps are reported as recorded, and are read equally or refused."""
        data = TrainingData(str(self.project.root), self.name)
        ledger = SeenLedger(data)
        for step in self.random.sample(sorted(self.wrote), min(_COMPARED, len(self.wrote))):
            seen = Counter[tuple[int, str]]()
            for one in documents_of_step(ledger, step):
                seen[one.position, str(one.id)] += one.tokens
            if seen != self.wrote[step].documents:
                yield f"schedule: step {step}: the ledger tells of other documents than were read"
            try:
                again = data.batch(step).tokens
            except ConfigError:
                continue  # the step reads a shard that has changed since
            if not np.array_equal(again, self.wrote[step].tokens):
                yield f"schedule: step {step} reads other tokens than it did"


def kind_of(shards: dict[str, Shard]) -> tuple[str, str]:
    """Return the tokenizer of a source, and the type of its tokens."""
    return next(iter(shards.values())).kind
