"""Reader of a schedule's data: the batch of any step, from shards on this machine or in object storage.

    data = TrainingData(".dataprep/artifacts", "my_run")
    for step in range(data.restore(state), data.steps):
        batch = data.batch(step, rank=rank, world_size=ranks)
        …
        state = data.state(step + 1)

Nothing is built at startup, and only the mapped shards are kept between steps.
"""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.errors import (
    ConfigError,
    DataprepError,
    IntegrityError,
    MissingArtifactError,
    TransferError,
    count_of,
)
from dataprep_assets.formats.document_index import ENDS, TOKENS
from dataprep_assets.integrity.artifacts import Artifact, ArtifactHandle, ArtifactStore, RemoteTokens
from dataprep_assets.integrity.bucket import BucketArtifacts
from dataprep_assets.integrity.storage import open_artifacts
from dataprep_assets.serving.sampler.packs import open_packs
from dataprep_assets.serving.sampler.sample_block import DocumentEnds, SampleBlock
from dataprep_assets.serving.sampler.sampler import Sampler, Spans
from dataprep_assets.serving.sampler.source_order import PackTable
from dataprep_assets.serving.sampler.training_schedule import SCHEDULE, ScheduleHistory, Source, SourceShard
from dataprep_assets.stores.connect import LocalAddress, parse_place
from dataprep_assets.stores.files import make_private_folder

SCHEDULE_ARTIFACT = "schedule"
IGNORED = -100
"""Label of tokens that are not trained on; PyTorch's cross entropy ignores it by default."""
_AHEAD = 1024
"""Number of samples whose spans are computed together, so that reading dominates the cost of a sample."""
_READERS = 16
"""Number of parallel range requests to object storage."""


def get_documents_folder(content: str) -> str:
    """Return the folder of the document index that a schedule keeps for a shard with this content."""
    return f"documents/{content[:32]}"


