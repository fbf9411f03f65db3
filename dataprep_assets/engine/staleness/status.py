"""Gathers the facts about a dataset's artifacts, and decides the action for each (`staleness.decide`).

Every artifact is compared with its receipt and with its recipe for finished inputs. The content of two kinds of stale
inputs is known before a build. An input that its spec can forecast (a manifest from a listing, a snapshot from digests)
is built in a scratch folder that overlays the store, and downstream artifacts are compared with it. A damaged input is
rebuilt with the content that its receipt records. Otherwise, the new content is unknown. Every downstream artifact is
then stale and `provisional`, because it is kept if its input does not change.

Entry points: `decide_dataset`, `find_stale` for a dataset; `decide_slots`, `decide_checks` for some partitions.
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
from dataprep_assets.engine.checks.results import read_check_facts
from dataprep_assets.engine.checks.verdicts import forget_absent
from dataprep_assets.engine.staleness.decide import (
    MISSING,
    Action,
    Decision,
    EventFacts,
    FileFacts,
    PartitionFacts,
    decide_action,
)
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.errors import ConfigError, DataprepError, IntegrityError, MissingArtifactError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore, LocalArtifacts
from dataprep_assets.integrity.commit import SPOOLS, hold_alone
from dataprep_assets.integrity.receipt import Verification
from dataprep_assets.integrity.scratch import OverlayArtifacts, sweep_scratch


class Events(Protocol):
    """Dagster's records of artifacts and their partitions."""

    def facts(
        self, spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None]
    ) -> Mapping[str | None, EventFacts]:
        """Return the records of these partitions and, under None, of the artifact as a whole."""
        ...


def decide_dataset(
    specs: Sequence[ArtifactSpec], store: ArtifactStore, *, verification: Verification | None = None
) -> Iterator[Decision]:
    """Yield the decision for every partition of a dataset, in build order. Nothing is written to the store.

    Args:
        specs: The specs of a dataset, inputs first.
        store: The store of its artifacts. Each is verified as its spec requires, and local sources are read completely.
            If it is an overlay (`overlay_store`), forecast artifacts can be read from it afterwards.
        verification: How thoroughly every artifact is verified, overriding its spec.
    """
    with overlay_store(store) as view:
        survey = _Survey(view, verification)
        for spec in specs:
            yield from survey.decide_spec(spec)


def find_stale(
    specs: Sequence[ArtifactSpec], store: ArtifactStore, *, verification: Verification | None = None
) -> Iterator[Decision]:
    """Yield the decisions on stale artifacts; nothing if all artifacts are up to date."""
    return (decision for decision in decide_dataset(specs, store, verification=verification) if decision.is_stale)


def decide_slots(
    spec: ArtifactSpec,
    store: ArtifactStore,
    slots: Sequence[str | None],
    *,
    verification: Verification | None = None,
    events: Events | None = None,
) -> dict[str | None, Decision]:
    """Return the decision for each of these partitions and, under None, for all of them. Their inputs must be built.

    `verification` overrides the verification of the spec. Without `events`, Dagster's records are ignored.
    """
    with overlay_store(store) as view:
        survey = _Survey(view, verification, events)
        if not spec.kept:
            return survey.decide_without_files(spec, slots)
        return {one.partition: one for one in survey.decide_partitions(spec, slots)}


def decide_checks(
    spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None], events: Events | None = None
) -> dict[str | None, Decision]:
    """Return decisions only from check results and events, for partitions with current files."""
    return _Survey(store, None, events).decide_without_files(spec, slots)


@contextmanager
def overlay_store(store: ArtifactStore) -> Iterator[OverlayArtifacts]:
    """Overlay the store with a temporary folder; an existing overlay is yielded unchanged."""
    if isinstance(store, OverlayArtifacts):
        yield store
        return
    with tempfile.TemporaryDirectory(prefix="dataprep-foreseen-") as folder:
        yield OverlayArtifacts(Path(folder), store)


