"""Tracing of documents in npy shards: the position of a document in a release, and the documents of a sample."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.trace.place import DocumentSpan, Locate, TokenRange
from dataprep_assets.engine.trace.trace import TraceQuery
from dataprep_assets.errors import IntegrityError, NotFoundError, count_of
from dataprep_assets.formats import npy_shards
from dataprep_assets.integrity.artifacts import ArtifactHandle, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.source.source_rows import CorpusFiles, open_corpus_splits
from dataprep_assets.pipelines.release.declaration import ReleaseDeclaration
from dataprep_assets.pipelines.release.layout import (
    ReleaseLayout,
    ShardCut,
    SplitLayout,
    compute_split_layout,
    format_partition_key,
)
from dataprep_assets.pipelines.release.npy_shard import NpyShardFacts, build_shard_recipe, get_shard_artifact
from dataprep_assets.pipelines.release.order import GroupDocuments, ReleaseSourceShard, shuffle_documents
from dataprep_assets.planning.manifest import split_name
from dataprep_assets.stream.stream_index import IndexedShard, Numbers
from dataprep_assets.stream.stream_tracer import DocumentLocations, StreamTracer
from dataprep_assets.stream.token_shard import ENDS, TOKEN_BINS
from dataprep_assets.stream.tokenizer import load_declared_tokenizer

_META = {"tokenizer", "vocab_size", "eos_token_id", "eos_token", "dtype", "tokenizer_sha256"}
"""Names of the facts of an npy shard that describe its tokenizer."""
_GROUPS = 8
"""Maximum number of groups whose order is cached, which needs 20 bytes per document."""


class NpyStreams:
    """Ordered streams of a release, and the finished npy shards that were cut from them."""

    def __init__(self, release: ReleaseDeclaration, store: ArtifactStore, shards: Mapping[str, Receipt]) -> None:
        """Determine the order of the release's streams.

        `shards` are the receipts of its token bins by partition, in manifest order.
        """
        self._release, self._store, self._shards = release, store, shards
        self._splits: dict[str, SplitLayout] = {}
        for split in release.splits:
            sources = [
                ReleaseSourceShard.from_receipt(release.artifact(TOKEN_BINS, key), receipt)
                for key, receipt in shards.items()
                if split_name(key) == split
            ]
            self._splits[split] = compute_split_layout(release, split, sources)
        # Cache handles and sample ids per partition, and document orders per group, because a trace looks up many
        # positions of a shard.
        self._handles: dict[str, ArtifactHandle] = {}
        self._ids: dict[str, Numbers] = {}
        self._ordered: dict[tuple[ReleaseSourceShard, ...], GroupDocuments] = {}

    def locate(self, span: DocumentSpan) -> Iterator[TokenRange]:
        """Yield the token ranges of a document: one per npy shard that contains a part of the document."""
        length, size = self._release.release.sequence_length, self._release.release.tokens_per_shard
        start = self._find_position(span)
        stop = start + span.tokens
        cuts = self._splits[span.split].cuts
        # Find the document's shards by division, because all shards except the last have the same number of tokens.
        for shard_cut in cuts[start // size : (stop - 1) // size + 1]:
            low, high = max(start, shard_cut.start) - shard_cut.start, min(stop, shard_cut.stop) - shard_cut.start
            if low >= high:
                # The shard has no tokens of the document if the document is empty or is in the dropped tail.
                continue
            handle = self._open_handle(span.split, shard_cut)
            samples = list(range(low // length, (high - 1) // length + 1))
            ids = self._open_sample_ids(span.split, shard_cut)
            yield TokenRange(
                artifact=str(handle.artifact),
                file=npy_shards.build_token_key(span.split, shard_cut.index).rpartition("/")[2],
                start=low,
                stop=high,
                at={"samples": samples, "sample_ids": [int(i) for i in ids[samples[0] : samples[-1] + 1]]},
            )

    def find_sample_ranges(self, partition: str, sample: int) -> Iterator[tuple[str, int, int]]:
        """Yield token ranges that together touch every document of a sample, as `(shard of token bins, start, stop)`.

        Raises NotFoundError for a shard or a sample that the release does not have.
        """
        split, _, number = partition.rpartition("_")
        cuts = self._splits[split].cuts if split in self._splits else ()
        if not number.isdecimal() or int(number) >= len(cuts):
            shard_counts = {
                format_partition_key(name, 0): len(layout.cuts) for name, layout in self._splits.items() if layout.cuts
            }
            raise NotFoundError(
                f"trace: unknown npy shard {partition!r}. Available: "
                + ", ".join(f"{key} and {count - 1} more" for key, count in shard_counts.items())
            )
        shard_cut, length = cuts[int(number)], self._release.release.sequence_length
        if not 0 <= sample < shard_cut.tokens // length:
            raise NotFoundError(
                f"trace: sample {sample} is out of range: {partition} has "
                f"{count_of(shard_cut.tokens // length, 'sample')} (counted from 0)"
            )
        # Open the shard, because opening raises an error unless the shard was cut from the current token bins.
        self._open_handle(split, shard_cut)
        begin = shard_cut.start + sample * length
        # Stop before the padding, because it belongs to no document.
        for group, low, high in self._splits[split].order.find_groups_between(
            begin, min(begin + length, shard_cut.stop)
        ):
            yield from self._locate_stretches(group, low, high)

    def _locate_stretches(
        self, group: Sequence[ReleaseSourceShard], low: int, high: int
    ) -> Iterator[tuple[str, int, int]]:
        documents = self._order_documents(tuple(group))
        if documents is None:
            yield group[0].partition, low, high
            return
        first_document = int(np.searchsorted(documents.ends, low, side="right"))
        last_document = int(np.searchsorted(documents.ends, high - 1, side="right"))
        for document in range(first_document, last_document + 1):
            begin = int(documents.first[document])
            # Yield only the document's first token, because one token is enough to find the document.
            yield group[int(documents.source[document])].partition, begin, begin + 1

    def _find_position(self, span: DocumentSpan) -> int:
        """Return the position of a document's first token in the ordered stream of its split."""
        tokens_before = 0
        for group in self._splits[span.split].order.groups:
            names = [shard.partition for shard in group]
            if span.shard in names:
                break
            tokens_before += sum(shard.tokens for shard in group)
        documents = self._order_documents(group)
        if documents is None:
            return tokens_before + span.shard_start
        candidates = (documents.first == span.shard_start) & (documents.source == names.index(span.shard))
        # Compare the lengths too, because an empty document begins at the same token as the next document.
        document = next(
            int(i) for i in np.flatnonzero(candidates) if _measure_document(documents, int(i)) == span.tokens
        )
        return tokens_before + int(documents.ends[document]) - span.tokens

    def _order_documents(self, group: tuple[ReleaseSourceShard, ...]) -> GroupDocuments | None:
        """Return the documents of a group in the order of the release; None if the release has the source's order."""
        seed = self._release.release.shuffle_seed
        if seed is None:
            return None
        if group not in self._ordered:
            if len(self._ordered) >= _GROUPS:
                # Remove the oldest entry, which is the first entry, because a dict keeps the order of insertion.
                del self._ordered[next(iter(self._ordered))]
            folders = tuple(self._store.local(shard.artifact, [ENDS]) for shard in group)
            self._ordered[group] = shuffle_documents(seed, group, folders)
        return self._ordered[group]

    def _open_sample_ids(self, split: str, shard_cut: ShardCut) -> Numbers:
        partition = format_partition_key(split, shard_cut.index)
        if partition not in self._ids:
            name = npy_shards.build_ids_key(split, shard_cut.index).rpartition("/")[2]
            self._ids[partition] = self._open_handle(split, shard_cut).numbers(name, "uint64")
        return self._ids[partition]

    def _open_handle(self, split: str, shard_cut: ShardCut) -> ArtifactHandle:
        """Return the handle of a finished npy shard.

        Raises IntegrityError unless the shard was cut from the current token bins with the declared settings.
        """
        partition = format_partition_key(split, shard_cut.index)
        if partition not in self._handles:
            handle = ArtifactHandle.from_store(self._store, get_shard_artifact(self._release, partition))
            facts = NpyShardFacts.from_receipt(handle.receipt)
            # Take the tokenizer from the shard's facts, because they record the tokenizer of the token bins from which
            # the shard was cut.
            meta = facts.model_dump(include=_META)
            layout = ReleaseLayout(splits=self._splits, separator_id=facts.separator_id, meta=meta)
            if handle.receipt.key != build_shard_recipe(self._release, layout, partition).key:
                raise IntegrityError(
                    f"trace: {handle.artifact} was cut from outdated token bins, or with different settings. Run "
                    f"`dataprep run {self._release.dataset}`"
                )
            self._handles[partition] = handle
        return self._handles[partition]


