"""Faults of the network while a shard's files are downloaded: answers that are lost, truncated, flipped or refused.

The source of a corpus is uploaded to a bucket of an S3 server on loopback, behind a proxy. A snapshot is built through
it, deleted with its mirror, and rebuilt with a fault. Then either the bytes equal those of before at once; or the run
reports the fault, no finished artifact exists, and the next run gives the same bytes.
"""

import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from dataprep_assets_tests.fakes.buckets import new_bucket, new_client
from dataprep_assets_tests.fakes.fault_proxy import Fault as Trouble
from dataprep_assets_tests.fakes.fault_proxy import FaultProxy, Kind
from dataprep_assets_tests.fakes.moto_server import run_moto_server
from dataprep_assets_tests.fakes.swift_server import KEY_ID, SECRET
from dataprep_assets_tests.tools.drill.box import Box, Target
from dataprep_assets_tests.tools.drill.faults import Fault, InapplicableError
from dataprep_assets_tests.tools.drill.judge import Notice
from dataprep_assets_tests.tools.drill.running import aftermath, build, content, take_away

TROUBLES: tuple[tuple[Kind, int], ...] = (
    ("reset", 1),
    ("truncate", 2),
    ("503", 1),
    ("flip", 1),
    ("flip", 1_000),
    ("403", 1_000),
    ("truncate", 1_000),
)
"""The faults of answers with bytes of objects, and their number: all, or so few that a retry may succeed."""


def _mirror(box: Box) -> Path:
    return box.bench.folder / "mirror"


def _listed_in_a_bucket(box: Box, target: Target, server: str, proxy: FaultProxy) -> Target:
    """Upload the source to a bucket, declare and list it there; return the target as currently declared."""
    bucket, client, folder = new_bucket(server), new_client(server), box.bench.folder / "source"
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            client.put_object(Bucket=bucket, Key=f"source/{path.relative_to(folder)}", Body=path.read_bytes())
    source = {"kind": "object_store", "url": f"s3://{bucket}/source", "cache_dir": _mirror(box)}
    source |= {"endpoint_url": proxy.url, "region": "us-east-1"}

    def elsewhere(declaration: Any) -> Any:
        return type(declaration).model_validate({**dict(declaration), "source": source})

    box.redeclare(target.spec.declaration.dataset, elsewhere)
    (listing,) = (one for one in box.targets() if one.spec.name == "manifest")
    assert build(box, listing) == ""
    return box.now(target)


def fetched(box: Box, target: Target, random: Random, kind: Kind, times: int) -> Notice:
    """Build a snapshot of files in a bucket, and rebuild it with a fault."""
    keys = {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET}
    with mock.patch.dict(os.environ, keys), run_moto_server() as server, FaultProxy(server) as proxy:
        target = _listed_in_a_bucket(box, target, server, proxy)
        assert build(box, target) == ""
        before = content(box, target)
        take_away(box, target)
        shutil.rmtree(_mirror(box))
        trouble = Trouble(kind, "get", times, skip=random.randrange(2), retry_after="0")
        proxy.faults = [trouble]
        said = build(box, target)
        proxy.faults = []
        if trouble.times == times:
            raise InapplicableError  # the fault never happened, because the build downloads fewer files
        return aftermath(box, target, before, said, root=box.folder(target))


def network_faults(box: Box, places: int) -> Iterator[Fault]:
    """Yield the faults of every snapshot of a corpus."""
    for target in box.targets():
        if box.bench.pipeline == "corpus" and target.spec.name == "snapshot":
            for place in range(places):
                for kind, times in TROUBLES:
                    name = f"{kind}, {'once' if times < 3 else 'always'}"
                    happens = partial(fetched, kind=kind, times=times)
                    yield Fault(kind="network", name=name, target=target, happens=happens, place=place)
