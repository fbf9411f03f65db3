"""What a run would build, why, and what shares its sources: for each artifact bytes to read, expected tokens, time.

Nothing is written. Entry point: `rebuild_of`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from dataprep_assets.engine.artifact.losses import no_losses
from dataprep_assets.engine.artifact.spec import ArtifactSpec, ReadCost
from dataprep_assets.engine.privacy import OPEN, Privacy, privacy_of
from dataprep_assets.engine.staleness.decide import CHECK_FAILED, UNREADABLE, Action, Decision
from dataprep_assets.engine.staleness.status import decisions, foreseeing
from dataprep_assets.engine.staleness.step_times import RUN, Sizes, StepTimes, step_sizes
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import RETRACTED, Receipt, Verification
from dataprep_assets.planning.cost import Machine, Rates

_RECORDS_SECONDS = 0.1
"""Shortest time of a step, in seconds: its records and checks."""
_SLOWEST_STEP = 16.0
"""Longest time of a step that reads every text (signatures, slow taggers), as a multiple of tokenizing."""

# Finds other datasets made of the same source files: what a retraction in one dataset leaves in others.
#
# Files are compared by the SHA-256 that receipts record, so their names, their places and the pipeline that reads
# them do not matter. Only receipts are read.


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """Finished partitions of another dataset's artifact that are made of the same source files.

    Attributes:
        dataset: The other dataset.
        artifact: Its artifact: `token_bins`, `packed_sft`.
        partitions: Number of these partitions.
        noun: The noun for one partition.
        published: The places to which the dataset was published.
    """

    dataset: str
    artifact: str
    partitions: int
    noun: str
    published: tuple[str, ...] = ()


def sharing(files: Set[str], others: Iterable[tuple[Sequence[ArtifactSpec], ArtifactStore]]) -> Iterator[Sharing]:
    """Yield the artifacts of other datasets that are made of these source files, in the order of datasets and graphs.

    Args:
        files: SHA-256 of each file.
        others: The specs of each other dataset, and its store. A dataset that cannot be read is left out: its own
            commands say why.
    """
    for specs, store in others:
        held_shards = [
            (spec, sum(not files.isdisjoint(source_digests(receipt)) for receipt in receipts))
            for spec, receipts in _by_artifact(specs, store)
        ]
        published = tuple(published_places(specs, store)) if any(held for _, held in held_shards) else ()
        for spec, held in held_shards:
            if held:
                yield Sharing(
                    dataset=spec.declaration.dataset,
                    artifact=spec.name,
                    partitions=held,
                    noun=spec.noun,
                    published=published,
                )


@dataclass(frozen=True, kw_only=True)
class StillHeld:
    """Finished partitions made of source files from which another dataset dropped more retracted documents.

    Attributes:
        dataset: The dataset that still holds them.
        artifact: Its artifact.
        partitions: Number of these partitions.
        noun: The noun for one partition.
        retracted_by: The dataset that dropped the documents.
    """

    dataset: str
    artifact: str
    partitions: int
    noun: str
    retracted_by: str


def retracted_of(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> Mapping[str, int]:
    """SHA-256 of a source file → how many of its documents a dataset's finished artifacts dropped as retracted."""
    found: dict[str, int] = {}
    for _, receipts in _by_artifact(specs, store):
        for file, dropped in _count_dropped(receipts).items():
            # several artifacts of a dataset drop the same documents: they are counted once
            found[file] = max(found.get(file, 0), dropped)
    return {file: dropped for file, dropped in found.items() if dropped}


