"""Decides the action for a partition of an artifact, and its reason: `decide_action`, a pure function of
`PartitionFacts`.

`run`, `status`, `list`, locks, pages and the library use it, and `ensure` calls it before a build. It reads no file,
no database and no clock. `staleness.status` gathers the facts.

The first case in this table that applies is the decision. `test_decide.py` has a row for each case.

| facts                                                          | action | kind             | same content |
|----------------------------------------------------------------|--------|------------------|--------------|
| the plan of its partitions cannot be read                      | BUILD  | missing          |              |
| its receipt cannot be read                                     | BUILD  | damaged          |              |
| no receipt                                                     | BUILD  | missing          |              |
| its key or ledger differs from its recipe's                    | BUILD  | of the change    |              |
| its files differ from its receipt                              | BUILD  | damaged          | with recipe  |
| an input is stale, so it has no recipe yet, or has no files    | BUILD  | input changed    |              |
| no recipe, because an input or its target cannot be read       | BUILD  | input unreadable |              |
| a blocking check failed                                        | BUILD  | check failed     | yes          |
| Dagster has no event for it, or one older than its inputs'     | RECORD | not recorded     |              |
| Dagster does not have all partitions that it plans             | RECORD | not recorded     |              |
| a blocking check failed, and a rebuild had the same content    | CHECK  | check failed     | yes          |
| a check has no valid result                                    | CHECK  | not checked      |              |
| a result is older than `prove.again_every` allows              | CHECK  | not checked      |              |
| Dagster has no result of a check, or a blocking failure        | CHECK  | not evaluated    |              |
| Dagster has a warning under another `accept` than is declared  | CHECK  | not evaluated    |              |
| none of these                                                  | KEEP   |                  |              |

A failed blocking check causes one rebuild, because the first build may have had damaged inputs or bad memory. A result
records the first build that the check evaluated, and its content. If the current artifact is a different build of the
same content, another rebuild does not help, and a person must find the cause.
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
"""Kind of a decision: the artifact matches its recipe but failed its own blocking check."""
UNREADABLE = "input unreadable"
"""Kind of a decision: the artifact's state is unknown, because an input or its storage cannot be read."""


class Action(Enum):
    """The action of a run for a partition."""

    BUILD = auto()
    """Its files must be built."""
    RECORD = auto()
    """Its files are up to date, but Dagster has no event for them."""
    CHECK = auto()
    """Its files are up to date, but a check must run or report its result."""
    KEEP = auto()
    """Nothing must be done."""


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """Facts about the files of a partition.

    Attributes:
        receipt: Receipt of the partition; None if it does not exist.
        unreadable: Reason why the receipt cannot be read.
        recipe: Current recipe of the partition; None if unknown.
        refused: Reason why there is no recipe although the inputs exist.
        defects: Differences between the files and the receipt; empty until the files are read.
    """

    receipt: Receipt | None = None
    unreadable: str = ""
    recipe: Recipe | None = None
    refused: str = ""
    defects: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class CheckFacts:
    """The valid result of a check, and its time in seconds since 1970.

    A failure `blocks` if it is an error of a blocking check. It is `rebuilt` if it concerns an earlier build of the
    same content.
    """

    passed: bool
    blocks: bool = False
    sentence: str = ""
    at: float = 0.0
    rebuilt: bool = False


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Dagster's latest result of a check, with the reason for accepting a failure, if one was declared then.

    A failure `blocks` if it is an error of a blocking check.
    """

    passed: bool
    blocks: bool
    accepted: str | None = None


@dataclass(frozen=True, kw_only=True)
class EventFacts:
    """Dagster's records of a partition.

    Attributes:
        materialized: Whether Dagster has a materialization; for an artifact without files, one that is not older than
            its inputs' materializations.
        registered: Whether Dagster has the partitions that the artifact plans.
        evaluations: Check → its latest result, or None.
        accept: Check that only warns → the declared reason for accepting its failure.
    """

    materialized: bool = True
    registered: bool = True
    evaluations: Mapping[str, Evaluation | None] = field(default_factory=dict)
    accept: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PartitionFacts:
    """Facts about a partition, or about all partitions of an artifact together.

    Attributes:
        not_planned: Reason why its partitions are unknown.
        files: Facts about its files; None if it has no files of its own, or if they are not needed.
        stale_input: The name of an input that is stale.
        missing_input: Whether that input was never built or is lost.
        input_causes: The causes of that input's staleness.
        inputs: Name of each input artifact → the causes of its staleness. A setting with the same name describes the
            content of the input.
        gains_input: Whether a stale input is a partition that it was not built from, so that it will certainly change.
        checks: Name of each check of the partition → its valid result, or None.
        since: Earliest time of a valid result, in seconds since 1970.
        events: Dagster's records; None if Dagster was not queried.
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
    """The action for a partition, and its reason.

    Attributes:
        action: The action.
        kind: The kind in the module's table; empty for KEEP.
        reason: The reason in one sentence.
        causes: The changes that make a run build it, one line each, such as `rule short changed: words < 50 →
            words < 20`: its own changes, or otherwise the causes of changed inputs.
        provisional: Whether it is stale only because of an input whose new content is unknown. It is kept if the
            input's content does not change.
        same_content: Whether a rebuild is expected to have the content that its receipt records.
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
        """Whether a run must build, record or check the artifact."""
        return self.action is Action.BUILD or self.kind == CHECK_FAILED

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


def decide_action(facts: PartitionFacts) -> Decision:
    """Return the decision of the first case in the module's table that applies."""
    return next(_find_applicable_decisions(facts), Decision(action=Action.KEEP))


