"""Asks the source of a corpus for changes: a hub for its commit, a folder or a bucket for its listing."""

from functools import partial

from dataprep_assets.engine.staleness.source_watch import SourceIdentity, SourceWatch, identity_of, in_words, time_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.manifest import MANIFEST, plan_manifest
from dataprep_assets.pipelines.corpus.source.manifest_facts import ManifestFacts
from dataprep_assets.planning.globs import taken_by
from dataprep_assets.sources.access import HubCache, HubMirror, LocalTree
from dataprep_assets.sources.hub_cache import COMMIT, cached_snapshot
from dataprep_assets.sources.upstream import UpstreamPartitions
from dataprep_assets.stream.declaration import HubSource
from dataprep_assets.stream.source import open_source


def corpus_watch(corpus: CorpusDeclaration) -> SourceWatch:
    """How the source of a corpus, or of a release, is asked for changes."""
    return SourceWatch(identity=partial(_identity, corpus), changes=partial(_changes, corpus))


def _identity(corpus: CorpusDeclaration, _: ArtifactStore) -> SourceIdentity:
    """The present identity; for a hub the commit of the revision: one request, or none if the revision is a commit."""
    source = corpus.source
    if isinstance(source, HubSource) and COMMIT.fullmatch(source.revision):
        return identity_of([source.revision])
    # asked regularly, so a hub that is out of reach is not waited for
    access = open_source(source, patient=False)
    if isinstance(access, HubMirror):
        return identity_of([access.repo.resolve_commit()])
    if isinstance(access, HubCache):
        return identity_of([cached_snapshot(access.folder, access.revision)[0]])
    # files that are not included may come and go
    wanted = taken_by(corpus.include, naming=[glob for globs in corpus.splits.values() for glob in globs])
    files = [file for file in access.list().files if wanted(file.relpath)]
    listing = [[file.relpath, file.size_bytes, file.etag] for file in files]
    # local files have no version before they are read: an edit that keeps the size shows in the time alone
    if not isinstance(access, LocalTree | UpstreamPartitions) or access.mirrored:
        return identity_of(listing)
    return identity_of(listing, [[f.relpath, time_of(access.path(f), f.relpath)] for f in files])


def _changes(corpus: CorpusDeclaration, store: ArtifactStore) -> str:
    """The changes since the present manifest; changed settings do not count as changes of the source."""
    source, receipt = corpus.source, store.intact(corpus.artifact(MANIFEST))
    # a pinned commit does not change, so the hub is not asked
    if receipt is not None and isinstance(source, HubSource) and source.revision == ManifestFacts.of(receipt).commit:
        return ""
    planned = plan_manifest(corpus, store, patient=False)
    if receipt is None or planned.changes is None:
        return in_words([(len(planned.entries), "file", "not planned yet")])
    return str(planned.changes) if planned.changes.of_files else ""
