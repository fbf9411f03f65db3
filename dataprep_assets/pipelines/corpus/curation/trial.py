"""The trial of a corpus on its first documents, for `dataprep check` and first runs.

Entry point: `build_trial`.
"""

from functools import partial

from dataprep_assets.curation.rewriters.rewriting import RewritingError
from dataprep_assets.curation.table import CarriedValueError
from dataprep_assets.curation.trial import MAX_ROWS, Trial, TrialRows
from dataprep_assets.errors import DataprepError
from dataprep_assets.pipelines.corpus.curation.tagged_shard import read_part_batches
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.source_parts import build_present_part
from dataprep_assets.planning.manifest import build_manifest
from dataprep_assets.stream.source import is_mirrored, open_source


def build_trial(corpus: CorpusDeclaration) -> Trial:
    """Return the trial of a corpus. Raises ConfigError for an invalid tagger or rewriter."""
    return Trial(
        # Leave out the benchmark tagger, which comes last, because `find_benchmark_remarks` checks it.
        taggers=corpus.taggers[: len(corpus.tag)],
        texts={},
        rewriting=corpus.rewriting,
        rules=corpus.rules,
        types=corpus.columns,
        sensitive=corpus.sensitive,
        noun="document",
        scope="the first documents of each split",
        read=partial(_read_first_documents, corpus),
    )


def _read_first_documents(corpus: CorpusDeclaration) -> list[TrialRows]:
    """Return the first documents of each split, as `Trial.read` describes."""
    rows: list[TrialRows] = []
    if is_mirrored(corpus.source):
        return rows
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
                first_documents = batch.slice_texts(slice(0, MAX_ROWS))
                rows.append(TrialRows(columns=first_documents.rows, batches={"all": first_documents}))
    except (RewritingError, CarriedValueError):
        raise
    except (DataprepError, OSError):  # the source is unreadable
        pass
    return rows
