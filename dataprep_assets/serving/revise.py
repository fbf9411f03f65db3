"""Makes the next revision of a schedule from what is declared and what its sources are now, or says why there is none.

A source goes on under its name: shards that are as they were keep their place, new ones are added to what was not read
yet, and a shard that lost documents is compared with its former self, document by document. Whatever else has become
of a shard has no order that goes on, and is refused.

Entry points: `Wanted`, `FoundSource`, `revised`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError
from dataprep_assets.formats.document_index import TOKEN_BINS
from dataprep_assets.serving.mixture import shares
from dataprep_assets.serving.sampler import Sampler
from dataprep_assets.serving.source_order import Packs
from dataprep_assets.serving.training_schedule import (
    Revision,
    Samples,
    Source,
    SourceShard,
    TrainingSchedule,
    removed_of,
)


@dataclass(frozen=True, kw_only=True)
class Documents:
    """The documents of a shard: where each ends, in tokens, and its id; uint64, shape ``(documents,)``.

    `ids` are None for a shard without an index of ids.
    """

    ends: NDArray[np.uint64]
    ids: NDArray[np.uint64] | None


DocumentsOf = Callable[[str], Documents]
"""Gives the documents of the shard with a content; of one that is there no more, too."""


@dataclass(frozen=True, kw_only=True)
class FoundSource:
    """A declared source as it is now: `weight` decides its share, `shards` are (name, content, tokens); the rest is as
    in `Source`."""

    name: str
    dataset: str
    split: str
    dtype: str
    tokenizer: str
    weight: float
    shards: tuple[tuple[str, str, int], ...]
    epochs: int | None = None
    artifact: str = TOKEN_BINS


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is declared; as in `Revision`."""

    name: str
    batch: int
    sequence_length: int
    seed: int
    samples: Samples
    steps: int | None


def revised(
    before: TrainingSchedule | None,
    wanted: Wanted,
    sources: Sequence[FoundSource],
    *,
    documents: DocumentsOf,
    packs: Packs,
    from_step: int = 0,
    trained: int | None = None,
    unmade: Sequence[Revision] = (),
) -> TrainingSchedule:
    """The schedule with one more revision.

    Args:
        before: The schedule as it is; None to begin one.
        wanted: What is declared.
        sources: The declared sources as they are now.
        documents: Gives the documents of a shard.
        packs: Gives the packs of a shard, where samples are whole documents.
        from_step: The first step that it decides, which is the first that was not trained on, or that is trained on
            again.
        trained: How many steps were trained on; None: `from_step`, or those before the last revision.
        unmade: Revisions after those of `before` that the new one replaces, because nothing was trained under them.

    Raises ConfigError, saying what to do, for sources that cannot be read together, for a step that the schedule does
    not reach, for a change that would repeat or lose samples, and where nothing has changed.
    """
    revisions = () if before is None else before.revisions
    _require_one_tokenizer(sources)
    if before is None:
        if from_step:
            raise ConfigError(f"{wanted.name}: there is no schedule yet, so its first revision begins at step 0")
    else:
        end = Sampler(before, packs).end
        if not 0 <= from_step <= end:
            raise ConfigError(f"{wanted.name}: --from-step {from_step}: the schedule has steps 0 to {end - 1}")
    # what was trained on beyond the last revision's first step was taken back by it
    known = max(from_step, revisions[-1].first_step, *(one.trained for one in unmade)) if revisions else 0
    if trained is not None and trained < from_step:
        raise ConfigError(f"{wanted.name}: --trained {trained}: fewer steps than --from-step {from_step} goes on from")
    parts = shares([source.weight for source in sources]) if sources else []
    made = Revision(
        first_step=from_step,
        trained=known if trained is None else trained,
        batch=wanted.batch,
        sequence_length=wanted.sequence_length,
        seed=wanted.seed,
        samples=wanted.samples,
        steps=wanted.steps,
        sources=tuple(
            _source(found, share, wanted, _before(before, from_step, found.name), documents, packs)
            for found, share in zip(sources, parts, strict=True)
        ),
    )
    if before is not None:
        _require_whole_documents(before, made, from_step)
        last = (*revisions, *unmade)[-1]
        # One that begins later is undone by this one, which is a change even where both read the same.
        if last.first_step <= from_step and reads(last) == reads(made):
            raise ConfigError(
                f"{wanted.name}: nothing has changed: step {from_step} is already decided by the revision from step "
                f"{last.first_step}, which reads the same. A run that is resumed needs no revision"
            )
    schedule = TrainingSchedule(name=wanted.name, revisions=(*revisions, made))
    if (after := Sampler(schedule, packs)).end <= from_step:
        raise ConfigError(f"{wanted.name}: no step could be made: {after.rules[-1].why}")
    return schedule


