"""Random training runs over real artifacts, each with a loop that records its reads.

Every token of a run has a unique number, so a batch itself shows which documents it contains. The loop keeps a list of
the remaining documents of each source's epoch and removes those in a batch, without using schedules. At the end its
records are compared with the ledger and with Megatron's index files. `run_of` does all of this for one seed.
"""

import json
import pickle
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.errors import ConfigError
from dataprep_assets.formats import megatron
from dataprep_assets.integrity.artifacts import Artifact, LocalArtifacts
from dataprep_assets.integrity.receipt import Ledger as RowLedger
from dataprep_assets.integrity.receipt import Receipt, record_files
from dataprep_assets.pipelines.schedule.declaration import ScheduleDeclaration
from dataprep_assets.pipelines.schedule.megatron_indices import build_indices, build_megatron_spec
from dataprep_assets.pipelines.schedule.megatron_sources import open_inputs
from dataprep_assets.pipelines.schedule.schedule_artifact import (
    build_schedule,
    build_schedule_spec,
    load_current_schedule,
    revise_schedule,
    write_revisions,
)
from dataprep_assets.serving.sampler.seen import SeenLedger, documents_of_step
from dataprep_assets.serving.sampler.training_data import IGNORED, Batch, TrainingData
from dataprep_assets_tests.engine.found import run_checks

Document = range
"""The numbers of the document's tokens."""
RUN = "run"
CHANGES = ("append", "remove", "edit", "edit", "batch", "length", "weights", "sources", "back", "nothing")


@dataclass
class Corpora:
    """Corpora whose shards are written as builds would write them, without a tokenizer."""

    root: Path
    random: np.random.Generator
    shards: dict[str, dict[str, list[Document]]] = field(default_factory=dict)
    tokens: int = 1

    def new_documents(self, most: int) -> list[Document]:
        """Return a few documents of new tokens."""
        found = []
        for length in self.random.integers(1, 40, self.random.integers(1, most)).tolist():
            found.append(range(self.tokens, self.tokens + length))
            self.tokens += length
        return found

    def append(self, name: str) -> None:
        """Add one or two new shards."""
        held = self.shards.setdefault(name, {})
        first = 1 + max((int(key[-5:]) for key in held), default=-1)
        for at in range(first, first + int(self.random.integers(1, 3))):
            held[f"train-{at:05d}"] = self.new_documents(10)

    def some_shard(self, name: str) -> str:
        """Return a random shard of a corpus."""
        return str(self.random.choice(sorted(self.shards[name])))

    def remove(self, name: str) -> None:
        """Remove documents of a shard, or the whole shard."""
        held, key = self.shards[name], self.some_shard(name)
        kept = [one for one in held[key] if self.random.random() < 0.7]
        if len(held) > 1 and self.random.random() < 0.2:
            del held[key]
        elif kept or any(documents for other, documents in held.items() if other != key):
            held[key] = kept

    def edit(self, name: str) -> None:
        """Replace the text of some documents of a shard, and insert new ones between them."""
        held, key = self.shards[name], self.some_shard(name)
        documents: list[Document] = []
        for one in held[key]:
            if self.random.random() < 0.75:
                documents.append(one)
            if self.random.random() < 0.3:
                documents += self.new_documents(2)
        held[key] = documents or held[key]

    def write(self, name: str) -> None:
        """Write all artifacts of a corpus that a schedule and its Megatron indices read."""
        shutil.rmtree(self.root / name, ignore_errors=True)
        held = self.shards[name]
        plan = {key: [at, at + 1] for at, key in enumerate(sorted(held))}
        self._commit(Artifact(dataset=name, name="manifest"), {"shard_plan.json": json.dumps(plan).encode()})
        contents = {}
        for key in plan:
            ends = np.cumsum([len(one) for one in held[key]], dtype="<u8")
            numbers = [token for one in held[key] for token in one]
            receipt = self._commit(
                Artifact(dataset=name, name="token_bins", partition=key),
                {
                    "tokens.bin": np.array(numbers, "<u4").tobytes(),
                    "document_ends.bin": ends.tobytes(),
                    "document_ids.bin": np.array([one[0] for one in held[key]], "<u8").tobytes(),
                },
                inputs={"tokenizer": "t" * 64},
                ledger=RowLedger(rows_in=len(held[key]), documents=len(held[key]), tokens=len(numbers)),
                facts={"dtype": "uint32", "separator_id": 0, "bos_id": None, "special_tokens": "text",
                       "certificate": {}, "document_ids": "text"},
                sources=({"file": f"{key}.jsonl", "documents": len(held[key])},),
            )  # fmt: skip
            contents[f"token_bins/{key}"] = str(receipt.content)
        combined = self._commit(
            Artifact(dataset=name, name="combined_bins", partition="train"), {"a": name.encode()},
            recipe={"version": 1, "settings": {}, "sources": {}, "upstream": contents},
        )  # fmt: skip
        ends = np.cumsum([len(one) for key in plan for one in held[key]], dtype=np.uint64)
        index = self.root / "train.idx"
        index.unlink(missing_ok=True)
        megatron.write_idx(index, ends, dtype="uint16")
        self._commit(
            Artifact(dataset=name, name="megatron_bins"), {"train.idx": index.read_bytes()},
            recipe={"version": 1, "settings": {}, "sources": {}, "upstream": {"combined_bins/train": combined.content}},
        )  # fmt: skip

    def _commit(self, artifact: Artifact, files: dict[str, bytes], **parts: Any) -> Receipt:
        folder = artifact.directory(self.root)
        folder.mkdir(parents=True)
        for name, data in files.items():
            (folder / name).write_bytes(data)
        receipt = Receipt(
            dataset=artifact.dataset, artifact=artifact.name, partition=artifact.partition, key="k" * 64,
            **{"inputs": {}, **parts}, files=record_files(folder),
        )  # fmt: skip
        receipt.write(folder)
        return receipt


