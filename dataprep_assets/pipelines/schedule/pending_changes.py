"""Pending changes to a schedule: differences between its last revision and the current declaration and sources.

Pending changes take effect only when you run `dataprep schedule NAME --from-step N`.

Entry points: `find_pending_changes`, `find_changed_sources`, `describe_pending_changes`.
"""

from collections.abc import Iterator, Sequence

from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import DataprepError, count_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.schedule.declaration import ScheduleDeclaration
from dataprep_assets.pipelines.schedule.schedule_sources import find_sources
from dataprep_assets.serving.sampler.mixture import PLACES, round_shares
from dataprep_assets.serving.sampler.next_revision import CurrentSource
from dataprep_assets.serving.sampler.training_schedule import Revision, ScheduleHistory
from dataprep_assets.table import format_share

_SETTINGS = ("batch", "sequence_length", "seed", "samples", "steps")


def describe_revise_command(name: str) -> str:
    """Return a line with the command for training on the pending changes."""
    return f"To train on the changes from step N, run: dataprep schedule {name} --from-step N"


def find_pending_changes(
    declaration: ScheduleDeclaration, store: ArtifactStore, schedule: ScheduleHistory
) -> Iterator[Remark]:
    """Yield the differences between the last revision and the declaration or its sources, each with its YAML key."""
    last_revision = schedule.revisions[-1]
    for key in _SETTINGS:
        setting, read_setting = getattr(declaration, key), getattr(last_revision, key)
        # Ignore `steps` if `tokens` is set, because the number of steps then depends on the tokens already read.
        if setting != read_setting and not (key == "steps" and declaration.tokens is not None):
            yield _build_remark(
                (key,),
                f"`{key}`: the declaration has {_format_value(setting)}, but the schedule has "
                f"{_format_value(read_setting)}",
            )
    try:
        sources = find_sources(declaration, store)[0]
    except DataprepError as error:
        yield _build_remark(("sources",), f"the sources cannot be compared: {error}")
        return
    for sentence in (
        *_describe_mixture_changes(declaration, last_revision, sources),
        *find_changed_sources(last_revision, sources),
    ):
        yield _build_remark(("sources",), sentence)


def _build_remark(keys: tuple[str, ...], sentence: str) -> Remark:
    return Remark(keys=keys, sentence=sentence, hint=True)


def _format_value(value: object) -> str:
    return "none" if value is None else str(value)


def _describe_mixture_changes(
    declaration: ScheduleDeclaration, last_revision: Revision, sources: Sequence[CurrentSource]
) -> Iterator[str]:
    """Yield the changes of weights and `epochs`; shares by tokens are omitted, because they follow from the shards."""
    shares = round_shares([source.weight for source in sources])
    for part, share in zip(sources, shares, strict=True):
        source = last_revision.source(part.name)
        if source is None:
            continue
        if source.epochs != part.epochs:
            yield (
                f"source {part.name}: `epochs`: the declaration has {_format_value(part.epochs)}, but the schedule has "
                f"{_format_value(source.epochs)}"
            )
        if declaration.sources[0].weight is not None and source.share != share:
            yield (
                f"source {part.name}: share of the samples: the declaration has {format_share(share / PLACES)}, but "
                f"the schedule has {format_share(source.share / PLACES)}"
            )


def find_changed_sources(last_revision: Revision, sources: Sequence[CurrentSource]) -> Iterator[str]:
    """Yield one sentence per difference between the current sources and a revision's sources."""
    for part in sources:
        source = last_revision.source(part.name)
        current_contents = {name: content for name, content, _ in part.shards}
        old_contents = {} if source is None else {shard.name: shard.content for shard in source.shards}
        new, removed_names = (
            sorted(current_contents.keys() - old_contents.keys()),
            sorted(old_contents.keys() - current_contents.keys()),
        )
        changed = [
            name for name in current_contents if name in old_contents and current_contents[name] != old_contents[name]
        ]
        for label, names in (("new", new), ("changed", changed), ("removed", removed_names)):
            if names:
                prefix = ", beginning with" if len(names) > 1 else ":"
                yield f"source {part.name}: {count_of(len(names), f'{label} shard')}{prefix} {names[0]}"
    declared_names = {part.name for part in sources}
    for source in last_revision.sources:
        if source.name not in declared_names:
            yield f"source {source.name} is no longer declared"


def describe_pending_changes(
    declaration: ScheduleDeclaration, store: ArtifactStore, schedule: ScheduleHistory
) -> list[str]:
    """Return the pending changes as lines of text, followed by the command to run; empty if there are none."""
    sentences = [remark.sentence for remark in find_pending_changes(declaration, store, schedule)]
    name = declaration.dataset
    lines = [f"{name}: not in the schedule yet: {sentence}" for sentence in sentences]
    return [*lines, describe_revise_command(name)] if lines else []
