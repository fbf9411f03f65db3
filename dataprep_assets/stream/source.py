"""A declared source: how it is read, and how a card names it."""

from dataprep_assets.engine.artifact.spec import AssetInput
from dataprep_assets.engine.card.contents import CardSource, attributed
from dataprep_assets.errors import ConfigError
from dataprep_assets.sources.access import HubCache, HubMirror, LocalTree, SourceAccess
from dataprep_assets.sources.hub import HubRepo
from dataprep_assets.sources.object_store import ObjectStorePrefix
from dataprep_assets.sources.upstream import open_asset
from dataprep_assets.stores.retry import RetryPolicy
from dataprep_assets.stream.declaration import (
    AssetSource,
    HubCacheSource,
    HubSource,
    LocalSource,
    ObjectStoreSource,
    Source,
)

_HUB_FOLDER = "datasets--"


def open_source(source: Source, *, patient: bool = True) -> SourceAccess:
    """The access to a declared source; unless `patient`, an unreachable hub fails after a second.

    Raises SourceError for an asset that was never materialized.
    """
    if isinstance(source, AssetSource):
        access = open_asset(source.key, place=source.path, cache_dir=source.cache_dir, follow_links=source.follow_links)
        if source.mirrored and not access.mirrored:
            raise ConfigError("source.cache_dir: the files of the asset are on this machine: leave the key out")
        return access
    if isinstance(source, LocalSource):
        return LocalTree(source.path, source.follow_links)
    if isinstance(source, HubCacheSource):
        return HubCache(source.path, source.revision, source.follow_links)
    if isinstance(source, ObjectStoreSource):
        return ObjectStorePrefix(
            url=source.url,
            cache_dir=source.cache_dir,
            endpoint_url=source.endpoint_url,
            region=source.region,
            allow_http=source.allow_http,
            access=source.access,
        )
    return HubMirror(
        HubRepo(
            repo_id=source.repo,
            revision=source.revision,
            endpoint=source.endpoint,
            cache_dir=source.cache_dir,
            allow_http=source.allow_http,
            retry=RetryPolicy() if patient else RetryPolicy(attempts=2),
        )
    )


def is_mirrored(source: Source) -> bool:
    """Whether the files of a declared source are fetched; known without asking the source."""
    return source.mirrored if isinstance(source, AssetSource) else not isinstance(source, LocalSource | HubCacheSource)


def upstream_of(source: Source) -> tuple[AssetInput, ...]:
    """The assets that a declared source takes its files from, which the artifact that reads it is made of."""
    return (AssetInput(key=source.key),) if isinstance(source, AssetSource) else ()


def card_source(source: Source) -> CardSource:
    """A declared source as a card describes it: its public name, and never a local path."""
    if isinstance(source, AssetSource):
        card = CardSource(name="/".join(source.key), kind="asset")
    elif isinstance(source, HubSource):
        card = CardSource(name=source.repo, kind="hub", place=f"hf://datasets/{source.repo}")
    elif isinstance(source, ObjectStoreSource):
        card = CardSource(name=source.url, kind="object_store", place=source.url)
    elif isinstance(source, HubCacheSource) and source.path.name.startswith(_HUB_FOLDER):
        # the cache writes the slash of a repository's name as `--`
        repo = source.path.name.removeprefix(_HUB_FOLDER).replace("--", "/", 1)
        card = CardSource(name=repo, kind="hub", place=f"hf://datasets/{repo}")
    else:
        card = CardSource(name="local files", kind=source.kind)
    return attributed(card, source)
