"""Makes the next revision of a schedule from what is declared and what its sources are now, or says why there is none.

A source goes on under its name: shards that are as they were keep their place, new ones are added to what was not read
yet, and a shard with other documents is compared with its former self, document by document: those that it still has
keep their place, those that are new in it are content that was not read yet. A document that moved to another place is
refused, because it would be read again, and so are a shard of other documents without ids and another tokenizer.

Entry points: `RevisionRequest`, `FoundSource`, `revised`.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError
from dataprep_assets.formats.document_index import TOKEN_BINS
from dataprep_assets.serving.sampler.mixture import shares
from dataprep_assets.serving.sampler.sampler import Sampler
from dataprep_assets.serving.sampler.source_order import Packs
from dataprep_assets.serving.sampler.training_schedule import (
    Ranges,
    Revision,
    Samples,
    ScheduleHistory,
    Source,
    SourceShard,
    joined_ranges,
)


@dataclass(frozen=True, kw_only=True)
class DocumentEnds:
    """The documents of a shard: where each ends, in tokens, and its id; uint64, shape ``(documents,)``.

    `ids` are None for a shard without an index of ids.
    """

    ends: NDArray[np.uint64]
    ids: NDArray[np.uint64] | None


DocumentsOf = Callable[[str], DocumentEnds]
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
class RevisionRequest:
    """What is declared; as in `Revision`."""

    name: str
    batch: int
    sequence_length: int
    seed: int
    samples: Samples
    steps: int | None


def revised(
    before: ScheduleHistory | None,
    wanted: RevisionRequest,
    sources: Sequence[FoundSource],
    *,
    documents: DocumentsOf,
    packs: Packs,
    from_step: int = 0,
    trained: int | None = None,
    unmade: Sequence[Revision] = (),
) -> ScheduleHistory:
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
            raise ConfigError(f"{wanted.name}: the schedule does not exist yet, so its first revision begins at step 0")
    else:
        end = Sampler(before, packs).end
        if not 0 <= from_step <= end:
            raise ConfigError(f"{wanted.name}: --from-step {from_step}: the schedule has steps 0 to {end - 1}")
        _require_same_tokenizer(before, sources, from_step)
    # what was trained on beyond the last revision's first step was taken back by it
    known_steps = (
        max(from_step, revisions[-1].first_step, *(replaced_revision.trained for replaced_revision in unmade))
        if revisions
        else 0
    )
    if trained is not None and trained < from_step:
        raise ConfigError(f"{wanted.name}: --trained ({trained}) must not be less than --from-step ({from_step})")
    parts = shares([source.weight for source in sources]) if sources else []
    new_revision = Revision(
        first_step=from_step,
        trained=known_steps if trained is None else trained,
        batch=wanted.batch,
        sequence_length=wanted.sequence_length,
        seed=wanted.seed,
        samples=wanted.samples,
        steps=wanted.steps,
        sources=tuple(
            _source(found_source, share, wanted, _before(before, from_step, found_source.name), documents, packs)
            for found_source, share in zip(sources, parts, strict=True)
        ),
    )
    if before is not None:
        _require_whole_documents(before, new_revision, from_step)
        revision = (*revisions, *unmade)[-1]
        # One that begins later is undone by this one, which is a change even where both read the same.
        if revision.first_step <= from_step and reads(revision) == reads(new_revision):
            raise ConfigError(
                f"{wanted.name}: nothing has changed: the revision from step {revision.first_step} already reads the "
                f"same at step {from_step}. A resumed run needs no revision"
            )
    schedule = ScheduleHistory(name=wanted.name, revisions=(*revisions, new_revision))
    if (after := Sampler(schedule, packs)).end <= from_step:
        raise ConfigError(f"{wanted.name}: no step is possible: {after.rules[-1].why}")
    return schedule


def reads(revision: Revision) -> dict[str, Any]:
    """All that decides what a revision reads, but its steps."""
    value = asdict(revision)
    # what a shard lost or gained is told against the revision before, so it differs where the same is read
    for source in value["sources"]:
        for shard in source["shards"]:
            del shard["removed"], shard["added"]
    return {name: part for name, part in value.items() if name not in ("first_step", "trained")}


def _require_one_tokenizer(sources: Sequence[FoundSource]) -> None:
    for source in sources[1:]:
        reference = sources[0]
        if (source.tokenizer, source.dtype) != (reference.tokenizer, reference.dtype):
            raise ConfigError(
                f"sources {reference.name} and {source.name} have different tokenizers ({reference.tokenizer[:12]}, "
                f"{reference.dtype}; {source.tokenizer[:12]}, {source.dtype}), but a model reads only one. Rebuild one "
                "of them"
            )


def _require_same_tokenizer(before: ScheduleHistory, sources: Sequence[FoundSource], from_step: int) -> None:
    if not from_step:
        return  # nothing was read before it
    then = before.revisions[before.reign(from_step - 1).revision].sources[0]
    for source in sources:
        if source.tokenizer != then.tokenizer:
            raise ConfigError(
                f"source {source.name} has the tokenizer {source.tokenizer[:12]}, but the steps before {from_step} "
                f"read {then.tokenizer[:12]}, and a model reads only one. Rebuild the source with that tokenizer, or "
                "declare a schedule of a different name"
            )


def _require_whole_documents(before: ScheduleHistory, made: Revision, from_step: int) -> None:
    for reign in before.reigns:
        old = before.revisions[reign.revision]
        if reign.first < from_step and old.samples == "documents" and made.sequence_length % old.sequence_length:
            raise ConfigError(
                f"sequence_length {made.sequence_length}: from step {reign.first} on, whole documents were packed "
                f"into samples of {old.sequence_length}, and the unread ones would be cut. Use a multiple of "
                f"{old.sequence_length}, which joins them, or rename the sources to start them over"
            )


def _before(schedule: ScheduleHistory | None, step: int, name: str) -> Source | None:
    return None if schedule is None else schedule.source_before(step, name)


def _source(
    found: FoundSource, share: int, wanted: RevisionRequest, before: Source | None, documents: DocumentsOf, packs: Packs
) -> Source:
    old = {shard.name: shard for shard in before.shards} if before is not None else {}
    shards = []
    for name, content, tokens in found.shards:
        then = old.get(name)
        changed = then is not None and then.content != content
        removed, added = _changed_ranges(found.name, then, content, documents) if then and changed else ((), ())
        # rounded up: the last window of a shard is short, not left out
        samples = -(-tokens // wanted.sequence_length)
        shard = SourceShard(name=name, content=content, tokens=tokens, samples=samples, removed=removed, added=added)
        # packs are looked up by the shard, so it is made first, and counted then
        if wanted.samples == "documents":
            shard = replace(shard, samples=len(packs(shard, wanted.sequence_length).ends))
        shards.append(shard)
    _require_unmoved(found.name, old, shards, documents)
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


def _changed_ranges(source: str, then: SourceShard, content: str, documents: DocumentsOf) -> tuple[Ranges, Ranges]:
    changed = changed_between(documents(then.content), documents(content))
    if changed is None:
        raise ConfigError(
            f"source {source}: shard {then.name} was rebuilt from different documents (content {then.content[:12]}, "
            f"now {content[:12]}) and has no ids, so its order cannot be continued. Rename the source to start it "
            "over, or restore the shard"
        )
    return changed


def _require_unmoved(
    source: str, old: Mapping[str, SourceShard], shards: Sequence[SourceShard], documents: DocumentsOf
) -> None:
    """Raise ConfigError if a document that is new in a shard is one that the source had elsewhere before."""
    now = {shard.name: shard for shard in shards}
    gone_documents: set[tuple[int, int]] = set()
    for name, then in old.items():
        present_shard = now.get(name)
        if present_shard is None or present_shard.content != then.content:
            gone_documents.update(
                _documents_within(
                    documents(then.content), present_shard.removed if present_shard else ((0, then.tokens),)
                )
            )
    for shard in shards if gone_documents else ():
        if gone_documents.intersection(
            _documents_within(documents(shard.content), _new_ranges(old.get(shard.name), shard))
        ):
            raise ConfigError(
                f"source {source}: shard {shard.name} has documents that were at a different place before, so they "
                "would be read again. Rename the source to start it over, or move them back"
            )


def _new_ranges(then: SourceShard | None, shard: SourceShard) -> Ranges:
    """The ranges of tokens of a shard that its former self did not have."""
    if then is not None and then.content == shard.content:
        return ()
    is_another = then is None or sum(stop - start for start, stop in shard.removed) == then.tokens
    return ((0, shard.tokens),) if is_another else shard.added


def _documents_within(documents: DocumentEnds, ranges: Ranges) -> Iterator[tuple[int, int]]:
    """Id and length of each document in ranges of tokens; those without tokens are in none.

    Without ids there are none: which documents these are is not known.
    """
    if documents.ids is None or not ranges:
        return
    starts, stops = (np.array(column, np.uint64) for column in zip(*ranges, strict=True))
    # a plain 0 would be an int64, which together with uint64 becomes float64
    lengths = np.diff(documents.ends, prepend=np.uint64(0))
    begins = documents.ends - lengths
    range_numbers = np.searchsorted(starts, begins, side="right") - 1
    inside = (lengths > 0) & (range_numbers >= 0) & (begins < stops[range_numbers])
    yield from zip(documents.ids[inside].tolist(), lengths[inside].tolist(), strict=True)


def changed_between(old: DocumentEnds, new: DocumentEnds) -> tuple[Ranges, Ranges] | None:
    """The ranges of tokens of documents that a shard lost, in the numbers of then, and of those that it gained, in the
    numbers of now; None if it has no ids by which that could be told.

    Where no document is left nothing is gained: it is another shard, all of which is new.
    """
    # without ids only equal lengths speak for equal documents, which is not enough where some are missing
    if old.ids is None or new.ids is None:
        return ((), ()) if np.array_equal(old.ends, new.ends) else None
    before, after = list(_documents(old)), list(_documents(new))
    kept_before, kept_after = _in_order(before, after)
    removed, added = (
        _left_out(documents.ends, kept_numbers) for documents, kept_numbers in ((old, kept_before), (new, kept_after))
    )
    return removed, added if kept_before else ()


def _left_out(ends: NDArray[np.uint64], kept: Sequence[int]) -> Ranges:
    """The ranges of tokens of the documents that are not `kept`."""
    starts = np.concatenate([[0], ends[:-1]])
    other_numbers = np.setdiff1d(np.arange(len(ends)), kept)
    return joined_ranges([(int(starts[number]), int(ends[number])) for number in other_numbers.tolist()])


def _in_order(before: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """The documents that both have in one order, as their numbers before and after."""
    # One after another, because equal texts have equal ids: which of them went, only the order of the others tells.
    kept_numbers: list[int] = []
    for number, document in enumerate(before):
        if len(kept_numbers) < len(after) and document == after[len(kept_numbers)]:
            kept_numbers.append(number)
    if len(kept_numbers) == len(after):
        return kept_numbers, list(range(len(after)))
    # Some are new. Of what both have the longest part in one order: the k-th of equal documents is the k-th again.
    numbers_by_document: dict[tuple[int, int], list[int]] = {}
    for number, document in enumerate(after):
        numbers_by_document.setdefault(document, []).append(number)
    next_numbers = {document: iter(numbers) for document, numbers in numbers_by_document.items()}
    pairs = [
        (number, number_after)
        for number, document in enumerate(before)
        if (number_after := next(next_numbers.get(document, iter(())), None)) is not None
    ]
    return _rising(pairs)


def _rising(pairs: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """The longest part of pairs, which rise in their first numbers, that rises in the second, too."""
    lows: list[int] = []  # the smallest second number in which a run of each length ends, and the pair that it is of
    tails: list[int] = []
    earlier = []
    for number, (_, target) in enumerate(pairs):
        length = bisect_left(lows, target)
        earlier.append(tails[length - 1] if length else -1)
        lows[length : length + 1], tails[length : length + 1] = [target], [number]
    chain, number = [], tails[-1] if tails else -1
    while number >= 0:
        chain.append(pairs[number])
        number = earlier[number]
    return [index for index, _ in reversed(chain)], [target for _, target in reversed(chain)]


def _documents(documents: DocumentEnds) -> Iterator[tuple[int, int]]:
    """Id and length of each document."""
    assert documents.ids is not None
    # a plain 0 would be an int64, which together with uint64 becomes float64
    lengths = np.diff(documents.ends, prepend=np.uint64(0))
    return zip(documents.ids.tolist(), lengths.tolist(), strict=True)
