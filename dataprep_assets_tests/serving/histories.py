"""Random histories of a training run, and the properties of each: nothing twice, nothing lost, declared shares.

Every token of a history has a unique number, so the reads of a step are known exactly. `tell` compares a history with
the properties, using only the spans; the benchmark runs a thousand histories.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dataprep_assets.errors import ConfigError
from dataprep_assets.serving.sampler.mixture import PLACES
from dataprep_assets.serving.sampler.next_revision import CurrentSource, DocumentEnds, RevisionRequest, add_revision
from dataprep_assets.serving.sampler.packs import pack_shard
from dataprep_assets.serving.sampler.sampler import Sampler
from dataprep_assets.serving.sampler.source_order import PackTable
from dataprep_assets.serving.sampler.training_schedule import ScheduleHistory, SourceShard

Document = tuple[int, ...]
"""The numbers of the document's tokens."""


@dataclass
class World:
    """The current sources of a history, and every shard that has existed, by its content."""

    random: np.random.Generator
    sources: dict[str, CurrentSource] = field(default_factory=dict)
    contents: dict[str, list[Document]] = field(default_factory=dict)
    tables: dict[tuple[str, int], PackTable] = field(default_factory=dict)
    tokens: int = 0

    def documents(self, content: str) -> DocumentEnds:
        """Return the documents of a shard; an id is the number of a document's first token."""
        held = self.contents[content]
        ends = np.cumsum([len(one) for one in held], dtype=np.uint64)
        return DocumentEnds(ends=ends, ids=np.array([one[0] for one in held], np.uint64))

    def packs(self, shard: SourceShard, length: int) -> PackTable:
        """Return the packs of a shard."""
        key = (shard.content, length)
        if key not in self.tables:
            self.tables[key] = pack_shard(self.documents(shard.content).ends, length)
        return self.tables[key]

    def numbers(self, content: str) -> np.ndarray:
        """Return the numbers of a shard's tokens."""
        return np.array([token for one in self.contents[content] for token in one], np.int64)

    def _shard(self, name: str, documents: list[Document]) -> tuple[str, str, int]:
        content = f"{len(self.contents):064x}"
        self.contents[content] = documents
        return name, content, sum(map(len, documents))

    def new_shard(self, name: str, most: int = 12) -> tuple[str, str, int]:
        """Return a shard of a few new documents."""
        documents = []
        for _ in range(self.random.integers(1, most)):
            length = int(self.random.integers(1, 40))
            documents.append(tuple(range(self.tokens, self.tokens + length)))
            self.tokens += length
        return self._shard(name, documents)

    def add(self, name: str) -> None:
        """Add a source."""
        shards = tuple(self.new_shard(f"train-{at:05d}") for at in range(self.random.integers(1, 5)))
        epochs = None if self.random.random() < 0.8 else 50
        weight = float(self.random.choice([0.05, 0.3, 1, 1, 3]))
        self.sources[name] = CurrentSource(
            name=name, dataset=name, split="train", dtype="uint16", tokenizer="t", weight=weight, shards=shards,
            epochs=epochs,
        )  # fmt: skip

    def append(self, name: str) -> None:
        """Add shards to a source."""
        source = self.sources[name]
        first = 1 + max((int(shard[0][-5:]) for shard in source.shards), default=-1)
        new = tuple(self.new_shard(f"train-{first + at:05d}") for at in range(self.random.integers(1, 4)))
        self.sources[name] = replace(source, shards=source.shards + new)

    def retract(self, name: str) -> None:
        """Remove documents from a shard of a source, or the whole shard."""
        source = self.sources[name]
        at = int(self.random.integers(len(source.shards)))
        shard = source.shards[at]
        keep = float(self.random.choice([0.2, 0.8, 0.95]))
        kept = [one for one in self.contents[shard[1]] if self.random.random() < keep]
        whole = self.random.random() < 0.15 and len(source.shards) > 1
        changed = () if whole else (self._shard(shard[0], kept),)
        shards = source.shards[:at] + changed + source.shards[at + 1 :]
        if sum(tokens for _, _, tokens in shards):
            self.sources[name] = replace(source, shards=shards)

    def edit(self, name: str) -> None:
        """Replace some documents of a shard, and insert new ones between them."""
        source = self.sources[name]
        at = int(self.random.integers(len(source.shards)))
        shard, documents = source.shards[at], list[Document]()
        for one in self.contents[shard[1]]:
            documents += [one] if self.random.random() < 0.7 else []
            if self.random.random() < 0.3:
                length = int(self.random.integers(1, 40))
                documents.append(tuple(range(self.tokens, self.tokens + length)))
                self.tokens += length
        shards = (*source.shards[:at], self._shard(shard[0], documents), *source.shards[at + 1 :])
        if sum(tokens for _, _, tokens in shards):
            self.sources[name] = replace(source, shards=shards)


