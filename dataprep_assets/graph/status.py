"""Finds the stale artifacts of a dataset, and why: what `dataprep status` says and a second run asks first.

Every artifact is compared with its own receipt and with its recipe as it will be once its inputs are built. Two kinds
of inputs are known before anything is built. What a spec can foresee (a manifest is made of a listing, a snapshot of
digests) is made in a scratch folder that overlays the store, and downstream artifacts are compared with that. What is
only damaged will have the content of its receipt again. Otherwise the new content is not known: everything downstream
is stale because of it, and `provisional`, since it is kept if its input comes out unchanged.
"""

import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dataprep_assets.errors import ConfigError, DataprepError, IntegrityError, MissingArtifactError
from dataprep_assets.graph.declaration import DatasetDeclaration
from dataprep_assets.graph.recipe import Change, Recipe
from dataprep_assets.graph.spec import ArtifactSpec, BuildRequest
from dataprep_assets.graph.standing import failures
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore, LocalArtifacts
from dataprep_assets.integrity.commit import SPOOLS
from dataprep_assets.integrity.overlay import OverlayArtifacts
from dataprep_assets.integrity.receipt import Receipt, Verification
from dataprep_assets.integrity.scratch import sweep_scratch


@dataclass(frozen=True, kw_only=True)
class Stale:
    """An artifact that has to be built again.

    Attributes:
        name: The artifact, or the asset if its partitions are not planned yet.
        kind: absent, damaged, input changed, input unreadable, settings changed, older version, recipe changed, or
            check failed.
        reason: The same in one sentence.
        provisional: Stale only because of an input whose new content is not known yet: kept if the input comes out
            unchanged.
        spec: The spec of the artifact.
        partition: Its partition; None if it is unpartitioned or not planned.
    """

    name: str
    kind: str
    reason: str
    provisional: bool = False
    spec: ArtifactSpec | None = field(default=None, compare=False, repr=False)
    partition: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def stale(
    specs: Sequence[ArtifactSpec],
    store: ArtifactStore,
    *,
    verification: Verification | None = None,
) -> Iterator[Stale]:
    """Yield the stale artifacts in build order; none if all are up to date. Nothing is written to the store.

    Args:
        specs: Those of a dataset, inputs before what is made of them.
        store: Where its artifacts are; each is verified as thoroughly as its spec says, and local sources are read
            completely. If it is an overlay (`foreseeing`), foreseen artifacts can be read from it afterwards.
        verification: How thoroughly every artifact is verified, overriding its spec.
    """
    with foreseeing(store) as view:
        examination = _Examination(view, verification)
        for spec in specs:
            yield from examination.of_spec(spec)


def to_build(
    spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None], *, verification: Verification | None = None
) -> list[Stale]:
    """Which of these slots of an artifact have to be built now that its inputs are.

    Args:
        spec: The artifact.
        store: Where it is.
        slots: Some of its partitions; one None if it has none.
        verification: How thoroughly it is verified; default: as its spec says.
    """
    with foreseeing(store) as view:
        artifacts = {slot: spec.located(view, slot) for slot in slots}
        return list(_Examination(view, verification).compared(spec, artifacts))


@contextmanager
def foreseeing(store: ArtifactStore) -> Iterator[OverlayArtifacts]:
    """Overlay the store with a temporary folder; a store that is an overlay already is used as it is."""
    if isinstance(store, OverlayArtifacts):
        yield store
        return
    with tempfile.TemporaryDirectory(prefix="dataprep-foreseen-") as folder:
        yield OverlayArtifacts(Path(folder), store)


CHECK_FAILED = "check failed"
"""The kind of an artifact that is as its recipe says, but failed its own blocking check."""
UNREADABLE = "input unreadable"
"""That of one of which nothing can be told, because something that it is made of, or goes to, cannot be asked."""