class _Survey:
    """One pass over the specs of a dataset, inputs first.

    `_stale` has the stale partitions of each spec. `_open` has the partitions whose new content is unknown.
    """

    def __init__(self, view: ArtifactStore, verification: Verification | None, events: Events | None = None) -> None:
        self._view, self._verification, self._events = view, verification, events
        self._stale: dict[ArtifactSpec, dict[str | None, Decision]] = {}
        self._open: dict[ArtifactSpec, dict[str | None, Decision]] = {}
        # Specs that are stale as a whole, because their partitions are not planned, or because they have no files and
        # an input is stale.
        self._unplanned: dict[ArtifactSpec, Decision] = {}

    def decide_spec(self, spec: ArtifactSpec) -> Iterator[Decision]:
        """Yield the decisions on a spec."""
        asset = "/".join(spec.path)
        try:
            slots = spec.slots(self._view)
            for slot in slots:
                spec.locate_artifact(self._view, slot)
        except DataprepError as error:
            facts = PartitionFacts(
                not_planned=str(error), **_build_input_facts(self._find_stale_input(self._stale, spec, None))
            )
            self._unplanned[spec] = replace(decide_action(facts), name=asset, spec=spec)
            yield self._unplanned[spec]
            return
        if not spec.kept:
            # A spec without files is up to date if the content of its inputs is known, because it depends only on this
            # content.
            decision = decide_action(
                PartitionFacts(**_build_input_facts(self._find_stale_input(self._open, spec, None)))
            )
            if decision.is_stale:
                self._unplanned[spec] = replace(decision, name=asset, spec=spec)
                yield self._unplanned[spec]
            return
        yield from self.decide_partitions(spec, slots)
        # Forecast the plan now, because later specs read their partitions from it.
        if spec.plans:
            self._forecast(spec, list(self._open.get(spec, {})))

    def decide_without_files(self, spec: ArtifactSpec, slots: Sequence[str | None]) -> dict[str | None, Decision]:
        """Return the decisions from checks and events, without files."""
        facts, name = self._gather_other_facts(spec, slots), "/".join(spec.path)
        return {slot: replace(decide_action(one), name=name, spec=spec, partition=slot) for slot, one in facts.items()}

    def decide_partitions(self, spec: ArtifactSpec, slots: Sequence[str | None]) -> Iterator[Decision]:
        """Yield the decisions on these partitions of a spec, in order, and then on all of them together."""
        artifacts = {slot: spec.locate_artifact(self._view, slot) for slot in slots}
        files = {slot: self._read_receipt(artifact) for slot, artifact in artifacts.items()}
        with_receipt = [slot for slot, facts in files.items() if facts.receipt is not None]
        self._forecast_inputs(spec, with_receipt)
        # Compute no recipe for a slot with an input whose new content is unknown, because the recipe depends on this
        # content.
        unknown = {
            slot: stale_input
            for slot in with_receipt
            if (stale_input := self._find_stale_input(self._open, spec, slot)) is not None
        }
        recipes, refusals = _build_recipes(spec, self._view, [slot for slot in with_receipt if slot not in unknown])
        outside = self._gather_other_facts(spec, slots)
        for slot, artifact in artifacts.items():
            file_facts = replace(files[slot], recipe=recipes.get(slot), refused=refusals.get(slot, ""))
            cause = unknown.get(slot) or self._find_stale_input(self._stale, spec, slot)
            facts = replace(
                outside.pop(slot, PartitionFacts()),
                files=self._verify_files(spec, artifact, file_facts),
                **_build_input_facts(cause),
                inputs=self._find_input_causes(spec, slot),
                gains_input=cause is not None and file_facts.recipe is None and self._gains_input(spec, file_facts),
            )
            decision = replace(decide_action(facts), name=str(artifact), spec=spec, partition=slot)
            if decision.is_stale:
                self._note(decision, spec, slot)
            yield decision
        for facts in outside.values():
            yield replace(decide_action(facts), name="/".join(spec.path), spec=spec)

    def _note(self, decision: Decision, spec: ArtifactSpec, slot: str | None) -> None:
        self._stale.setdefault(spec, {})[slot] = decision
        # If the spec has a forecast, keep the slot open even if a rebuild gives the same content, because downstream
        # artifacts need the files that `_forecast` builds.
        if not decision.same_content or spec.foresee is not None:
            self._open.setdefault(spec, {})[slot] = decision

    def _gather_other_facts(self, spec: ArtifactSpec, slots: Sequence[str | None]) -> dict[str | None, PartitionFacts]:
        """Return all facts except those about files: for each partition and, under None, for the whole artifact."""
        checks = read_check_facts(spec, self._view, slots)
        events = {} if self._events is None else self._events.facts(spec, self._view, slots)
        oldest_time = spec.declaration.prove.find_earliest_valid_time(time.time())
        return {
            slot: PartitionFacts(checks=checks.get(slot, {}), since=oldest_time, events=events.get(slot))
            for slot in dict.fromkeys([*slots, *checks, *events])
        }

    def _read_receipt(self, artifact: Artifact) -> FileFacts:
        try:
            return FileFacts(receipt=self._view.receipt(artifact))
        except IntegrityError as error:
            return FileFacts(unreadable=str(error))

    def _verify_files(self, spec: ArtifactSpec, artifact: Artifact, files: FileFacts) -> FileFacts:
        """Return the facts with the defects of the files. Files that must be built in any case are not read."""
        if (
            files.receipt is None
            or decide_action(PartitionFacts(files=replace(files, refused=""))).action is Action.BUILD
        ):
            return files
        level = self._verification or spec.verification or spec.declaration.verify
        defects = self._view.damage(artifact, files.receipt, level)
        if defects and isinstance(self._view, OverlayArtifacts):
            self._view.damaged.add(artifact)
        return replace(files, defects=defects)

    def _gains_input(self, spec: ArtifactSpec, files: FileFacts) -> bool:
        """Return whether the artifact will change, because a stale input is a partition that it was not built from."""
        known_inputs = {} if files.receipt is None else files.receipt.recipe.get("upstream", {})
        for source in spec.inputs:
            if not isinstance(source, ArtifactSpec) or source.partitions in (None, spec.partitions):
                continue  # only an input with other partitions can gain one that this artifact was not built from
            if any(name.startswith(f"{source.name}/") for name in known_inputs):
                names = {one.name.partition("/")[2] for one in self._open.get(source, {}).values()}
                if names - known_inputs.keys():
                    return True
        return False

    def _forecast_inputs(self, spec: ArtifactSpec, slots: Sequence[str | None]) -> None:
        """Forecast the inputs for the comparison of these slots."""
        for source in spec.inputs:
            if isinstance(source, ArtifactSpec) and slots and (open_slots := self._open.get(source)):
                is_aligned = source.partitions is not None and source.partitions is spec.partitions
                self._forecast(source, [slot for slot in open_slots if slot in slots or not is_aligned])

    def _forecast(self, spec: ArtifactSpec, slots: Sequence[str | None]) -> None:
        """Build these stale slots in the scratch folder, if this is cheap and their own inputs are known."""
        known_slots = [slot for slot in slots if not self._find_stale_input(self._open, spec, slot)]
        if spec.foresee is None or not known_slots:
            return
        request = BuildRequest(store=self._view, partitions=[slot for slot in known_slots if slot is not None])
        try:
            for outcome in spec.foresee(request):
                if outcome.error is None:
                    # The forecast has determined the slot's content, so the slot's downstream artifacts can be compared
                    # with it.
                    self._open[spec].pop(outcome.partition if spec.partitions is not None else None)
        except DataprepError:
            return  # everything downstream remains stale

    def _find_input_causes(self, spec: ArtifactSpec, slot: str | None) -> dict[str, tuple[str, ...]]:
        """Return the name of each input of a slot → the causes of its staleness; no causes if it is current."""
        causes: dict[str, tuple[str, ...]] = {source.name: () for source in spec.inputs}
        for stale_input in self._find_stale_inputs(self._stale, spec, slot):
            if stale_input.spec is not None:
                causes[stale_input.spec.name] += stale_input.causes
        return causes

    def _find_stale_input(
        self, candidates: Mapping[ArtifactSpec, Mapping[str | None, Decision]], spec: ArtifactSpec, slot: str | None
    ) -> Decision | None:
        """Return the decision on the first stale input of a slot."""
        return next(self._find_stale_inputs(candidates, spec, slot), None)

    def _find_stale_inputs(
        self, candidates: Mapping[ArtifactSpec, Mapping[str | None, Decision]], spec: ArtifactSpec, slot: str | None
    ) -> Iterator[Decision]:
        """Yield the decision on each input of a slot that is in `candidates`.

        If the input has the same partitions, only the partition with the same key counts; otherwise, any partition.
        """
        for source in spec.inputs:
            if not isinstance(source, ArtifactSpec):
                continue
            members = candidates.get(source, {})
            if source in self._unplanned:
                yield self._unplanned[source]
            elif source.partitions is not None and source.partitions is spec.partitions:
                if slot in members:
                    yield members[slot]
            elif members:
                yield next(iter(members.values()))


