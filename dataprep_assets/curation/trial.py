"""Trial of a dataset's rewriters and taggers on its first rows, for `dataprep check` and first runs.

A rewriter or tagger that fails on ten rows would also fail in a build. User functions run in a worker, because they may
print, hang or exit their process. Commands and assets are not tried, because their cost is unknown. Rules are tried on
the same rows: a rule that drops all of them is usually a mistake.

Entry points: `Trial`, `TrialRows`, `find_trial_remarks`.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dataprep_assets.curation.function_tagger import FunctionTagger
from dataprep_assets.curation.languages.word_splitter import find_unspaced_script
from dataprep_assets.curation.rules import Rule, find_dropping_rules
from dataprep_assets.curation.table import CarriedValueError, Columns, DocumentBatch, build_schema
from dataprep_assets.curation.tagging import (
    BatchTagger,
    BuiltInTagger,
    Tagger,
    VersionedTagger,
    build_preparation,
    compute_tags,
)
from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import ConfigError, DataprepError, count_of
from dataprep_assets.execution.processes import WorkerPool
from dataprep_assets.execution.run_task import FinishedTask, Task, TaskId, discard_output
from dataprep_assets.stores.files import private_files

# Import the class only for type checking, because most datasets rewrite no texts.
if TYPE_CHECKING:
    from dataprep_assets.curation.rewriters.rewriting import Rewriting

MAX_ROWS = 10
"""Maximum number of rows per split or dataset."""
_MAX_CHARACTERS = 1000
"""Characters per row that show its script."""
_WORD_TAGGERS = ("gopher", "repetition", "fineweb")
"""Taggers with the setting `words`."""
_TIMEOUT_SECONDS = 120.0
"""Time limit of a function in seconds; some load a model first."""
_TOO_SLOW = f"ran for more than {count_of(round(_TIMEOUT_SECONDS), 'second')} on the first rows and was stopped"
Tags = list[dict[str, list[Any]]]
"""Column → values, per batch."""
TrialResult = Tags | DataprepError | None
"""Columns of a tagger, its error, or None if it took too long."""


@dataclass(frozen=True, kw_only=True)
class TrialRows:
    """First rows of a file.

    Attributes:
        columns: Column → values of the rows, without the taggers' columns.
        batches: Choice of texts → the rows with these texts; a corpus has only the choice `all`.
    """

    columns: Mapping[str, list[Any]]
    batches: Mapping[str, DocumentBatch]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A trial of a dataset.

    Attributes:
        taggers: Its taggers, in the order of `tag`.
        texts: Tagger → its choice of texts. Default: `all`.
        rewriting: Its rewriters, if any.
        rules: Name → whether a rule keeps the matching rows, and the rule.
        types: Column → type of the columns that rules may use.
        sensitive: Whether messages must not show values.
        noun: Noun for a row.
        scope: Words for the rows: `the first documents of each split`.
        read: Returns the first rows with rewritten texts; nothing if the source is remote or unreadable, which is
            reported elsewhere. Picklable. Raises RewritingError if a rewriter fails, and CarriedValueError for a value
            that does not have the type of its column.
    """

    taggers: Sequence[Tagger]
    texts: Mapping[str, str]
    rewriting: "Rewriting | None"
    rules: Mapping[str, tuple[bool, Rule]]
    types: Columns
    sensitive: bool
    noun: str
    scope: str
    read: Callable[[], list[TrialRows]]

    def select_batches(self, tagger: Tagger, rows: Sequence[TrialRows]) -> list[DocumentBatch]:
        """Return the rows with the texts that a tagger reads."""
        return [first_rows.batches[self.texts.get(tagger.name, "all")] for first_rows in rows]


ReadingResult = list[TrialRows] | DataprepError | None
"""First rows, the error of a rewriter or a carried value, or None if it took too long."""


def find_trial_remarks(build_trial: Callable[[], Trial]) -> Iterator[Remark]:
    """Yield remarks on rewriters, taggers and carried fields that fail on the first rows.

    Also yield remarks on rules that drop all of them.
    """
    try:
        trial = build_trial()
    except ConfigError:  # the validation of the declaration reports the error
        return
    rows: ReadingResult
    try:
        rows = trial.read() if trial.rewriting is None else _read_in_worker(trial, trial.rewriting)
    except CarriedValueError as error:
        rows = error
    if isinstance(rows, CarriedValueError):
        # Mark the remark as about the source, because it names a file, which a sensitive dataset must not show.
        yield Remark(keys=rows.keys, sentence=str(rows), of_source=True)
        return
    if isinstance(rows, DataprepError):
        yield Remark(keys=("rewrite",), sentence=str(rows))
        return
    if rows is None:
        yield Remark(keys=("rewrite",), sentence=f"rewrite: {_TOO_SLOW}", hint=True)
        return
    yield from _find_word_remarks(trial, rows)
    columns: Tags = [{} for _ in rows]
    for tagger, tags in (*_run_named(trial, rows), *_run_functions(trial, rows)):
        keys = ("tag", trial.taggers.index(tagger))
        if isinstance(tags, DataprepError):
            yield Remark(keys=keys, sentence=str(tags))
        elif tags is None:
            yield Remark(keys=keys, sentence=f"tag: {tagger.name}: {_TOO_SLOW}", hint=True)
        else:
            for merged_tags, new_tags in zip(columns, tags, strict=True):
                merged_tags |= new_tags
    yield from _find_rule_remarks(trial, rows, columns)


