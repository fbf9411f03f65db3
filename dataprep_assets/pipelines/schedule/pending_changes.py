"""Pending changes of a schedule: differences between its last revision and the present declaration and sources.

Pending changes take effect only when you run `dataprep schedule NAME --from-step N`.

Entry points: `pending`, `changed_sources`, `pending_lines`.
"""

from collections.abc import Iterator, Sequence

from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import DataprepError, count_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.schedule.declaration import ScheduleDeclaration
from dataprep_assets.pipelines.schedule.schedule_sources import find_sources
from dataprep_assets.serving.sampler.mixture import PLACES, shares
from dataprep_assets.serving.sampler.next_revision import FoundSource
from dataprep_assets.serving.sampler.training_schedule import Revision, ScheduleHistory

_SETTINGS = ("batch", "sequence_length", "seed", "samples", "steps")


def revise_line(name: str) -> str:
    """Return the line that names the command for training on the pending changes."""
    return f"To train on the changes from step N on, run: dataprep schedule {name} --from-step N"


def pending(declaration: ScheduleDeclaration, store: ArtifactStore, schedule: ScheduleHistory) -> Iterator[Remark]:
    """Yield the differences between the last revision and the declaration or its sources, each with its YAML key."""
    last_revision = schedule.revisions[-1]
    for key in _SETTINGS:
        setting, read = getattr(declaration, key), getattr(last_revision, key)
        # with `tokens`, the number of steps depends on the tokens already read, so a different number is not a change
        if setting != read and not (key == "steps" and declaration.tokens is not None):
            yield _remark((key,), f"`{key}`: {_as_text(setting)} declared, {_as_text(read)} scheduled")
    try:
        sources = find_sources(declaration, store)[0]
    except DataprepError as error:
        yield _remark(("sources",), f"its sources cannot be compared: {error}")
        return
    for sentence in (*_mixture(declaration, last_revision, sources), *changed_sources(last_revision, sources)):
        yield _remark(("sources",), sentence)


def _remark(keys: tuple[str, ...], told: str) -> Remark:
    return Remark(keys=keys, sentence=told, hint=True)


def _as_text(value: object) -> str:
    return "none" if value is None else str(value)


def _mixture(declaration: ScheduleDeclaration, last: Revision, sources: Sequence[FoundSource]) -> Iterator[str]:
    """Yield the changed weights and `epochs`. Shares by tokens are omitted, because they follow from the shards."""
    weighed = shares([source.weight for source in sources])
    for part, share in zip(sources, weighed, strict=True):
        source = last.source(part.name)
        if source is None:
            continue
        if source.epochs != part.epochs:
            yield (
                f"source {part.name}: `epochs` {_as_text(part.epochs)} declared, {_as_text(source.epochs)} scheduled"
            )
        if declaration.sources[0].weight is not None and source.share != share:
            yield (
                f"source {part.name}: {share / PLACES:.2%} of the samples declared, "
                f"{source.share / PLACES:.2%} scheduled"
            )


def changed_sources(last: Revision, sources: Sequence[FoundSource]) -> Iterator[str]:
    """Yield one sentence per difference between the present sources and a revision's sources."""
    for part in sources:
        source = last.source(part.name)
        now = {name: content for name, content, _ in part.shards}
        then = {} if source is None else {shard.name: shard.content for shard in source.shards}
        new, gone_names = sorted(now.keys() - then.keys()), sorted(then.keys() - now.keys())
        changed = [name for name in now if name in then and now[name] != then[name]]
        for what, names in (("new", new), ("changed", changed), ("gone", gone_names)):
            if names:
                yield f"source {part.name}: {count_of(len(names), 'shard')} {what}, the first is {names[0]}"
    declared_names = {part.name for part in sources}
    for source in last.sources:
        if source.name not in declared_names:
            yield f"source {source.name} is no longer declared"


def pending_lines(declaration: ScheduleDeclaration, store: ArtifactStore, schedule: ScheduleHistory) -> list[str]:
    """Return the pending changes as lines of text, followed by the command to run; empty if nothing is pending."""
    sentences = [remark.sentence for remark in pending(declaration, store, schedule)]
    name = declaration.dataset
    lines = [f"{name}: not read yet: {sentence}" for sentence in sentences]
    return [*lines, revise_line(name)] if lines else []
