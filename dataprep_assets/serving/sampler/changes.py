"""Readable summaries of what each revision of a schedule changed.

Entry points: `describe_changes`, `describe_revisions`.
"""

from collections.abc import Iterator

from dataprep_assets.serving.sampler.mixture import PLACES
from dataprep_assets.serving.sampler.training_schedule import ScheduleHistory, Source
from dataprep_assets.table import format_share

_SETTINGS = ("batch", "sequence_length", "seed", "samples", "steps")


def describe_changes(schedule: ScheduleHistory, number: int) -> list[str]:
    """Return a text for each difference between revision `number` and the revision that it follows.

    For the first revision, return a text for each setting and source.
    """
    now = schedule.revisions[number]
    if not number:
        settings = [f"{name} {getattr(now, name)}" for name in _SETTINGS if getattr(now, name) is not None]
        return [*settings, *(f"{source.name} {_format_share(source)}" for source in now.sources)]
    old_revision = schedule.revisions[schedule.take_first_revisions(number).find_interval(now.first_step).revision]
    changes = [
        f"{name} {getattr(old_revision, name)} → {getattr(now, name)}"
        for name in _SETTINGS
        if getattr(old_revision, name) != getattr(now, name)
    ]
    for source in now.sources:
        old_source = old_revision.source(source.name)
        if old_source is None:
            changes.append(f"{source.name} added, {_format_share(source)}")
            continue
        if old_source.share != source.share:
            changes.append(f"{source.name} {_format_share(old_source)} → {_format_share(source)}")
        if old_source.epochs != source.epochs:
            changes.append(f"{source.name}: epochs {old_source.epochs} → {source.epochs}")
        changes += _describe_shards(old_source, source)
    changes += [f"{source.name} removed" for source in old_revision.sources if now.source(source.name) is None]
    return changes or ["no changes; steps are only withdrawn"]


def _format_share(source: Source) -> str:
    return format_share(source.share / PLACES)


def _describe_shards(old_source: Source, now: Source) -> Iterator[str]:
    old = {shard.name: shard.content for shard in old_source.shards}
    new = {shard.name: shard.content for shard in now.shards}
    counts = {
        "new": len(new.keys() - old.keys()),
        "changed": sum(old.get(name, content) != content for name, content in new.items()),
        "removed": len(old.keys() - new.keys()),
    }
    text = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    if text:
        yield f"shards of {now.name}: {text}"


def describe_revisions(schedule: ScheduleHistory) -> list[str]:
    """Return one line per revision with its number, its first step and its changes."""
    # Show these numbers even for sensitive data, because none of them counts people.
    return [
        f"revision {number} from step {revision.first_step:,}: {'; '.join(describe_changes(schedule, number))}"
        for number, revision in enumerate(schedule.revisions)
    ]