def _find_word_remarks(trial: Trial, rows: Sequence[TrialRows]) -> Iterator[Remark]:
    """Yield a remark on each tagger that separates words by white space, if the texts have no spaces between words."""
    for index, tagger in enumerate(trial.taggers):
        if not isinstance(tagger, BuiltInTagger) or tagger.name not in _WORD_TAGGERS or "words" in tagger.settings:
            continue
        texts = [text[:_MAX_CHARACTERS] for batch in trial.select_batches(tagger, rows) for text in batch.texts]
        if (script := find_unspaced_script(" ".join(texts))) is not None:
            name, language = script
            remedy = f"Set `words: {language}`" if language else "No library of the extra `words` splits them"
            text = (
                f"tag: {tagger.name}: words are separated by white space, but most text of {trial.scope} is {name}, "
                f"which has no spaces between words. {remedy}"
            )
            yield Remark(keys=("tag", index), sentence=text, hint=True)


@contextmanager
def _open_worker(trial: Trial) -> Iterator[WorkerPool]:
    """Start a worker. If it is the first worker of a run, later ones share its models."""
    with private_files(trial.sensitive), WorkerPool(1, prepare=build_preparation(trial.taggers)) as pool:
        yield pool


def _read_in_worker(trial: Trial, rewriting: "Rewriting") -> ReadingResult:
    with _open_worker(trial) as pool:
        pool.submit(Task(TaskId("rewrite"), _read_rewritten_rows, (rewriting, trial.read)))
        try:
            rows: ReadingResult = _await_result(pool)
        except DataprepError as error:  # the worker died
            return error
        return rows


def _read_rewritten_rows(rewriting: "Rewriting", read: Callable[[], list[TrialRows]]) -> list[TrialRows]:
    """Load the rewriters and return the first rows, discarding the rewriters' output. Runs in a worker."""
    with discard_output(private=True):
        # Rewrite no text first, because an error of the import would otherwise be taken for one of the source.
        rewriting.rewrite_texts([])
        return read()


def _tag_batches(tagger: BatchTagger, batches: Sequence[DocumentBatch], sensitive: bool) -> Tags:
    """Return a tagger's columns for these rows; raise DataprepError if the tagger fails."""
    columns: Tags = []
    for batch in batches:
        # Rows without a text have null values.
        no_tags: dict[str, list[Any]] = {name: [] for name in tagger.columns}
        tags = compute_tags(tagger, batch, sensitive=sensitive) if batch.texts else no_tags
        columns.append({name: batch.expand_to_rows(values) for name, values in tags.items()})
    return columns


def _run_named(trial: Trial, rows: Sequence[TrialRows]) -> Iterator[tuple[Tagger, TrialResult]]:
    """Yield the columns or the error of each tagger of this or another package."""
    for tagger in trial.taggers:
        if isinstance(tagger, VersionedTagger) and tagger.is_local:
            try:
                yield tagger, _tag_batches(tagger, trial.select_batches(tagger, rows), trial.sensitive)
            except DataprepError as error:
                yield tagger, error


def _run_functions(trial: Trial, rows: Sequence[TrialRows]) -> Iterator[tuple[Tagger, TrialResult]]:
    """Yield the columns or the error of each function, which runs in a single worker.

    A worker is ended if a function takes too long, and the next function gets a new worker.
    """
    remaining = [tagger for tagger in trial.taggers if isinstance(tagger, FunctionTagger)]
    while remaining:
        with _open_worker(trial) as pool:
            tags: TrialResult = []
            while remaining and tags is not None:
                tagger = remaining.pop(0)
                arguments = (tagger, trial.select_batches(tagger, rows), trial.sensitive)
                pool.submit(Task(TaskId(f"tag: {tagger.name}"), _call_tagger, arguments))
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
    """Load a function and apply it to the rows, discarding its output. Runs in a worker."""
    with discard_output(private=True):
        tagger.load()
        return _tag_batches(tagger, batches, sensitive)


def _find_rule_remarks(trial: Trial, rows: Sequence[TrialRows], columns: Tags) -> Iterator[Remark]:
    """Yield a remark on each rule that drops all of these rows, if the values of its columns are known."""
    import pyarrow as pa

    if not rows or not trial.rules:
        return
    types = {name: kind for name, kind in trial.types.items() if name in {**rows[0].columns, **columns[0]}}
    row_columns: list[Mapping[str, list[Any]]] = [
        {**first_rows.columns, **tags} for first_rows, tags in zip(rows, columns, strict=True)
    ]
    table = pa.table(
        {name: [value for batch_columns in row_columns for value in batch_columns[name]] for name in types},
        schema=build_schema(types),
    )
    for name, (keeps, rule) in trial.rules.items():
        if rule.columns <= types.keys() and (find_dropping_rules(table, {name: (keeps, rule)}) == 0).all():
            key = "keep" if keeps else "drop"
            text = f"{key}.{name}: drops every {trial.noun} examined ({trial.scope})"
            yield Remark(keys=(key, name), sentence=text, hint=True)
