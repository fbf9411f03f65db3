"""What a declared dataset will cost to build from nothing, for `dataprep plan`.

The plan is the committed one where there is one, else what the source lists now; nothing is written. Rates come from
the shards that are there already, else from the bench.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dataprep_assets.errors import ConfigError
from dataprep_assets.formats.flat_bins import token_dtype
from dataprep_assets.graph.declaration import DatasetDeclaration
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore, LocalArtifacts
from dataprep_assets.pipelines.blend.blend_plan import has_blend_plan, load_blend_plan
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.discovery import open_place
from dataprep_assets.pipelines.blend.stream import blend_dtype
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.engine_certificate import meta_of
from dataprep_assets.pipelines.corpus.manifest import has_manifest, load_manifest, open_source, plan_manifest
from dataprep_assets.pipelines.corpus.views import COPIED
from dataprep_assets.pipelines.release.declaration import ReleaseDeclaration
from dataprep_assets.planning.cost import Cost, Machine, Products, Rates, Work, cost, works_of


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The cost, and the number of finished shards that its rates were measured on: 0 when they are the bench's."""

    cost: Cost
    measured: int


def estimate(declaration: DatasetDeclaration, store: ArtifactStore, machine: Machine) -> Estimate:
    """The cost of a corpus, a release or a pretraining blend; ConfigError for a kind without a plan of token shards."""
    if isinstance(declaration, CorpusDeclaration):
        return _corpus(declaration, store, machine)
    if isinstance(declaration, BlendDeclaration) and declaration.stage == "pretrain":
        return _blend(declaration, store, machine)
    raise ConfigError(
        f"plan: {declaration.dataset}: only corpora, releases and pretraining blends have a plan of token shards, from "
        "which a cost can be told; this dataset's work is known when its source has been read"
    )


def _corpus(corpus: CorpusDeclaration, store: ArtifactStore, machine: Machine) -> Estimate:
    mirrored = open_source(corpus.source).mirrored
    if has_manifest(corpus, store):
        manifest = load_manifest(corpus, store)
        partitions, works = list(manifest.plan), works_of(manifest.entries, manifest.plan, mirrored=mirrored)
    else:
        planned = plan_manifest(corpus)
        partitions, works = [], works_of(planned.entries, planned.plan, mirrored=mirrored)
    itemsize = token_dtype(meta_of(corpus)["dtype"]).itemsize
    return _estimate(
        works,
        machine,
        store,
        [corpus.artifact("token_bins", partition) for partition in partitions],
        itemsize,
        _products(corpus, local=isinstance(store, LocalArtifacts)),
    )


def _products(corpus: CorpusDeclaration, *, local: bool) -> Products:
    """The stream in shards, joined (in a bucket by its server), cut again for a release, and in views that copy it."""
    release = corpus.release if isinstance(corpus, ReleaseDeclaration) else None
    published = release is not None and release.publish is not None
    in_bucket = published and "://" in str(release.publish if release else "")
    made = 1 + (release is not None) + len(COPIED.intersection(corpus.views))
    return Products(
        copies=(made + corpus.combines if local else 0) + (published and not in_bucket),
        uploads=(0 if local else made) + in_bucket,
        joined=corpus.combines and not local,
        tokens_per_shard=release.tokens_per_shard if release else None,
    )


def _blend(blend: BlendDeclaration, store: ArtifactStore, machine: Machine) -> Estimate:
    if not has_blend_plan(blend, store):
        raise ConfigError(
            f"plan: {blend.dataset}: its plan is not made yet, and needs rows counted; materialize `blend_plan` first"
        )
    plan = load_blend_plan(blend, store)
    works = []
    for unit in plan.units:
        shards = [unit.shards[index] for index in unit.chosen]
        files = {part.entry.relpath: part.entry.size_bytes for shard in shards for part in shard.parts}
        works.append(
            Work(
                split=unit.name,
                files=tuple(files.values()),
                shards=tuple(shard.total_bytes for shard in shards),
                mirrored=open_place(unit.dataset, blend.sources).access.mirrored,
            )
        )
    local = isinstance(store, LocalArtifacts)
    artifacts = [blend.artifact("indexed_bins", partition) for partition in plan.partitions]
    products = Products(copies=int(local), uploads=int(not local), joined=False)
    return _estimate(works, machine, store, artifacts, token_dtype(blend_dtype(blend)).itemsize, products)


def _estimate(
    works: Sequence[Work],
    machine: Machine,
    store: ArtifactStore,
    artifacts: Sequence[Artifact],
    itemsize: int,
    products: Products,
) -> Estimate:
    receipts = [receipt for receipt in store.receipts(list(artifacts)) if receipt is not None]
    ledgers = [receipt.ledger for receipt in receipts if receipt.ledger is not None]
    rates = Rates.of_receipts(
        sum(ledger.source_bytes for ledger in ledgers),
        sum(ledger.tokens for ledger in ledgers),
        sum(receipt.measured.get("cpu_seconds", 0.0) for receipt in receipts),
        bytes_per_token=itemsize,
    )
    return Estimate(cost=cost(works, machine, rates, products), measured=len(ledgers))
