"""The artifact `<dataset>/manifest`: every source file, and the frozen shard plan; registers the shards' partitions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.graph.facts import Facts
from dataprep_assets.graph.finding import Finding
from dataprep_assets.graph.recipe import Recipe
from dataprep_assets.graph.shown import Shown
from dataprep_assets.graph.spec import ArtifactSpec, Partitions, Proof, Proofs, RunStep
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.declaration import (
    CorpusDeclaration,
    HubCacheSource,
    HubSource,
    LocalSource,
    ObjectStoreSource,
)
from dataprep_assets.pipelines.corpus.manifest_proofs import count_matches, entries_resolve, plan_covers
from dataprep_assets.planning import shard_plan
from dataprep_assets.planning.manifest import ManifestEntry, build_manifest, read_manifest, write_manifest
from dataprep_assets.sources.access import HubCache, HubMirror, LocalTree, SourceAccess
from dataprep_assets.sources.hub import HubRepo
from dataprep_assets.sources.object_store import ObjectStorePrefix

VERSION = 1
MANIFEST = "manifest"


class ManifestFacts(Facts):
    """Facts of the manifest's receipt; `shards` are counts by split, `commit` the hub's."""

    commit: str | None
    files: int
    shards: dict[str, int]
    source_bytes: int


def open_source(source: LocalSource | HubSource | HubCacheSource | ObjectStoreSource) -> SourceAccess:
    """The access to a declared source."""
    if isinstance(source, LocalSource):
        return LocalTree(source.path)
    if isinstance(source, HubCacheSource):
        return HubCache(source.path, source.revision)
    if isinstance(source, ObjectStoreSource):
        return ObjectStorePrefix(
            url=source.url, cache_dir=source.cache_dir, endpoint_url=source.endpoint_url, region=source.region
        )
    return HubMirror(
        HubRepo(repo_id=source.repo, revision=source.revision, endpoint=source.endpoint, cache_dir=source.cache_dir)
    )


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A finished manifest: its entries, and partition key → entries of each shard."""

    entries: tuple[ManifestEntry, ...]
    plan: dict[str, range]
    receipt: Receipt

    def shard(self, partition: str) -> tuple[ManifestEntry, ...]:
        """The entries of one shard, in order; KeyError for an unknown partition."""
        ordinals = self.plan[partition]
        return self.entries[ordinals.start : ordinals.stop]

    def partitions(self, split: str) -> list[str]:
        """Partition keys of a split, in order."""
        return [key for key in self.plan if shard_plan.split_of(key) == split]


@dataclass(frozen=True, kw_only=True)
class PlannedManifest:
    """What a manifest of the source as it is now would hold. `listed` digests the listing, `key` the whole."""

    entries: list[ManifestEntry]
    plan: dict[str, list[int]]
    commit: str | None
    listed: str
    key: str


def plan_manifest(corpus: CorpusDeclaration) -> PlannedManifest:
    """List the source and plan its shards, writing nothing."""
    listing = open_source(corpus.source).list()
    entries = build_manifest(
        listing.files,
        include=corpus.include,
        splits=corpus.splits,
        commit=listing.commit,
        url_prefix=listing.url_prefix,
    )
    plan = shard_plan.plan_shards(entries, corpus.shards.sizing)
    listed = digest_value([[e.split, e.path, e.size_bytes, e.sha256, e.etag] for e in entries])
    key = digest_value(["manifest", VERSION, listed, {k: [o[0], o[-1]] for k, o in plan.items()}])
    return PlannedManifest(entries=entries, plan=plan, commit=listing.commit, listed=listed, key=key)


def build_manifest_artifact(corpus: CorpusDeclaration, store: ArtifactStore) -> tuple[Receipt, bool]:
    """List the source and commit `manifest.jsonl`, `manifest_summary.json` and `shard_plan.json`.

    Returns the receipt, and whether the manifest was reused because it says the same.
    """
    planned = plan_manifest(corpus)

    def write(staged: Path) -> Written:
        counts = shard_plan.counts(planned.plan)
        write_manifest(staged, planned.entries, counts)
        shard_plan.write_plan(staged, planned.plan)
        return Written(
            inputs={"listing": planned.listed},
            facts=ManifestFacts(
                commit=planned.commit,
                files=len(planned.entries),
                shards=counts,
                source_bytes=sum(e.size_bytes for e in planned.entries),
            ),
        )

    return ensure(_recipe(corpus, planned), store, write)


