"""Lists the artifacts that a run would build, each with the reason, bytes to read, expected tokens and time.

Also finds artifacts of other datasets that share sources. Writes nothing. Entry point: `plan_rebuild`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from dataprep_assets.engine.artifact.losses import return_no_losses
from dataprep_assets.engine.artifact.spec import ArtifactSpec, ReadCost
from dataprep_assets.engine.privacy import OPEN, Privacy, load_privacy
from dataprep_assets.engine.staleness.decide import CHECK_FAILED, UNREADABLE, Action, Decision
from dataprep_assets.engine.staleness.status import decide_dataset, overlay_store
from dataprep_assets.engine.staleness.step_times import RUN, Sizes, StepTimes, TimeRange, build_size_function
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.errors import DataprepError
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import RETRACTED, Receipt, Verification
from dataprep_assets.planning.cost import Machine, Rates

_RECORDS_SECONDS = 0.1
"""Shortest time of a step, in seconds: its records and checks."""
_SLOWEST_STEP = 16.0
"""Longest time of a step that reads every text (signatures, slow taggers), as a multiple of tokenizing."""

# This part finds other datasets that are built from the same source files, because a retraction in one dataset does not
# affect the others.
#
# Files are compared by the SHA-256 that receipts record, so their names, locations and pipelines do not matter. Only
# receipts are read.


@dataclass(frozen=True, kw_only=True)
class SharingArtifact:
    """Finished partitions of another dataset's artifact that are built from the same source files.

    Attributes:
        dataset: The other dataset.
        artifact: Its artifact: `token_bins`, `packed_sft`.
        partitions: Number of these partitions.
        noun: The noun for one partition.
        published: The locations to which the dataset was published.
    """

    dataset: str
    artifact: str
    partitions: int
    noun: str
    published: tuple[str, ...] = ()


def find_sharing_artifacts(
    files: Set[str], other_datasets: Iterable[tuple[Sequence[ArtifactSpec], ArtifactStore]]
) -> Iterator[SharingArtifact]:
    """Yield the artifacts of other datasets that are built from these source files, in the order of datasets.

    Args:
        files: SHA-256 of each file.
        other_datasets: The specs of each other dataset, and its store. Unreadable datasets are skipped, because their
            own commands report the error.
    """
    for specs, store in other_datasets:
        shard_counts = [
            (spec, sum(not files.isdisjoint(list_source_digests(receipt)) for receipt in receipts))
            for spec, receipts in _group_receipts_by_artifact(specs, store)
        ]
        published = (
            tuple(list_published_places(specs, store)) if any(shard_count for _, shard_count in shard_counts) else ()
        )
        for spec, shard_count in shard_counts:
            if shard_count:
                yield SharingArtifact(
                    dataset=spec.declaration.dataset,
                    artifact=spec.name,
                    partitions=shard_count,
                    noun=spec.noun,
                    published=published,
                )


@dataclass(frozen=True, kw_only=True)
class RemainingRetractions:
    """Finished partitions with documents that another dataset has retracted.

    Attributes:
        dataset: The dataset that may still contain the documents.
        artifact: Its artifact.
        partitions: Number of partitions of the artifact that may contain them.
        noun: The noun for one partition.
        retracted_by: The dataset from which they were removed.
    """

    dataset: str
    artifact: str
    partitions: int
    noun: str
    retracted_by: str


def count_retracted_documents(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> Mapping[str, int]:
    """Return the SHA-256 of each source file → number of its documents that finished artifacts dropped as retracted."""
    drop_counts: dict[str, int] = {}
    for _, receipts in _group_receipts_by_artifact(specs, store):
        for file, drop_count in count_dropped_rows(receipts).items():
            # Use the maximum of the counts, not the sum, because several artifacts of a dataset may drop the same
            # documents.
            drop_counts[file] = max(drop_counts.get(file, 0), drop_count)
    return {file: drop_count for file, drop_count in drop_counts.items() if drop_count}


def find_remaining_retractions(
    dataset: str,
    retracted_counts: Mapping[str, int],
    other_datasets: Iterable[tuple[Sequence[ArtifactSpec], ArtifactStore]],
) -> Iterator[RemainingRetractions]:
    """Yield the artifacts of other datasets that still contain retracted documents according to their receipts.

    Args:
        dataset: The dataset that retracted the documents.
        retracted_counts: The result of `count_retracted_documents` for that dataset.
        other_datasets: The specs of each other dataset, and its store.
    """
    for specs, store in other_datasets if retracted_counts else ():
        # Count the dropped documents per dataset instead of per artifact, because in a dataset with a selection, only
        # the selection's receipts have the counts.
        drop_counts = count_retracted_documents(specs, store)
        for spec, receipts in _group_receipts_by_artifact(specs, store):
            retracted_files = {file for file, count in retracted_counts.items() if drop_counts.get(file, 0) < count}
            holding_count = sum(not retracted_files.isdisjoint(list_source_digests(receipt)) for receipt in receipts)
            if holding_count:
                yield RemainingRetractions(
                    dataset=spec.declaration.dataset,
                    artifact=spec.name,
                    partitions=holding_count,
                    noun=spec.noun,
                    retracted_by=dataset,
                )


def _group_receipts_by_artifact(
    specs: Sequence[ArtifactSpec], store: ArtifactStore
) -> Iterator[tuple[ArtifactSpec, Sequence[Receipt]]]:
    """Yield each partitioned artifact with the receipts of all its splits."""
    receipts_by_name: dict[str, tuple[ArtifactSpec, list[Receipt]]] = {}
    for spec in specs:
        if spec.partitions is not None and spec.kept:
            receipts_by_name.setdefault(spec.name, (spec, []))[1].extend(_iterate_receipts(spec, store))
    yield from receipts_by_name.values()


def count_dropped_rows(receipts: Iterable[Receipt]) -> dict[str, int]:
    """Return the SHA-256 of each source file → number of documents dropped as retracted, summed over partitions."""
    counts: dict[str, int] = {}
    for receipt in receipts:
        # Also look in the receipt's facts, because shards of conversations, pairs and records list their source files
        # there.
        source_lines = receipt.sources or (receipt.facts.get("sources", ()) if receipt.ledger is not None else ())
        lines = [(str(line["sha256"]), line.get("dropped", {})) for line in source_lines if "sha256" in line]
        # A dataset of notes lists no source files, because it reads only one, the cohort.
        notes_digest = receipt.recipe.get("sources", {}).get("cohort")
        if not lines and receipt.ledger is not None and notes_digest:
            lines = [(str(notes_digest), receipt.ledger.dropped)]
        for file, drop_count in lines:
            counts[file] = counts.get(file, 0) + int(drop_count.get(RETRACTED, 0))
    return counts


def list_source_digests(receipt: Receipt) -> Set[str]:
    """Return the SHA-256 of the source files whose rows are in an artifact; empty if it only mirrors or lists files."""
    if receipt.ledger is None:
        return frozenset()
    recorded: Mapping[str, object] = receipt.recipe.get("sources", {})
    return {str(line["sha256"]) for line in receipt.sources} | {str(value) for value in recorded.values()}


def _iterate_receipts(spec: ArtifactSpec, store: ArtifactStore) -> Iterator[Receipt]:
    try:
        yield from (receipt for receipt in store.receipts(spec.artifacts(store)) if receipt is not None)
    except DataprepError:
        return


def list_published_places(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> Iterator[str]:
    """Yield the locations to which a dataset was published, from its finished publications."""
    for spec in specs:
        if spec.published_to is not None and spec.kept:
            yield from (spec.published_to(receipt) for receipt in _iterate_receipts(spec, store))


@dataclass(frozen=True, kw_only=True)
class PlannedBuild:
    """An artifact to build. An amount is None if it is unknown or does not apply.

    Attributes:
        stale: The artifact, and the reason why it is stale.
        reading: The source data that building it reads.
        tokens: Expected number of tokens.
        seconds: Bounds of the time to build and check it. They are equal if its step was timed in an earlier run with
            a similar or larger amount of data, or for long enough to derive a rate.
    """

    stale: Decision
    reading: ReadCost | None = None
    tokens: int | None = None
    seconds: TimeRange | None = None

    @property
    def timed_seconds(self) -> float | None:
        """Seconds to build it, from earlier runs on this machine; None if there are only bounds."""
        return self.seconds[1] if self.seconds is not None and self.seconds[0] == self.seconds[1] else None

    @property
    def certain(self) -> bool:
        """Whether the next run builds it in any case. Otherwise it may be kept, or only checked."""
        return self.stale.action is Action.BUILD and not self.stale.provisional

    def to_json(self, privacy: Privacy) -> dict[str, Any]:
        """Return the JSON object, with counts in their public form. An unknown amount is null.

        Keys:
            artifact: Name of the asset, such as `token_bins_train`.
            name: The artifact, such as `sample_corpus/token_bins/train-00000`; the asset if its partitions are not
                planned yet.
            partition: The partition; null for an artifact without planned partitions, or for all partitions together.
            kind: `missing`, `damaged`, `input changed`, `input unreadable`, `settings changed`, `recipe changed`,
                `older version` (the installed version builds different bytes) or `check failed`.
            reason: The reason in one sentence.
            causes: The changes that cause the build, one line each.
            provisional: Whether it is rebuilt only if the content of its rebuilt inputs changes.
            source_bytes: Bytes of the source that the build reads.
            fetch_bytes: Bytes that must be downloaded first.
            tokens: Expected number of tokens.
            seconds: Expected time, from earlier runs on this machine.
        """
        slot, reading = self.stale, self.reading
        return {
            "artifact": slot.asset,
            "name": slot.name,
            "partition": slot.partition,
            "kind": slot.kind,
            "reason": privacy.public_text(slot.reason, slot.kind),
            "causes": [privacy.public_text(cause, slot.kind) for cause in slot.causes],
            "provisional": slot.provisional,
            **privacy.public_amounts(
                {
                    "source_bytes": reading.source_bytes if reading is not None else None,
                    "fetch_bytes": reading.fetch_bytes if reading is not None else None,
                    "tokens": self.tokens,
                    "seconds": round(seconds, 1) if (seconds := self.timed_seconds) is not None else None,
                }
            ),
        }


@dataclass(frozen=True, kw_only=True)
class ReplacedPublication:
    """A finished publication that the next run replaces.

    Attributes:
        artifact: The publication.
        place: Its location.
    """

    artifact: str
    place: str


@dataclass(frozen=True, kw_only=True)
class LossChange:
    """Change in the amount that is dropped for one reason, compared with the finished artifacts.

    Attributes:
        artifact: The artifact that drops the amount, such as `selection_train`.
        reason: The rule, or another reason.
        before: Amount that the finished partitions dropped.
        after: Amount that they will drop; None if unknown until an input is built.
    """

    artifact: str
    reason: str
    before: int
    after: int | None


@dataclass(frozen=True, kw_only=True)
class Rebuild:
    """Everything to build, in build order.

    Attributes:
        works: The artifacts to build.
        losses: Changes in dropped amounts, for steps that are cheap enough to forecast.
        due: The up-to-date artifacts whose checks must run, because they have no result or an old one.
        published: The publications that the next run replaces.
        machine: The machine that would build them.
        run_seconds: Bounds of the time that a run takes in addition to its artifacts, from the start of its process.
    """

    works: tuple[PlannedBuild, ...]
    due: tuple[Decision, ...]
    losses: tuple[LossChange, ...]
    published: tuple[ReplacedPublication, ...]
    machine: Machine
    run_seconds: TimeRange

    @property
    def seconds(self) -> TimeRange:
        """Bounds of the time that a run is expected to take.

        The bounds differ if some artifacts may be kept or only checked, or if there are `untimed` steps.
        """
        if not self.works:
            return 0.0, 0.0
        bounds = [(work.certain, *work.seconds) for work in self.works if work.seconds is not None]
        least = sum(low for certain, low, _ in bounds if certain)
        return self.run_seconds[0] + least, self.run_seconds[1] + sum(high for *_, high in bounds)

    @property
    def untimed(self) -> list[str]:
        """The names of the steps that were never timed on this machine, or only with much less data."""
        works = [work for work in self.works if work.stale.spec is not None and work.timed_seconds is None]
        return sorted({work.stale.spec.name for work in works if work.stale.spec is not None})

    @property
    def tokenized(self) -> list[PlannedBuild]:
        """The last artifact per shard that reads its texts. Taggers read the same source, which counts only once."""
        reading = [work for work in self.works if work.reading is not None and work.reading.tokenized]
        return list({work.stale.partition: work for work in reading}.values())

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object, with counts in their public form. An unknown amount is null.

        Keys:
            up_to_date: Whether a run has nothing to build or check.
            rebuild: The artifacts or partitions to build, in build order.
            checks_due: The artifacts whose checks run without a rebuild.
            checks_due[].name: The artifact, such as `sample_corpus/combined_bins/train`.
            checks_due[].partition: The partition; null for an artifact without partitions, or for all partitions
                together.
            checks_due[].reason: The reason in one sentence.
            losses: The drop reasons whose counts change or may change.
            totals: The sums of all builds. Source bytes and tokens that several steps read count once.
            totals.artifacts: Number of artifacts or partitions to build.
            totals.provisional: Number of builds that are provisional.
            totals.untimed: The steps that were never timed on this machine, or only with much less data.
            totals.source_bytes: Bytes of the source that the builds read.
            totals.tokens: Expected number of tokens.
            totals.least_seconds: Lower bound of the time that a run takes.
            totals.most_seconds: Upper bound of the time that a run takes.
            published: The publications that a run replaces.
        """
        declarations = [work.stale.spec.declaration for work in self.works if work.stale.spec is not None]
        privacy = load_privacy(declarations[0]) if declarations else OPEN
        return {
            "up_to_date": not self.works and not self.due,
            "rebuild": [work.to_json(privacy) for work in self.works],
            "checks_due": [{"name": one.name, "partition": one.partition, "reason": one.reason} for one in self.due],
            "losses": [
                {"artifact": one.artifact, "reason": one.reason}
                | privacy.public_amounts({"before": one.before, "after": one.after})
                for one in self.losses
            ],
            "totals": {
                "artifacts": len(self.works),
                "provisional": sum(work.stale.provisional for work in self.works),
                "untimed": self.untimed,
                **privacy.public_amounts(
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


def plan_rebuild(
    specs: Sequence[ArtifactSpec],
    store: ArtifactStore,
    machine: Machine,
    times: StepTimes,
    *,
    verification: Verification | None = None,
) -> Rebuild:
    """Return everything that a run would build now.

    Args:
        specs: The specs of a dataset, inputs first.
        store: The store of its artifacts; nothing is written to it.
        machine: The machine that would build it.
        times: Times of earlier steps on this machine.
        verification: How thoroughly every artifact is verified, overriding its spec.
    """
    # Use one overlay for all steps of the plan, because sizes may come from forecast manifests, which exist only in the
    # overlay.
    with overlay_store(store) as view:
        decided = list(decide_dataset(specs, view, verification=verification))
        stale_slots = [one for one in decided if one.is_stale]
        readings = _list_readings(stale_slots, view)
        rates = _measure_rates(specs, store, _compute_average_density([r for r in readings.values() if r.tokenized]))
        estimator = _TokenEstimator(stale_slots, readings, view, store, rates)
        forecast = _Forecast(times, build_size_function(specs, view), machine, rates)
        seconds = forecast.forecast_seconds(stale_slots, readings)
        works = tuple(
            PlannedBuild(
                stale=one,
                reading=readings.get((one.spec, one.partition)),
                tokens=estimator.forecast_tokens(one),
                seconds=seconds.get((one.spec, one.partition)),
            )
            for one in stale_slots
        )
        return Rebuild(
            works=works,
            due=tuple(one for one in decided if one.action is Action.CHECK and not one.is_stale),
            losses=tuple(_find_loss_changes(stale_slots, view, store)),
            published=tuple(_find_replaced_publications(stale_slots, store)),
            machine=machine,
            run_seconds=forecast.run_seconds(specs[0].declaration),
        )


def _compute_average_density(readings: Sequence[ReadCost]) -> float:
    """Return the average density of all tokenized readings, weighted by bytes."""
    stored_bytes = sum(reading.source_bytes for reading in readings)
    return sum(reading.source_bytes * reading.density for reading in readings) / stored_bytes if stored_bytes else 1.0


def _measure_rates(specs: Sequence[ArtifactSpec], store: ArtifactStore, density: float) -> Rates:
    """Return the rates of all finished shards, including shards that are no longer planned."""
    source_bytes = tokens = 0
    seconds = 0.0
    # Use one spec per artifact name, because the store lists the partitions of all splits together.
    for spec in {spec.name: spec for spec in specs if spec.reads is not None}.values():
        for partition in store.partitions(spec.declaration.dataset, spec.name):
            receipt = _read_receipt(store, spec, partition)
            if receipt is not None and receipt.ledger is not None and "cpu_seconds" in receipt.measured:
                source_bytes += receipt.ledger.source_bytes
                tokens += receipt.ledger.tokens
                seconds += receipt.measured["cpu_seconds"]
    return Rates.from_receipts(source_bytes, tokens, seconds, bytes_per_token=Rates.bytes_per_token, density=density)


def _read_receipt(store: ArtifactStore, spec: ArtifactSpec, slot: str | None) -> Receipt | None:
    """Return the receipt of a finished artifact; None if it cannot be read or its plan is missing."""
    try:
        return store.receipt(spec.locate_artifact(store, slot))
    except DataprepError:
        return None


Slot = tuple[ArtifactSpec | None, str | None]


def _list_readings(stale_slots: Iterable[Decision], view: ArtifactStore) -> dict[Slot, ReadCost]:
    """Return the source data that each stale partition reads."""
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
            continue  # `stale_slots` already reports that the plan is unreadable
    return readings


class _Forecast:
    """Estimate of a run's time from the times of its steps in earlier runs on this machine."""

    def __init__(self, times: StepTimes, size_of: Sizes, machine: Machine, rates: Rates) -> None:
        self._times, self._size_of, self._machine, self._rates = times, size_of, machine, rates

    def run_seconds(self, declaration: DatasetDeclaration) -> TimeRange:
        """Return bounds of the time of a run without its steps: start of the process, definitions, planning."""
        guess = self._rates.build_seconds
        return self._times.estimate_duration(declaration, RUN, 1.0) or (guess / 2, guess * 3)

    def forecast_seconds(
        self, stale_slots: Iterable[Decision], readings: Mapping[Slot, ReadCost]
    ) -> dict[Slot, TimeRange]:
        """Return bounds of the time of each artifact: its share, by size, of the time of its step."""
        steps: dict[ArtifactSpec, list[str | None]] = {}
        for decision in stale_slots:
            if decision.spec is not None:
                steps.setdefault(decision.spec, []).append(decision.partition)
        seconds: dict[Slot, TimeRange] = {}
        for spec, slots in steps.items():
            whole_size, sizes = self._size_of(spec, slots), [self._size_of(spec, [slot]) or 1.0 for slot in slots]
            known_bounds = self._times.estimate_duration(spec.declaration, spec.name, whole_size)
            reading = [readings[(spec, slot)] for slot in slots if (spec, slot) in readings]
            low, high = guess = self._guess(whole_size or 1.0, reading)
            if known_bounds is not None:
                low, high = known_bounds
                if low < high:
                    # If the earlier builds were too small and short to derive a rate, narrow their bounds with the
                    # guess.
                    high = min(high, low + guess[1])
                    low = min(max(low, guess[0]), high)
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
    """Yield the changes in dropped amounts from the finished partitions to the forecast partitions in the view."""
    by_spec: dict[ArtifactSpec, set[str | None]] = {}
    for decision in stale_slots:
        if (
            decision.spec is not None
            and decision.spec.foresee is not None
            and decision.spec.losses is not return_no_losses
        ):
            by_spec.setdefault(decision.spec, set()).add(decision.partition)
    for spec, slots in by_spec.items():
        old_receipts, new_receipts = _read_receipts(spec, store), _read_receipts(spec, view)
        losses_before, losses_after = (
            _sum_losses_by_reason(spec, place, receipts)
            for place, receipts in ((store, old_receipts), (view, new_receipts))
        )
        is_foreseen = all(slot in new_receipts and new_receipts[slot] != old_receipts.get(slot) for slot in slots)
        for reason in dict.fromkeys([*losses_after, *losses_before]):
            counts = losses_before[reason], losses_after[reason]
            if not is_foreseen or counts[0] != counts[1]:
                yield LossChange(
                    artifact="/".join(spec.path[1:]),
                    reason=reason,
                    before=counts[0],
                    after=counts[1] if is_foreseen else None,
                )


def _read_receipts(spec: ArtifactSpec, store: ArtifactStore) -> dict[str | None, Receipt]:
    """Return the receipts of the planned partitions that exist in the store."""
    try:
        slots = spec.slots(store)
    except DataprepError:
        return {}
    return {slot: receipt for slot in slots if (receipt := _read_receipt(store, spec, slot)) is not None}


def _sum_losses_by_reason(
    spec: ArtifactSpec, store: ArtifactStore, receipts: Mapping[str | None, Receipt]
) -> Counter[str]:
    try:
        losses = list(spec.losses(store, list(receipts.values()))) if receipts else []
    except DataprepError:
        return Counter()
    totals = Counter[str]()
    for loss in losses:
        totals[loss.reason] += loss.count
    return totals


def _find_replaced_publications(stale_slots: Iterable[Decision], store: ArtifactStore) -> Iterable[ReplacedPublication]:
    for slot in stale_slots:
        spec = slot.spec
        # Omit rebuilds after a failed check or an unreadable input, because they may publish the same content.
        if (
            spec is not None
            and spec.published_to is not None
            and spec.kept
            and slot.kind not in (CHECK_FAILED, UNREADABLE)
        ):
            receipt = _read_receipt(store, spec, slot.partition)
            if receipt is not None:
                yield ReplacedPublication(artifact=slot.name, place=spec.published_to(receipt))


class _TokenEstimator:
    """Estimator of artifacts' tokens: from source bytes and a rate, or as the sum over their inputs."""

    def __init__(
        self,
        stale_slots: Iterable[Decision],
        readings: Mapping[Slot, ReadCost],
        view: ArtifactStore,
        store: ArtifactStore,
        rates: Rates,
    ) -> None:
        self._readings, self._view, self._store, self._rates = readings, view, store, rates
        # Exclude rebuilds after a failed check, because they usually give the same content, with as many tokens as in
        # the receipt.
        self._stale = {(decision.spec, decision.partition) for decision in stale_slots if decision.kind != CHECK_FAILED}
        # Cache the tokens of each slot, because every view of a split needs the tokens of all of its shards.
        self._tokens_by_slot: dict[Slot, int | None] = {}

    def forecast_tokens(self, decision: Decision) -> int | None:
        """Return the expected tokens of a stale artifact; None if unknown."""
        if decision.spec is None or decision.kind == CHECK_FAILED:
            return None
        return self._find_tokens(decision.spec, decision.partition)

    def _find_tokens(self, spec: ArtifactSpec, slot: str | None) -> int | None:
        if (spec, slot) not in self._tokens_by_slot:
            self._tokens_by_slot[(spec, slot)] = self._estimate_tokens(spec, slot)
        return self._tokens_by_slot[(spec, slot)]

    def _estimate_tokens(self, spec: ArtifactSpec, slot: str | None) -> int | None:
        if not spec.kept:
            return None
        receipt = _read_receipt(self._store, spec, slot)
        ledger = receipt.ledger if receipt is not None else None
        if (spec, slot) not in self._stale:
            return ledger.tokens if ledger is not None else None
        if (reading := self._readings.get((spec, slot))) is not None:
            if not reading.tokenized:
                return None
            if ledger is not None and ledger.source_bytes:
                return round(ledger.tokens * reading.source_bytes / ledger.source_bytes)
            return round(reading.source_bytes * self._rates.tokens_per_source_byte)
        if spec.partitions is not None:
            return ledger.tokens if ledger is not None else None
        return self._sum_inputs(spec)

    def _sum_inputs(self, spec: ArtifactSpec) -> int | None:
        """Return the sum of the tokens of an unpartitioned artifact's inputs; None if any of them is unknown.

        Also returns None if the inputs are different artifacts, as for a data card, because they contain the same
        tokens.
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
                tokens = self._find_tokens(source, slot)
                if tokens is None:
                    return None
                total = tokens + (total or 0)
        return total
