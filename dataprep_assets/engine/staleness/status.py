"""Gathers the facts about a dataset's artifacts, and decides by them what must be done (`staleness.decide`).

Every artifact is compared with its own receipt and with its recipe as it will be once its inputs are built. Two kinds
of inputs are known before anything is built. What a spec can foresee (a manifest is made of a listing, a snapshot of
digests) is made in a scratch folder that overlays the store, and downstream artifacts are compared with that. What is
only damaged will have the content of its receipt again. Otherwise the new content is not known: everything downstream
is stale because of it, and `provisional`, since it is kept if its input comes out unchanged.

Entry points: `decisions`, `stale` for a dataset; `decisions_of`, `check_decisions` for partitions of an artifact.
"""

import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest
from dataprep_assets.engine.checks.results import check_facts
from dataprep_assets.engine.checks.verdicts import forget_absent
from dataprep_assets.engine.staleness.decide import (
    MISSING,
    Action,
    Decision,
    EventFacts,
    FileFacts,
    PartitionFacts,
    decide,
)
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.errors import ConfigError, DataprepError, IntegrityError, MissingArtifactError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore, LocalArtifacts
from dataprep_assets.integrity.commit import SPOOLS, alone
from dataprep_assets.integrity.receipt import Verification
from dataprep_assets.integrity.scratch import OverlayArtifacts, sweep_scratch


class Events(Protocol):
    """What Dagster has recorded."""

    def facts(
        self, spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None]
    ) -> Mapping[str | None, EventFacts]:
        """What it has of these partitions, and under None of the artifact as a whole."""
        ...


def decisions(
    specs: Sequence[ArtifactSpec], store: ArtifactStore, *, verification: Verification | None = None
) -> Iterator[Decision]:
    """Yield what must be done for every partition of a dataset, in build order. Nothing is written to the store.

    Args:
        specs: Those of a dataset, inputs before what is made of them.
        store: Where its artifacts are; each is verified as thoroughly as its spec says, and local sources are read
            completely. If it is an overlay (`foreseeing`), foreseen artifacts can be read from it afterwards.
        verification: How thoroughly every artifact is verified, overriding its spec.
    """
    with foreseeing(store) as view:
        survey = _Survey(view, verification)
        for spec in specs:
            yield from survey.of_spec(spec)


def stale_decisions(
    specs: Sequence[ArtifactSpec], store: ArtifactStore, *, verification: Verification | None = None
) -> Iterator[Decision]:
    """Yield the decisions about the artifacts that cannot stay as they are; none if all are up to date."""
    return (one for one in decisions(specs, store, verification=verification) if one.is_stale)


def decisions_of(
    spec: ArtifactSpec,
    store: ArtifactStore,
    slots: Sequence[str | None],
    *,
    verification: Verification | None = None,
    events: Events | None = None,
) -> dict[str | None, Decision]:
    """What must be done for these partitions of an artifact, now that its inputs are built, and under None for all of
    them together.

    `verification` overrides how thoroughly its spec says that it is verified. Without `events` Dagster is not asked.
    """
    with foreseeing(store) as view:
        survey = _Survey(view, verification, events)
        if not spec.kept:
            return survey.without_files(spec, slots)
        return {one.partition: one for one in survey.decide_partitions(spec, slots)}


def check_decisions(
    spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None], events: Events | None = None
) -> dict[str | None, Decision]:
    """As `decisions_of`, for partitions whose files are as wanted: by the results of their checks and by events."""
    return _Survey(store, None, events).without_files(spec, slots)


@contextmanager
def foreseeing(store: ArtifactStore) -> Iterator[OverlayArtifacts]:
    """Overlay the store with a temporary folder; a store that is an overlay already is used as it is."""
    if isinstance(store, OverlayArtifacts):
        yield store
        return
    with tempfile.TemporaryDirectory(prefix="dataprep-foreseen-") as folder:
        yield OverlayArtifacts(Path(folder), store)


