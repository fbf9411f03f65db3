"""The documents of a corpus on which its engine is certified."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.manifest import Manifest, load_manifest
from dataprep_assets.pipelines.corpus.source.manifest_changes import listed_identity
from dataprep_assets.pipelines.corpus.source.source_parts import present_part
from dataprep_assets.planning.manifest import ManifestEntry
from dataprep_assets.sources.readers.records import RecordFields
from dataprep_assets.stream.engine_certificate import CertifiedEngine, Sample, first_texts
from dataprep_assets.stream.source import is_mirrored, open_source

FILES_SAMPLED = 6


def corpus_engine(corpus: CorpusDeclaration) -> CertifiedEngine:
    """The engine to certify for a corpus, on its own documents."""
    return CertifiedEngine(
        dataset=corpus,
        tokenizer=corpus.tokenizer,
        special_tokens=corpus.document.special_tokens,
        separator=corpus.document.separator,
        sample=partial(_sample, corpus),
        at_hand=not is_mirrored(corpus.source),
    )


def _sample(corpus: CorpusDeclaration, store: ArtifactStore) -> Sample:
    manifest = load_manifest(corpus, store)
    chosen = _sampled_files(corpus, manifest)
    # As listed, without a look into the files: a local one that is edited and keeps its size leaves the certificate
    # as it is.
    digest = digest_value([[e.relpath, *listed_identity(e)] for e in chosen])
    return Sample(
        kind="engine_certificate",
        parts=[digest],
        sources={"sampled files": digest},
        texts=lambda: corpus_sample(corpus, manifest),
    )


def _sampled_files(corpus: CorpusDeclaration, manifest: Manifest) -> list[ManifestEntry]:
    """A few files of every split, chosen by digests of their names: a growing corpus mostly keeps its sample."""
    chosen: list[ManifestEntry] = []
    for split in corpus.splits:
        members = [e for e in manifest.entries if e.split == split]
        drawn = sorted(members, key=lambda e: digest_value(e.relpath))
        # at least one of each split, however many there are
        chosen += sorted(drawn[: max(1, FILES_SAMPLED // len(corpus.splits))], key=lambda e: e.ordinal)
    return chosen


def corpus_sample(corpus: CorpusDeclaration, manifest: Manifest) -> Iterator[str]:
    """Yield documents from files of every split; long ones are cut.

    Bad records are skipped here: snapshot and token bins, which read all files, refuse them all at once. Files of a hub
    are mirrored first.
    """
    access, chosen = open_source(corpus.source), _sampled_files(corpus, manifest)
    access.fetch(chosen)
    for entry in chosen:
        yield from first_texts(texts_of(corpus, entry, access.path(entry)))


def texts_of(corpus: CorpusDeclaration, entry: ManifestEntry, path: Path) -> Iterator[str]:
    """The texts of a file as it is now."""
    for block in present_part(corpus, entry, path).read_records(RecordFields(corpus.text_field)):
        yield from block.texts