def still_held(
    dataset: str, retracted: Mapping[str, int], others: Iterable[tuple[Sequence[ArtifactSpec], ArtifactStore]]
) -> Iterator[StillHeld]:
    """Yield the artifacts of other datasets that still hold documents which a dataset dropped, by counts in receipts.

    Args:
        dataset: The dataset that retracted them.
        retracted: The result of `retracted_of` for that dataset.
        others: The specs of each other dataset, and its store.
    """
    for specs, store in others if retracted else ():
        # in a dataset with a selection, only the selection's receipts have the counts
        dropped = retracted_of(specs, store)
        for spec, receipts in _by_artifact(specs, store):
            behind = {file for file, count in retracted.items() if dropped.get(file, 0) < count}
            held = sum(not behind.isdisjoint(source_digests(receipt)) for receipt in receipts)
            if held:
                yield StillHeld(
                    dataset=spec.declaration.dataset,
                    artifact=spec.name,
                    partitions=held,
                    noun=spec.noun,
                    retracted_by=dataset,
                )


def _by_artifact(
    specs: Sequence[ArtifactSpec], store: ArtifactStore
) -> Iterator[tuple[ArtifactSpec, Sequence[Receipt]]]:
    """The receipts of each partitioned artifact, with those of all its splits together."""
    found: dict[str, tuple[ArtifactSpec, list[Receipt]]] = {}
    for spec in specs:
        if spec.partitions is not None and spec.kept:
            found.setdefault(spec.name, (spec, []))[1].extend(_receipts(spec, store))
    yield from found.values()


def _count_dropped(receipts: Iterable[Receipt]) -> dict[str, int]:
    """SHA-256 of a source file → documents that were dropped as retracted, summed over partitions."""
    counts: dict[str, int] = {}
    for receipt in receipts:
        lines = [(str(line["sha256"]), line.get("dropped", {})) for line in receipt.sources]
        of_notes = receipt.recipe.get("sources", {}).get("cohort")  # one file
        if not lines and receipt.ledger is not None and of_notes:
            lines = [(str(of_notes), receipt.ledger.dropped)]
        for file, dropped in lines:
            counts[file] = counts.get(file, 0) + int(dropped.get(RETRACTED, 0))
    return counts


def source_digests(receipt: Receipt) -> Set[str]:
    """SHA-256 of the source files whose rows are in a finished artifact; empty if it only mirrors or lists files."""
    if receipt.ledger is None:
        return frozenset()
    recorded: Mapping[str, object] = receipt.recipe.get("sources", {})
    return {str(line["sha256"]) for line in receipt.sources} | {str(value) for value in recorded.values()}


def _receipts(spec: ArtifactSpec, store: ArtifactStore) -> Iterator[Receipt]:
    try:
        yield from (one for one in store.receipts(spec.artifacts(store)) if one is not None)
    except DataprepError:
        return


