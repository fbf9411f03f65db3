"""What of a dataset is not as it should be: the question that a second run asks before it does anything."""

from collections.abc import Iterator

from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.corpus.combined_bins import combined_key, shard_receipts
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.engine_certificate import certificate_key, load_certificate, meta_of, stream_plan
from dataprep_assets.pipelines.corpus.manifest import Manifest, has_manifest, load_manifest, open_source, plan_manifest
from dataprep_assets.pipelines.corpus.shard_work import shard_works
from dataprep_assets.pipelines.corpus.snapshot import planned_lines, snapshot_key
from dataprep_assets.pipelines.corpus.views import artifact_name, combined_splits, view_key


def stale(corpus: CorpusDeclaration, store: ArtifactStore) -> Iterator[str]:
    """Names of artifacts that are missing, damaged or out of date, in build order; nothing when all is up to date.

    Reads artifacts as thoroughly as `verify` declares, and local source files whole. What is downstream of a stale
    artifact is not examined: it is yielded as soon as its inputs are right.
    """
    if not has_manifest(corpus, store):
        yield str(corpus.artifact("manifest"))
        return
    manifest = load_manifest(corpus, store)
    mirrored = open_source(corpus.source).mirrored
    if not mirrored and store.current(corpus.artifact("manifest"), plan_manifest(corpus).key) is None:
        yield str(corpus.artifact("manifest"))
        return
    certificate = corpus.artifact("engine_certificate")
    if store.current(certificate, certificate_key(corpus, manifest)) is None:
        yield str(certificate)
        return
    behind = list(_stale_shards(corpus, store, manifest, mirrored))
    yield from behind
    if corpus.combines and not behind:
        yield from _stale_combined(corpus, store, manifest)


def _stale_shards(corpus: CorpusDeclaration, store: ArtifactStore, manifest: Manifest, mirrored: bool) -> Iterator[str]:
    plan = stream_plan(corpus, load_certificate(corpus, store))
    for partition in manifest.plan:
        snapshot = corpus.artifact("snapshot", partition)
        receipt = store.intact(snapshot)
        wanted = receipt.key if mirrored and receipt else snapshot_key(planned_lines(corpus, manifest, partition))
        if store.current(snapshot, wanted) is None:
            yield str(snapshot)
            continue
        (work,) = shard_works(corpus, store, manifest, plan, [partition])
        if store.current(work.artifact, work.key, corpus.verify) is None:
            yield str(work.artifact)


def _stale_combined(corpus: CorpusDeclaration, store: ArtifactStore, manifest: Manifest) -> Iterator[str]:
    for split in corpus.splits:
        artifact = corpus.artifact("combined_bins", split)
        key = combined_key(shard_receipts(corpus, store, manifest, split), meta_of(corpus))
        if store.current(artifact, key, corpus.verify) is None:
            yield str(artifact)
            return
    for view in corpus.views:
        artifact = corpus.artifact(artifact_name(view))
        if store.current(artifact, view_key(corpus, view, combined_splits(corpus, store)), corpus.verify) is None:
            yield str(artifact)


def sweep_dataset(corpus: CorpusDeclaration, store: ArtifactStore) -> None:
    """Remove what killed runs left beside the artifacts of a dataset of which nothing is stale."""
    plan = load_manifest(corpus, store).plan
    partitioned = [corpus.artifact(name, partition) for name in ("snapshot", "token_bins") for partition in plan]
    combined = [corpus.artifact("combined_bins", split) for split in corpus.splits if corpus.combines]
    others = [corpus.artifact(name) for name in ("manifest", "engine_certificate", *map(artifact_name, corpus.views))]
    store.sweep([*partitioned, *combined, *others])
