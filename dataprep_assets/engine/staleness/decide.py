"""Decides what must be done for a partition of an artifact, and why: `decide`, a pure function of `PartitionFacts`.

`run`, `status`, `list`, locks, pages and the library ask it, and so does `ensure` before it builds. It reads no file,
no database and no clock: `staleness.status` gathers the facts.

The cases, in order; the first one that applies is the decision. `test_decide.py` has a row for each.

| facts                                                          | action | kind             | same content |
|----------------------------------------------------------------|--------|------------------|--------------|
| the plan of its partitions cannot be read                      | BUILD  | missing          |              |
| its receipt cannot be read                                     | BUILD  | damaged          |              |
| no receipt                                                     | BUILD  | missing          |              |
| another key or ledger than its recipe's                        | BUILD  | of the change    |              |
| its files are not as its receipt says                          | BUILD  | damaged          | with recipe  |
| an input is stale, so it has no recipe yet, or has no files    | BUILD  | input changed    |              |
| its recipe is refused: an input or its target cannot be asked  | BUILD  | input unreadable |              |
| a blocking check failed                                        | BUILD  | check failed     | yes          |
| Dagster has no event of it, or one older than its inputs'      | RECORD | not recorded     |              |
| Dagster does not have all partitions that it plans             | RECORD | not recorded     |              |
| a blocking check failed, and it was built again as it was      | CHECK  | check failed     | yes          |
| a check has no result that holds                               | CHECK  | not checked      |              |
| a result is older than `prove.again_every` allows              | CHECK  | not checked      |              |
| Dagster has no result of a check, or a blocking failure        | CHECK  | not evaluated    |              |
| Dagster has a warning under another `accept` than is declared  | CHECK  | not evaluated    |              |
| none of these                                                  | KEEP   |                  |              |

A failed blocking check is a reason to build once: whoever built it may have had damaged inputs or bad memory. A result
names the build that it first judged and what that contained. If what is there now is another build of the same content,
building does not help, and a person has to look.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from dataprep_assets.engine.artifact.recipe import Change, Recipe
from dataprep_assets.integrity.receipt import Receipt

if TYPE_CHECKING:
    from dataprep_assets.engine.artifact.spec import ArtifactSpec

MISSING, DAMAGED, INPUT_CHANGED = "missing", "damaged", "input changed"
CHECK_FAILED = "check failed"
"""Kind of an artifact that matches its recipe but failed its own blocking check."""
UNREADABLE = "input unreadable"
"""Kind of an artifact whose state is unknown, because an input or its storage cannot be read."""


class Action(Enum):
    """What a run does for a partition."""

    BUILD = auto()
    """Its files must be built."""
    RECORD = auto()
    """Its files are up to date, but Dagster has no event of them."""
    CHECK = auto()
    """Its files are up to date, but a check must run or report its result."""
    KEEP = auto()
    """Nothing."""


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """Facts about the files of a partition.

    Attributes:
        receipt: Its receipt; None if it has none.
        unreadable: Why its receipt cannot be read.
        recipe: How it would be built now; None if that is not known.
        refused: Why it has no recipe, though its inputs are there.
        defects: How its files differ from the receipt; empty until they are read.
    """

    receipt: Receipt | None = None
    unreadable: str = ""
    recipe: Recipe | None = None
    refused: str = ""
    defects: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class CheckFacts:
    """A check's result that holds for what is there, and when it was given, in seconds since 1970.

    A failure `blocks` if it is an error of a blocking check. One on another build of the same content is `rebuilt`.
    """

    passed: bool
    blocks: bool = False
    sentence: str = ""
    at: float = 0.0
    rebuilt: bool = False


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The latest result of a check that Dagster has, with the reason for which a failure was accepted then, if any.

    A failure `blocks` if it is an error of a blocking check.
    """

    passed: bool
    blocks: bool
    accepted: str | None = None


@dataclass(frozen=True, kw_only=True)
class EventFacts:
    """What Dagster has recorded.

    Attributes:
        materialized: Whether it has a materialization; without files, one that is not older than its inputs'.
        registered: Whether it has the partitions that the artifact plans.
        evaluations: Check → its latest result, or None.
        accept: Check that only warns → the declared reason for which its failure is accepted.
    """

    materialized: bool = True
    registered: bool = True
    evaluations: Mapping[str, Evaluation | None] = field(default_factory=dict)
    accept: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PartitionFacts:
    """What is known about a partition, or about all partitions of an artifact together.

    Attributes:
        not_planned: Why its partitions are not known.
        files: Its files; None if it has none of its own, or if they are not asked about.
        stale_input: The name of an input that is stale.
        missing_input: Whether that input was never built, or is lost.
        input_causes: The causes for which that input is stale.
        inputs: Name of each input artifact → the causes for which it is stale. A setting of such a name describes
            the content of the input.
        gains_input: Whether a stale input is a partition that it was not made of, so that it will change for certain.
        checks: Each check that judges it → its result that holds, or None.
        since: Results from before this time no longer count, in seconds since 1970.
        events: What Dagster has recorded; None if it was not asked.
    """

    not_planned: str = ""
    files: FileFacts | None = None
    stale_input: str = ""
    missing_input: bool = False
    input_causes: tuple[str, ...] = ()
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gains_input: bool = False
    checks: Mapping[str, CheckFacts | None] = field(default_factory=dict)
    since: float = 0.0
    events: EventFacts | None = None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What must be done for a partition, and why.

    Attributes:
        action: What to do.
        kind: A keyword for tables, as in the module's table; empty to keep it.
        reason: The same in one sentence.
        causes: The changes for which a run would build it, one line each, such as `rule short changed: words < 50 →
            words < 20`: its own, else the causes of the inputs that changed.
        provisional: Stale only because of an input whose new content is not known yet: kept if the input comes out
            unchanged.
        same_content: Whether what is built in its place is expected to have the content that its receipt says.
        checks: The blocking checks that failed.
        name: The artifact, or the asset if its partitions are not planned yet.
        spec: The spec of the artifact.
        partition: Its partition; None if it is unpartitioned, not planned, or all partitions together.
    """

    action: Action
    kind: str = ""
    reason: str = ""
    causes: tuple[str, ...] = field(default=(), compare=False)
    provisional: bool = False
    same_content: bool = field(default=False, compare=False)
    checks: tuple[str, ...] = field(default=(), compare=False)
    name: str = ""
    spec: "ArtifactSpec | None" = field(default=None, compare=False, repr=False)
    partition: str | None = field(default=None, compare=False)

    @property
    def asset(self) -> str:
        """The name of the asset in its dataset, such as `token_bins_train`."""
        return "/".join(self.spec.path[1:]) if self.spec is not None else self.name

    @property
    def is_stale(self) -> bool:
        """Whether the artifact cannot stay as it is."""
        return self.action is Action.BUILD or self.kind == CHECK_FAILED

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def decide(facts: PartitionFacts) -> Decision:
    """Return what must be done, by the first case of the module's table that applies."""
    return next(_applying(facts), Decision(action=Action.KEEP))