def _find_applicable_decisions(facts: PartitionFacts) -> Iterator[Decision]:
    """Yield the decision of each case that applies, in the order of the table."""
    if facts.not_planned:
        reason = f"not planned yet: {facts.not_planned}"
        yield _decide_build(MISSING, reason, facts.input_causes or (reason,))
    yield from _decide_by_files(facts)
    failures = {name: one for name, one in facts.checks.items() if one is not None and one.blocks and not one.passed}
    is_rebuilt = all(one.rebuilt for one in failures.values())
    if failures and not is_rebuilt:
        yield _decide_by_failures(Action.BUILD, failures, "failed")
    events = facts.events or EventFacts()
    if not events.materialized or not events.registered:
        noun = "partition" if events.materialized else "materialization"
        yield Decision(action=Action.RECORD, kind="not recorded", reason=f"no {noun} is recorded in Dagster")
    if failures:
        yield _decide_by_failures(Action.CHECK, failures, "failed again after a rebuild")
    if unfinished_checks := [name for name, one in facts.checks.items() if one is None or one.at < facts.since]:
        yield Decision(action=Action.CHECK, kind="not checked", reason=f"not checked: {', '.join(unfinished_checks)}")
    if unfinished_checks := [
        name for name, one in events.evaluations.items() if _is_outdated(one, events.accept.get(name))
    ]:
        yield Decision(
            action=Action.CHECK,
            kind="not evaluated",
            reason=f"Dagster has no current results of: {', '.join(unfinished_checks)}",
        )


def _decide_by_files(facts: PartitionFacts) -> Iterator[Decision]:
    files, state = facts.files, "missing" if facts.missing_input else "out of date"
    input_reason = f"its input {facts.stale_input} is {state}"
    if files is None:
        if facts.stale_input:
            yield _decide_build(INPUT_CHANGED, input_reason, facts.input_causes)
        return
    if files.unreadable:
        yield _decide_build(DAMAGED, f"damaged: {files.unreadable}")
    elif files.receipt is None:
        yield _decide_build(MISSING, MISSING, facts.input_causes or (MISSING,))
    elif files.recipe is not None and (change := files.recipe.find_change(files.receipt)) is not None:
        yield _decide_build(change.kind, change.reason, _find_causes(change, facts))
    if files.defects:
        more = f" (and {len(files.defects) - 1} more)" if len(files.defects) > 1 else ""
        yield _decide_build(DAMAGED, f"damaged: {files.defects[0]}{more}", same_content=files.recipe is not None)
    if files.recipe is None and facts.stale_input:
        yield _decide_build(INPUT_CHANGED, input_reason, facts.input_causes, provisional=not facts.gains_input)
    if files.refused:
        yield _decide_build(UNREADABLE, files.refused)


def _find_causes(change: Change, facts: PartitionFacts) -> tuple[str, ...]:
    """Return the causes of a change: the artifact's own changes, or else those of changed, or else of stale inputs."""
    own_causes, input_causes = [], dict[str, None]()
    for cause in change.changes:
        name = re.split(r"[./]", cause.name, maxsplit=1)[0]
        input_causes |= dict.fromkeys(facts.inputs.get(name, ()))
        if cause.kind != "upstream" and name not in facts.inputs:
            own_causes.append(str(cause))
    return (*own_causes, *change.files) or tuple(input_causes) or facts.input_causes


def _decide_build(
    kind: str,
    reason: str,
    causes: tuple[str, ...] = (),
    *,
    provisional: bool = False,
    same_content: bool = False,
) -> Decision:
    """Return a decision to build; its reason is also the cause if there are no other causes."""
    return Decision(
        action=Action.BUILD,
        kind=kind,
        reason=reason,
        causes=causes or (reason,),
        provisional=provisional,
        same_content=same_content,
    )


def _decide_by_failures(action: Action, failures: Mapping[str, CheckFacts], verb: str) -> Decision:
    names = f"blocking check {next(iter(failures))}" if len(failures) == 1 else f"checks {', '.join(failures)}"
    reason = f"its {names} {verb}: {next(iter(failures.values())).sentence}"
    return Decision(
        action=action, kind=CHECK_FAILED, reason=reason, causes=(reason,), same_content=True, checks=tuple(failures)
    )


def _is_outdated(evaluation: Evaluation | None, accept: str | None) -> bool:
    """Return whether Dagster has no result, a blocking failure, or a result with a different accepted reason."""
    if evaluation is None:
        return True
    if evaluation.passed:
        return evaluation.accepted is not None and evaluation.accepted != accept
    return evaluation.blocks or accept is not None
