"""Remarks on the declared server and region of a remote source. The source is not contacted."""

from collections.abc import Iterator

from dataprep_assets.engine.yaml.declared_keys import find_nearest
from dataprep_assets.engine.yaml.remark import Remark, parse_error_keys
from dataprep_assets.errors import ConfigError
from dataprep_assets.sources.object_store import ObjectStorePrefix
from dataprep_assets.stores.connect import S3Address
from dataprep_assets.stores.endpoints import check_endpoint
from dataprep_assets.stream.declaration import HubSource, Source
from dataprep_assets.stream.source import open_source


def find_remote_remarks(source: Source) -> Iterator[Remark]:
    """Yield remarks on a Hub's or a bucket's URL, region and environment; none for other sources."""
    try:
        if isinstance(source, HubSource):
            if source.endpoint is not None:
                check_endpoint(source.endpoint, "source.endpoint", allow_http=source.allow_http)
            return
        access = open_source(source)
        address = access.address() if isinstance(access, ObjectStorePrefix) else None
    except ConfigError as error:
        # The message begins with the key or the environment variable whose value is wrong. A remark on a variable is
        # shown at `source`, because a remark must be at a key.
        keys = parse_error_keys(error)
        yield Remark(keys=keys if keys[0] == "source" else ("source",), sentence=str(error))
        return
    if isinstance(address, S3Address) and address.region is not None and address.endpoint_url is None:
        yield from _find_region_remarks(address.region)


def _find_region_remarks(region: str) -> Iterator[Remark]:
    """Yield a remark if this version of the S3 client does not know the region; a later version may know it."""
    try:
        from botocore.session import get_session
    except ImportError:  # a different remark reports the missing extra
        return
    session = get_session()
    regions = {
        name
        for partition in session.get_available_partitions()
        for name in session.get_available_regions("s3", partition)
    }
    if region not in regions:
        suggestion = f"; did you mean {name!r}?" if (name := find_nearest(region, sorted(regions))) else "."
        sentence = f"source.region: unknown region {region!r}{suggestion} For a store outside AWS, set `endpoint_url`"
        yield Remark(keys=("source", "region"), sentence=sentence, hint=True)