def published_places(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> Iterator[str]:
    """The places to which a dataset was published, from its finished publications."""
    for spec in specs:
        if spec.published_to is not None and spec.kept:
            yield from (spec.published_to(receipt) for receipt in _receipts(spec, store))


TimeRange = tuple[float, float]
"""Lower and upper bound of a time, in seconds."""


@dataclass(frozen=True, kw_only=True)
class ToBuild:
    """One artifact to build. None means that an amount is not known, or does not apply.

    Attributes:
        stale: The artifact, and why it is stale.
        reading: What building it reads of the source.
        tokens: Expected number of tokens.
        seconds: Bounds of the time to build and check it. They are equal if its step was timed in an earlier run.
    """

    stale: Decision
    reading: ReadCost | None = None
    tokens: int | None = None
    seconds: TimeRange | None = None

    @property
    def timed_seconds(self) -> float | None:
        """Seconds to build it, from earlier runs on this machine; None if its step was never timed."""
        return self.seconds[1] if self.seconds is not None and self.seconds[0] == self.seconds[1] else None

    @property
    def certain(self) -> bool:
        """Whether the next run builds it in any case. Otherwise it may be kept, or only checked."""
        return self.stale.action is Action.BUILD and not self.stale.provisional

    def to_json(self, privacy: Privacy) -> dict[str, Any]:
        """The JSON object with the documented keys of `--json`, with the counts that leave."""
        slot, read = self.stale, self.reading
        return {
            "artifact": slot.asset,
            "name": slot.name,
            "partition": slot.partition,
            "kind": slot.kind,
            "reason": privacy.text(slot.reason, slot.kind),
            "causes": [privacy.text(cause, slot.kind) for cause in slot.causes],
            "provisional": slot.provisional,
            **privacy.amounts(
                {
                    "source_bytes": read.source_bytes if read is not None else None,
                    "fetch_bytes": read.fetch_bytes if read is not None else None,
                    "tokens": self.tokens,
                    "seconds": round(seconds, 1) if (seconds := self.timed_seconds) is not None else None,
                }
            ),
        }


@dataclass(frozen=True, kw_only=True)
class Published:
    """A finished publication (`artifact`) that the next run replaces, and its `place`."""

    artifact: str
    place: str


@dataclass(frozen=True, kw_only=True)
class LossChange:
    """How much a run would drop for one reason, compared with the finished artifacts.

    Attributes:
        artifact: The artifact that drops it, such as `selection_train`.
        reason: The rule, or another reason.
        before: How much the finished partitions dropped.
        after: How much they will drop; None if it is not known before an input of theirs is built.
    """

    artifact: str
    reason: str
    before: int
    after: int | None


@dataclass(frozen=True, kw_only=True)
class Rebuild:
    """Everything to build, in build order.

    Attributes:
        works: The artifacts.
        losses: What is dropped otherwise than before, of steps that are cheap enough to be foreseen.
        due: The artifacts that stay as they are, but whose checks must run: they have no result, or an old one.
        published: The publications that the next run replaces.
        machine: Who would build them.
        run_seconds: Bounds of the time that a run takes in addition to its artifacts, from the start of its process.
    """

    works: tuple[ToBuild, ...]
    due: tuple[Decision, ...]
    losses: tuple[LossChange, ...]
    published: tuple[Published, ...]
    machine: Machine
    run_seconds: TimeRange

    @property
    def seconds(self) -> TimeRange:
        """Bounds of the time that a run is expected to take.

        They differ by artifacts that may be kept or only checked, and by steps that were never timed here.
        """
        if not self.works:
            return 0.0, 0.0
        bounds = [(work.certain, *work.seconds) for work in self.works if work.seconds is not None]
        least = sum(low for certain, low, _ in bounds if certain)
        return self.run_seconds[0] + least, self.run_seconds[1] + sum(high for *_, high in bounds)

    @property
    def untimed(self) -> list[str]:
        """The names of the steps that were never timed on this machine."""
        works = [work for work in self.works if work.stale.spec is not None and work.timed_seconds is None]
        return sorted({work.stale.spec.name for work in works if work.stale.spec is not None})

    @property
    def tokenized(self) -> list[ToBuild]:
        """The last artifact of each shard that reads its texts. Taggers read the same source, which counts once."""
        reading = [work for work in self.works if work.reading is not None and work.reading.tokenized]
        return list({work.stale.partition: work for work in reading}.values())

    def to_json(self) -> dict[str, Any]:
        """The JSON object with the documented keys of `--json`; sizes in bytes, times in seconds."""
        declared = [work.stale.spec.declaration for work in self.works if work.stale.spec is not None]
        privacy = privacy_of(declared[0]) if declared else OPEN
        return {
            "up_to_date": not self.works and not self.due,
            "rebuild": [work.to_json(privacy) for work in self.works],
            "checks_due": [{"name": one.name, "partition": one.partition, "reason": one.reason} for one in self.due],
            "losses": [
                {"artifact": one.artifact, "reason": one.reason}
                | privacy.amounts({"before": one.before, "after": one.after})
                for one in self.losses
            ],
            "totals": {
                "artifacts": len(self.works),
                "provisional": sum(work.stale.provisional for work in self.works),
                "untimed": self.untimed,
                **privacy.amounts(
                    {
                        "source_bytes": sum(w.reading.source_bytes for w in self.tokenized if w.reading is not None),
                        "tokens": sum(work.tokens or 0 for work in self.tokenized),
                        "least_seconds": round(self.seconds[0], 1),
                        "most_seconds": round(self.seconds[1], 1),
                    }
                ),
            },
            "published": [{"artifact": p.artifact, "place": p.place} for p in self.published],
        }


def rebuild_of(
    specs: Sequence[ArtifactSpec],
    store: ArtifactStore,
    machine: Machine,
    times: StepTimes,
    *,
    verification: Verification | None = None,
) -> Rebuild:
    """What a run would build now.

    Args:
        specs: Those of a dataset, inputs before what is made of them.
        store: Where its artifacts are; nothing is written to it.
        machine: Who would build it.
        times: How long steps took on it.
        verification: How thoroughly every artifact is verified, overriding its spec.
    """
    # one overlay for all: sizes are read from a manifest that may only be foreseen
    with foreseeing(store) as view:
        decided = list(decisions(specs, view, verification=verification))
        stale_slots = [one for one in decided if one.is_stale]
        readings = _readings(stale_slots, view)
        rates = _rates(specs, store, _density([r for r in readings.values() if r.tokenized]))
        expected = _Expected(stale_slots, readings, view, store, rates)
        forecast = _Forecast(times, step_sizes(specs, view), machine, rates)
        seconds = forecast.seconds_of(stale_slots, readings)
        works = tuple(
            ToBuild(
                stale=one,
                reading=readings.get((one.spec, one.partition)),
                tokens=expected.tokens_of(one),
                seconds=seconds.get((one.spec, one.partition)),
            )
            for one in stale_slots
        )
        return Rebuild(
            works=works,
            due=tuple(one for one in decided if one.action is Action.CHECK and not one.is_stale),
            losses=tuple(_find_loss_changes(stale_slots, view, store)),
            published=tuple(_find_published(stale_slots, store)),
            machine=machine,
            run_seconds=forecast.run_seconds(specs[0].declaration),
        )


def _density(readings: Sequence[ReadCost]) -> float:
    """Of all that is tokenized, by bytes."""
    stored = sum(reading.source_bytes for reading in readings)
    return sum(reading.source_bytes * reading.density for reading in readings) / stored if stored else 1.0


def _rates(specs: Sequence[ArtifactSpec], store: ArtifactStore, density: float) -> Rates:
    """The rates of the present shards, planned or not."""
    source_bytes = tokens = 0
    seconds = 0.0
    # one spec of each name: the partitions that the store lists are those of all splits
    for spec in {spec.name: spec for spec in specs if spec.reads is not None}.values():
        for partition in store.partitions(spec.declaration.dataset, spec.name):
            receipt = _receipt(store, spec, partition)
            if receipt is not None and receipt.ledger is not None and "cpu_seconds" in receipt.measured:
                source_bytes += receipt.ledger.source_bytes
                tokens += receipt.ledger.tokens
                seconds += receipt.measured["cpu_seconds"]
    return Rates.of_receipts(source_bytes, tokens, seconds, bytes_per_token=Rates.bytes_per_token, density=density)


def _receipt(store: ArtifactStore, spec: ArtifactSpec, slot: str | None) -> Receipt | None:
    """The receipt of a finished artifact; None if none can be read, or if no plan says where it is."""
    try:
        return store.receipt(spec.located(store, slot))
    except DataprepError:
        return None


Slot = tuple[ArtifactSpec | None, str | None]


def _readings(stale_slots: Iterable[Decision], view: ArtifactStore) -> dict[Slot, ReadCost]:
    """What each stale partition reads of the source."""
    by_spec: dict[ArtifactSpec, list[str]] = {}
    for slot in stale_slots:
        if slot.spec is not None and slot.spec.reads is not None and slot.partition is not None:
            by_spec.setdefault(slot.spec, []).append(slot.partition)
    readings: dict[Slot, ReadCost] = {}
    for spec, partitions in by_spec.items():
        assert spec.reads is not None
        try:
            for partition, reading in zip(partitions, spec.reads(view, partitions), strict=True):
                readings[(spec, partition)] = reading
        except DataprepError:
            continue  # its plan cannot be read, which `stale_slots` already says
    return readings


class _Forecast:
    """Estimates the time of a run from the times of its steps in earlier runs on this machine."""

    def __init__(self, times: StepTimes, size_of: Sizes, machine: Machine, rates: Rates) -> None:
        self._times, self._size_of, self._machine, self._rates = times, size_of, machine, rates

    def run_seconds(self, declaration: DatasetDeclaration) -> TimeRange:
        """Return bounds of the time of a run without its steps: start of the process, definitions, planning."""
        known, guess = self._times.seconds(declaration, RUN, 1.0), self._rates.build_seconds
        return (known, known) if known is not None else (guess / 2, guess * 3)

    def seconds_of(self, stale_slots: Iterable[Decision], readings: Mapping[Slot, ReadCost]) -> dict[Slot, TimeRange]:
        """Return bounds of the time of each artifact: its share, by size, of the time of its step."""
        steps: dict[ArtifactSpec, list[str | None]] = {}
        for one in stale_slots:
            if one.spec is not None:
                steps.setdefault(one.spec, []).append(one.partition)
        seconds: dict[Slot, TimeRange] = {}
        for spec, slots in steps.items():
            whole, sizes = self._size_of(spec, slots), [self._size_of(spec, [slot]) or 1.0 for slot in slots]
            known = self._times.seconds(spec.declaration, spec.name, whole)
            reading = [readings[(spec, slot)] for slot in slots if (spec, slot) in readings]
            low, high = (known, known) if known is not None else self._guess(whole or 1.0, reading)
            for slot, size in zip(slots, sizes, strict=True):
                share = size / sum(sizes)
                seconds[(spec, slot)] = low * share, high * share
        return seconds

    def _guess(self, size: float, readings: Sequence[ReadCost]) -> TimeRange:
        """Return bounds for a step that was never timed. Reading texts takes at least as long as tokenizing them."""
        tokenizing = size / self._rates.source_bytes_per_cpu_second / self._machine.cores
        fetching = sum(reading.fetch_bytes for reading in readings) / self._machine.bandwidth
        fastest, slowest = (1.0, _SLOWEST_STEP) if any(reading.tokenized for reading in readings) else (0.0, 1.0)
        return (
            _RECORDS_SECONDS + fetching + fastest * tokenizing,
            10 * (_RECORDS_SECONDS + fetching) + slowest * tokenizing,
        )


def _find_loss_changes(
    stale_slots: Iterable[Decision], view: ArtifactStore, store: ArtifactStore
) -> Iterator[LossChange]:
    """What stale artifacts drop otherwise than their finished partitions, as far as it is foreseen in the view."""
    by_spec: dict[ArtifactSpec, set[str | None]] = {}
    for one in stale_slots:
        if one.spec is not None and one.spec.foresee is not None and one.spec.losses is not no_losses:
            by_spec.setdefault(one.spec, set()).add(one.partition)
    for spec, slots in by_spec.items():
        had, has = _read_receipts(spec, store), _read_receipts(spec, view)
        before, after = (_losses_by_reason(spec, of, found) for of, found in ((store, had), (view, has)))
        is_foreseen = all(slot in has and has[slot] != had.get(slot) for slot in slots)
        for reason in dict.fromkeys([*after, *before]):
            counts = before[reason], after[reason]
            if not is_foreseen or counts[0] != counts[1]:
                yield LossChange(
                    artifact="/".join(spec.path[1:]),
                    reason=reason,
                    before=counts[0],
                    after=counts[1] if is_foreseen else None,
                )


def _read_receipts(spec: ArtifactSpec, store: ArtifactStore) -> dict[str | None, Receipt]:
    """The receipts of the partitions that a store plans and has."""
    try:
        slots = spec.slots(store)
    except DataprepError:
        return {}
    return {slot: found for slot in slots if (found := _receipt(store, spec, slot)) is not None}


def _losses_by_reason(spec: ArtifactSpec, store: ArtifactStore, receipts: Mapping[str | None, Receipt]) -> Counter[str]:
    try:
        found = list(spec.losses(store, list(receipts.values()))) if receipts else []
    except DataprepError:
        return Counter()
    totals = Counter[str]()
    for loss in found:
        totals[loss.reason] += loss.count
    return totals


def _find_published(stale_slots: Iterable[Decision], store: ArtifactStore) -> Iterable[Published]:
    for slot in stale_slots:
        spec = slot.spec
        # of a check that failed, or a place that cannot be asked, it does not follow that what is published will change
        if (
            spec is not None
            and spec.published_to is not None
            and spec.kept
            and slot.kind not in (CHECK_FAILED, UNREADABLE)
        ):
            receipt = _receipt(store, spec, slot.partition)
            if receipt is not None:
                yield Published(artifact=slot.name, place=spec.published_to(receipt))


class _Expected:
    """Estimates the tokens of artifacts: from source bytes by the rate, or as the sum of their inputs."""

    def __init__(
        self,
        stale_slots: Iterable[Decision],
        readings: Mapping[Slot, ReadCost],
        view: ArtifactStore,
        store: ArtifactStore,
        rates: Rates,
    ) -> None:
        self._readings, self._view, self._store, self._rates = readings, view, store, rates
        # what only failed its check most often comes out as it is, with the tokens that its receipt has
        self._stale = {(one.spec, one.partition) for one in stale_slots if one.kind != CHECK_FAILED}
        # each slot that was reckoned, and its tokens: every view of a split asks for all of its shards
        self._told: dict[Slot, int | None] = {}

    def tokens_of(self, one: Decision) -> int | None:
        """Expected tokens of a stale artifact; None if nothing is known."""
        if one.spec is None or one.kind == CHECK_FAILED:
            return None
        return self._tokens(one.spec, one.partition)

    def _tokens(self, spec: ArtifactSpec, slot: str | None) -> int | None:
        if (spec, slot) not in self._told:
            self._told[(spec, slot)] = self._reckoned(spec, slot)
        return self._told[(spec, slot)]

    def _reckoned(self, spec: ArtifactSpec, slot: str | None) -> int | None:
        if not spec.kept:
            return None
        receipt = _receipt(self._store, spec, slot)
        before = receipt.ledger if receipt is not None else None
        if (spec, slot) not in self._stale:
            return before.tokens if before is not None else None
        if (reading := self._readings.get((spec, slot))) is not None:
            if not reading.tokenized:
                return None
            if before is not None and before.source_bytes:
                return round(before.tokens * reading.source_bytes / before.source_bytes)
            return round(reading.source_bytes * self._rates.tokens_per_source_byte)
        if spec.partitions is not None:
            return before.tokens if before is not None else None
        return self._of_inputs(spec)

    def _of_inputs(self, spec: ArtifactSpec) -> int | None:
        """The sum over all inputs of an unpartitioned artifact; None unless all are known.

        Also None if the inputs are different artifacts, as those of a data card: they hold the same tokens repeatedly.
        """
        total: int | None = None
        if len({source.name for source in spec.inputs}) != 1:
            return None
        for source in spec.inputs:
            if not isinstance(source, ArtifactSpec):
                return None
            try:
                slots = source.slots(self._view)
            except DataprepError:
                return None
            for slot in slots:
                tokens = self._tokens(source, slot)
                if tokens is None:
                    return None
                total = tokens + (total or 0)
        return total