CHANGES = ("append", "retract", "add", "remove", "back", "weights", "batch", "length", "seed", "go")
EDITS = (*CHANGES, "edit", "edit", "edit")


@dataclass
class History:
    """A schedule with several revisions, and the world in which they were made."""

    world: World
    schedule: ScheduleHistory
    changes: Counter[str]

    def sampler(self) -> Sampler:
        """Return a newly created sampler, which shares no state with earlier ones."""
        return Sampler(ScheduleHistory.from_json(self.schedule.to_json()), self.world.packs)


def history(seed: int, changes: int = 6, kinds: Sequence[str] = CHANGES) -> History:
    """Return a run that is changed at random steps, sometimes after a return to an earlier step."""
    random = np.random.default_rng(seed)
    world, told = World(random), Counter[str]()
    for name in "abcdef"[: random.integers(1, 5)]:
        world.add(name)
    mode = "documents" if random.random() < 0.3 else "windows"
    wanted = RevisionRequest(
        name="run", batch=int(random.integers(1, 9)), sequence_length=int(random.choice([4, 8, 16])),
        seed=int(random.integers(3)), samples=mode, steps=4000,
    )  # fmt: skip
    away: dict[str, CurrentSource] = {}
    schedule, step = None, 0
    for _ in range(changes):
        try:
            schedule = add_revision(
                schedule, wanted, list(world.sources.values()), documents=world.documents, packs=world.packs,
                from_step=step, trained=None,
            )  # fmt: skip
        except ConfigError as error:
            if not any(
                words in str(error) for words in ("nothing has changed", "no steps are left", "would split the unread")
            ):
                raise
            told["refused"] += 1
        assert schedule is not None
        end = Sampler(schedule, world.packs).end
        last = schedule.revisions[-1].first_step
        step = min(last + int(random.integers(1, 60)), end)
        for _ in range(random.integers(1, 3)):
            change = str(random.choice(kinds))
            told[change] += 1
            name = str(random.choice(list(world.sources)))
            if change in ("append", "retract", "edit"):
                getattr(world, change)(name)
            elif change == "add":
                if away and random.random() < 0.7:
                    back = away.popitem()
                    world.sources[back[0]] = back[1]
                else:
                    world.add(f"s{len(world.contents)}")
            elif change == "remove" and len(world.sources) > 1:
                away[name] = world.sources.pop(name)
            elif change == "back":
                step = int(random.integers(0, step + 1))
            elif change == "weights":
                world.sources[name] = replace(world.sources[name], weight=float(random.random() + 0.05))
            elif change == "batch":
                wanted = replace(wanted, batch=int(random.integers(1, 12)))
            elif change == "length":
                factor = int(random.choice([2, 4])) if mode == "documents" else 1
                length = wanted.sequence_length * factor if factor > 1 else int(random.choice([3, 4, 8, 16, 23]))
                wanted = replace(wanted, sequence_length=length)
            elif change == "seed":
                wanted = replace(wanted, seed=int(random.integers(9)))
    assert schedule is not None
    return History(world, schedule, told)


@dataclass
class Told:
    """The problems of a history, and the number of inspected items."""

    twice: int = 0
    lost: int = 0
    empty: int = 0
    too_long: int = 0
    off_share: float = 0.0
    samples: int = 0
    epochs: int = 0


