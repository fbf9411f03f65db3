"""What a release will cost to build from nothing, for `dataprep plan`: a corpus whose stream is cut a second time."""

from dataclasses import replace

from dataprep_assets.engine.staleness.estimate import Estimate
from dataprep_assets.integrity.artifacts import ArtifactStore, LocalArtifacts
from dataprep_assets.pipelines.corpus.source.cost import corpus_cost, corpus_products
from dataprep_assets.pipelines.release.declaration import ReleaseDeclaration
from dataprep_assets.planning.cost import Machine, Products


def release_cost(release: ReleaseDeclaration, store: ArtifactStore, machine: Machine) -> Estimate:
    """The cost of a release.

    Args:
        release: The dataset.
        store: Where its artifacts go.
        machine: The machine that builds it.
    """
    products = release_products(release, local=isinstance(store, LocalArtifacts))
    return corpus_cost(release, store, machine, products)


def release_products(release: ReleaseDeclaration, *, local: bool) -> Products:
    """The copies of its corpus, the shards, and their copy at the public place; `local`: artifacts are in a folder."""
    corpus, target = corpus_products(release, local=local), release.release.publish
    in_bucket = target is not None and "://" in target
    return replace(
        corpus,
        copies=corpus.copies + local + (target is not None and not in_bucket),
        uploads=corpus.uploads + (not local) + in_bucket,
        tokens_per_shard=release.release.tokens_per_shard,
    )