def _applying(facts: PartitionFacts) -> Iterator[Decision]:
    """Yield the decision of each case that applies, in the order of the table."""
    if facts.not_planned:
        reason = f"not planned yet: {facts.not_planned}"
        yield _build(MISSING, reason, facts.input_causes or (reason,))
    yield from _applying_to_files(facts)
    failed = {name: one for name, one in facts.checks.items() if one is not None and one.blocks and not one.passed}
    is_rebuilt = all(one.rebuilt for one in failed.values())
    if failed and not is_rebuilt:
        yield _failed(Action.BUILD, failed, "failed")
    events = facts.events or EventFacts()
    if not events.materialized or not events.registered:
        what = "partitions" if events.materialized else "materialization"
        yield Decision(action=Action.RECORD, kind="not recorded", reason=f"Dagster has no {what} of it")
    if failed:
        yield _failed(Action.CHECK, failed, "failed, and again after a rebuild")
    if left := [name for name, one in facts.checks.items() if one is None or one.at < facts.since]:
        yield Decision(action=Action.CHECK, kind="not checked", reason=f"not checked: {', '.join(left)}")
    if left := [name for name, one in events.evaluations.items() if _is_outdated(one, events.accept.get(name))]:
        yield Decision(action=Action.CHECK, kind="not evaluated", reason=f"no results in Dagster: {', '.join(left)}")


def _applying_to_files(facts: PartitionFacts) -> Iterator[Decision]:
    files, state = facts.files, "missing" if facts.missing_input else "stale"
    because = f"its input {facts.stale_input} is {state}"
    if files is None:
        if facts.stale_input:
            yield _build(INPUT_CHANGED, because, facts.input_causes)
        return
    if files.unreadable:
        yield _build(DAMAGED, f"damaged: {files.unreadable}")
    elif files.receipt is None:
        yield _build(MISSING, MISSING, facts.input_causes or (MISSING,))
    elif files.recipe is not None and (change := files.recipe.difference(files.receipt)) is not None:
        yield _build(change.kind, change.reason, _causes(change, facts))
    if files.defects:
        more = f" (and {len(files.defects) - 1} more)" if len(files.defects) > 1 else ""
        yield _build(DAMAGED, f"damaged: {files.defects[0]}{more}", same_content=files.recipe is not None)
    if files.recipe is None and facts.stale_input:
        yield _build(INPUT_CHANGED, because, facts.input_causes, provisional=not facts.gains_input)
    if files.refused:
        yield _build(UNREADABLE, files.refused)


def _causes(change: Change, facts: PartitionFacts) -> tuple[str, ...]:
    """Return its own changes, else the causes of the inputs that changed, else the causes of any stale input."""
    own, of_inputs = [], dict[str, None]()
    for one in change.changes:
        name = re.split(r"[./]", one.name, maxsplit=1)[0]
        of_inputs |= dict.fromkeys(facts.inputs.get(name, ()))
        if one.kind != "upstream" and name not in facts.inputs:
            own.append(str(one))
    return (*own, *change.files) or tuple(of_inputs) or facts.input_causes


def _build(
    kind: str,
    reason: str,
    causes: tuple[str, ...] = (),
    *,
    provisional: bool = False,
    same_content: bool = False,
) -> Decision:
    """A decision to build; without other causes its reason is the cause."""
    return Decision(
        action=Action.BUILD,
        kind=kind,
        reason=reason,
        causes=causes or (reason,),
        provisional=provisional,
        same_content=same_content,
    )


def _failed(action: Action, failed: Mapping[str, CheckFacts], how: str) -> Decision:
    names = f"blocking check {next(iter(failed))}" if len(failed) == 1 else f"checks {', '.join(failed)}"
    reason = f"its {names} {how}: {next(iter(failed.values())).sentence}"
    return Decision(
        action=action, kind=CHECK_FAILED, reason=reason, causes=(reason,), same_content=True, checks=tuple(failed)
    )


def _is_outdated(evaluation: Evaluation | None, accept: str | None) -> bool:
    """Whether Dagster's result is none, a blocking failure, or of another acceptance than the declared one."""
    if evaluation is None:
        return True
    if evaluation.passed:
        return evaluation.accepted is not None and evaluation.accepted != accept
    return evaluation.blocks or accept is not None