def tell(run: History, extra: int = 80) -> Told:
    """Read all steps of a history, and `extra` steps after its last revision, and compare it with the properties."""
    sampler, told = run.sampler(), Told()
    read: dict[tuple[str, int], list[np.ndarray]] = {}
    present: dict[tuple[str, int], np.ndarray] = {}
    numbers = {content: run.world.numbers(content) for content in run.world.contents}
    for rule in sampler.rules:
        # Record the epoch in progress here, because it may start before any of its samples is read.
        for turn in rule.turns:
            every = np.concatenate([numbers[each.content] for each in turn.source.shards])
            present.setdefault((turn.source.name, turn.epoch), every)
        stop = min(rule.stop, rule.first + extra) if rule is sampler.rules[-1] else rule.stop
        count = (stop - rule.first) * rule.revision.batch
        spans = sampler.find_spans(rule, np.arange(count))
        widths = np.bincount(spans.row, spans.stop - spans.start, count)
        told.samples += count
        told.empty += int((widths == 0).sum())
        told.too_long += int((widths > rule.revision.sequence_length).sum())
        first = np.unique(spans.row, return_index=True)[1]
        shares = np.array([source.share for source in rule.revision.sources]) / PLACES
        counts = (spans.source[first][:, None] == np.arange(len(shares))).cumsum(axis=0)
        off = np.abs(counts - np.arange(1, len(counts) + 1)[:, None] * shares)
        told.off_share = max(told.off_share, float(off.max(initial=0)))
        for _, source, epoch, shard, start, stop_ in zip(*(column.tolist() for column in spans), strict=True):
            one = rule.revision.sources[source]
            read.setdefault((one.name, epoch), []).append(numbers[one.shards[shard].content][start:stop_])
            if (one.name, epoch) not in present:
                # Record all samples of the current shards, because a later epoch starts with all of them.
                present[one.name, epoch] = np.concatenate([numbers[each.content] for each in one.shards])
    for (name, epoch), parts in read.items():
        tokens = np.concatenate(parts)
        told.twice += len(tokens) - len(np.unique(tokens))
        if (name, epoch + 1) in read:
            told.epochs += 1
            told.lost += len(np.setdiff1d(present[name, epoch + 1], tokens))
    return told


def resumed(run: History, seed: int, kills: int = 4) -> tuple[int, int]:
    """Return the number of steps read after a kill, and how many of them differ from an uninterrupted run.

    After each kill everything is recreated from the schedule's JSON, on another number of ranks, and a few steps are
    read.
    """
    random, whole = np.random.default_rng(seed), run.sampler()
    end, steps, wrong = min(whole.end, whole.rules[-1].first + 40), 0, 0
    for _ in range(kills):
        sampler, first = run.sampler(), int(random.integers(end))
        batch = sampler.find_rule(first).revision.batch
        ranks = int(random.integers(1, batch + 2))
        for step in range(first, min(first + 3, end)):
            read: list[tuple[int, ...]] = []
            for rank in range(ranks):
                positions = sampler.find_positions(step, rank, ranks)
                spans = sampler.find_step_spans(step, positions)
                read += zip(positions[spans.row].tolist(), *(column.tolist() for column in spans[1:]), strict=True)
            steps += 1
            every = whole.find_step_spans(step)
            wrong += sorted(read) != sorted(zip(*(column.tolist() for column in every), strict=True))
    return steps, wrong


def readings_of(run: History, steps: int) -> Iterator[tuple[int, int, int]]:
    """Return (step, position, token) of everything that is read before a step, from the spans."""
    sampler = run.sampler()
    for step in range(steps):
        spans, sources = sampler.find_step_spans(step), sampler.find_rule(step).revision.sources
        for row, source, _, shard, start, stop in zip(*(column.tolist() for column in spans), strict=True):
            for token in run.world.numbers(sources[source].shards[shard].content)[start:stop].tolist():
                yield step, row, token