def _build_input_facts(cause: Decision | None) -> dict[str, Any]:
    """Return the fields of `PartitionFacts` about a stale input; empty if no input is stale."""
    if cause is None:
        return {}
    return {"stale_input": cause.name, "missing_input": cause.kind == MISSING, "input_causes": cause.causes}


def _build_recipes(
    spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None]
) -> tuple[dict[str | None, Recipe], dict[str | None, str]]:
    """Return the recipe of each slot, and the reason for each slot without a recipe."""
    known_recipes: dict[str | None, Recipe] = {}
    refusals: dict[str | None, str] = {}
    remaining_slots, last = deque(slots), ""
    # An error ends the iterator, so start a new one for the remaining slots.
    while remaining_slots:
        try:
            for recipe in spec.recipes(store, list(remaining_slots)):
                known_recipes[remaining_slots.popleft()] = recipe
        except DataprepError as error:
            refusals[remaining_slots.popleft()] = str(error)
            # If the previous failure had the same error, assume that this error concerns all remaining slots.
            if str(error) == last:
                refusals |= dict.fromkeys(remaining_slots, last)
                break
            last = str(error)
    return known_recipes, refusals


def is_never_built(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> bool:
    """Return whether no artifact of a dataset exists, according to receipts; the source is not read."""
    return not any(_has_receipt(spec, store) for spec in specs if spec.kept)


def _has_receipt(spec: ArtifactSpec, store: ArtifactStore) -> bool:
    try:
        return any(store.receipt(spec.locate_artifact(store, slot)) is not None for slot in spec.slots(store))
    except MissingArtifactError:  # the partitions are not planned yet
        return False
    except IntegrityError:  # a damaged receipt still shows that the partition was built
        return True


def find_unplanned_artifacts(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> Iterator[Artifact]:
    """Yield the artifacts that are no longer planned or declared.

    They are left by changes to files, shards, splits or a blend's weights, and by removed views and document tables.
    Nothing reads them, and only `prune` removes them.
    """
    planned_names: dict[str, set[str]] = {}
    names = {spec.name for spec in specs}
    for spec in specs:
        if not spec.kept:
            continue
        try:
            if spec.partitions is not None:
                planned_names.setdefault(spec.name, set()).update(spec.partitions.keys(store))
            elif spec.artifact is not None:
                # The artifact of a blend's run is named after the blend's plan. Other names are runs of earlier plans,
                # so only this name is planned.
                artifact = spec.artifact(store)
                names.add(artifact.name)
                if artifact.partition is not None:
                    planned_names.setdefault(artifact.name, set()).add(artifact.partition)
            elif spec.split is not None:
                planned_names.setdefault(spec.name, set()).add(spec.split)
        except DataprepError:  # without a plan, it is unknown which artifacts are obsolete
            return
    declaration = specs[0].declaration
    for name, planned_partitions in planned_names.items():
        for partition in store.partitions(declaration.dataset, name):
            if partition not in planned_partitions:
                yield declaration.artifact(name, partition)
    for name in store.names(declaration.dataset):
        if name not in names:
            yield from _find_undeclared_artifacts(declaration, name, store)


def _find_undeclared_artifacts(declaration: DatasetDeclaration, name: str, store: ArtifactStore) -> Iterator[Artifact]:
    """Yield the artifacts with a name that no spec has. Folders without a receipt are skipped as unrelated."""

    def has_receipt(artifact: Artifact) -> bool:
        try:
            return store.receipt(artifact) is not None
        except DataprepError:  # the receipt is damaged, or belongs to a different artifact
            return False

    try:
        whole_artifact = declaration.artifact(name)
        parts = [declaration.artifact(name, part) for part in store.partitions(declaration.dataset, name)]
    except ConfigError:  # the folder's name is not a valid artifact name
        return
    if has_receipt(whole_artifact):
        yield whole_artifact
    elif any(map(has_receipt, parts)):
        yield from parts


def remove_leftovers(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> None:
    """Remove files that killed runs left next to the artifacts of an up-to-date dataset."""
    planned_artifacts = [artifact for spec in specs for artifact in spec.artifacts(store)]
    store.sweep(planned_artifacts)
    sweep_scratch(store.root / specs[0].declaration.dataset)
    dataset, partitions = specs[0].declaration.dataset, {artifact.partition for artifact in planned_artifacts}
    spools = LocalArtifacts(store.root / dataset / SPOOLS)
    for name in spools.names(dataset):
        for partition in spools.partitions(dataset, name):
            # Skip planned partitions, because a rebuild removes their files.
            if partition.rpartition(".")[0] not in partitions:
                spools.remove(Artifact(dataset=dataset, name=name, partition=partition))


# Pruning removes artifacts that are no longer planned: all of them, or only artifacts with retracted documents.
#
# Each artifact is locked while it is removed, and its receipt is removed first, so that a killed removal leaves no
# artifact that looks finished. The plans are locked during the removal, so a run that would plan the artifacts again
# must wait. A run on another machine with the same bucket does not wait, so the user must make sure that there is no
# such run.


@dataclass(frozen=True, kw_only=True)
class UnplannedArtifact:
    """An artifact that is no longer planned, and the bytes of its files; None if it is incomplete."""

    artifact: Artifact
    bytes: int | None


def list_unplanned(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> list[UnplannedArtifact]:
    """Return the artifacts that `prune` would remove."""
    return [
        UnplannedArtifact(artifact=artifact, bytes=_count_bytes(store, artifact))
        for artifact in find_unplanned_artifacts(specs, store)
    ]


def prune(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> Iterator[tuple[Artifact, bool]]:
    """Remove unplanned artifacts; yield each with whether it was removed. An artifact under construction is kept.

    Args:
        specs: The specs of a dataset.
        store: The store of its artifacts.

    Raises:
        IntegrityError: A plan is missing, damaged or being built. Nothing is removed.
    """
    yield from _remove_artifacts(specs, store, find_unplanned_artifacts)


def find_retracted_leftovers(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> list[Artifact]:
    """Return unplanned artifacts that contain, or may contain, documents on the dataset's retraction list.

    `prune_retracted` removes them. Unplanned indexes are read only if the list is not empty.
    """
    return [
        artifact
        for spec in specs
        if spec.find_retracted is not None
        for artifact in spec.find_retracted(store, find_unplanned_artifacts(specs, store))
    ]


def prune_retracted(specs: Sequence[ArtifactSpec], store: ArtifactStore) -> Iterator[tuple[Artifact, bool]]:
    """Remove only the artifacts of `find_retracted_leftovers`, like `prune`, at the end of a successful run."""
    if find_retracted_leftovers(specs, store):
        yield from _remove_artifacts(specs, store, find_retracted_leftovers)


def _remove_artifacts(
    specs: Sequence[ArtifactSpec],
    store: ArtifactStore,
    find: Callable[[Sequence[ArtifactSpec], ArtifactStore], Iterable[Artifact]],
) -> Iterator[tuple[Artifact, bool]]:
    planners = [spec.locate_artifact(store) for spec in specs if spec.plans and spec.kept]
    with ExitStack() as locks:
        for planner in planners:
            if not locks.enter_context(hold_alone(store.directory(planner))):
                raise IntegrityError(
                    f"{store.location(planner)}: a run is building this artifact. Run `dataprep prune` again after "
                    "the run has ended"
                )
            if store.intact_receipt(planner) is None:
                raise IntegrityError(
                    f"{store.location(planner)}: missing or damaged, so obsolete artifacts cannot be determined. Run "
                    f"`dataprep run {planner.dataset}` first"
                )
        for artifact in list(find(specs, store)):
            yield artifact, store.remove(artifact)
    forget_absent(specs[0].declaration.dataset, store)


def _count_bytes(store: ArtifactStore, artifact: Artifact) -> int | None:
    try:
        receipt = store.receipt(artifact)
    except IntegrityError:
        return None
    return receipt.total_bytes if receipt is not None else None