class _Examination:
    """One pass over the specs of a dataset, inputs first.

    `found` has the stale slots of each spec; `open` those of them whose new content is not known (yet).
    """

    def __init__(self, view: OverlayArtifacts, verification: Verification | None) -> None:
        self._view = view
        self._verification = verification
        self._found: dict[ArtifactSpec, dict[str | None, Stale]] = {}
        self._open: dict[ArtifactSpec, dict[str | None, Stale]] = {}
        # specs that are stale as a whole, because their slots are not planned or they have no files of their own
        self._unplanned: dict[ArtifactSpec, Stale] = {}

    def of_spec(self, spec: ArtifactSpec) -> Iterator[Stale]:
        """Yield the stale artifacts of one spec."""
        try:
            slots = spec.slots(self._view)
            artifacts = {slot: spec.located(self._view, slot) for slot in slots}
        except DataprepError as error:
            yield self._not_planned(spec, "absent", f"not planned yet: {error}")
            return
        if not spec.kept:
            # it has no files of its own: what it reports is as fresh as the content of its inputs
            if (cause := self._upstream(self._open, spec, None)) is not None:
                yield self._not_planned(spec, cause.kind, cause.reason)
            return
        yield from self.compared(spec, artifacts)
        # foreseen at once: the specs after it ask this plan for their slots
        if spec.plans:
            self._foresee(spec, list(self._open.get(spec, {})))

    def _not_planned(self, spec: ArtifactSpec, kind: str, reason: str) -> Stale:
        self._unplanned[spec] = Stale(name="/".join(spec.path), kind=kind, reason=reason, spec=spec)
        return self._unplanned[spec]

    def compared(self, spec: ArtifactSpec, artifacts: Mapping[str | None, Artifact]) -> Iterator[Stale]:
        """Yield the stale slots of a spec, in order."""
        receipts = {slot: self._receipt(artifact) for slot, artifact in artifacts.items()}
        there = [slot for slot, receipt in receipts.items() if isinstance(receipt, Receipt)]
        self._foresee_inputs(spec, there)
        # as long as nobody knows what an input will be, there is no recipe to compare with
        unknown = {slot: self._upstream(self._open, spec, slot) for slot in there}
        recipes, refused = _recipes(spec, self._view, [slot for slot in there if unknown[slot] is None])
        failed = failures(spec, self._view, list(artifacts))

        def told(change: Change, *, content_known: bool = False, provisional: bool = False) -> Stale:
            one = Stale(
                name=str(artifact),
                kind=change.kind,
                reason=change.reason,
                provisional=provisional,
                spec=spec,
                partition=slot,
            )
            self._found.setdefault(spec, {})[slot] = one
            if not content_known:
                self._open.setdefault(spec, {})[slot] = one
            return one

        # in this order: what another recipe makes stale is built anyway, so its files are not read for damage
        for slot, artifact in artifacts.items():
            receipt, recipe = receipts[slot], recipes.get(slot)
            if isinstance(receipt, Change):
                yield told(receipt)
            elif recipe is not None and (change := recipe.difference(receipt)) is not None:
                yield told(change)
            elif (change := self._damage(spec, artifact, receipt)) is not None:
                self._view.withheld.add(artifact)
                # its receipt says what it will be again; if its files are read too, it is foreseen
                yield told(change, content_known=recipe is not None and spec.foresee is None)
            elif recipe is None:
                if (cause := unknown[slot] or self._upstream(self._found, spec, slot)) is not None:
                    yield told(cause, provisional=not self._gains_input(spec, receipt))
                else:  # building says the same
                    yield told(Change(kind=UNREADABLE, reason=refused[slot]))
            elif (bad := failed.get(slot) or failed.get(None)) is not None:
                # what is built in its place most often has the content that its receipt says
                yield told(Change(kind=CHECK_FAILED, reason=bad.reason), content_known=spec.foresee is None)

    def _gains_input(self, spec: ArtifactSpec, receipt: Receipt) -> bool:
        """Whether a stale input is a partition that the artifact was not made of: then it will certainly change."""
        known = receipt.recipe.get("upstream", {})
        for source in spec.inputs:
            if not isinstance(source, ArtifactSpec) or source.partitions in (None, spec.partitions):
                continue  # alike: of each partition it has that one alone; unpartitioned: it was made of parts of it
            if any(name.startswith(f"{source.name}/") for name in known):
                names = {one.name.partition("/")[2] for one in self._open.get(source, {}).values()}
                if names - known.keys():
                    return True
        return False

    def _receipt(self, artifact: Artifact) -> Receipt | Change:
        try:
            receipt = self._view.receipt(artifact)
        except IntegrityError as error:
            return Change(kind="damaged", reason=f"damaged: {error}")
        return receipt or Change(kind="absent", reason="absent")

    def _damage(self, spec: ArtifactSpec, artifact: Artifact, receipt: Receipt) -> Change | None:
        wanted = self._verification or spec.verification or spec.declaration.verify
        defects = self._view.damage(artifact, receipt, wanted)
        return Change(kind="damaged", reason="damaged: " + defects[0] + _more(len(defects))) if defects else None

    def _foresee_inputs(self, spec: ArtifactSpec, slots: Sequence[str | None]) -> None:
        """Foresee the inputs that these slots have to be compared with; absent slots need no comparison."""
        for source in spec.inputs:
            if isinstance(source, ArtifactSpec) and slots and (left := self._open.get(source)):
                together = source.partitions is not None and source.partitions is spec.partitions
                self._foresee(source, [slot for slot in left if slot in slots or not together])

    def _foresee(self, spec: ArtifactSpec, slots: Sequence[str | None]) -> None:
        """Make these stale slots in the scratch folder, if that is cheap and their own inputs are known."""
        wanted = [slot for slot in slots if self._upstream(self._open, spec, slot) is None]
        if spec.foresee is None or not wanted:
            return
        request = BuildRequest(store=self._view, partitions=[slot for slot in wanted if slot is not None])
        try:
            for outcome in spec.foresee(request):
                if outcome.error is None:
                    # its content is known now: what is made of it can be compared
                    self._open[spec].pop(outcome.partition if spec.partitions is not None else None)
        except DataprepError:
            return  # then everything downstream is stale because of it

    def _upstream(
        self, among: Mapping[ArtifactSpec, Mapping[str | None, Stale]], spec: ArtifactSpec, slot: str | None
    ) -> Change | None:
        """A change if an input of a slot is `among` the stale: the same partition if partitioned alike, else any."""
        for source in spec.inputs:
            if not isinstance(source, ArtifactSpec):
                continue
            if source in self._unplanned:
                return _because_of(self._unplanned[source])
            members = among.get(source, {})
            if source.partitions is not None and source.partitions is spec.partitions:
                one = members.get(slot)
            else:
                one = next(iter(members.values()), None)
            if one is not None:
                return _because_of(one)
        return None


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


def _more(count: int) -> str:
    return f" (and {count - 1} more)" if count > 1 else ""


def _because_of(one: Stale) -> Change:
    return Change(kind="input changed", reason=f"its input {one.name} is stale")


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

    Nothing reads them, and only `graph.prune` removes them.
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
                # a run of a blend is named after its plan: those of earlier plans are what lies beside it
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
