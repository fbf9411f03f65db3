"""Remarks on a corpus before it is built, for `dataprep check` and the beginning of `dataprep run`.

Only cheap checks are made: they read a local tokenizer, the key of the ids, and the listing and first rows of a local
source. A split of a few kilobytes is also tokenized, because it may be too short for a view.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from dataprep_assets.curation.declaration import find_tagger_remarks, find_unknown_sources, format_sources
from dataprep_assets.curation.documents import find_source
from dataprep_assets.curation.duplicates.signatures import read_library_version
from dataprep_assets.curation.retractions import read_retracted_ids
from dataprep_assets.curation.rewriters.declaration import find_rewriter_remarks
from dataprep_assets.curation.table import name_column
from dataprep_assets.engine.yaml.declared_keys import find_nearest
from dataprep_assets.engine.yaml.remark import Remark, format_examples, parse_error_keys
from dataprep_assets.errors import (
    ConfigError,
    DataprepError,
    OutOfMemoryError,
    SourceError,
    TokenizerError,
    count_of,
    os_error_reason,
)
from dataprep_assets.fields import find_siblings, value_at
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.source_parts import build_present_part, read_texts
from dataprep_assets.pipelines.corpus.token_bins import choose_stream_dtype
from dataprep_assets.pipelines.corpus.view import MinimumLength, load_corpus_view
from dataprep_assets.planning.manifest import (
    ManifestEntry,
    build_manifest,
    compile_glob,
    find_files_in_other_case,
    find_hidden_files,
    find_unassigned_files,
    select_included_paths,
)
from dataprep_assets.sources.access import LEFT_OUT, SourceAccess
from dataprep_assets.sources.readers.contents import detect_non_table
from dataprep_assets.sources.readers.csv_rows import describe_merged_rows
from dataprep_assets.sources.readers.first_rows import (
    FILES,
    ROWS,
    describe_absent_field,
    is_not_parquet,
    list_present_fields,
    read_first_rows,
    sample_files,
    summarize_first_rows,
)
from dataprep_assets.sources.readers.input_format import input_format
from dataprep_assets.sources.readers.records import MISSING_TEXT, AbsentColumnError, RecordFields
from dataprep_assets.stores.files import sha256_file
from dataprep_assets.stream.declaration import HubSource, ObjectStoreSource
from dataprep_assets.stream.remote_remarks import find_remote_remarks
from dataprep_assets.stream.source import is_mirrored, open_source
from dataprep_assets.stream.token_stream import explain_refusal
from dataprep_assets.stream.tokenizer import find_local_tokenizer, find_rendered_remarks, find_separator_remarks
from dataprep_assets.tokenization.bundle import TokenizerBundle

_MAX_SHOWN = 3
_MAX_EXAMINED_FILES = 1000
"""Maximum number of files to examine, because each file takes a while on a network file system."""
_MAX_COMPARED_BYTES = 256 << 20
"""Maximum bytes to read for comparing files of equal size, because reading more would delay each run."""
_BYTES_PER_TOKEN = 8
"""Upper estimate of bytes per token; only splits that may be too short by this estimate are tokenized."""


def find_corpus_remarks(corpus: CorpusDeclaration) -> Iterator[Remark]:
    """Yield remarks on the tokenizer, the tokens around each document, and the files of the source."""
    try:
        bundle = find_local_tokenizer(corpus.tokenizer, corpus.document.special_tokens)
    except TokenizerError as error:
        yield Remark(keys=("tokenizer",), sentence=str(error))
        bundle = None
    if bundle is not None:
        around = corpus.document
        yield from find_separator_remarks(bundle, around.separator, around.special_tokens, ("document", "separator"))
        try:
            bundle.choose_bos(around.bos, around.special_tokens)
        except TokenizerError as error:
            yield Remark(keys=("document", "bos"), sentence=str(error))
        try:
            choose_stream_dtype(corpus, bundle)
        except ConfigError as error:
            yield Remark(keys=("dtype",), sentence=str(error))
    try:
        corpus.document.key()
    except ConfigError as error:
        yield Remark(keys=("document", "id_key"), sentence=str(error))
    else:
        try:
            # Read the list only if the key is available, because a missing key is reported above.
            read_retracted_ids(corpus.retractions, corpus.document.ids(sensitive=corpus.sensitive))
        except ConfigError as error:
            yield Remark(keys=("retractions",), sentence=str(error))
    if corpus.publish is not None and not any(load_corpus_view(view).rows for view in corpus.views):
        sentence = (
            "publish: no view has Parquet rows, so `load_dataset` and the Hub's viewer show no data. Add `hf_parquet` "
            "to `views` unless you publish only for other trainers"
        )
        yield Remark(keys=("publish",), sentence=sentence, hint=True)
    yield from _check_libraries(corpus)
    if isinstance(corpus.source, HubSource | ObjectStoreSource):
        yield from find_remote_remarks(corpus.source)
    elif not is_mirrored(corpus.source):
        yield from _check_files(corpus, bundle)


def _check_libraries(corpus: CorpusDeclaration) -> Iterator[Remark]:
    """Yield remarks on missing libraries and files of taggers and signatures."""
    taggers, rewriting = corpus.taggers, corpus.rewriting
    if rewriting is not None:
        yield from find_rewriter_remarks(rewriting)
    yield from find_tagger_remarks(taggers[: len(corpus.tag)])
    if corpus.decontaminate is not None:
        from dataprep_assets.curation.benchmarks.benchmarks import BenchmarkTagger
        from dataprep_assets.curation.benchmarks.coverage import find_benchmark_remarks

        assert isinstance(taggers[-1], BenchmarkTagger), "it follows the taggers of `tag`"
        yield from find_benchmark_remarks(taggers[-1], corpus.decontaminate)
    if corpus.duplicates is not None and corpus.duplicates.kind == "near":
        try:
            read_library_version()
        except ConfigError as error:
            yield Remark(keys=("duplicates",), sentence=str(error))


def _check_files(corpus: CorpusDeclaration, bundle: TokenizerBundle | None) -> Iterator[Remark]:
    """Yield remarks on the listing of the source, and on the first rows of its files."""
    try:
        listing = open_source(corpus.source).list()
        files = listing.files
        entries = build_manifest(files, include=corpus.include, splits=corpus.splits)
    except SourceError as error:
        yield Remark(keys=("source",), sentence=str(error), of_source=True)
        return
    except ConfigError as error:  # the message begins with the YAML key
        yield Remark(keys=parse_error_keys(error), sentence=str(error))
        return
    if excluded_files := select_included_paths(listing.left_out, corpus.include):
        examples = "" if corpus.sensitive else format_examples(excluded_files, _MAX_SHOWN)
        sentence = f"include: {count_of(len(excluded_files), 'file')} excluded{examples}: {LEFT_OUT}"
        yield Remark(keys=("include",), sentence=sentence, hint=True)
    hidden = find_hidden_files(files, include=corpus.include, splits=corpus.splits)
    in_other_case = find_files_in_other_case(files, include=corpus.include, splits=corpus.splits)
    for paths, verbs, reason in (
        (hidden, ("begins", "begin"), "with `_` or `.`. To read excluded files, match their names in `include`"),
        (
            in_other_case,
            ("matches", "match"),
            "a glob only in a different case. To read such files, rename them, or add a glob",
        ),
    ):
        if paths:
            examples = "" if corpus.sensitive else format_examples(paths, _MAX_SHOWN)
            names_text = f"its name {verbs[0]}" if len(paths) == 1 else f"their names {verbs[1]}"
            count = count_of(len(paths), "file is", "files are")
            sentence = f"include: {count} excluded{examples}: {names_text} {reason}"
            yield Remark(keys=("include",), sentence=sentence, hint=True)
    yield from _check_globs(corpus, [file.relpath for file in files])
    yield from _find_duplicate_files(corpus, entries)
    stray_files = find_unassigned_files(files, include=corpus.include, splits=corpus.splits)
    if stray_files:
        yield Remark(
            keys=("splits",),
            sentence=(
                f"splits: {len(stray_files):,} of {count_of(len(files), 'file')} "
                f"{'is' if len(stray_files) == 1 else 'are'} in no split, and therefore excluded"
            )
            + ("" if corpus.sensitive else format_examples(stray_files, _MAX_SHOWN)),
            hint=True,
        )
    yield from _check_priority_order(corpus, entries)
    yield from _check_rule_sources(corpus, entries)
    faults = list(_check_fields(corpus, entries, bundle))
    yield from faults
    # Check the lengths only if all faults are hints, because a wrong text field makes every split seem too short.
    if bundle is not None and all(fault.hint for fault in faults):
        for view in map(load_corpus_view, corpus.views):
            if view.shortest is not None:
                yield from _check_split_lengths(corpus, view.shortest(corpus), bundle, entries)


def _find_order(corpus: CorpusDeclaration) -> tuple[str, Sequence[str]]:
    """Return the column with a declared priority order, and the order; both are empty if none is declared."""
    priority = "oldest" if corpus.duplicates is None else corpus.duplicates.priority
    if isinstance(priority, str) or isinstance(priority.order, str):
        return "", ()
    return priority.column, priority.order


def _check_priority_order(corpus: CorpusDeclaration, entries: Sequence[ManifestEntry]) -> Iterator[Remark]:
    """Yield remarks on sources in a priority order that no file has; values of other columns are not known yet."""
    column, order = _find_order(corpus)
    if column != "source" or corpus.document.source_field is not None:
        return
    sources = sorted({find_source(entry.relpath) for entry in entries})
    for name in order:
        if name not in sources:
            nearest_name = find_nearest(name, sources)
            suggestion = f"; did you mean {nearest_name!r}?" if nearest_name else "."
            advice = "" if corpus.sensitive else f"{suggestion} Available: {format_sources(sources)}"
            yield Remark(
                keys=("duplicates", "priority", "order"),
                sentence=f"duplicates.priority.order: no file has the source {name!r}{advice}",
            )


def _check_rule_sources(corpus: CorpusDeclaration, entries: Sequence[ManifestEntry]) -> Iterator[Remark]:
    """Yield remarks on sources in rules that no file has; the values of `source_field` are not known yet."""
    if corpus.document.source_field is None:
        sources = {find_source(entry.relpath) for entry in entries}
        for keys, sentence in find_unknown_sources(corpus.keep, corpus.drop, sources, sensitive=corpus.sensitive):
            yield Remark(keys=keys, sentence=sentence)


def _check_globs(corpus: CorpusDeclaration, paths: Sequence[str]) -> Iterator[Remark]:
    """Yield remarks on globs that match no file."""
    globs_by_key: list[tuple[tuple[str, ...], Sequence[str]]] = [(("include",), corpus.include)]
    globs_by_key += [(("splits", name), globs) for name, globs in corpus.splits.items()]
    for keys, globs in globs_by_key:
        for glob in globs:
            if not any(map(compile_glob(glob).fullmatch, paths)):
                yield Remark(
                    keys=keys, sentence=f"{'.'.join(keys)}: {glob} matches no file. Correct or remove it", hint=True
                )


def _find_duplicate_files(corpus: CorpusDeclaration, entries: Sequence[ManifestEntry]) -> Iterator[Remark]:
    """Yield remarks on files with two names in the source, either as links or as copies."""
    source, names = open_source(corpus.source), dict[tuple[int, int], str]()
    repeated_pairs: list[tuple[str, str]] = []
    unique_entries: list[ManifestEntry] = []
    # Stop at the first unreadable file without a remark, because `_check_fields` or a run reports the file.
    with suppress(OSError, SourceError):
        for entry in entries[:_MAX_EXAMINED_FILES]:
            status = source.path(entry).stat()
            first_name = names.setdefault((status.st_dev, status.st_ino), entry.relpath)
            if first_name != entry.relpath:
                repeated_pairs.append((entry.relpath, first_name))
            else:
                unique_entries.append(entry)
    for pairs, singular, plural in (
        (repeated_pairs, "file is read twice because of links", "files are read twice because of links"),
        (
            _find_copies(source, unique_entries),
            "file is identical to a different file",
            "files are identical to other files",
        ),
    ):
        if pairs:
            example = "" if corpus.sensitive else format_examples([" and ".join(pair) for pair in pairs], 1)
            remedy = "Exclude one of the two names" if len(pairs) == 1 else "Exclude one name of each"
            sentence = f"include: {count_of(len(pairs), singular, plural)}{example}. {remedy}"
            yield Remark(keys=("include",), sentence=sentence, hint=True)


def _find_copies(source: SourceAccess, entries: Sequence[ManifestEntry]) -> list[tuple[str, str]]:
    """Return pairs of a file and an earlier file with the same bytes; read at most `_MAX_COMPARED_BYTES`."""
    sizes = Counter(entry.size_bytes for entry in entries)
    copies, digests, remaining = list[tuple[str, str]](), dict[tuple[int, str], str](), _MAX_COMPARED_BYTES
    for entry in entries:
        if sizes[entry.size_bytes] < 2 or not 0 < entry.size_bytes <= remaining:
            continue
        remaining -= entry.size_bytes
        # Ignore unreadable files, because `_check_fields` or a run reports them.
        with suppress(OSError):
            original = digests.setdefault((entry.size_bytes, sha256_file(source.path(entry))), entry.relpath)
            if original != entry.relpath:
                copies.append((entry.relpath, original))
    return copies


def _check_fields(
    corpus: CorpusDeclaration, entries: Sequence[ManifestEntry], bundle: TokenizerBundle | None
) -> Iterator[Remark]:
    """Yield remarks on unreadable files, on fields missing from all rows of a split, and on bad rows."""
    source = open_source(corpus.source)
    for name in sorted({entry.format for entry in entries}):
        try:
            input_format(name)
        except ConfigError as error:
            yield Remark(keys=("include",), sentence=str(error))
            return
    for entry in [entry for entry in entries if entry.format == "parquet"][:_MAX_EXAMINED_FILES]:
        with suppress(OSError):
            if is_not_parquet(source.path(entry)):
                name, kind = (
                    "a file" if corpus.sensitive else entry.relpath,
                    detect_non_table(source.path(entry), ".parquet"),
                )
                reason = "is not a Parquet file: it does not begin and end with `PAR1`. Download it again, or remove it"
                why = f"source: {name} {reason}" if kind is None else f"source: {name}: {kind}"
                yield Remark(keys=("source",), sentence=why, of_source=True)
                return
    sampled_files = [_SampledFile(corpus, entry, source.path(entry)) for entry in sample_files(entries)]
    if damaged := [file.damage for file in sampled_files if file.damage]:
        shown = damaged[:_MAX_SHOWN]
        yield from (Remark(keys=("source",), sentence=f"source: {sentence}", of_source=True) for sentence in shown)
        return
    fields: list[tuple[tuple[str, ...], str, tuple[type, ...]]] = [(("text_field",), corpus.text_field, (str,))]
    if corpus.document.id_field is not None:
        fields.append((("document", "id_field"), corpus.document.id_field, (str, int)))
    all_rows: list[dict[str, Any]] = []
    is_whole = True
    for split in corpus.splits:
        # Group the rows by format, because files of different formats may have different fields.
        rows: dict[str, list[dict[str, Any]]] = {}
        members = [entry for entry in entries if entry.split == split]
        for name in sorted({entry.format for entry in members}):
            with suppress(DataprepError, OSError):  # a run reports the error when it reads the file
                paths = [source.path(entry) for entry in members if entry.format == name]
                rows[name] = list(read_first_rows(paths, corpus.reading))
        if rows and not any(rows.values()):
            empty = (
                f"splits.{split}: {count_of(len(members), 'file has', 'files have')} no records. Add a file with "
                "records, or remove the split"
            )
            yield Remark(keys=("splits", split), sentence=empty)
            continue
        range_text = "" if corpus.sensitive or not members else f" (first file: {members[0].relpath})"
        all_rows_of_split = list(chain.from_iterable(rows.values()))
        all_rows += all_rows_of_split
        is_whole &= len(members) <= FILES and all(len(rows_of_part) < ROWS for rows_of_part in rows.values())
        rows_of_split = {f"split {split}{range_text}": all_rows_of_split}
        part_texts = {
            f"the files of split {split} of format {name}": rows_of_part for name, rows_of_part in rows.items()
        }
        # If all rows of the split lack a field, report it once. Otherwise, report it for each format whose rows all
        # lack it.
        for parts in (rows_of_split, part_texts) if len(rows) > 1 else (rows_of_split,):
            faults = [
                Remark(keys=keys, sentence=sentence)
                for keys, field, types in fields
                for whose, rows_of_part in parts.items()
                if (
                    sentence := describe_absent_field(
                        rows_of_part, ".".join(keys), field, whose, types, hidden=corpus.sensitive
                    )
                )
            ]
            if faults:
                yield from faults
                return
        if (sentence := _describe_empty_texts(corpus, split, range_text, all_rows_of_split)) is not None:
            yield Remark(keys=("text_field",), sentence=sentence, hint=not is_whole)
    refusals = [file.refusal for file in sampled_files if file.refusal]
    yield from (
        Remark(keys=("source",), sentence=f"source: {sentence}", of_source=True) for sentence in refusals[:_MAX_SHOWN]
    )
    yield from _find_merged_records(corpus, [entry for entry in sample_files(entries) if entry.format == "csv"])
    yield from _find_empty_fields(corpus, all_rows, is_whole=is_whole)
    if bundle is not None:
        texts = [text for row in all_rows if isinstance(text := value_at(row, corpus.text_field), str)]
        yield from find_rendered_remarks(texts, bundle, corpus.document.special_tokens, ("document", "special_tokens"))


def _describe_empty_texts(
    corpus: CorpusDeclaration, split: str, range_text: str, rows: Sequence[dict[str, Any]]
) -> str | None:
    """Return a sentence if the texts of all rows are empty or white space; None otherwise, or if there are no rows."""
    texts = [value_at(row, corpus.text_field) for row in rows]
    if not texts or any(not isinstance(text, str) or text.strip() for text in texts):
        return None
    subject = ("all " if len(texts) > 1 else "") + count_of(len(texts), "examined row has", "examined rows have")
    return (
        f"`text_field: {corpus.text_field}`: split {split}{range_text}: {subject} an empty text. Name the field with "
        "the text, or correct the source"
    )


def _find_merged_records(corpus: CorpusDeclaration, entries: Sequence[ManifestEntry]) -> Iterator[Remark]:
    """Yield a remark on a CSV record that may consist of several, unless the declaration sets the quoting."""
    source = open_source(corpus.source)
    for entry in entries:
        reader = build_present_part(corpus, entry, source.path(entry)).read_rows()
        if sentence := describe_merged_rows(reader, "a file" if corpus.sensitive else entry.relpath):
            yield Remark(keys=("csv_quotes",), sentence=sentence, hint=True)
            return


class _SampledFile:
    """State of a file by its first rows: `damage` if it is unreadable, `refusal` if a run would reject its rows."""

    def __init__(self, corpus: CorpusDeclaration, entry: ManifestEntry, path: Path) -> None:
        part = build_present_part(corpus, entry, path).as_stored
        if corpus.sensitive:
            part = replace(part, label="a file")
        self.damage, self.refusal = "", ""
        try:
            first_rows = summarize_first_rows(
                (len(block.texts), block.bad) for block in part.read_records(_build_record_fields(corpus))
            )
        except AbsentColumnError as error:
            self.damage = error.hidden if corpus.sensitive else str(error)
        except (SourceError, OutOfMemoryError) as error:
            self.damage = str(error)
        except OSError as error:
            self.damage = f"{part.label}: {os_error_reason(error)}"
        else:
            fields, present_fields = _build_record_fields(corpus), ""
            if not first_rows.has_good and first_rows.bad is not None and first_rows.bad.reason == MISSING_TEXT:
                rows = list(read_first_rows([path], corpus.reading))
                present_fields = list_present_fields(rows, fields.text, hidden=corpus.sensitive)
            self.refusal = explain_refusal(
                part, first_rows, policy=corpus.bad_records.policy, fields=fields, present_fields=present_fields
            )


def _build_record_fields(corpus: CorpusDeclaration) -> RecordFields:
    return RecordFields(corpus.text_field, corpus.document.id_field, corpus.bad_records.max_record_bytes)


def _find_empty_fields(
    corpus: CorpusDeclaration, rows: Sequence[dict[str, Any]], *, is_whole: bool
) -> Iterator[Remark]:
    """Yield remarks on fields that none of the rows has, because their columns in the document table would be empty.

    `is_whole` is whether these are all rows of the source.
    """
    document = corpus.document
    paths: list[tuple[tuple[str, ...], str | None]] = [
        (("document", "url_field"), document.url_field),
        (("document", "license_field"), document.license_field),
        (("document", "source_field"), document.source_field),
        *((("document", "keep_fields", path), path) for path in document.keep_fields or ()),
    ]
    for keys, path in paths:
        if path is not None and rows and all(value_at(row, path) is None for row in rows):
            subfields, names = find_siblings(rows, path)
            have = f"{subfields!r} has" if subfields else "they have"
            names_text = "" if corpus.sensitive else f": {have} {', '.join(map(repr, names))}"
            sentence = f"{'.'.join(keys[:2])}: none of the rows examined has {path!r}{names_text}"
            # Refuse only a missing source, because rules, budgets and counts by source would all have one source.
            yield Remark(keys=keys, sentence=sentence, hint=not is_whole or keys != ("document", "source_field"))
    yield from _find_unseen_sources(corpus, rows)
    column, order = _find_order(corpus)
    fields = {"source": document.source_field, **{name_column(path): path for path in document.keep_fields or ()}}
    if rows and (path := fields.get(column)) is not None:
        values = {value_at(row, path) for row in rows}
        for value in [name for name in order if name not in values][:_MAX_SHOWN]:
            sentence = f"duplicates.priority.order: none of the rows examined has {value!r} in {path!r}"
            yield Remark(keys=("duplicates", "priority", "order"), sentence=sentence, hint=True)


def _find_unseen_sources(corpus: CorpusDeclaration, rows: Sequence[dict[str, Any]]) -> Iterator[Remark]:
    """Yield hints about sources in rules that none of the rows has in `source_field`; later rows may have them."""
    if (path := corpus.document.source_field) is None:
        return
    sources = {name for row in rows if isinstance(name := value_at(row, path), str)}
    names_text = "" if corpus.sensitive else f"; they have: {format_sources(sources)}"
    for keys, _ in find_unknown_sources(corpus.keep, corpus.drop, sources, sensitive=True) if sources else ():
        sentence = f"{'.'.join(keys[:2])}: none of the rows examined has the source {keys[-1]!r}{names_text}"
        yield Remark(keys=keys, sentence=sentence, hint=True)


def _check_split_lengths(
    corpus: CorpusDeclaration, shortest: MinimumLength, bundle: TokenizerBundle, entries: Sequence[ManifestEntry]
) -> Iterator[Remark]:
    """Yield remarks on splits that are too short for a view, which would otherwise fail at the end of the build."""
    from dataprep_assets.tokenization.engines import ReferenceEngine

    for split in corpus.splits:
        members = [entry for entry in entries if entry.split == split]
        if sum(entry.size_bytes for entry in members) >= shortest.tokens * _BYTES_PER_TOKEN:
            continue
        try:
            # Each document also has a separator (the 1) and, if declared, a BOS token.
            around = 1 + (bundle.choose_bos(corpus.document.bos, corpus.document.special_tokens) is not None)
            engine, tokens = ReferenceEngine(bundle, corpus.document.special_tokens), 0
            for text in _read_texts(corpus, members):
                tokens += len(engine.encode([text])[0]) + around
                if tokens >= shortest.tokens:
                    break
        except (DataprepError, OSError):
            # `find_corpus_remarks` reports errors of the tokenizer, and a run reports unreadable files.
            continue
        if tokens < shortest.tokens:
            yield Remark(keys=(shortest.key,), sentence=shortest.refusal(split, tokens))


def _read_texts(corpus: CorpusDeclaration, entries: Sequence[ManifestEntry]) -> Iterator[str]:
    source = open_source(corpus.source)
    for entry in entries:
        yield from read_texts(corpus, entry, source.path(entry))
