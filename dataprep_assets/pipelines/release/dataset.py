"""Dataset class of releases: corpora as shared npy shards, which are published for many trainers."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, ClassVar

from dataprep_assets.engine.artifact.metadata_values import Table
from dataprep_assets.engine.artifact.spec import ArtifactSpec, BuildRequest, Partitions
from dataprep_assets.engine.card.contents import CardSubject
from dataprep_assets.engine.staleness.estimate import Estimate
from dataprep_assets.engine.trace.trace import Tracer
from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import count_of
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.formats import npy_shards
from dataprep_assets.formats.flat_bins import token_dtype
from dataprep_assets.formats.sample_ids import ID_BYTES
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore, LocalArtifacts
from dataprep_assets.pipelines.corpus.dataset import Corpus, corpus_specs, describe_corpus_card
from dataprep_assets.pipelines.corpus.source.cost import count_corpus_products, estimate_corpus_cost
from dataprep_assets.pipelines.release.declaration import ReleaseDeclaration
from dataprep_assets.pipelines.release.layout import compute_release_layout, format_partition_key
from dataprep_assets.pipelines.release.npy_shard import NPY_SHARDS, build_shard_recipe, get_shard_artifact
from dataprep_assets.pipelines.release.npy_shards import build_npy_shards_spec, build_shard_partitions
from dataprep_assets.pipelines.release.npy_trace import build_release_tracer
from dataprep_assets.pipelines.release.published import format_consumer_code
from dataprep_assets.pipelines.release.published_shards import PUBLISHED_SHARDS, build_published_shards_spec
from dataprep_assets.planning.cost import Machine, Products
from dataprep_assets.serving.window.release import locate_release
from dataprep_assets.stores.connect import explain_missing_library
from dataprep_assets.stores.files import digest_value
from dataprep_assets.stream.token_shard import TOKEN_BINS

# The release plan (`<dataset>/release_plan`) divides the token stream into npy shards, and adds their partitions to
# Dagster.
#
# The plan needs all token bins. It has no files, because its content can be computed from the receipts of the bins.

RELEASE_PLAN = "release_plan"


def build_release_plan_spec(
    release: ReleaseDeclaration, *, token_bins: tuple[ArtifactSpec, ...], plans: Partitions
) -> ArtifactSpec:
    """Return the spec of a release's plan.

    Args:
        release: The declaration.
        token_bins: The specs of the token bins of every split.
        plans: The partitions of the npy shards, which the plan determines.
    """
    return ArtifactSpec(
        declaration=release,
        name=RELEASE_PLAN,
        description="The range of tokens in each npy shard. Registers the shards as partitions.",
        kinds={"json"},
        inputs=token_bins,
        plans=(plans,),
        recipes=lambda _, __: [],
        build=partial(_build_plan, release),
        kept=False,
    )


def _build_plan(release: ReleaseDeclaration, request: BuildRequest) -> list[Outcome]:
    layout = compute_release_layout(release, request.store)
    itemsize = token_dtype(layout.meta["dtype"]).itemsize
    rows: list[dict[str, Any]] = []
    for name, split in layout.splits.items():
        tokens = sum(cut.tokens for cut in split.cuts)
        samples = tokens // release.release.sequence_length
        rows.append(
            {
                "split": name,
                "shards": len(split.cuts),
                "tokens": tokens,
                "samples": samples,
                "bytes": tokens * itemsize + samples * ID_BYTES + len(split.cuts) * npy_shards.HEADER_BYTES,
                "padding_tokens": sum(cut.padding for cut in split.cuts),
                "dropped_tokens": sum(cut.dropped for cut in split.cuts),
            }
        )
    # Use a digest of the shards' keys as the plan's content, because the plan has no files. The digest changes only if
    # a key changes.
    keys = [build_shard_recipe(release, layout, partition).key for partition in layout.partitions]
    metadata = {"shards": Table(rows), "bytes": sum(row["bytes"] for row in rows)}
    return [Outcome(partition="", content=digest_value(keys), metadata=metadata)]


def estimate_release_cost(release: ReleaseDeclaration, store: ArtifactStore, machine: Machine) -> Estimate:
    """Estimate the cost of a release.

    Args:
        release: The declaration.
        store: The store of the release's artifacts.
        machine: The machine that builds the release.
    """
    products = count_release_products(release, local=isinstance(store, LocalArtifacts))
    return estimate_corpus_cost(release, store, machine, products)


def count_release_products(release: ReleaseDeclaration, *, local: bool) -> Products:
    """Return the number of times that the stream is written: for the corpus, as npy shards, and as published shards.

    `local` is True if the store of the artifacts is a local folder.
    """
    corpus, target = count_corpus_products(release, local=local), release.release.publish
    in_bucket = target is not None and "://" in target
    return replace(
        corpus,
        copies=corpus.copies + local + (target is not None and not in_bucket),
        uploads=corpus.uploads + (not local) + in_bucket,
        tokens_per_shard=release.release.tokens_per_shard,
    )


class ReleaseDataset(Corpus):
    """A tokenized corpus whose stream is cut into shards of whole samples, published with a manifest."""

    component: ClassVar[str] = "ShardRelease"
    pipeline: ClassVar[str] = "release"
    model: ClassVar[type[ReleaseDeclaration]] = ReleaseDeclaration
    declaration: ReleaseDeclaration

    @cached_property
    def card_subject(self) -> CardSubject:
        """Facts for its card, with its artifacts: its corpus, then its plan, npy shards and published shards."""
        release, corpus = self.declaration, corpus_specs(self.declaration)
        partitions = build_shard_partitions(release)
        token_bins = tuple(spec for spec in corpus if spec.name == TOKEN_BINS)
        plan = build_release_plan_spec(release, token_bins=token_bins, plans=partitions)
        shards = build_npy_shards_spec(release, partitions=partitions, plan=plan)
        specs = [*corpus, plan, shards]
        if target := release.release.publish:
            specs.append(build_published_shards_spec(release, target, shards=shards))
        return describe_corpus_card(release, specs, stream=NPY_SHARDS)

    def remarks(self) -> Iterable[Remark]:
        yield from super().remarks()
        if missing_library := explain_missing_library(self.declaration.release.publish or ""):
            yield Remark(keys=("release", "publish"), sentence=f"release.publish: {missing_library}")

    def product(self, store: ArtifactStore) -> Artifact:
        release = self.declaration
        if release.release.publish:
            return release.artifact(PUBLISHED_SHARDS)
        return get_shard_artifact(release, format_partition_key(next(iter(release.splits)), 0))

    def cost(self, store: ArtifactStore, machine: Machine) -> Estimate:
        return estimate_release_cost(self.declaration, store, machine)

    def tracer(self, store: ArtifactStore) -> Tracer:
        return build_release_tracer(self.declaration, store, self.specs)

    def summary(self, store: ArtifactStore) -> list[str]:
        release, lines = self.declaration, super().summary(store)
        for name, split in compute_release_layout(release, store).splits.items():
            tokens = sum(cut.tokens for cut in split.cuts)
            samples = tokens // release.release.sequence_length
            lines.append(
                f"{name}: {count_of(len(split.cuts), 'npy shard')}, {count_of(tokens, 'token')}, "
                f"{count_of(samples, 'sample')}"
            )
        if target := release.release.publish:
            lines.append(f"published: {locate_release(target)}")
        return lines

    def describe_trainers(self, store: ArtifactStore) -> list[str]:
        lines = super().describe_trainers(store)
        if target := self.declaration.release.publish:
            lines.append(format_consumer_code(locate_release(target)))
        return lines
