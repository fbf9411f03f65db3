"""Readable summaries of what each revision of a schedule changed.

Entry points: `changes_of`, `revision_lines`.
"""

from collections.abc import Iterator

from dataprep_assets.serving.sampler.mixture import PLACES
from dataprep_assets.serving.sampler.training_schedule import ScheduleHistory, Source

_SETTINGS = ("batch", "sequence_length", "seed", "samples", "steps")


def changes_of(schedule: ScheduleHistory, number: int) -> list[str]:
    """Return how a revision differs from the one before its first step; for the first revision, its settings."""
    now = schedule.revisions[number]
    if not number:
        settings = [f"{name} {getattr(now, name)}" for name in _SETTINGS if getattr(now, name) is not None]
        return [*settings, *(f"{source.name} {_share(source)}" for source in now.sources)]
    before = schedule.revisions[schedule.first_revisions(number).interval_at(now.first_step).revision]
    changes = [
        f"{name} {getattr(before, name)} → {getattr(now, name)}"
        for name in _SETTINGS
        if getattr(before, name) != getattr(now, name)
    ]
    for source in now.sources:
        then = before.source(source.name)
        if then is None:
            changes.append(f"{source.name} added, {_share(source)}")
            continue
        if then.share != source.share:
            changes.append(f"{source.name} {_share(then)} → {_share(source)}")
        if then.epochs != source.epochs:
            changes.append(f"{source.name}: epochs {then.epochs} → {source.epochs}")
        changes += _shards(then, source)
    changes += [f"{source.name} left out" for source in before.sources if now.source(source.name) is None]
    return changes or ["nothing: it takes steps back"]


def _share(source: Source) -> str:
    return f"{source.share / PLACES:.2%}"


def _shards(then: Source, now: Source) -> Iterator[str]:
    old = {shard.name: shard.content for shard in then.shards}
    new = {shard.name: shard.content for shard in now.shards}
    counts = {
        "new": len(new.keys() - old.keys()),
        "changed": sum(old.get(name, content) != content for name, content in new.items()),
        "gone": len(old.keys() - new.keys()),
    }
    text = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    if text:
        yield f"shards of {now.name}: {text}"


def revision_lines(schedule: ScheduleHistory) -> list[str]:
    """Return one line per revision with its number, its first step and its changes."""
    # These numbers are also shown for sensitive data, because none of them counts people.
    return [
        f"revision {number} from step {revision.first_step:,}: {'; '.join(changes_of(schedule, number))}"
        for number, revision in enumerate(schedule.revisions)
    ]
