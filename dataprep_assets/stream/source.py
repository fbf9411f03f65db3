"""A declared source: how it is read, and how a card names it."""

from dataprep_assets.graph.card_contents import CardSource, attributed
from dataprep_assets.sources.access import HubCache, HubMirror, LocalTree, SourceAccess
from dataprep_assets.sources.hub import HubRepo
from dataprep_assets.sources.object_store import ObjectStorePrefix
from dataprep_assets.stores.retry import RetryPolicy
from dataprep_assets.stream.declaration import HubCacheSource, HubSource, LocalSource, ObjectStoreSource

_HUB_FOLDER = "datasets--"


def open_source(
    source: LocalSource | HubSource | HubCacheSource | ObjectStoreSource, *, patient: bool = True
) -> SourceAccess:
    """The access to a declared source; unless `patient`, an unreachable hub fails after a second."""
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


def card_source(source: LocalSource | HubSource | HubCacheSource | ObjectStoreSource) -> CardSource:
    """A declared source as a card describes it: its public name, and never a local path."""
    if isinstance(source, HubSource):
        found = CardSource(name=source.repo, kind="hub", place=f"hf://datasets/{source.repo}")
    elif isinstance(source, ObjectStoreSource):
        found = CardSource(name=source.url, kind="object_store", place=source.url)
    elif isinstance(source, HubCacheSource) and source.path.name.startswith(_HUB_FOLDER):
        repo = source.path.name.removeprefix(_HUB_FOLDER).replace("--", "/", 1)
        found = CardSource(name=repo, kind="hub", place=f"hf://datasets/{repo}")
    else:
        found = CardSource(name="local files", kind=source.kind)
    return attributed(found, source)
