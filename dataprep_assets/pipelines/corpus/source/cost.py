"""Cost estimate for `dataprep plan`: building a corpus, or a release of a corpus, from scratch.

The estimate uses the committed shard plan or, without one, a plan for the current listing. It writes nothing.
"""

from dataprep_assets.engine.staleness.estimate import Estimate, estimate_cost
from dataprep_assets.formats.flat_bins import token_dtype
from dataprep_assets.integrity.artifacts import ArtifactStore, LocalArtifacts
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.source.manifest import has_manifest, load_manifest, plan_manifest
from dataprep_assets.pipelines.corpus.token_bins import build_meta
from dataprep_assets.pipelines.corpus.view import load_corpus_view
from dataprep_assets.planning.cost import Machine, Products, measure_density, measure_split_sizes
from dataprep_assets.stream.source import is_mirrored
from dataprep_assets.stream.token_shard import TOKEN_BINS


def estimate_corpus_cost(
    corpus: CorpusDeclaration, store: ArtifactStore, machine: Machine, products: Products | None = None
) -> Estimate:
    """Estimate the cost of a corpus.

    Args:
        corpus: The dataset.
        store: The store of its artifacts.
        machine: The machine that builds it.
        products: Numbers of copies and uploads of the stream; None for the values of a corpus.
    """
    mirrored = is_mirrored(corpus.source)
    if has_manifest(corpus, store):
        manifest = load_manifest(corpus, store)
        partitions, density = list(manifest.plan), measure_density(manifest.entries)
        works = measure_split_sizes(manifest.entries, manifest.plan, mirrored=mirrored)
    else:
        plan = plan_manifest(corpus, store)
        partitions, density = [], measure_density(plan.entries)
        works = measure_split_sizes(plan.entries, plan.plan, mirrored=mirrored)
    return estimate_cost(
        works,
        machine,
        store,
        artifacts=[corpus.artifact(TOKEN_BINS, partition) for partition in partitions],
        bytes_per_token=token_dtype(build_meta(corpus)["dtype"]).itemsize,
        products=products or count_corpus_products(corpus, local=isinstance(store, LocalArtifacts)),
        density=density,
    )


def count_corpus_products(corpus: CorpusDeclaration, *, local: bool) -> Products:
    """Return the numbers of copies and uploads of the stream: shards, copying views and, if `local`, joined files."""
    copies = 1 + sum(load_corpus_view(view).linked is None for view in corpus.views)
    return Products(
        copies=copies + corpus.combines if local else 0,
        uploads=0 if local else copies,
        joined=corpus.combines and not local,
        tokens_per_shard=None,
    )
