"""Trial of a corpus's rewriters and taggers on its first rows, for `dataprep check` and first runs.

A rewriter or tagger that fails on ten rows would also fail in a build. User functions run in a worker, because they may
print, hang or exit their process. Commands and assets are not tried, because their cost is unknown. Rules are tried on
the same rows: a rule that drops all of them is usually a mistake.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dataprep_assets.curation.function_tagger import FunctionTagger
from dataprep_assets.curation.rewriters.rewriting import RewritingError
from dataprep_assets.curation.rules import find_dropping_rules
from dataprep_assets.curation.table import CarriedValueError, DocumentBatch, build_schema
from dataprep_assets.curation.tagging import BatchTagger, Tagger, VersionedTagger, compute_tags
from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import ConfigError, DataprepError, count_of
from dataprep_assets.execution.processes import WorkerPool
from dataprep_assets.execution.run_task import FinishedTask, Task, TaskId, discard_output
from dataprep_assets.pipelines.corpus.curation.tagged_shard import read_part_batches
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.source_parts import build_present_part
from dataprep_assets.planning.manifest import build_manifest
from dataprep_assets.stores.files import private_files
from dataprep_assets.stream.source import is_mirrored, open_source

_ROWS_PER_SPLIT = 10
"""Number of documents per split."""
_TIMEOUT_SECONDS = 120.0
"""Time limit of a function in seconds; some load a model first."""
_TOO_SLOW = f"ran for more than {count_of(round(_TIMEOUT_SECONDS), 'second')} on the first documents and was stopped"
Tags = list[dict[str, list[Any]]]
"""Column → values, per batch."""
TrialResult = Tags | DataprepError | None
"""Columns of a tagger, its error, or None if it took too long."""
ReadingResult = list[DocumentBatch] | DataprepError | None
"""First documents of the splits, the error of a rewriter or a carried value, or None if it took too long."""


def find_trial_remarks(corpus: CorpusDeclaration) -> Iterator[Remark]:
    """Yield remarks on rewriters, taggers and carried fields that fail on the first documents.

    Also yield remarks on rules that drop all of them.
    """
    try:
        # Leave out the benchmark tagger, which comes last, because `find_benchmark_remarks` checks it.
        taggers = corpus.taggers[: len(corpus.tag)]
    except ConfigError:  # the validation of the declaration reports the error
        return
    batches: ReadingResult
    try:
        batches = _read_first_documents(corpus) if corpus.rewriting is None else _read_in_worker(corpus)
    except CarriedValueError as error:
        batches = error
    if isinstance(batches, CarriedValueError):
        # Mark the remark as about the source, because it names a file, which a sensitive dataset must not show.
        yield Remark(keys=batches.keys, sentence=str(batches), of_source=True)
        return
    if isinstance(batches, DataprepError):
        yield Remark(keys=("rewrite",), sentence=str(batches))
        return
    if batches is None:
        yield Remark(keys=("rewrite",), sentence=f"rewrite: {_TOO_SLOW}", hint=True)
        return
    columns: Tags = [{} for _ in batches]
    for tagger, tags in (*_run_named(corpus, taggers, batches), *_run_functions(corpus, taggers, batches)):
        keys = ("tag", taggers.index(tagger))
        if isinstance(tags, DataprepError):
            yield Remark(keys=keys, sentence=str(tags))
        elif tags is None:
            yield Remark(keys=keys, sentence=f"tag: {tagger.name}: {_TOO_SLOW}", hint=True)
        else:
            for merged_tags, new_tags in zip(columns, tags, strict=True):
                merged_tags |= new_tags
    yield from _find_rule_remarks(corpus, batches, columns)


def _read_first_documents(corpus: CorpusDeclaration) -> list[DocumentBatch]:
    """Return the first documents of each split.

    The list is empty if the source is remote or unreadable, which is reported elsewhere. Raises RewritingError if a
    rewriter fails, and CarriedValueError for a value that does not have the type of its column.
    """
    batches: list[DocumentBatch] = []
    if is_mirrored(corpus.source):
        return batches
    try:
        source, fields = open_source(corpus.source), corpus.carried
        entries = build_manifest(source.list().files, include=corpus.include, splits=corpus.splits)
        for split in corpus.splits:
            entry = next((candidate for candidate in entries if candidate.split == split), None)
            if entry is None:
                continue
            # Read only one batch, because the reader compares the digest of the file after the last batch, but a part
            # from `build_present_part` has no digest.
            batch = next(read_part_batches(build_present_part(corpus, entry, source.path(entry)), fields), None)
            if batch is not None and batch.texts:
                batches.append(batch.slice_texts(slice(0, _ROWS_PER_SPLIT)))
    except (RewritingError, CarriedValueError):
        raise
    except (DataprepError, OSError):  # the source is unreadable
        pass
    return batches


def _read_in_worker(corpus: CorpusDeclaration) -> ReadingResult:
    with private_files(corpus.sensitive), WorkerPool(1) as pool:
        pool.submit(Task(TaskId("rewrite"), _read_rewritten_documents, (corpus,)))
        try:
            return _await_result(pool)
        except DataprepError as error:  # the worker died
            return error


def _read_rewritten_documents(corpus: CorpusDeclaration) -> list[DocumentBatch]:
    """Load the rewriters and return the first documents, discarding the rewriters' output. Runs in a worker."""
    with discard_output(private=True):
        assert corpus.rewriting is not None
        # Rewrite no text first, because an error of the import would otherwise be taken for one of the source.
        corpus.rewriting.rewrite_texts([])
        return _read_first_documents(corpus)


