"""What of a dataset is not as it should be: the question that a second run asks before it does anything."""

from collections.abc import Iterator
from pathlib import Path

from dataprep_assets.builds.combined_bins import combined_key, shard_receipts
from dataprep_assets.builds.corpus import CorpusDeclaration
from dataprep_assets.builds.engine_certificate import certificate_key, load_certificate, meta_of, stream_plan
from dataprep_assets.builds.manifest import Manifest, has_manifest, load_manifest, open_source, plan_manifest
from dataprep_assets.builds.shard_work import shard_works
from dataprep_assets.builds.snapshot import planned_lines, snapshot_key
from dataprep_assets.builds.views import artifact_name, combined_splits, view_key
from dataprep_assets.integrity.commit import sweep
from dataprep_assets.integrity.receipt import current, whole


def stale(corpus: CorpusDeclaration, root: Path) -> Iterator[str]:
    """Names of artifacts that are missing, damaged or out of date, in build order; nothing when all is up to date.

    Reads artifacts as thoroughly as `verify` declares, and local source files whole. What is downstream of a stale
    artifact is not examined: it is yielded as soon as its inputs are right.
    """
    if not has_manifest(corpus, root):
        yield str(corpus.artifact("manifest"))
        return
    manifest = load_manifest(corpus, root)
    mirrored = open_source(corpus.source).mirrored
    if not mirrored and current(corpus.artifact("manifest").directory(root), plan_manifest(corpus).key) is None:
        yield str(corpus.artifact("manifest"))
        return
    certificate = corpus.artifact("engine_certificate")
    if current(certificate.directory(root), certificate_key(corpus, manifest)) is None:
        yield str(certificate)
        return
    behind = list(_stale_shards(corpus, root, manifest, mirrored))
    yield from behind
    if not behind:
        yield from _stale_combined(corpus, root, manifest)


def _stale_shards(corpus: CorpusDeclaration, root: Path, manifest: Manifest, mirrored: bool) -> Iterator[str]:
    plan = stream_plan(corpus, load_certificate(corpus, root))
    for partition in manifest.plan:
        snapshot = corpus.artifact("snapshot", partition)
        receipt = whole(snapshot.directory(root))
        wanted = receipt.key if mirrored and receipt else snapshot_key(planned_lines(corpus, manifest, partition))
        if current(snapshot.directory(root), wanted) is None:
            yield str(snapshot)
            continue
        (work,) = shard_works(corpus, root, manifest, plan, [partition])
        if current(work.directory, work.key, corpus.verify) is None:
            yield str(work.artifact)


def _stale_combined(corpus: CorpusDeclaration, root: Path, manifest: Manifest) -> Iterator[str]:
    for split in corpus.splits:
        artifact = corpus.artifact("combined_bins", split)
        key = combined_key(shard_receipts(corpus, root, manifest, split), meta_of(corpus))
        if current(artifact.directory(root), key, corpus.verify) is None:
            yield str(artifact)
            return
    for view in corpus.views:
        artifact = corpus.artifact(artifact_name(view))
        if (
            current(artifact.directory(root), view_key(corpus, view, combined_splits(corpus, root)), corpus.verify)
            is None
        ):
            yield str(artifact)


def sweep_dataset(corpus: CorpusDeclaration, root: Path) -> None:
    """Remove what killed runs left beside the artifacts of a dataset of which nothing is stale."""
    plan = load_manifest(corpus, root).plan
    partitioned = [corpus.artifact(name, partition) for name in ("snapshot", "token_bins") for partition in plan]
    combined = [corpus.artifact("combined_bins", split) for split in corpus.splits]
    others = [corpus.artifact(name) for name in ("manifest", "engine_certificate", *map(artifact_name, corpus.views))]
    sweep(artifact.directory(root) for artifact in [*partitioned, *combined, *others])