def load_manifest(corpus: CorpusDeclaration, store: ArtifactStore) -> Manifest:
    """The committed manifest; MissingArtifactError when it is not there."""
    artifact = corpus.artifact(MANIFEST)
    receipt, directory = store.require(artifact), store.local(artifact)
    return Manifest(entries=tuple(read_manifest(directory)), plan=shard_plan.read_plan(directory), receipt=receipt)


def has_manifest(corpus: CorpusDeclaration, store: ArtifactStore) -> bool:
    """Whether an intact manifest is there; a damaged one is to be built again."""
    return store.intact(corpus.artifact(MANIFEST)) is not None


def _recipe(corpus: CorpusDeclaration, planned: PlannedManifest) -> Recipe:
    return Recipe(
        artifact=corpus.artifact(MANIFEST),
        key=planned.key,
        version=VERSION,
        settings={
            "include": list(corpus.include),
            "splits": {name: list(globs) for name, globs in corpus.splits.items()},
            "shards": corpus.shards.model_dump(mode="json"),
        },
        sources={"listing": planned.listed},
    )


def _recipes(corpus: CorpusDeclaration, store: ArtifactStore, _: Sequence[str | None]) -> Iterator[Recipe]:
    """That of the source as it is now; a mirrored source is believed to be at what the manifest froze."""
    receipt = store.intact(corpus.artifact(MANIFEST)) if open_source(corpus.source).mirrored else None
    if receipt is not None:
        yield Recipe(artifact=corpus.artifact(MANIFEST), key=receipt.key, version=VERSION)
    else:
        yield _recipe(corpus, plan_manifest(corpus))


def _listed(corpus: CorpusDeclaration) -> list[str]:
    """The paths of the source's files as they are now."""
    found = build_manifest(open_source(corpus.source).list().files, include=corpus.include, splits=corpus.splits)
    return [entry.relpath for entry in found]


def manifest_spec(corpus: CorpusDeclaration, *, plans: tuple[Partitions, ...], step: RunStep) -> ArtifactSpec:
    """The manifest.

    Args:
        corpus: The dataset.
        plans: The shards of each split, which the manifest fixes.
        step: The run in which it is made.
    """
    return ArtifactSpec(
        declaration=corpus,
        name=MANIFEST,
        description="Every source file, in natural order, and the shard plan.",
        kinds={"json", corpus.source.kind},
        plans=plans,
        listed=partial(_listed, corpus),
        step=step,
        verification="full",
        recipes=partial(_recipes, corpus),
        build=lambda request: [Outcome.of(*build_manifest_artifact(corpus, request.store))],
        metadata=partial(_metadata, corpus),
        proofs=Proofs(proofs=_PROOFS, examine=partial(_examine, corpus)),
    )


def _metadata(corpus: CorpusDeclaration, store: ArtifactStore, receipt: Receipt) -> Mapping[str, Shown]:
    manifest = load_manifest(corpus, store)
    shown: dict[str, Shown] = {f"shards_{split}": len(manifest.partitions(split)) for split in corpus.splits}
    for split in corpus.splits:
        members = [entry for entry in manifest.entries if entry.split == split]
        shown[f"files_{split}"] = len(members)
        shown[f"source_bytes_{split}"] = sum(entry.size_bytes for entry in members)
    if commit := ManifestFacts.of(receipt).commit:
        shown["commit"] = commit
    return shown


_PROOFS = (
    Proof("count_matches_source", "The manifest lists what the source lists now.", blocking=False),
    Proof("entries_resolve", "Sampled entries are there with their sizes.", blocking=False),
    Proof("plan_covers_manifest", "Every file is in exactly one shard."),
)


def _examine(corpus: CorpusDeclaration, store: ArtifactStore, _: Sequence[str]) -> Iterator[tuple[str, Finding]]:
    manifest, access = load_manifest(corpus, store), open_source(corpus.source)
    listed = access.list().files
    yield "count_matches_source", count_matches(manifest.entries, listed, corpus.include, corpus.splits)
    # of a hub, only what is already mirrored can be looked at
    present = [e for e in manifest.entries if not access.mirrored or access.path(e).exists()]
    seed = int(manifest.receipt.key[:8], 16)
    yield "entries_resolve", entries_resolve(present, access.path, seed=seed)
    yield "plan_covers_manifest", plan_covers(manifest.entries, manifest.plan)
