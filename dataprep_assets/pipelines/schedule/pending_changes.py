"""What a schedule does not read yet: what was declared or found since its last revision.

A schedule stays as it is until `dataprep schedule NAME --from-step N`, so nothing of this takes effect before that.

Entry points: `pending`, `changed_sources`, `told_pending`.
"""

from collections.abc import Iterator, Sequence

from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import DataprepError, count_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.schedule.declaration import ScheduleDeclaration
from dataprep_assets.pipelines.schedule.schedule_sources import found_sources
from dataprep_assets.serving.sampler.mixture import PLACES, shares
from dataprep_assets.serving.sampler.next_revision import FoundSource
from dataprep_assets.serving.sampler.training_schedule import Revision, ScheduleHistory

_SETTINGS = ("batch", "sequence_length", "seed", "samples", "steps")


def revise_line(name: str) -> str:
    """Return what to do to read it."""
    return f"To train on the changes from step N on, run: dataprep schedule {name} --from-step N"


def pending(declaration: ScheduleDeclaration, store: ArtifactStore, schedule: ScheduleHistory) -> Iterator[Remark]:
    """Yield what the declaration and its sources have otherwise than the last revision, each with its key in the
    YAML."""
    last = schedule.revisions[-1]
    for key in _SETTINGS:
        declared, read = getattr(declaration, key), getattr(last, key)
        # the steps of a number of tokens follow from what was read
        if declared != read and not (key == "steps" and declaration.tokens is not None):
            yield _remark((key,), f"`{key}`: {_as_text(declared)} declared, {_as_text(read)} scheduled")
    try:
        sources = found_sources(declaration, store)[0]
    except DataprepError as error:
        yield _remark(("sources",), f"its sources cannot be compared: {error}")
        return
    for told in (*_mixture(declaration, last, sources), *changed_sources(last, sources)):
        yield _remark(("sources",), told)


def _remark(keys: tuple[str, ...], told: str) -> Remark:
    return Remark(keys=keys, sentence=told, hint=True)


def _as_text(value: object) -> str:
    return "none" if value is None else str(value)


def _mixture(declaration: ScheduleDeclaration, last: Revision, sources: Sequence[FoundSource]) -> Iterator[str]:
    """Weights and `epochs` that are declared otherwise; shares by tokens follow from the shards."""
    weighed = shares([source.weight for source in sources])
    for found, share in zip(sources, weighed, strict=True):
        source = last.source(found.name)
        if source is None:
            continue
        if source.epochs != found.epochs:
            yield (
                f"source {found.name}: `epochs` {_as_text(found.epochs)} declared, {_as_text(source.epochs)} scheduled"
            )
        if declaration.sources[0].weight is not None and source.share != share:
            yield (
                f"source {found.name}: {share / PLACES:.2%} of the samples declared, "
                f"{source.share / PLACES:.2%} scheduled"
            )


def changed_sources(last: Revision, sources: Sequence[FoundSource]) -> Iterator[str]:
    """Yield how the sources are otherwise than a revision has them, a sentence each."""
    for found in sources:
        source = last.source(found.name)
        now = {name: content for name, content, _ in found.shards}
        then = {} if source is None else {shard.name: shard.content for shard in source.shards}
        new, gone = sorted(now.keys() - then.keys()), sorted(then.keys() - now.keys())
        changed = [name for name in now if name in then and now[name] != then[name]]
        for what, names in (("new", new), ("changed", changed), ("gone", gone)):
            if names:
                yield f"source {found.name}: {count_of(len(names), 'shard')} {what}, the first is {names[0]}"
    declared = {found.name for found in sources}
    for source in last.sources:
        if source.name not in declared:
            yield f"source {source.name} is no longer declared"


def told_pending(declaration: ScheduleDeclaration, store: ArtifactStore, schedule: ScheduleHistory) -> list[str]:
    """The same as lines of text, with what to do; none if there is nothing."""
    found = [remark.sentence for remark in pending(declaration, store, schedule)]
    name = declaration.dataset
    told = [f"{name}: not read yet: {one}" for one in found]
    return [*told, revise_line(name)] if told else []