def get_packs_file(content: str, length: int) -> str:
    """Return the name of the file in which a schedule keeps the packs of a shard."""
    return f"packs/{content[:32]}-{length}.bin"


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Data that a rank trains on in a step; arrays of shape ``(samples, sequence_length)``.

    Attributes:
        step: Number of the step.
        positions: int64, shape ``(samples,)``: positions of these samples in the step's batch.
        tokens: int64; 0 after the end of a short sample.
        labels: int64: the token after each token. `IGNORED` at the end of a shard, after the end of a short sample and,
            with boundaries, at the end of each document.
        position_ids: int64: position of each token in the part of its document that is in the sample; None if
            there are no boundaries.
        document_ids: int32: number of each token's document in the sample, -1 after its end; None if there are no
            boundaries. Attention is between tokens with equal numbers.
    """

    step: int
    positions: NDArray[np.int64]
    tokens: NDArray[np.int64]
    labels: NDArray[np.int64]
    position_ids: NDArray[np.int64] | None = None
    document_ids: NDArray[np.int32] | None = None


class TrainingData:
    """Training data of a schedule. Can be pickled into workers, which open it again.

    Args:
        root: Location of the project's artifacts: a folder, `s3://bucket/prefix`, `gs://bucket/prefix` or an open
            store.
        name: Name of the schedule.
        cache_dir: Folder for copies of small files; required for object storage.
        boundaries: Whether batches have `position_ids` and `document_ids`, and documents end with an ignored label.
    """

    def __init__(
        self,
        root: str | PathLike[str] | ArtifactStore,
        name: str,
        *,
        cache_dir: str | Path | None = None,
        boundaries: bool = False,
    ) -> None:
        self._opened = (root, name, cache_dir, boundaries)
        if isinstance(root, ArtifactStore):
            store = root
        else:
            address = parse_place(str(root), os.environ, reads=True)
            if cache_dir is None and not isinstance(address, LocalAddress):
                raise ConfigError(
                    f"{root}: `cache_dir` is required to read from object storage. Set it to a folder for copies of "
                    "small files"
                )
            store = open_artifacts(address, Path(cache_dir or "."), None, private=False)
        self.name, self.boundaries, self._store = name, boundaries, store
        self._handle = ArtifactHandle.from_store(store, Artifact(dataset=name, name=SCHEDULE_ARTIFACT))
        if isinstance(store, BucketArtifacts) and self._handle.receipt.facts.get("sensitive"):
            # Make the folder private before files are copied into it, because the umask of the trainer's process must
            # not be changed.
            make_private_folder(store.root)
        location = f"{self._handle.location}/{SCHEDULE}"
        try:
            value = load_untrusted_json(self._handle.read(SCHEDULE))
        except ValueError as error:
            raise IntegrityError(
                f"{location}: invalid JSON: {error}. Run `dataprep verify` to see the damage"
            ) from error
        self.schedule = ScheduleHistory.from_json(value, location)
        # These caches, keyed by shard content, never evict entries, because their data is memory-mapped or read in
        # ranges, and so takes little memory.
        self._tokens: dict[str, NDArray[Any] | RemoteTokens] = {}
        self._ends: dict[str, NDArray[Any]] = {}
        self._packs: dict[tuple[str, int], PackTable] = {}
        self._block = lru_cache(maxsize=4)(self._find_block)
        # Create the sampler last, because its constructor calls `packs`, which uses the attributes above.
        self.sampler = Sampler(self.schedule, self.packs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, self._opened

    def __repr__(self) -> str:
        return (
            f"TrainingData({self._handle.location!r}, {count_of(self.steps, 'step')}, "
            f"digest={self.schedule.digest[:12]!r})"
        )

    @property
    def steps(self) -> int:
        """Number of steps in the run."""
        return self.sampler.end

    @property
    def handle(self) -> ArtifactHandle:
        """Handle of the schedule's artifact, which contains the documents of every shard in the schedule."""
        return self._handle

    def state(self, step: int) -> dict[str, Any]:
        """Return the checkpoint state for resuming at `step`, the first step not trained yet; equal on all ranks."""
        return {"schedule": self.name, "digest": self.schedule.digest, "step": step}

    def restore(self, state: Mapping[str, Any] | None) -> int:
        """Return the step at which to resume; 0 if there is no state.

        A state from before later revisions is valid if these revisions do not change the steps before it. Raises
        ConfigError if this schedule would continue with different samples than the state's schedule.
        """
        if state is None:
            return 0
        try:
            name, digest, step = str(state["schedule"]), str(state["digest"]), int(state["step"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"not the state of a schedule: {str(state)[:100]}. Pass a value of `TrainingData.state`, "
                "with the keys schedule, digest and step"
            ) from error
        if not 0 <= step <= self.steps:
            raise ConfigError(
                f"{self.name}: the state's step must be from 0 to {self.steps}, not {step}. Resume from an earlier "
                "checkpoint"
            )
        # Accept digests of shorter histories, because the schedule may have had fewer revisions when the checkpoint was
        # written.
        revision_counts = {
            self.schedule.take_first_revisions(n).digest: n for n in range(1, len(self.schedule.revisions) + 1)
        }
        if name != self.name or digest not in revision_counts:
            raise ConfigError(
                f"{self.name}: the state belongs to the schedule {name} ({digest[:12]}), which is not an earlier "
                f"version of this schedule ({self.schedule.digest[:12]}). Use the schedule that the run began with, or "
                "start again at step 0"
            )
        for revision in self.schedule.revisions[revision_counts[digest] :]:
            if revision.first_step < step:
                raise ConfigError(
                    f"{self.name}: the state is at step {step}, but a later revision begins at step "
                    f"{revision.first_step}. Resume from a checkpoint of that step or earlier, or make a revision: "
                    f"dataprep schedule {self.name} --from-step {step}"
                )
        return step

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return the batch that a rank trains on in a step.

        Raises NotFoundError for a step beyond the end, and ConfigError if a shard differs from the schedule. Raises
        TransferError, naming the step, if object storage cannot be read.
        """
        return self._read_batch(step, self.sampler.find_positions(step, rank, world_size), 0, rank, world_size)

    def sample(self, step: int, position: int) -> Batch:
        """Return one sample of a step. Reading samples in order is fastest."""
        return self._read_batch(step, np.array([position]), position, 0, 1)

    def _find_block(self, number: int, block: int, ahead: int, rank: int, world_size: int) -> SampleBlock:
        """Return a rank's samples in a block of `ahead` steps of a revision."""
        rule = next(rule for rule in self.sampler.rules if rule.number == number)
        batch = rule.revision.batch
        steps = np.arange(block * ahead, min((block + 1) * ahead, rule.stop - rule.first))
        own_slots = np.arange(rank, batch, world_size)
        samples = (steps[:, None] * batch + own_slots).ravel()
        spans = self.sampler.find_spans(rule, samples)
        sample_block = SampleBlock(spans, len(samples), rule.revision.sequence_length, len(own_slots))
        if self.boundaries:
            sample_block.find_parts(self._find_document_ends(rule.revision.sources, spans))
        return sample_block

    def _read_batch(
        self, step: int, positions: NDArray[np.int64], first_sample: int, rank: int, world_size: int
    ) -> Batch:
        """Return the batch of a rank's samples in a step, beginning with `first_sample`.

        `positions` are the positions of these samples in the step's batch.
        """
        rule = self.sampler.find_rule(step)
        ahead = max(_AHEAD * world_size // rule.revision.batch, 1)
        number, step_in_block = divmod(step - rule.first, ahead)
        block = self._block(rule.number, number, ahead, rank, world_size)
        low = step_in_block * block.samples_per_step + first_sample
        high = low + len(positions)
        spans, first_positions = block.select_spans(low, high)
        try:
            span_ids = self._read_ids(rule.revision.sources, spans)
        except (DataprepError, OSError) as error:
            # Keep the class of errors that a retry cannot fix. Convert all others to a TransferError, so that the
            # trainer can retry.
            kinds = (kind for kind in (ConfigError, IntegrityError) if isinstance(error, kind))
            message = str(error).removeprefix(f"{self.name}: ")
            raise next(kinds, TransferError)(f"{self.name}: step {step} cannot be read: {message}") from error
        tokens, labels = (np.empty(len(positions) * block.width, np.int64) for _ in range(2))
        stops = first_positions + spans.stop - spans.start
        for start, stop, ids in zip(first_positions.tolist(), stops.tolist(), span_ids, strict=True):
            tokens[start:stop] = ids[: stop - start]
            # The span was read with one more token, which is the last label, except at the end of a shard.
            labels[stop - 1] = IGNORED
            labels[start : start + len(ids) - 1] = ids[1:]
        arrays: dict[str, NDArray[Any]] = {"tokens": tokens, "labels": labels}
        padding: dict[str, int] = {"tokens": 0, "labels": IGNORED}
        if block.parts is not None:
            labels[block.parts.find_last_tokens(low, high)] = IGNORED
            arrays["position_ids"], arrays["document_ids"] = block.parts.number_tokens(low, high)
            padding |= {"position_ids": 0, "document_ids": -1}
        arrays = {name: array.reshape(len(positions), block.width) for name, array in arrays.items()}
        token_counts = block.token_counts[low:high]
        for row in np.flatnonzero(token_counts < block.width).tolist():
            for name, value in padding.items():
                arrays[name][row, token_counts[row] :] = value
        return Batch(step=step, positions=positions, **arrays)

    def _find_document_ends(self, sources: tuple[Source, ...], spans: Spans) -> DocumentEnds:
        """Return the ends of documents within each span, as positions in its shard."""
        # Search all spans of a shard together and in order, because this takes a tenth of the time of single searches.
        order = np.lexsort((spans.start, spans.shard, spans.source))
        source, shard = spans.source[order], spans.shard[order]
        first_of_shard = np.flatnonzero((np.diff(source, prepend=-1) != 0) | (np.diff(shard, prepend=-1) != 0))
        # Search with uint64, because for other integers NumPy would convert the whole memory-mapped file to float64.
        bounds = np.stack([spans.start[order], spans.stop[order]]).astype(np.uint64)
        counts, shard_ends = np.zeros(len(order), np.int64), [np.empty(0, np.uint64)]
        for start, stop in pairwise([*first_of_shard.tolist(), len(order)]):
            ends = self.open_document_ends(sources[source[start]].shards[shard[start]])
            low, high = ends.searchsorted(bounds[:, start:stop], side="right")
            counts[start:stop] = shard_counts = high - low
            shard_ends.append(
                ends[
                    np.arange(shard_counts.sum())
                    + np.repeat(low - (np.cumsum(shard_counts) - shard_counts), shard_counts)
                ]
            )
        by_span = np.argsort(np.repeat(order, counts), kind="stable")
        span_counts = np.empty_like(counts)
        span_counts[order] = counts
        return DocumentEnds(span_counts, np.concatenate(shard_ends)[by_span].astype(np.int64))

    def _read_ids(self, sources: tuple[Source, ...], spans: Spans) -> list[NDArray[Any]]:
        """Return the tokens of each span, and the following token if the shard has one."""
        span_rows = list(zip(*(column.tolist() for column in spans), strict=True))
        read_ids = [
            (self.open_tokens(sources[source], sources[source].shards[shard]), start, stop + 1)
            for _, source, _, shard, start, stop in span_rows
        ]
        # Send requests in parallel, because they mostly wait for the network.
        if any(isinstance(tokens, RemoteTokens) for tokens, _, _ in read_ids):
            return list(
                _get_reader_threads(os.getpid()).map(
                    lambda request: np.asarray(request[0][request[1] : request[2]]), read_ids
                )
            )
        return [np.asarray(tokens[start:stop]) for tokens, start, stop in read_ids]

    def open_tokens(self, source: Source, shard: SourceShard) -> NDArray[Any] | RemoteTokens:
        """Return the tokens of a shard; raise ConfigError if it is missing or differs from the schedule."""
        if shard.content in self._tokens:
            return self._tokens[shard.content]
        artifact = Artifact(dataset=source.dataset, name=source.artifact, partition=shard.name)
        remedy = f"make a revision from the first step not trained yet: dataprep schedule {self.name} --from-step N"
        try:
            handle = ArtifactHandle.from_store(self._store, artifact)
        except MissingArtifactError as error:
            raise ConfigError(
                f"{self.name}: source {source.name}: {artifact} is missing. Restore the artifact, or {remedy}"
            ) from error
        if handle.receipt.content != shard.content:
            raise ConfigError(
                f"{self.name}: source {source.name}: {artifact} differs from the one in the schedule (content "
                f"{shard.content[:12]}, now {handle.receipt.content[:12]}): documents were removed, or the artifact "
                f"was rebuilt. Restore the artifact, or {remedy}"
            )
        tokens = handle.tokens(TOKENS)
        # View the file as a plain array, because slicing a `memmap` takes several times as long.
        plain_tokens = tokens if isinstance(tokens, RemoteTokens) else np.asarray(tokens)
        return self._tokens.setdefault(shard.content, plain_tokens)

    def open_document_ends(self, shard: SourceShard) -> NDArray[Any]:
        """Return the end of each document of a shard, from the schedule's artifact."""
        if shard.content not in self._ends:
            path = self._handle.path(f"{get_documents_folder(shard.content)}/{ENDS}")
            # Use an empty array for an empty file, because NumPy cannot memory-map an empty file.
            empty = np.empty(0, np.uint64)
            # View the file as a plain array, as in `open_tokens`.
            self._ends[shard.content] = np.asarray(np.memmap(path, "<u8", "r")) if path.stat().st_size else empty
        return self._ends[shard.content]

    def packs(self, shard: SourceShard, length: int) -> PackTable:
        """Return the packs of a shard, from the schedule's artifact."""
        key = (shard.content, length)
        if key not in self._packs:
            self._packs[key] = open_packs(self._handle.path(get_packs_file(shard.content, length)))
        return self._packs[key]


@lru_cache(maxsize=1)
def _get_reader_threads(process: int) -> ThreadPoolExecutor:
    """Return the thread pool of a process; a forked worker needs a new one, because threads are not inherited."""
    return ThreadPoolExecutor(_READERS, "training-data")


def _reopen(root: str | ArtifactStore, name: str, cache_dir: str | None, boundaries: bool) -> TrainingData:
    return TrainingData(root, name, cache_dir=cache_dir, boundaries=boundaries)