@dataclass
class Loop:
    """The knowledge of a training loop: the documents of each source, the rest of each epoch, and the reads of each
    step.
    """

    has: dict[str, set[int]] = field(default_factory=dict)
    left: dict[str, set[int]] = field(default_factory=dict)
    source_of: dict[int, str] = field(default_factory=dict)

    def copy(self) -> "Loop":
        """Return a snapshot; no set is changed in place."""
        return Loop(dict(self.has), dict(self.left), self.source_of)

    def meet(self, name: str, documents: Sequence[Document]) -> None:
        """Set the documents of a source from now on."""
        now = {token for one in documents for token in one}
        before = self.has.get(name, set())
        # A new source starts its first epoch with all documents unread.
        self.left[name] = now if name not in self.has else (self.left[name] & now) | (now - before)
        self.has[name] = now
        self.source_of.update(dict.fromkeys(now, name))

    def read(self, tokens: Sequence[int]) -> list[str]:
        """Remove the documents of a sample, and return what is wrong with it."""
        name = self.source_of[tokens[0]]
        if not self.left[name]:
            self.left[name] = set(self.has[name])
        wrong = [token for token in tokens if token not in self.left[name]]
        self.left[name] = self.left[name] - set(tokens)
        return [f"{len(wrong)} tokens of {name} come again, or are gone, first {wrong[0]}"] if wrong else []


def mistakes_of(batch: Batch, document_of: dict[int, Document]) -> list[str]:
    """Return the differences between the labels, documents and positions of a batch and those of its tokens."""
    found = []
    assert batch.document_ids is not None
    assert batch.position_ids is not None
    for row in range(len(batch.positions)):
        tokens = batch.tokens[row][batch.document_ids[row] >= 0].tolist()
        labels, documents, places = [], [], []
        for at, token in enumerate(tokens):
            document = document_of[token]
            goes_on = at > 0 and tokens[at - 1] == token - 1 and token in document and token - 1 in document
            documents.append((documents[-1] + (not goes_on)) if at else 0)
            places.append(places[-1] + 1 if goes_on else 0)
            labels.append(token + 1 if token + 1 in document else IGNORED)
        size = len(tokens)
        for what, wanted, got in (
            ("labels", labels, batch.labels[row]),
            ("documents", documents, batch.document_ids[row]),
            ("places", places, batch.position_ids[row]),
        ):
            if got[:size].tolist() != wanted:
                found.append(f"step {batch.step}, position {batch.positions[row]}: {what}")
        padding = (batch.labels[row][size:], batch.document_ids[row][size:], batch.position_ids[row][size:])
        if any((got != value).any() for got, value in zip(padding, (IGNORED, -1, 0), strict=True)) or not size:
            found.append(f"step {batch.step}, position {batch.positions[row]}: padding")
    return found


@dataclass
class Told:
    """The description of a run, and the differences found."""

    changes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    samples: int = 0
    megatron: int = 0