class _Survey:
    """One pass over the specs of a dataset, inputs first.

    `stale` has the stale partitions of each spec; `open` the stale ones whose new content is not known (yet).
    """

    def __init__(self, view: ArtifactStore, verification: Verification | None, events: Events | None = None) -> None:
        self._view, self._verification, self._events = view, verification, events
        self._stale: dict[ArtifactSpec, dict[str | None, Decision]] = {}
        self._open: dict[ArtifactSpec, dict[str | None, Decision]] = {}
        # specs that are stale as a whole, because their partitions are not planned or they have no files of their own
        self._unplanned: dict[ArtifactSpec, Decision] = {}

    def of_spec(self, spec: ArtifactSpec) -> Iterator[Decision]:
        """Yield the decisions on one spec."""
        asset = "/".join(spec.path)
        try:
            slots = spec.slots(self._view)
            for slot in slots:
                spec.located(self._view, slot)
        except DataprepError as error:
            facts = PartitionFacts(not_planned=str(error), **_input_facts(self._stale_input(self._stale, spec, None)))
            self._unplanned[spec] = replace(decide(facts), name=asset, spec=spec)
            yield self._unplanned[spec]
            return
        if not spec.kept:
            # it has no files of its own: what it reports is as fresh as the content of its inputs
            decision = decide(PartitionFacts(**_input_facts(self._stale_input(self._open, spec, None))))
            if decision.is_stale:
                self._unplanned[spec] = replace(decision, name=asset, spec=spec)
                yield self._unplanned[spec]
            return
        yield from self.decide_partitions(spec, slots)
        # foreseen at once: the specs after it ask this plan for their partitions
        if spec.plans:
            self._foresee(spec, list(self._open.get(spec, {})))

    def without_files(self, spec: ArtifactSpec, slots: Sequence[str | None]) -> dict[str | None, Decision]:
        """The decisions by checks and events, without files."""
        facts, name = self._outside(spec, slots), "/".join(spec.path)
        return {slot: replace(decide(one), name=name, spec=spec, partition=slot) for slot, one in facts.items()}

    def decide_partitions(self, spec: ArtifactSpec, slots: Sequence[str | None]) -> Iterator[Decision]:
        """Yield the decisions on these partitions of a spec, in order, and then on all of them together."""
        artifacts = {slot: spec.located(self._view, slot) for slot in slots}
        files = {slot: self._receipt(artifact) for slot, artifact in artifacts.items()}
        with_receipt = [slot for slot, one in files.items() if one.receipt is not None]
        self._foresee_inputs(spec, with_receipt)
        # as long as nobody knows what an input will be, there is no recipe to compare with
        unknown = {slot: one for slot in with_receipt if (one := self._stale_input(self._open, spec, slot)) is not None}
        recipes, refused = _recipes(spec, self._view, [slot for slot in with_receipt if slot not in unknown])
        outside = self._outside(spec, slots)
        for slot, artifact in artifacts.items():
            file_facts = replace(files[slot], recipe=recipes.get(slot), refused=refused.get(slot, ""))
            cause = unknown.get(slot) or self._stale_input(self._stale, spec, slot)
            facts = replace(
                outside.pop(slot, PartitionFacts()),
                files=self._verified(spec, artifact, file_facts),
                **_input_facts(cause),
                inputs=self._input_causes(spec, slot),
                gains_input=cause is not None and file_facts.recipe is None and self._gains_input(spec, file_facts),
            )
            decision = replace(decide(facts), name=str(artifact), spec=spec, partition=slot)
            if decision.is_stale:
                self._note(decision, spec, slot)
            yield decision
        for facts in outside.values():
            yield replace(decide(facts), name="/".join(spec.path), spec=spec)

    def _note(self, one: Decision, spec: ArtifactSpec, slot: str | None) -> None:
        self._stale.setdefault(spec, {})[slot] = one
        # what is read of its files, too, is foreseen
        if not one.same_content or spec.foresee is not None:
            self._open.setdefault(spec, {})[slot] = one

    def _outside(self, spec: ArtifactSpec, slots: Sequence[str | None]) -> dict[str | None, PartitionFacts]:
        """The facts that are not in the files of these partitions, and under None those on the artifact as a whole."""
        checks = check_facts(spec, self._view, slots)
        events = {} if self._events is None else self._events.facts(spec, self._view, slots)
        since = spec.declaration.prove.since(time.time())
        return {
            slot: PartitionFacts(checks=checks.get(slot, {}), since=since, events=events.get(slot))
            for slot in dict.fromkeys([*slots, *checks, *events])
        }

    def _receipt(self, artifact: Artifact) -> FileFacts:
        try:
            return FileFacts(receipt=self._view.receipt(artifact))
        except IntegrityError as error:
            return FileFacts(unreadable=str(error))

    def _verified(self, spec: ArtifactSpec, artifact: Artifact, files: FileFacts) -> FileFacts:
        """The facts with what is wrong with the files, unless these are built anyway: then they are not read."""
        if files.receipt is None or decide(PartitionFacts(files=replace(files, refused=""))).action is Action.BUILD:
            return files
        wanted = self._verification or spec.verification or spec.declaration.verify
        defects = self._view.damage(artifact, files.receipt, wanted)
        if defects and isinstance(self._view, OverlayArtifacts):
            self._view.damaged.add(artifact)
        return replace(files, defects=defects)

    def _gains_input(self, spec: ArtifactSpec, files: FileFacts) -> bool:
        """Whether a stale input is a partition that the artifact was not made of: then it will certainly change."""
        known = {} if files.receipt is None else files.receipt.recipe.get("upstream", {})
        for source in spec.inputs:
            if not isinstance(source, ArtifactSpec) or source.partitions in (None, spec.partitions):
                continue  # alike: of each partition it has that one alone; unpartitioned: it was made of parts of it
            if any(name.startswith(f"{source.name}/") for name in known):
                names = {one.name.partition("/")[2] for one in self._open.get(source, {}).values()}
                if names - known.keys():
                    return True
        return False

    def _foresee_inputs(self, spec: ArtifactSpec, slots: Sequence[str | None]) -> None:
        """Foresee the inputs that these slots have to be compared with; absent slots need no comparison."""
        for source in spec.inputs:
            if isinstance(source, ArtifactSpec) and slots and (left := self._open.get(source)):
                together = source.partitions is not None and source.partitions is spec.partitions
                self._foresee(source, [slot for slot in left if slot in slots or not together])

    def _foresee(self, spec: ArtifactSpec, slots: Sequence[str | None]) -> None:
        """Make these stale slots in the scratch folder, if that is cheap and their own inputs are known."""
        known_slots = [slot for slot in slots if not self._stale_input(self._open, spec, slot)]
        if spec.foresee is None or not known_slots:
            return
        request = BuildRequest(store=self._view, partitions=[slot for slot in known_slots if slot is not None])
        try:
            for outcome in spec.foresee(request):
                if outcome.error is None:
                    # its content is known now: what is made of it can be compared
                    self._open[spec].pop(outcome.partition if spec.partitions is not None else None)
        except DataprepError:
            return  # then everything downstream is stale because of it

    def _input_causes(self, spec: ArtifactSpec, slot: str | None) -> dict[str, tuple[str, ...]]:
        """Name of each input of a slot → the causes for which it is stale; none if it is not."""
        causes: dict[str, tuple[str, ...]] = {source.name: () for source in spec.inputs}
        for one in self._stale_inputs(self._stale, spec, slot):
            if one.spec is not None:
                causes[one.spec.name] += one.causes
        return causes

    def _stale_input(
        self, among: Mapping[ArtifactSpec, Mapping[str | None, Decision]], spec: ArtifactSpec, slot: str | None
    ) -> Decision | None:
        """The decision on the first stale input of a slot."""
        return next(self._stale_inputs(among, spec, slot), None)

    def _stale_inputs(
        self, among: Mapping[ArtifactSpec, Mapping[str | None, Decision]], spec: ArtifactSpec, slot: str | None
    ) -> Iterator[Decision]:
        """The decision on each input of a slot that is stale `among` these: on the same partition if both are
        partitioned alike, else on any.
        """
        for source in spec.inputs:
            if not isinstance(source, ArtifactSpec):
                continue
            members = among.get(source, {})
            if source in self._unplanned:
                yield self._unplanned[source]
            elif source.partitions is not None and source.partitions is spec.partitions:
                if slot in members:
                    yield members[slot]
            elif members:
                yield next(iter(members.values()))


