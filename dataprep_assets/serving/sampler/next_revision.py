"""Next revision of a schedule, built from the declaration and its current sources or rejected with a reason.

A source is continued under its name. Unchanged shards keep their position, and new shards are added to the unread
remainder. A shard with different documents is compared with its previous version, document by document: documents in
both versions keep their position, and new documents are added to the unread remainder. A document that moved is
rejected, because it would be read again. Shards whose documents changed but have no ids, and a different tokenizer, are
rejected as well.

Entry points: `RevisionRequest`, `CurrentSource`, `add_revision`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError
from dataprep_assets.formats.document_index import TOKEN_BINS
from dataprep_assets.serving.sampler.mixture import round_shares
from dataprep_assets.serving.sampler.sampler import Sampler
from dataprep_assets.serving.sampler.source_order import Packs
from dataprep_assets.serving.sampler.training_schedule import (
    Ranges,
    Revision,
    Samples,
    ScheduleHistory,
    Source,
    SourceShard,
    join_ranges,
)
from dataprep_assets.subsequence import find_longest_rising_pairs


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
class CurrentSource:
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
    history: ScheduleHistory | None,
    request: RevisionRequest,
    sources: Sequence[CurrentSource],
    *,
    documents: DocumentsOf,
    packs: Packs,
    from_step: int = 0,
    trained: int | None = None,
    unmade: Sequence[Revision] = (),
) -> ScheduleHistory:
    """Return the schedule with one more revision.

    Args:
        history: Current schedule; None creates one.
        request: Declared settings.
        sources: Declared sources in their current state.
        documents: Returns the documents of a shard.
        packs: Returns the packs of a shard, if samples are whole documents.
        from_step: First step of the new revision: the first step that is not trained yet or will be trained again.
        trained: Number of trained steps; None means `from_step`, or the steps before the last revision.
        unmade: Revisions after `history` that the new revision replaces, because none of their steps was trained.

    Raises ConfigError with the remedy for sources that cannot be read together, a step that the schedule does not have,
    a change that would repeat or lose samples, or a declaration without changes.
    """
    revisions = () if history is None else history.revisions
    _require_one_tokenizer(sources)
    if history is None:
        if from_step:
            raise ConfigError(
                f"{request.name}: --from-step {from_step}: the schedule does not exist yet, and its first revision "
                f"begins at step 0. Run `dataprep run {request.name}` to create it"
            )
    else:
        end = Sampler(history, packs).end
        if not 0 <= from_step <= end:
            raise ConfigError(f"{request.name}: --from-step must be from 0 to {end}, not {from_step}")
        _require_same_tokenizer(history, sources, from_step)
    # Only the steps before the latest of these steps are known to be trained. Later steps that were trained under an
    # earlier revision do not count, because the last revision took them back.
    known_steps = (
        max(from_step, revisions[-1].first_step, *(replaced_revision.trained for replaced_revision in unmade))
        if revisions
        else 0
    )
    if trained is not None and trained < from_step:
        raise ConfigError(f"{request.name}: --trained ({trained}) must not be less than --from-step ({from_step})")
    parts = round_shares([source.weight for source in sources]) if sources else []
    new_revision = Revision(
        first_step=from_step,
        trained=known_steps if trained is None else trained,
        batch=request.batch,
        sequence_length=request.sequence_length,
        seed=request.seed,
        samples=request.samples,
        steps=request.steps,
        sources=tuple(
            _build_source(
                found_source,
                share,
                request,
                _find_source_before(history, from_step, found_source.name),
                documents,
                packs,
            )
            for found_source, share in zip(sources, parts, strict=True)
        ),
    )
    if history is not None:
        _require_whole_documents(history, new_revision, from_step)
        revision = (*revisions, *unmade)[-1]
        # A revision that takes back a later one is a change, even if it reads the same data.
        if revision.first_step <= from_step and list_data_settings(revision) == list_data_settings(new_revision):
            raise ConfigError(
                f"{request.name}: nothing has changed since the revision from step {revision.first_step}, which "
                f"already determines step {from_step}. Resume the run without a new revision"
            )
    schedule = ScheduleHistory(name=request.name, revisions=(*revisions, new_revision))
    if (sampler := Sampler(schedule, packs)).end <= from_step:
        raise ConfigError(
            f"{request.name}: no steps are left from step {from_step} on, because {sampler.rules[-1].why}. Raise "
            "`steps` or `epochs`"
        )
    return schedule


def list_data_settings(revision: Revision) -> dict[str, Any]:
    """Return all settings that determine the data of a revision, except its steps."""
    value = asdict(revision)
    # `removed` and `added` are relative to the previous revision, so they may differ although the shards are the same.
    for source in value["sources"]:
        for shard in source["shards"]:
            del shard["removed"], shard["added"]
    return {name: part for name, part in value.items() if name not in ("first_step", "trained")}


def _require_one_tokenizer(sources: Sequence[CurrentSource]) -> None:
    for source in sources[1:]:
        reference = sources[0]
        if (source.tokenizer, source.dtype) != (reference.tokenizer, reference.dtype):
            raise ConfigError(
                f"sources {reference.name} and {source.name} must have the same tokenizer and dtype, not "
                f"{reference.tokenizer[:12]} ({reference.dtype}) and {source.tokenizer[:12]} ({source.dtype}). Rebuild "
                "one of them with the other's settings"
            )


def _require_same_tokenizer(history: ScheduleHistory, sources: Sequence[CurrentSource], from_step: int) -> None:
    if not from_step:
        return  # there is no earlier step to compare with
    old_revision = history.revisions[history.find_interval(from_step - 1).revision].sources[0]
    for source in sources:
        if source.tokenizer != old_revision.tokenizer:
            raise ConfigError(
                f"source {source.name} has the tokenizer {source.tokenizer[:12]}, but the steps before {from_step} use "
                f"{old_revision.tokenizer[:12]}, and a schedule can use only one. Rebuild the source with that "
                "tokenizer, or declare a new schedule"
            )


def _require_whole_documents(history: ScheduleHistory, revision: Revision, from_step: int) -> None:
    for interval in history.intervals:
        old = history.revisions[interval.revision]
        if interval.first < from_step and old.samples == "documents" and revision.sequence_length % old.sequence_length:
            raise ConfigError(
                f"sequence_length must be a multiple of {old.sequence_length}, not {revision.sequence_length}. From "
                f"step {interval.first} on, whole documents were packed into samples of {old.sequence_length} tokens, "
                "and a different length would split the unread documents differently. Use a multiple, or rename the "
                "sources to start them over"
            )


def _find_source_before(schedule: ScheduleHistory | None, step: int, name: str) -> Source | None:
    return None if schedule is None else schedule.source_before(step, name)


def _build_source(
    source: CurrentSource,
    share: int,
    request: RevisionRequest,
    old_source: Source | None,
    documents: DocumentsOf,
    packs: Packs,
) -> Source:
    """Return a source of the new revision, with the ranges that its shards lost and gained."""
    old = {shard.name: shard for shard in old_source.shards} if old_source is not None else {}
    shards = []
    for name, content, tokens in source.shards:
        old_shard = old.get(name)
        changed = old_shard is not None and old_shard.content != content
        removed_ranges, added = (
            _find_changed_ranges(source.name, old_shard, content, documents) if old_shard and changed else ((), ())
        )
        # Round up, because the last window of a shard may be short but is not dropped.
        samples = -(-tokens // request.sequence_length)
        shard = SourceShard(
            name=name, content=content, tokens=tokens, samples=samples, removed=removed_ranges, added=added
        )
        # Create the shard before counting its samples, because `packs` takes the shard.
        if request.samples == "documents":
            shard = replace(shard, samples=len(packs(shard, request.sequence_length).ends))
        shards.append(shard)
    _require_unmoved(source.name, old, shards, documents)
    return Source(
        name=source.name,
        dataset=source.dataset,
        split=source.split,
        dtype=source.dtype,
        tokenizer=source.tokenizer,
        share=share,
        shards=tuple(shards),
        epochs=source.epochs,
        artifact=source.artifact,
    )


def _find_changed_ranges(
    source: str, old_shard: SourceShard, content: str, documents: DocumentsOf
) -> tuple[Ranges, Ranges]:
    changed = find_changed_ranges(documents(old_shard.content), documents(content))
    if changed is None:
        raise ConfigError(
            f"source {source}: shard {old_shard.name} was rebuilt from different documents (content "
            f"{old_shard.content[:12]}, now {content[:12]}). The documents have no ids, so the unread ones cannot be "
            "determined. Rename the source to start it over, or restore the shard"
        )
    return changed


def _require_unmoved(
    source: str, old: Mapping[str, SourceShard], shards: Sequence[SourceShard], documents: DocumentsOf
) -> None:
    """Raise ConfigError if a document that was added to a shard was previously elsewhere in the source."""
    now = {shard.name: shard for shard in shards}
    gone_documents: set[tuple[int, int]] = set()
    for name, old_shard in old.items():
        present_shard = now.get(name)
        if present_shard is None or present_shard.content != old_shard.content:
            gone_documents.update(
                _list_documents_within(
                    documents(old_shard.content), present_shard.removed if present_shard else ((0, old_shard.tokens),)
                )
            )
    for shard in shards if gone_documents else ():
        if gone_documents.intersection(
            _list_documents_within(documents(shard.content), _find_new_ranges(old.get(shard.name), shard))
        ):
            raise ConfigError(
                f"source {source}: documents were moved to shard {shard.name} and would be read again. Rename the "
                "source to start it over, or move the documents back"
            )


def _find_new_ranges(old_shard: SourceShard | None, shard: SourceShard) -> Ranges:
    """Return the token ranges of a shard that its previous version did not have."""
    if old_shard is not None and old_shard.content == shard.content:
        return ()
    is_another = old_shard is None or sum(stop - start for start, stop in shard.removed) == old_shard.tokens
    return ((0, shard.tokens),) if is_another else shard.added


def _list_documents_within(documents: DocumentEnds, ranges: Ranges) -> Iterator[tuple[int, int]]:
    """Yield id and length of each document that begins in the token ranges, except empty documents.

    Yields nothing for documents without ids, because they cannot be identified.
    """
    if documents.ids is None or not ranges:
        return
    starts, stops = (np.array(column, np.uint64) for column in zip(*ranges, strict=True))
    # Prepend a uint64, because a plain 0 would be an int64, and NumPy promotes a mix of uint64 and int64 to float64.
    lengths = np.diff(documents.ends, prepend=np.uint64(0))
    begins = documents.ends - lengths
    range_numbers = np.searchsorted(starts, begins, side="right") - 1
    is_inside = (lengths > 0) & (range_numbers >= 0) & (begins < stops[range_numbers])
    yield from zip(documents.ids[is_inside].tolist(), lengths[is_inside].tolist(), strict=True)


def find_changed_ranges(old: DocumentEnds, new: DocumentEnds) -> tuple[Ranges, Ranges] | None:
    """Return the token ranges of a shard's removed documents (old positions) and added documents (new positions).

    Returns None if the difference cannot be determined without ids. If no document is kept, no ranges are returned as
    added, because the whole shard is new.
    """
    # Without ids, changed documents cannot be determined, so only documents with equal ends count as unchanged.
    if old.ids is None or new.ids is None:
        return ((), ()) if np.array_equal(old.ends, new.ends) else None
    old_documents, new_documents = list(_list_documents(old)), list(_list_documents(new))
    kept_before, kept_after = _match_documents(old_documents, new_documents)
    removed_ranges, added = (
        _find_left_out_ranges(documents.ends, kept_numbers)
        for documents, kept_numbers in ((old, kept_before), (new, kept_after))
    )
    return removed_ranges, added if kept_before else ()


def _find_left_out_ranges(ends: NDArray[np.uint64], kept_numbers: Sequence[int]) -> Ranges:
    """Return the token ranges of all documents except those numbered `kept_numbers`."""
    starts = np.concatenate([[0], ends[:-1]])
    other_numbers = np.setdiff1d(np.arange(len(ends)), kept_numbers)
    return join_ranges([(int(starts[number]), int(ends[number])) for number in other_numbers.tolist()])


def _match_documents(
    numbers_before: Sequence[tuple[int, int]], numbers_after: Sequence[tuple[int, int]]
) -> tuple[list[int], list[int]]:
    """Return the numbers, before and after the change, of documents that both versions have in the same order."""
    # Match in order: equal texts have equal ids, so only the documents around them show which one was removed.
    kept_numbers: list[int] = []
    for number, document in enumerate(numbers_before):
        if len(kept_numbers) < len(numbers_after) and document == numbers_after[len(kept_numbers)]:
            kept_numbers.append(number)
    if len(kept_numbers) == len(numbers_after):
        return kept_numbers, list(range(len(numbers_after)))
    # Some documents are new, so match documents by content: the k-th of several equal documents with the k-th one after
    # the change.
    numbers_by_document: dict[tuple[int, int], list[int]] = {}
    for number, document in enumerate(numbers_after):
        numbers_by_document.setdefault(document, []).append(number)
    next_numbers = {document: iter(numbers) for document, numbers in numbers_by_document.items()}
    pairs = [
        (number, number_after)
        for number, document in enumerate(numbers_before)
        if (number_after := next(next_numbers.get(document, iter(())), None)) is not None
    ]
    chain = find_longest_rising_pairs(pairs)
    return [index for index, _ in chain], [target for _, target in chain]


def _list_documents(documents: DocumentEnds) -> Iterator[tuple[int, int]]:
    """Return id and length of each document."""
    assert documents.ids is not None
    # Prepend a uint64, because a plain 0 would be an int64, and NumPy promotes a mix of uint64 and int64 to float64.
    lengths = np.diff(documents.ends, prepend=np.uint64(0))
    return zip(documents.ids.tolist(), lengths.tolist(), strict=True)
