"""Builds the manifest: lists the source, freezes the shard plan."""

from dataclasses import dataclass
from pathlib import Path

from dataprep_assets.graph.build import Written, ensure
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
from dataprep_assets.planning import shard_plan
from dataprep_assets.planning.manifest import ManifestEntry, build_manifest, read_manifest, write_manifest
from dataprep_assets.sources.access import HubCache, HubMirror, LocalTree, SourceAccess
from dataprep_assets.sources.hub import HubRepo
from dataprep_assets.sources.object_store import ObjectStorePrefix

VERSION = 1


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

    Returns the receipt, and whether the manifest that was there already says the same.
    """
    planned = plan_manifest(corpus)

    def write(staged: Path) -> Written:
        counts = shard_plan.counts(planned.plan)
        write_manifest(staged, planned.entries, counts)
        shard_plan.write_plan(staged, planned.plan)
        return Written(
            inputs={"listing": planned.listed},
            facts={
                "commit": planned.commit,
                "files": len(planned.entries),
                "shards": counts,
                "source_bytes": sum(e.size_bytes for e in planned.entries),
            },
        )

    return ensure(corpus.artifact("manifest"), store, planned.key, write)


def load_manifest(corpus: CorpusDeclaration, store: ArtifactStore) -> Manifest:
    """The committed manifest; MissingArtifactError when it is not there."""
    artifact = corpus.artifact("manifest")
    receipt, directory = store.require(artifact), store.local(artifact)
    return Manifest(entries=tuple(read_manifest(directory)), plan=shard_plan.read_plan(directory), receipt=receipt)


def has_manifest(corpus: CorpusDeclaration, store: ArtifactStore) -> bool:
    """Whether a whole manifest is there; a damaged one is to be built again."""
    return store.intact(corpus.artifact("manifest")) is not None
