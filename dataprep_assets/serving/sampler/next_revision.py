"""Next revision of a schedule, built from the declaration and its current sources or rejected with a reason.

A source is continued under its name. Unchanged shards keep their position, and new shards are added to the unread
remainder. A shard with different documents is compared with its previous version, document by document: documents in
both keep their position, and new ones are added to the unread remainder. A document that moved is rejected, because it
would be read again. Shards whose documents changed but have no ids, and a different tokenizer, are rejected as well.

Entry points: `RevisionRequest`, `FoundSource`, `add_revision`.
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
    """Documents of a shard: the end of each, in tokens, and its id; uint64, shape ``(documents,)``.

    `ids` is None for a shard without an index of ids.
    """

    ends: NDArray[np.uint64]
    ids: NDArray[np.uint64] | None


DocumentsOf = Callable[[str], DocumentEnds]
"""Returns the documents of the shard with a given content, even if the shard no longer exists."""


@dataclass(frozen=True, kw_only=True)
class FoundSource:
    """A declared source in its current state.

    `weight` determines its share; `shards` contains (name, content, tokens). `Source` describes the other fields.
    """

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
    """Declared settings of a revision; `Revision` describes the fields."""

    name: str
    batch: int
    sequence_length: int
    seed: int
    samples: Samples
    steps: int | None


def add_revision(
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
    """Return the schedule with one more revision.

    Args:
        before: Current schedule; None creates one.
        wanted: Declared settings.
        sources: Declared sources in their current state.
        documents: Returns the documents of a shard.
        packs: Returns the packs of a shard, if samples are whole documents.
        from_step: First step of the new revision, which is the first step not trained yet, or to be trained again.
        trained: Number of trained steps; None means `from_step`, or the steps before the last revision.
        unmade: Revisions after `before` that the new one replaces, because none of their steps was trained.

    Raises ConfigError with the remedy for sources that cannot be read together, a step that the schedule does not have,
    a change that would repeat or lose samples, or a declaration without changes.
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
    # Steps that were trained beyond the last revision's first step were taken back by that revision.
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
        # A later revision is undone by this one, which is a change even if both read the same.
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
    """Return all settings that determine the data of a revision, except its steps."""
    value = asdict(revision)
    # `removed` and `added` are relative to the previous revision, so they may differ although the shards are the same.
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
        return  # there is no earlier step to compare with
    then = before.revisions[before.interval_at(from_step - 1).revision].sources[0]
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
        # Round up, because the last window of a shard may be short but is not dropped.
        samples = -(-tokens // wanted.sequence_length)
        shard = SourceShard(name=name, content=content, tokens=tokens, samples=samples, removed=removed, added=added)
        # `packs` takes the shard, so the shard is created first and its samples are counted afterwards.
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
    """Raise ConfigError if a document added to a shard was at a different place of the source before."""
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
    """Return the token ranges of a shard that its previous version did not have."""
    if then is not None and then.content == shard.content:
        return ()
    is_another = then is None or sum(stop - start for start, stop in shard.removed) == then.tokens
    return ((0, shard.tokens),) if is_another else shard.added


def _documents_within(documents: DocumentEnds, ranges: Ranges) -> Iterator[tuple[int, int]]:
    """Yield id and length of each document that begins in the token ranges, except empty documents.

    Yields nothing for documents without ids, because they cannot be identified.
    """
    if documents.ids is None or not ranges:
        return
    starts, stops = (np.array(column, np.uint64) for column in zip(*ranges, strict=True))
    # A plain 0 would be an int64, and NumPy converts int64 with uint64 to float64.
    lengths = np.diff(documents.ends, prepend=np.uint64(0))
    begins = documents.ends - lengths
    range_numbers = np.searchsorted(starts, begins, side="right") - 1
    inside = (lengths > 0) & (range_numbers >= 0) & (begins < stops[range_numbers])
    yield from zip(documents.ids[inside].tolist(), lengths[inside].tolist(), strict=True)


def changed_between(old: DocumentEnds, new: DocumentEnds) -> tuple[Ranges, Ranges] | None:
    """Return the token ranges of a shard's removed documents (old positions) and added documents (new positions).

    Returns None if the difference cannot be determined without ids. If no document is kept, no ranges are added: it is
    a different shard, which is new as a whole.
    """
    # Without ids, equal lengths are the only evidence of equal documents, which is not enough if some are missing.
    if old.ids is None or new.ids is None:
        return ((), ()) if np.array_equal(old.ends, new.ends) else None
    before, after = list(_documents(old)), list(_documents(new))
    kept_before, kept_after = _common_order(before, after)
    removed, added = (
        _left_out(documents.ends, kept_numbers) for documents, kept_numbers in ((old, kept_before), (new, kept_after))
    )
    return removed, added if kept_before else ()


def _left_out(ends: NDArray[np.uint64], kept: Sequence[int]) -> Ranges:
    """Return the token ranges of the documents that are not `kept`."""
    starts = np.concatenate([[0], ends[:-1]])
    other_numbers = np.setdiff1d(np.arange(len(ends)), kept)
    return joined_ranges([(int(starts[number]), int(ends[number])) for number in other_numbers.tolist()])


def _common_order(before: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Return the documents that both have in the same order, as their numbers before and after."""
    # Match in order: equal texts have equal ids, so only the documents around them show which one was removed.
    kept_numbers: list[int] = []
    for number, document in enumerate(before):
        if len(kept_numbers) < len(after) and document == after[len(kept_numbers)]:
            kept_numbers.append(number)
    if len(kept_numbers) == len(after):
        return kept_numbers, list(range(len(after)))
    # Some documents are new. The k-th of several equal documents is matched with the k-th one after the change.
    numbers_by_document: dict[tuple[int, int], list[int]] = {}
    for number, document in enumerate(after):
        numbers_by_document.setdefault(document, []).append(number)
    next_numbers = {document: iter(numbers) for document, numbers in numbers_by_document.items()}
    pairs = [
        (number, number_after)
        for number, document in enumerate(before)
        if (number_after := next(next_numbers.get(document, iter(())), None)) is not None
    ]
    return _longest_rising_pairs(pairs)


def _longest_rising_pairs(pairs: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Return the longest subsequence of the pairs, sorted by their first numbers, whose second numbers also rise."""
    # For each length, `lows` has the smallest last number of a rising run and `tails` the pair with that number.
    lows: list[int] = []
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
    """Return id and length of each document."""
    assert documents.ids is not None
    # A plain 0 would be an int64, and NumPy converts int64 with uint64 to float64.
    lengths = np.diff(documents.ends, prepend=np.uint64(0))
    return zip(documents.ids.tolist(), lengths.tolist(), strict=True)