def _tag_batches(tagger: BatchTagger, batches: Sequence[DocumentBatch], sensitive: bool) -> Tags:
    """Return a tagger's columns for these documents; raise DataprepError if the tagger fails."""
    return [compute_tags(tagger, batch, sensitive=sensitive) for batch in batches]


def _run_named(
    corpus: CorpusDeclaration, taggers: Sequence[Tagger], batches: Sequence[DocumentBatch]
) -> Iterator[tuple[Tagger, TrialResult]]:
    """Yield the columns or the error of each tagger of this or another package."""
    for tagger in taggers:
        if isinstance(tagger, VersionedTagger):
            try:
                yield tagger, _tag_batches(tagger, batches, corpus.sensitive)
            except DataprepError as error:
                yield tagger, error


def _run_functions(
    corpus: CorpusDeclaration, taggers: Sequence[Tagger], batches: Sequence[DocumentBatch]
) -> Iterator[tuple[Tagger, TrialResult]]:
    """Yield the columns or the error of each function, which runs in a single worker.

    A worker is ended if a function takes too long, and the next function gets a new worker.
    """
    remaining = [one for one in taggers if isinstance(one, FunctionTagger)]
    while remaining:
        with private_files(corpus.sensitive), WorkerPool(1) as pool:
            tags: TrialResult = []
            while remaining and tags is not None:
                tagger = remaining.pop(0)
                pool.submit(Task(TaskId(f"tag: {tagger.name}"), _call_tagger, (tagger, batches, corpus.sensitive)))
                try:
                    tags = _await_result(pool)
                except DataprepError as error:  # the worker died
                    tags = error
                yield tagger, tags


def _await_result(pool: WorkerPool) -> Any:
    """Return the result of a pool with one task; None if it takes too long."""
    limit = time.monotonic() + _TIMEOUT_SECONDS
    for event in pool.events():
        if isinstance(event, FinishedTask):
            error = event.error
            return error if isinstance(error, DataprepError) else event.result
        if time.monotonic() > limit:
            break
    return None


def _call_tagger(tagger: FunctionTagger, batches: Sequence[DocumentBatch], sensitive: bool) -> Tags:
    """Load a function and apply it to the documents, discarding its output. Runs in a worker."""
    with discard_output(private=True):
        tagger.load()
        return _tag_batches(tagger, batches, sensitive)


def _find_rule_remarks(corpus: CorpusDeclaration, batches: Sequence[DocumentBatch], columns: Tags) -> Iterator[Remark]:
    """Yield a remark on each rule that drops all of these documents, if the values of its columns are known."""
    import pyarrow as pa

    if not batches or not corpus.rules:
        return
    types = {name: kind for name, kind in corpus.columns.items() if name in {**batches[0].rows, **columns[0]}}
    row_columns: list[Mapping[str, list[Any]]] = [{**b.rows, **tags} for b, tags in zip(batches, columns, strict=True)]
    table = pa.table(
        {name: [value for batch_columns in row_columns for value in batch_columns[name]] for name in types},
        schema=build_schema(types),
    )
    for name, (keeps, rule) in corpus.rules.items():
        if rule.columns <= types.keys() and (find_dropping_rules(table, {name: (keeps, rule)}) == 0).all():
            key = "keep" if keeps else "drop"
            text = f"{key}.{name}: drops every document examined (the first documents of each split)"
            yield Remark(keys=(key, name), sentence=text, hint=True)
