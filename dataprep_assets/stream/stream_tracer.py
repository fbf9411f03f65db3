"""Tracing of documents in every dataset that is built from token shards: a corpus, a release, a pretraining blend.

Entry points: `StreamTracer`, `list_traced_shards`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.trace.place import Locate, TokenRange
from dataprep_assets.engine.trace.sample import MAX_TOKENS, RowSample, SampledRow, build_part, draw_by_shard
from dataprep_assets.engine.trace.trace import SourceBytes, SourceText, Trace, TraceQuery, Tracer
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.errors import (
    ConfigError,
    DataprepError,
    IntegrityError,
    MissingArtifactError,
    NotFoundError,
    count_of,
)
from dataprep_assets.formats.flat_bins import token_dtype
from dataprep_assets.integrity.artifacts import Artifact, ArtifactHandle, ArtifactStore
from dataprep_assets.stream.stream_index import IndexedShard, StreamIndex
from dataprep_assets.stream.token_shard import QUARANTINE, TOKENS
from dataprep_assets.stream.tokenizer import require_same_tokenizer
from dataprep_assets.stream.trainer_files import TrainerFiles
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.document_ids import DocumentIds, hash_id
from dataprep_assets.tokenization.token_texts import TokenTexts

T = TypeVar("T")
DocumentLocations = Iterable[tuple[IndexedShard, int]]
"""Shards, each with the number of a document in it."""


class StreamTracer(Tracer):
    """A tracer of a dataset that is built from token shards."""

    def __init__(
        self,
        declaration: DatasetDeclaration,
        store: ArtifactStore,
        specs: Sequence[ArtifactSpec],
        splits: Mapping[str, Sequence[IndexedShard]],
        *,
        bundle: Callable[[], TokenizerBundle],
        ids: Callable[[], DocumentIds | None],
        samples: Callable[[str, str], Sequence[int]] | None = None,
        source_bytes: Callable[[str, int, int | None], SourceBytes | None] = lambda *_: None,
        source_text: Callable[[str, int, int | None], SourceText | None] = lambda *_: None,
        refusal: Callable[[str, int], str | None] = lambda *_: None,
        refusal_of: Callable[[int], str | None] = lambda _: None,
    ) -> None:
        """Open a dataset for tracing.

        Args:
            declaration: The dataset.
            store: The store of its artifacts.
            specs: Its artifacts; those with `places` return a document's locations in them.
            splits: Its finished shards by split, in the order of each split's stream.
            bundle: Loads the tokenizer, for texts.
            ids: Returns how documents are currently identified, for questions by id.
            samples: Returns the ends of the samples of a view's split in its stream, for questions by sample; None if
                the dataset has no views.
            source_bytes: Returns the bytes of a row in its source file, given file, row and the document's hash.
            source_text: Returns the text of a row before rewriting, given file, row and the document's hash.
            refusal: Returns, in words, why a row of a source file is not a document, if the reason is known.
            refusal_of: Returns, in words, which row has this hash and why it is not a document.
        """
        self._source_bytes, self._refusal, self._samples = source_bytes, refusal, samples
        self._refusal_of, self._source_text = refusal_of, source_text
        self.index = StreamIndex(splits)
        self.store, self._declaration = store, declaration
        self._load_bundle, self._ids = bundle, ids
        self._locates: list[Locate] = []
        receipts = {shard.partition: shard.handle.receipt for shard in self.index.shards()}
        notes = []
        for spec in specs:
            if spec.places is None:
                continue
            try:
                self._locates.append(spec.places(store, receipts))
            except DataprepError as error:
                # Only note the error, because the document can still be found in the other artifacts.
                notes.append(f"{'/'.join(spec.path)} is skipped: {error}")
        self.notes = tuple(notes)
        located = [spec for spec in specs if spec.places is not None]
        inputs = [source for spec in located for source in spec.inputs]
        # A trainer reads the artifacts that no other located artifact is built from.
        self._trainer_names = [spec.name for spec in located if spec not in inputs]

    def find(self, question: TraceQuery, *, decode: bool = True) -> list[Trace]:
        question.refuse_messages()
        # Never decode the text of sensitive data, regardless of `decode`.
        show_text = decode and not self._declaration.sensitive
        traces = [
            self._trace_document(shard, document, show_text) for shard, document in self.locate_documents(question)
        ]
        if not traces:
            raise NotFoundError(self._describe_absence(question))
        return traces

    def sample(self, count: int, seed: str) -> RowSample:
        if self._declaration.sensitive:
            return RowSample()
        sizes = [{shard.partition: shard.documents for shard in shards} for shards in self.index.splits.values()]
        used_sizes = [shard_sizes for shard_sizes in sizes if any(shard_sizes.values())]

        def read_rows() -> Iterator[SampledRow]:
            for shard_sizes in used_sizes:
                for partition, documents in draw_by_shard(shard_sizes, max(count // len(used_sizes), 1), seed):
                    shard = self.index.shard(partition)
                    require_same_tokenizer(shard.handle.receipt, self._bundle)
                    yield from (self._sample_document(shard, document) for document in documents)

        return RowSample(total=sum(sum(shard_sizes.values()) for shard_sizes in sizes), rows=read_rows())

    def sample_rows(self, rows: Iterable[tuple[str, int]]) -> Iterator[SampledRow]:
        if self._declaration.sensitive:
            return
        for file, row in rows:
            if self.index.find_holders(file):
                for shard, document in self.index.find_by_row(file, row):
                    require_same_tokenizer(shard.handle.receipt, self._bundle)
                    yield self._sample_document(shard, document)

    def _sample_document(self, shard: IndexedShard, document: int) -> SampledRow:
        trace = self._trace_document(shard, document, False)
        notes = []
        for token_ranges in self._group_trainer_places(trace.places):
            if (ids := self._trainer_files.read_beginning(token_ranges, MAX_TOKENS)) is not None:
                break
        else:
            # Without other artifacts, such as in a blend, trainers read the shards themselves.
            token_ranges = trace.places[:1]
            ids = shard.read(token_ranges[0].start, min(token_ranges[0].stop, token_ranges[0].start + MAX_TOKENS))
            if self._trainer_names:
                notes.append("No trainer's file that can be shown has this document, so it is read from the shard.")
        token_count = sum(token_range.stop - token_range.start for token_range in token_ranges)
        if left_out := trace.tokens - token_count:
            notes.append(f"{count_of(left_out, 'token is', 'tokens are')} not in the trainer's files.")
        facts, is_whole = shard.facts, len(ids) == token_count
        part = replace(
            build_part("text", ids, self._token_texts.split, total=token_count),
            prefix_tokens=int(ids[:1].tolist() == [facts.bos_id]),
            suffix_tokens=int(is_whole and ids[-1:].tolist() == [facts.separator_id]),
        )
        return SampledRow(
            split=trace.split,
            file=trace.file,
            row=trace.row,
            partition=shard.partition,
            locations=token_ranges,
            parts=(part,),
            notes=notes,
        )

    def _group_trainer_places(self, token_ranges: Sequence[TokenRange]) -> Iterator[Sequence[TokenRange]]:
        """Yield the places of a document in each artifact that a trainer reads, in the order of the declaration."""
        for name in self._trainer_names:
            if matches := [candidate for candidate in token_ranges if candidate.artifact.split("/")[1] == name]:
                yield matches

    @cached_property
    def _trainer_files(self) -> TrainerFiles:
        return TrainerFiles(self.store)

    @cached_property
    def _token_texts(self) -> TokenTexts:
        return TokenTexts(self._bundle.decode)

    def source_bytes(self, trace: Trace) -> SourceBytes | None:
        return self._look_up(trace, self._source_bytes)

    def source_text(self, trace: Trace) -> SourceText | None:
        return self._look_up(trace, self._source_text)

    def _look_up(self, trace: Trace, find: Callable[[str, int, int | None], T | None]) -> T | None:
        """Return the result of a function that is called with the file, the row and the hash of a document."""
        document = next(self.index.find_by_row(trace.file, trace.row), None)
        if document is None:
            return None
        shard, number = document
        hashed = None if shard.facts.document_ids is None else int(shard.hashes[number])
        return find(trace.file, trace.row, hashed)

    def locate_documents(self, query: TraceQuery) -> DocumentLocations:
        """Return the documents that match a question; subclasses first handle their own kinds of questions.

        Raises ConfigError if the dataset does not support this kind of question.
        """
        split, partition, index = query.split, query.shard, self.index
        if query.token is not None:
            return [index.locate_token(split, partition, query.token)]
        number = query.document if query.document is not None else query.megatron_index
        if number is None and query.file is None:
            number = query.row  # with `shard` and without `file`, `row` is the number of a document
        if number is not None:
            return [index.locate_document(split, partition, number)]
        if query.file is not None and query.row is not None:
            shards = index.shards(split, partition)
            return [location for location in index.find_by_row(query.file, query.row) if location[0] in shards]
        if query.view is not None and query.sample is not None:
            return self._sample_documents(query.view, index.require_one_split(split), query.sample)
        if query.id is not None or query.text is not None:
            return list(self._find_documents_with_id(query))
        raise ConfigError(
            f"trace: {self._declaration.dataset} cannot be traced by {query.field}. Use `document` or `token`"
        )

    def find_documents_between(self, shard: IndexedShard, start: int, stop: int) -> Iterator[tuple[IndexedShard, int]]:
        """Yield the documents of a shard with tokens in the range `[start, stop)`."""
        if start < stop:
            _, first_document = self.index.locate_token(None, shard.partition, start)
            _, last_document = self.index.locate_token(None, shard.partition, stop - 1)
            yield from ((shard, document) for document in range(first_document, last_document + 1))

    def _sample_documents(self, view: str, split: str, sample: int) -> Iterator[tuple[IndexedShard, int]]:
        if self._samples is None:
            raise ConfigError(f"trace: {self._declaration.dataset} has no views. Use `document` or `token`")
        ends = self._samples(view, split)
        if not 0 <= sample < len(ends):
            raise NotFoundError(
                f"trace: sample {sample} is out of range: the view {view} of {split} has "
                f"{count_of(len(ends), 'sample')}, counted from 0"
            )
        start, stop = int(ends[sample - 1]) if sample else 0, int(ends[sample])
        documents_before = 0
        for shard in self.index.splits[split]:
            # A sample may continue in the next shard. In a shard that has no part of the sample, `low` is not below
            # `high`.
            low, high = max(start - documents_before, 0), min(stop - documents_before, shard.tokens)
            yield from self.find_documents_between(shard, low, high)
            documents_before += shard.tokens

    def _find_documents_with_id(self, query: TraceQuery) -> Iterator[tuple[IndexedShard, int]]:
        ids = self._ids()
        if ids is None:
            raise ConfigError(
                f"trace: {self._declaration.dataset} is sensitive and has no `document.id_key`, so documents can "
                "be found only by row. Use `file` and `row`"
            )
        by_text = query.text is not None
        if by_text and ids.id_field is not None:
            raise ConfigError(f"trace: documents are indexed by the field {ids.id_field!r}. Use `id`")
        if not by_text and ids.id_field is None:
            raise ConfigError(
                "trace: `id` needs `document.id_field` in the declaration. Use the document's whole text "
                "(`--text-file`, in Python `text`), or `file` and `row`"
            )
        value = query.text if query.text is not None else query.id
        assert value is not None
        hashed_id = hash_id(value, ids.key)
        for shard in self.index.shards(query.split, query.shard):
            facts = shard.facts
            # Refuse hashes that were computed with different settings, because none would match, and the document would
            # wrongly be reported as missing.
            if (facts.document_ids, facts.id_field, facts.id_key) != (
                "text" if by_text else "field",
                ids.id_field,
                ids.key_digest,
            ):
                raise IntegrityError(
                    f"trace: {shard.partition} was indexed with different `document` settings. Run "
                    f"`dataprep run {self._declaration.dataset}` first"
                )
            yield from ((shard, document) for document in shard.find_by_hash(hashed_id))

    def _describe_absence(self, query: TraceQuery) -> str:
        if query.file is not None:
            assert query.row is not None
            if query.row < 1:
                return f"trace: row {query.row} of {query.file}: rows are counted from 1"
            message = f"trace: row {query.row} of {query.file} is not a document: it"
            refusal = self._refusal(query.file, query.row)
            for shard in self.index.find_holders(query.file):
                quarantined_row = find_quarantined(shard.handle, query.file, query.row)
                # If the current file and the quarantine give the same reason, keep the reason from the file, because it
                # has more detail.
                if quarantined_row is not None and (refusal is None or quarantined_row["reason"] not in refusal):
                    refusal = f"was dropped as {quarantined_row['reason']}"
            if refusal is not None:
                return f"{message} {refusal}"
            return f"{message} is blank, was filtered or retracted, or is beyond the end of the file"
        query_text = "this text" if query.text is not None else "this id" if query.id is not None else query.field
        message = f"trace: no document of {self._declaration.dataset} has {query_text}"
        value, ids = query.text if query.text is not None else query.id, self._ids()
        reason = None if value is None or ids is None else self._refusal_of(hash_id(value, ids.key))
        return message if reason is None else f"{message}: {reason}"

    def _trace_document(self, shard: IndexedShard, document: int, is_shown: bool) -> Trace:
        span = self.index.span(shard, document)
        file, row = self.index.source(shard, document)
        token_ranges = [
            TokenRange(
                artifact=str(shard.handle.artifact),
                file=TOKENS,
                start=span.shard_start,
                stop=span.shard_start + span.tokens,
                itemsize=token_dtype(shard.facts.dtype).itemsize,
                at={"document": document},
            )
        ]
        for locate in self._locates:
            try:
                token_ranges += locate(span)
            except DataprepError as error:  # one shard of an artifact may be missing while the others exist
                self.notes = tuple(dict.fromkeys([*self.notes, str(error)]))
        return Trace(
            dataset=self._declaration.dataset,
            split=span.split,
            document=span.document,
            file=file,
            row=row,
            tokens=span.tokens,
            places=tuple(token_ranges),
            text=self._decode_text(shard, token_ranges[0]) if is_shown else None,
        )

    @cached_property
    def _bundle(self) -> TokenizerBundle:
        return self._load_bundle()

    def _decode_text(self, shard: IndexedShard, place: TokenRange) -> str:
        facts = shard.facts
        has_prefix, has_suffix = facts.bos_id is not None, facts.separator_id is not None
        return self._bundle.decode(shard.read(place.start + has_prefix, place.stop - has_suffix))


def find_quarantined(handle: ArtifactHandle, file: str, row: int | None) -> Mapping[str, Any] | None:
    """Return the quarantined row of a source file (`reason`, `byte`); None if it is not in the shard's quarantine."""
    if not any(record.path == QUARANTINE for record in handle.files):
        return None
    with handle.open(QUARANTINE) as lines:
        for line in lines:
            value: dict[str, Any] = json.loads(line)
            if (value["file"], value["row"]) == (file, row):
                return value
    return None


def list_traced_shards(store: ArtifactStore, artifacts: Sequence[Artifact]) -> list[IndexedShard]:
    """Return the finished shards among `artifacts`, in order; raises MissingArtifactError if one is missing.

    Positions in a stream are undefined if one of its shards is missing.
    """
    receipts = store.receipts(artifacts)
    if missing := [str(a.partition) for a, receipt in zip(artifacts, receipts, strict=True) if receipt is None]:
        raise MissingArtifactError(
            f"trace: {len(missing)} of {count_of(len(artifacts), 'shard')} of {artifacts[0].dataset} are missing, the "
            f"first is {missing[0]}. Run `dataprep run {artifacts[0].dataset}` first"
        )
    return [
        IndexedShard(store, a, receipt) for a, receipt in zip(artifacts, receipts, strict=True) if receipt is not None
    ]