def _measure_document(documents: GroupDocuments, position: int) -> int:
    return int(documents.ends[position]) - (int(documents.ends[position - 1]) if position else 0)


def build_npy_locator(release: ReleaseDeclaration, store: ArtifactStore, shards: Mapping[str, Receipt]) -> Locate:
    """Return the function that locates documents in the npy shards of a release (`OpenPlaces`)."""
    return NpyStreams(release, store, shards).locate


class ReleaseTracer(StreamTracer):
    """Tracer of a corpus that can also trace samples of npy shards."""

    streams: NpyStreams

    def locate_documents(self, query: TraceQuery) -> DocumentLocations:
        if query.npy_shard is None or query.sample is None:
            return super().locate_documents(query)
        return list(self._find_sample_documents(query.npy_shard, query.sample))

    def _find_sample_documents(self, partition: str, sample: int) -> Iterator[tuple[IndexedShard, int]]:
        for source, start, stop in self.streams.find_sample_ranges(partition, sample):
            yield from self.find_documents_between(self.index.shard(source), start, stop)


def build_release_tracer(
    release: ReleaseDeclaration, store: ArtifactStore, specs: Sequence[ArtifactSpec]
) -> ReleaseTracer:
    """Return the tracer of a release.

    Args:
        release: The declaration.
        store: The store of the release's artifacts, in which all token bins are built.
        specs: The specs of the release's artifacts.
    """
    splits = open_corpus_splits(release, store)
    tracer = ReleaseTracer(
        release,
        store,
        specs,
        splits,
        bundle=partial(load_declared_tokenizer, release.tokenizer),
        ids=lambda: release.document.ids(sensitive=release.sensitive),
        source_bytes=CorpusFiles(release, store).find_bytes,
    )
    receipts = {shard.partition: shard.handle.receipt for shards in splits.values() for shard in shards}
    tracer.streams = NpyStreams(release, store, receipts)
    return tracer