def _input_facts(cause: Decision | None) -> dict[str, Any]:
    """The facts of an artifact about an input that is stale: the fields of `PartitionFacts`; none without one."""
    if cause is None:
        return {}
    return {"stale_input": cause.name, "missing_input": cause.kind == MISSING, "input_causes": cause.causes}


def _recipes(
    spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None]
) -> tuple[dict[str | None, Recipe], dict[str | None, str]]:
    """The recipe of each slot; and for slots without one, the reason."""
    known: dict[str | None, Recipe] = {}
    refused: dict[str | None, str] = {}
    left, last = deque(slots), ""
    # an error ends the iterator, so recipes are asked for again, of the slots behind the one that was refused
    while left:
        try:
            for recipe in spec.recipes(store, list(left)):
                known[left.popleft()] = recipe
        except DataprepError as error:
            refused[left.popleft()] = str(error)
            if str(error) == last:  # the error concerns all slots
                refused |= dict.fromkeys(left, last)
                break
            last = str(error)
    return known, refused


def never_built(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> bool:
    """Whether no artifact of a dataset is there, judged by receipts without reading its source."""
    return not any(_some_there(spec, store) for spec in specs if spec.kept)


def _some_there(spec: ArtifactSpec, store: ArtifactStore) -> bool:
    try:
        return any(store.receipt(spec.located(store, slot)) is not None for slot in spec.slots(store))
    except MissingArtifactError:  # not planned yet
        return False
    except IntegrityError:  # a damaged receipt is a receipt
        return True


def unplanned(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> Iterator[Artifact]:
    """Yield the artifacts that are no longer planned, because files, shards, splits or a blend's weights changed, or
    are declared no more: views, tables of documents.

    Nothing reads them, and only `prune` removes them.
    """
    planned: dict[str, set[str]] = {}
    names = {spec.name for spec in specs}
    for spec in specs:
        if not spec.kept:
            continue
        try:
            if spec.partitions is not None:
                planned.setdefault(spec.name, set()).update(spec.partitions.keys(store))
            elif spec.artifact is not None:
                # a run of a blend is named after its plan, so runs of earlier plans are next to it
                located = spec.artifact(store)
                names.add(located.name)
                if located.partition is not None:
                    planned.setdefault(located.name, set()).add(located.partition)
            elif spec.split is not None:
                planned.setdefault(spec.name, set()).add(spec.split)
        except DataprepError:  # without a plan nobody can say what is no longer in it
            return
    declaration = specs[0].declaration
    for name, wanted in planned.items():
        for partition in store.partitions(declaration.dataset, name):
            if partition not in wanted:
                yield declaration.artifact(name, partition)
    for name in store.names(declaration.dataset):
        if name not in names:
            yield from _declared_no_more(declaration, name, store)


def _declared_no_more(declaration: DatasetDeclaration, name: str, store: ArtifactStore) -> Iterator[Artifact]:
    """The artifacts of a name that no spec has: where nothing has a receipt of its own it may be anybody's folder."""

    def is_one(artifact: Artifact) -> bool:
        try:
            return store.receipt(artifact) is not None
        except DataprepError:  # damaged, or of another artifact: a copy
            return False

    try:
        whole = declaration.artifact(name)
        parts = [declaration.artifact(name, part) for part in store.partitions(declaration.dataset, name)]
    except ConfigError:  # a name that no artifact has
        return
    if is_one(whole):
        yield whole
    elif any(map(is_one, parts)):
        yield from parts


def sweep(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> None:
    """Remove what killed runs left beside the artifacts of a dataset that is up to date."""
    planned = [artifact for spec in specs for artifact in spec.artifacts(store)]
    store.sweep(planned)
    sweep_scratch(store.root / specs[0].declaration.dataset)
    dataset, partitions = specs[0].declaration.dataset, {artifact.partition for artifact in planned}
    spools = LocalArtifacts(store.root / dataset / SPOOLS)
    for name in spools.names(dataset):
        for partition in spools.partitions(dataset, name):
            if partition.rpartition(".")[0] not in partitions:  # those of the others go when these are made
                spools.remove(Artifact(dataset=dataset, name=name, partition=partition))


# Removes artifacts that are no longer planned, and never anything else: all, or those that hold retracted
# documents.
#
# Each is removed under its lock, its receipt first, so that a kill leaves nothing that looks finished. Meanwhile
# the plans are locked: a run that would plan the artifacts again has to wait. (A run on another machine that uses
# the same bucket does not wait: make sure that there is none.)


@dataclass(frozen=True, kw_only=True)
class Unplanned:
    """An artifact that is no longer planned, and the bytes of its files; None if it is not complete."""

    artifact: Artifact
    bytes: int | None


def list_unplanned(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> list[Unplanned]:
    """The artifacts that `prune` would remove."""
    return [Unplanned(artifact=artifact, bytes=_bytes(store, artifact)) for artifact in unplanned(specs, store)]


def prune(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> Iterator[tuple[Artifact, bool]]:
    """Remove unplanned artifacts one by one; yield each with whether it was removed: one that is being built stays.

    Args:
        specs: The specs of a dataset.
        store: Where its artifacts are.

    Raises:
        IntegrityError: A plan is missing or damaged, or a run is making it. Nothing is removed.
    """
    yield from _remove_artifacts(specs, store, unplanned)


def retracted_left(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> list[Artifact]:
    """What is in no plan any more and holds, or may hold, something on the dataset's retraction list.

    `prune_retracted` removes it. Costs nothing where nothing is retracted; else unplanned indexes are read.
    """
    return specs[0].declaration.holding_retracted(store, unplanned(specs, store))


def prune_retracted(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> Iterator[tuple[Artifact, bool]]:
    """As `prune`, but only what `retracted_left` names: at the end of a run that succeeded."""
    if retracted_left(specs, store):
        yield from _remove_artifacts(specs, store, retracted_left)


def _remove_artifacts(
    specs: Sequence[ArtifactSpec],
    store: ArtifactStore,
    which: Callable[[Sequence[ArtifactSpec], ArtifactStore], Iterable[Artifact]],
) -> Iterator[tuple[Artifact, bool]]:
    planners = [spec.located(store) for spec in specs if spec.plans and spec.kept]
    with ExitStack() as locks:
        for planner in planners:
            if not locks.enter_context(alone(store.directory(planner))):
                raise IntegrityError(f"{store.location(planner)}: a run is building it. Prune after the run has ended")
            if store.intact_receipt(planner) is None:
                raise IntegrityError(
                    f"{store.location(planner)}: missing or damaged, so obsolete artifacts cannot be determined. Run "
                    f"{planner.dataset} first"
                )
        for artifact in list(which(specs, store)):
            yield artifact, store.remove(artifact)
    forget_absent(specs[0].declaration.dataset, store)


def _bytes(store: ArtifactStore, artifact: Artifact) -> int | None:
    try:
        receipt = store.receipt(artifact)
    except IntegrityError:
        return None
    return receipt.total_bytes if receipt is not None else None
