"""What the proofs of an artifact say of it as it is now, and what therefore has to be proven or built again.

Verdicts on partitions are those of `verdicts`. Verdicts on an artifact without partitions, and of proofs that look at
all partitions together, are kept likewise (`.findings/<artifact>/@<split>.json`), with what else the proofs may have
looked at: the declaration and the receipts of the inputs.

An artifact that its own blocking check failed is not reused but built again, once: a verdict says so (`Verdict.again`)
if the check fails as before after that. Then building does not help, and a person has to look.

Entry points: `present`, `keep`; `known`, `unproven`, `failures`, `results`.
"""

import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from dataprep_assets.errors import DataprepError
from dataprep_assets.graph.finding import Finding
from dataprep_assets.graph.spec import ArtifactSpec
from dataprep_assets.graph.verdicts import (
    WHOLE,
    Verdict,
    folder_of,
    of_slots,
    read_record,
    verdict_in,
    write_record,
)
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import digest_value

NOT_PROVEN = {"description", "owners", "card", "accept", "automation", "workers", "prove"}
NOT_PROVEN |= {"text_separator", "csv_delimiter", "csv_quotes"}  # in the keys of the artifacts that they decide
"""Keys of a declaration that no proof looks at."""


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The blocking `checks` that an artifact failed, what the first of them said, and whether they did so `again`."""

    checks: tuple[str, ...]
    sentence: str
    again: bool

    @property
    def reason(self) -> str:
        """Why the artifact cannot stay as it is, in one sentence."""
        named = f"blocking check {self.checks[0]}" if len(self.checks) == 1 else f"checks {', '.join(self.checks)}"
        return f"its {named} failed{', and again after it was built again' if self.again else ''}: {self.sentence}"


def present(spec: ArtifactSpec, store: ArtifactStore) -> dict[str, str] | None:
    """What the proofs of a whole artifact may look at: the declaration and its inputs (`of`), and itself (`version`).

    None if an input is not planned.
    """
    try:
        inputs = [_versions(source, store) for source in spec.inputs if isinstance(source, ArtifactSpec)]
        own = _versions(spec, store)
    except DataprepError:
        return None
    declared = spec.declaration.model_dump(mode="json", exclude=NOT_PROVEN)
    return {"of": digest_value([declared, inputs]), "version": digest_value(own)}


def keep(
    spec: ArtifactSpec,
    store: ArtifactStore,
    before: Mapping[str, str] | None,
    findings: Mapping[str, Finding],
    examined: Sequence[str | None] = (None,),
) -> None:
    """Keep the findings that are about an artifact as a whole: those that no partition's verdict has.

    Where partitions have no verdicts of their own, they are kept if all partitions were `examined`. None is kept if
    what was there `before` the proofs (`present`) is not there any more: which of both they looked at is unknown.
    """
    if not spec.checks or not spec.kept or before is None or present(spec, store) != before:
        return
    try:
        of_partitions = _named_by_partitions(spec, store)
        # for the runs of other datasets that are made of this one: they read the record without knowing this spec
        made = [[artifact.name, artifact.partition] for artifact in spec.artifacts(store)]
        record = {**before, "artifacts": made}
        if not of_partitions and not set(examined) >= set(spec.slots(store)):
            return
    except DataprepError:
        return
    proofs = [proof for proof in spec.checks if proof.name not in of_partitions]
    if proofs and findings.keys() >= {proof.name for proof in proofs}:  # not a check that is evaluated alone
        write_record(_whole(spec, store), record, findings, proofs)


def known(spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None]) -> dict[str | None, Verdict]:
    """The verdicts on the given slots of an artifact that hold now, and under `None` those on the whole of it."""
    if not spec.checks:
        return {}
    found: dict[str | None, Verdict] = {}
    if spec.partitions is not None:
        artifacts = {slot: spec.located(store, slot) for slot in slots if slot is not None}
        # `some`: what is judged of all partitions together is in the record of the whole
        found.update(of_slots(artifacts, store, spec.checks, some=True))
    if (value := read_record(_whole(spec, store))) is not None:
        now = present(spec, store)
        if now is not None and all(value.get(name) == wanted for name, wanted in now.items()):
            verdict = verdict_in(value, spec.checks, some=True)
            found |= {} if verdict is None else {None: verdict}
    return found


def unproven(spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None]) -> list[str | None]:
    """The slots that a proof has not judged as they are now, or failed, or judged longer ago than is declared.

    With None among them, what is judged of all partitions together has to be.
    """
    if not spec.checks or not spec.kept:
        return []
    verdicts, since = known(spec, store, slots), spec.declaration.prove.since(time.time())
    names = {proof.name for proof in spec.checks}
    blocking = {proof.name for proof in spec.checks if proof.blocking}

    def stands(slot: str | None, names: Set[str]) -> bool:
        verdict = verdicts.get(slot)
        return not names or (
            verdict is not None
            and verdict.at >= since
            and verdict.findings.keys() >= names
            and all(one.passed or one.warning for name, one in verdict.findings.items() if name in blocking)
        )

    if spec.partitions is None:
        return [slot for slot in slots if not stands(slot, names)]
    of_partitions = _named_by_partitions(spec, store)
    # its proofs look at all partitions together
    if not of_partitions:
        return [] if stands(None, names) else list(slots)
    record = read_record(_whole(spec, store))
    if names - of_partitions - (set() if record is None else record["findings"].keys()):
        return list(slots)  # a proof that is new
    left: list[str | None] = [slot for slot in slots if not stands(slot, of_partitions)]
    whole = names - of_partitions
    # A warning about all partitions together is judged again only if the artifact changed, not if its inputs did. It
    # changes without a new partition when a file that was added is removed again.
    warned = _warnings_of_the_same(spec, store).keys()
    if slots and not left and not (stands(None, blocking & whole) and warned >= whole - blocking):
        left.append(None)
    return left


def failures(spec: ArtifactSpec, store: ArtifactStore, slots: Sequence[str | None]) -> dict[str | None, Failed]:
    """The slots whose own blocking checks failed as they are now; under None what concerns all of an artifact."""
    if not spec.checks or not spec.kept:
        return {}
    blocking = [proof.name for proof in spec.checks if proof.blocking]
    found: dict[str | None, Failed] = {}
    for slot, verdict in known(spec, store, slots).items():
        bad = {n: f for n in blocking if (f := verdict.findings.get(n)) is not None and not f.passed and not f.warning}
        if bad:
            found[slot] = Failed(checks=tuple(bad), sentence=next(iter(bad.values())).summary, again=verdict.again)
    return found


def oldest(spec: ArtifactSpec, store: ArtifactStore) -> float | None:
    """When the oldest of the verdicts that hold now was given, in seconds since 1970; None if there is none."""
    return min((verdict.at for verdict in known(spec, store, spec.slots(store)).values()), default=None)


@dataclass(frozen=True)
class NotPassed:
    """What a check says that did not pass; `blocks` if nothing is to be made of its artifact. Empty: not examined."""

    sentence: str = ""
    blocks: bool = False


def results(spec: ArtifactSpec, store: ArtifactStore) -> dict[str, NotPassed | None]:
    """What each check of an artifact says as it is now, by name; None if it passed, or if its declaration accepts that
    it did not.

    A check without a verdict on one of the partitions did not.
    """
    if not spec.checks:
        return {}
    accept = spec.declaration.accept
    try:
        slots = spec.slots(store)
        verdicts = known(spec, store, slots)
    except DataprepError:  # not planned
        return {proof.name: NotPassed() for proof in spec.checks}
    of_slots = [verdicts[slot].findings for slot in slots if slot is not None and slot in verdicts]
    whole = verdicts[None].findings if None in verdicts else _warnings_of_the_same(spec, store)
    found: dict[str, NotPassed | None] = {}
    for proof in spec.checks:
        judged = [whole[proof.name]] if proof.name in whole else [f[proof.name] for f in of_slots if proof.name in f]
        complete = proof.name in whole or len(judged) == len(slots)
        accepted = not proof.blocking and proof.name in accept
        failed = [] if accepted else [finding for finding in judged if not finding.passed]
        # errors before warnings: the first is what is told
        failed.sort(key=lambda finding: finding.warning)
        first = NotPassed(failed[0].summary, proof.blocking and not failed[0].warning) if failed else None
        found[proof.name] = first if complete else NotPassed()
    return found


def _warnings_of_the_same(spec: ArtifactSpec, store: ArtifactStore) -> Mapping[str, Finding]:
    """What checks that only warn said of the same artifact as a whole, whatever the declaration was: for them alone it
    is not looked at again (`unproven`)."""
    value = read_record(_whole(spec, store))
    now = None if value is None else present(spec, store)
    if value is None or now is None or value["version"] != now["version"]:
        return {}
    verdict = verdict_in(value, [proof for proof in spec.checks if not proof.blocking], some=True)
    return {} if verdict is None else verdict.findings


def _whole(spec: ArtifactSpec, store: ArtifactStore) -> Path:
    """The record of what concerns all of an artifact."""
    return folder_of(spec.declaration.dataset, spec.name, store) / f"{WHOLE}{spec.split or ''}.json"


def _versions(spec: ArtifactSpec, store: ArtifactStore) -> list[str | None]:
    return list(store.receipt_versions(spec.artifacts(store)))


def _named_by_partitions(spec: ArtifactSpec, store: ArtifactStore) -> set[str]:
    """The proofs that judge single partitions: those that the verdicts on them name."""
    if spec.partitions is None:
        return set()
    folder = folder_of(spec.declaration.dataset, spec.name, store)
    records = (read_record(f"{folder}/{key}.json") for key in spec.partitions.keys(store))
    return {name for record in records if record is not None for name in record["findings"]}