def reads(revision: Revision) -> dict[str, Any]:
    """All that decides what a revision reads, but its steps."""
    value = asdict(revision)
    # what a shard lost is told against the revision before, so it differs where the same is read
    for source in value["sources"]:
        for shard in source["shards"]:
            del shard["removed"]
    return {name: part for name, part in value.items() if name not in ("first_step", "trained")}


def _require_one_tokenizer(sources: Sequence[FoundSource]) -> None:
    for source in sources[1:]:
        first = sources[0]
        if (source.tokenizer, source.dtype) != (first.tokenizer, first.dtype):
            raise ConfigError(
                f"sources {first.name} and {source.name} were made with different tokenizers ({first.tokenizer[:12]}, "
                f"{first.dtype}; {source.tokenizer[:12]}, {source.dtype}): a model reads one. Make one of them again"
            )


def _require_whole_documents(before: TrainingSchedule, made: Revision, from_step: int) -> None:
    for reign in before.reigns:
        old = before.revisions[reign.revision]
        if reign.first < from_step and old.samples == "documents" and made.sequence_length % old.sequence_length:
            raise ConfigError(
                f"sequence_length {made.sequence_length}: from step {reign.first} on whole documents were packed into "
                f"samples of {old.sequence_length}, and those that were not read yet would be cut. A multiple of "
                f"{old.sequence_length} joins them; or give the sources new names, to begin them again"
            )


def _before(schedule: TrainingSchedule | None, step: int, name: str) -> Source | None:
    return None if schedule is None else schedule.source_before(step, name)


def _source(
    found: FoundSource, share: int, wanted: Wanted, before: Source | None, documents: DocumentsOf, packs: Packs
) -> Source:
    old = {shard.name: shard for shard in before.shards} if before is not None else {}
    shards = []
    for name, content, tokens in found.shards:
        then = old.get(name)
        removed = () if then is None or then.content == content else _removed(found.name, then, content, documents)
        # rounded up: the last window of a shard is short, not left out
        samples = -(-tokens // wanted.sequence_length)
        shard = SourceShard(name=name, content=content, tokens=tokens, samples=samples, removed=removed)
        # Packs are looked up by the shard, so it is made first, and counted then.
        if wanted.samples == "documents":
            counted = len(packs(shard, wanted.sequence_length).ends)
            shard = SourceShard(name=name, content=content, tokens=tokens, samples=counted, removed=removed)
        shards.append(shard)
    return Source(
        name=found.name,
        dataset=found.dataset,
        split=found.split,
        dtype=found.dtype,
        tokenizer=found.tokenizer,
        share=share,
        shards=tuple(shards),
        epochs=found.epochs,
        artifact=found.artifact,
    )


def _removed(source: str, then: SourceShard, content: str, documents: DocumentsOf) -> tuple[tuple[int, int], ...]:
    removed = removed_between(documents(then.content), documents(content))
    if removed is None:
        raise ConfigError(
            f"source {source}: shard {then.name} was made anew of other documents than before (content "
            f"{then.content[:12]}, now {content[:12]}), not only of fewer: which of them were read is not defined. "
            "Give the source another `name` to begin it again, or make the shard as it was"
        )
    return removed


def removed_between(old: Documents, new: Documents) -> tuple[tuple[int, int], ...] | None:
    """The ranges of tokens of documents that a shard lost; None if more than that has become of it."""
    # without ids only equal lengths speak for equal documents, which is not enough where some are missing
    if old.ids is None or new.ids is None:
        return () if np.array_equal(old.ends, new.ends) else None
    kept = np.zeros(len(old.ids), np.bool_)
    # a number may be given again to a shard of new documents, after one that is gone
    if np.isin(old.ids, new.ids).any():
        # One after another, because equal texts have equal ids: which of them went, only the order of the others tells.
        left = iter(_documents(new))
        wanted = next(left, None)
        for at, one in enumerate(_documents(old)):
            if one == wanted:
                kept[at], wanted = True, next(left, None)
        if wanted is not None:
            return None
    starts = np.concatenate([[0], old.ends[:-1]])
    return removed_of([(int(starts[at]), int(old.ends[at])) for at in np.flatnonzero(~kept)])


def _documents(documents: Documents) -> Iterator[tuple[int, int]]:
    """Id and length of each document."""
    assert documents.ids is not None
    # a plain 0 would be an int64, which together with uint64 becomes float64
    lengths = np.diff(documents.ends, prepend=np.uint64(0))
    return zip(documents.ids.tolist(), lengths.tolist(), strict=True)