class TrainingRun:
    """A run of a seed; see the module."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.folder = folder
        self.store = LocalArtifacts(folder / "artifacts")
        self.corpora = Corpora(folder / "artifacts", self.random)
        self.told, self.loop = Told(), Loop()
        self.before: list[Loop] = []
        self.wrote: dict[int, dict[int, list[int]]] = {}
        self.document_of: dict[int, Document] = {}
        packed = self.random.random() < 0.4
        self.declared: dict[str, Any] = {
            "dataset": RUN, "batch": int(self.random.integers(1, 7)), "steps": 400, "revisions": folder / "rev.json",
            "sequence_length": int(self.random.choice([8, 16])), "samples": "documents" if packed else "windows",
            "seed": int(self.random.integers(5)), "megatron": None if packed else {"tokenizer": {"class": "t"}},
        }  # fmt: skip
        for name in "abc"[: self.random.integers(1, 4)]:
            self.corpora.append(name)
        self.read_now = sorted(self.corpora.shards)
        self.weights = {name: float(self.random.choice([0.3, 1, 2])) for name in "abcdefgh"}

    @property
    def declaration(self) -> ScheduleDeclaration:
        """The current declaration."""
        sources = [{"dataset": name, "weight": self.weights[name]} for name in self.read_now]
        return ScheduleDeclaration.model_validate({**self.declared, "sources": sources})

    def write(self) -> None:
        """Write all corpora."""
        for name, shards in self.corpora.shards.items():
            self.corpora.write(name)
            for documents in shards.values():
                self.document_of.update({token: one for one in documents for token in one})

    def change(self, step: int) -> int:
        """Make a few changes, and return the step from which they apply."""
        for change in self.random.choice(CHANGES, self.random.integers(1, 4)).tolist():
            self.told.changes[change] += 1
            name = str(self.random.choice(sorted(self.corpora.shards)))
            if change in ("append", "remove", "edit"):
                getattr(self.corpora, change)(name)
            elif change == "batch":
                self.declared["batch"] = int(self.random.integers(1, 9))
            elif change == "length":
                # For packed documents, only double the length, because the new length must be a multiple of the old
                # one.
                more = self.declared["samples"] == "documents"
                length = self.declared["sequence_length"]
                self.declared["sequence_length"] = length * 2 if more else int(self.random.choice([8, 8, 12, 16]))
            elif change == "weights":
                self.weights[name] = float(self.random.random() + 0.1)
            elif change == "sources":
                if name in self.read_now and len(self.read_now) > 1:
                    self.read_now.remove(name)
                elif name not in self.read_now:
                    self.read_now = sorted([*self.read_now, name])
                elif len(self.corpora.shards) < 6:
                    new = "abcdefgh"[len(self.corpora.shards)]
                    self.corpora.append(new)
                    self.read_now.append(new)
            elif change == "back":
                step = int(self.random.integers(0, step + 1))
        return step

    def train(self, first: int, steps: int) -> int:
        """Run some steps of a new process on any number of ranks, and return the first step that was not read."""
        data = TrainingData(self.store, RUN, boundaries=True)
        ranks = int(self.random.integers(1, 4))
        for step in range(first, min(first + steps, data.steps)):
            del self.before[step:]
            self.before.append(self.loop.copy())
            batches = [data.batch(step, rank=rank, world_size=ranks) for rank in range(ranks)]
            rows: dict[int, list[int]] = {}
            for batch in batches:
                self.told.wrong += mistakes_of(batch, self.document_of)
                assert batch.document_ids is not None
                for position, tokens, held in zip(batch.positions, batch.tokens, batch.document_ids, strict=True):
                    rows[int(position)] = tokens[held >= 0].tolist()
            for position in sorted(rows):
                self.told.samples += 1
                self.told.wrong += [f"step {step}: {one}" for one in self.loop.read(rows[position])]
            self.wrote[step] = rows
        state = pickle.loads(pickle.dumps(data.state(min(first + steps, data.steps))))
        return TrainingData(self.store, RUN).restore(state)

    def revise(self, step: int) -> bool:
        """Make a revision from a step on, and return whether there was anything to revise."""
        declaration = self.declaration
        present = load_current_schedule(declaration, self.store)
        try:
            trained = max(self.wrote) + 1
            schedule = revise_schedule(declaration, self.store, present, from_step=step, trained=max(trained, step))
        except ConfigError as error:
            if "nothing has changed" in str(error):
                return False
            raise
        write_revisions(declaration, schedule)
        build_schedule(declaration, self.store)
        for other in [one for one in self.wrote if one >= step]:
            del self.wrote[other]
        self.loop = self.before[step].copy() if step < len(self.before) else self.loop
        del self.before[step:]
        return True

    def meet(self) -> None:
        """Give the loop the current sources."""
        for name in self.read_now:
            self.loop.meet(
                name, [one for key in sorted(self.corpora.shards[name]) for one in self.corpora.shards[name][key]]
            )

    def run(self, changes: int) -> Told:
        """Do the whole run."""
        self.write()
        build_schedule(self.declaration, self.store)
        self.meet()
        step = self.train(0, int(self.random.integers(5, 40)))
        for _ in range(changes):
            step = self.change(step)
            self.write()
            if not self.revise(step):
                # A change to a source that is no longer read needs no revision. Make the next change after the last
                # trained step.
                step = max(self.wrote) + 1
                continue
            self.meet()
            step = self.train(step, int(self.random.integers(5, 40)))
        self.compare_ledger()
        if self.declared["megatron"] is not None:
            self.compare_megatron()
        found = run_checks(build_schedule_spec(self.declaration), self.store)
        failed = [f"{name}: {one.summary}" for name, one in found.items()
                  if not one.passed and name not in ("epochs_within_limit", "sources_current")]  # fmt: skip
        self.told.wrong += failed
        return self.told

    def compare_ledger(self) -> None:
        """Assert that `seen` reports the loop's records for each step."""
        ledger = SeenLedger(TrainingData(self.store, RUN))
        for step, rows in self.wrote.items():
            seen = Counter[tuple[int, int]]()
            for one in documents_of_step(ledger, step):
                assert one.id is not None
                seen[one.position, int(one.id, 16)] += one.tokens
            wrote = Counter((position, self.document_of[t][0]) for position, tokens in rows.items() for t in tokens)
            if seen != wrote:
                self.told.wrong.append(f"step {step}: the ledger tells of other documents")

    def compare_megatron(self) -> None:
        """Assert that Megatron's index gives the loop's records for each sample, or no token for removed documents."""
        declaration = self.declaration
        wanted = declaration.megatron
        assert wanted is not None
        try:
            build_indices(declaration, wanted, self.store)
        except ConfigError as error:
            if "not contiguous, because `sequence_length` changed in the middle of an epoch" not in str(
                error
            ) and "the declaration has" not in str(error):
                raise
            self.told.changes["no indices"] += 1
            return
        spec = build_megatron_spec(declaration, wanted, build_schedule_spec(declaration))
        for name, finding in run_checks(spec, self.store).items():
            self.told.wrong += [] if finding.passed else [f"{name}: {finding.summary}"]
        indexed = open_inputs(declaration, wanted, self.store)
        folder = self.store.directory(Artifact(dataset=RUN, name="megatron_indices"))
        split = [
            [t for key in sorted(self.corpora.shards[name]) for one in self.corpora.shards[name][key] for t in one]
            for name in self.read_now
        ]
        documents = [
            [one for key in sorted(self.corpora.shards[name]) for one in self.corpora.shards[name][key]]
            for name in self.read_now
        ]
        arrays: dict[str, Any] = {path.name: np.load(path) for path in folder.glob("*.npy")}
        sampler, last = indexed.data.sampler, indexed.data.sampler.rules[-1].first
        for step, rows in self.wrote.items():
            for position, tokens in rows.items():
                number = sampler.find_first_sample(step) + position
                at, sample = 0, number
                if not indexed.blend.is_one:
                    base = indexed.blend.build_name_prefix()
                    at = int(arrays[f"{base}dataset_index.npy"][number])
                    sample = int(arrays[f"{base}dataset_sample_index.npy"][number])
                base = indexed.blend.build_name_prefix(at)
                row = int(arrays[f"{base}shuffle_index.npy"][sample])
                pairs = arrays[f"{base}sample_index.npy"][row : row + 2].astype(int).tolist()
                begins = [sum(map(len, documents[at][:document])) + offset for document, offset in pairs]
                found = split[at][begins[0] : begins[1] + 1]
                self.told.megatron += 1
                # `found` has one token more than the sample, the last label, except at the end of a shard.
                learned = [t for t in tokens if t in found]
                is_same = tokens[: len(found) - 1] == found[:-1] and len(tokens) - len(found) <= 0
                if not (is_same or (step < last and not found[1:] and begins[1] < begins[0])):
                    kind = f"{len(learned)} of {len(tokens)}"
                    self.told.wrong.append(f"step {step}, sample {number}: Megatron reads other tokens ({kind})")


def run_of(folder: Path, seed: int, changes: int = 5) -> Told:
    """Do a whole run, and return its description and the differences from the loop's records."""
    return TrainingRun(folder, seed).run(changes)
