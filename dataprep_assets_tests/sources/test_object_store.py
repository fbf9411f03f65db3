"""A prefix of a bucket as a source: listed, downloaded once, verified and pinned; on Swift and the tests' GCS
server.
"""

import dataclasses
import hashlib
import json
import logging
import multiprocessing
import random
from pathlib import Path

import pytest

from dataprep_assets.errors import ConfigError, SourceError
from dataprep_assets.planning.manifest import SourceFile, build_manifest
from dataprep_assets_tests.fakes.buckets import new_bucket
from dataprep_assets_tests.fakes.fault_proxy import FaultProxy
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.sources.buckets import DATA, S3, Bucket, Gcs, entries_of


def check_pages(bucket: Bucket, count: int) -> None:
    files = {f"chunk{n % 7}/part_{n}.jsonl.zst": b"%d" % n for n in range(count)}
    bucket.put({**files, "chunk0/": b"", "": b""})
    bucket.put({"corpus-2/x.jsonl.zst": b"no"}, prefix="")
    listing = bucket.source().list()
    assert {f.relpath: f.size_bytes for f in listing.files} == {name: len(body) for name, body in files.items()}
    assert listing.url_prefix == f"{bucket.url}/corpus/"
    assert bucket.lists() > 1
    for file in listing.files[:3]:
        assert file.etag == bucket.version(f"corpus/{file.relpath}")


@pytest.mark.usefixtures("no_other_credentials")
def test_a_prefix_of_several_pages_is_listed_completely_without_its_neighbors_on_s3(moto: str, tmp_path: Path) -> None:
    # Use moto, because Swift would need half a minute for so many objects.
    with FaultProxy(moto) as proxy:
        check_pages(S3(name=new_bucket(moto), mirror=tmp_path, proxy=proxy, upstream=moto), 1005)


def test_a_prefix_of_several_pages_is_listed_completely_without_its_neighbors_on_gcs(gcs: Gcs) -> None:
    gcs.server.page_size = 7
    check_pages(gcs, 50)


def test_a_whole_bucket_can_be_the_prefix(bucket: Bucket) -> None:
    bucket.put({"a/b.jsonl.zst": b"x"}, prefix="")
    source = bucket.source("")
    (entry,) = entries_of(source)
    source.fetch([entry])
    below = bucket.mirror if bucket.scheme == "s3" else bucket.mirror / "gs"
    assert source.path(entry) == below / bucket.name / "a" / "b.jsonl.zst"
    assert source.path(entry).read_bytes() == b"x"


@pytest.mark.parametrize("end", ["", "/"])
def test_the_manifest_does_not_depend_on_the_order_of_the_listing(bucket: Bucket, end: str) -> None:
    bucket.put(DATA)
    listing = bucket.source(f"/corpus{end}").list()
    made = []
    for seed in range(3):
        files: list[SourceFile] = list(listing.files)
        random.Random(seed).shuffle(files)
        made.append(build_manifest(files, include=["**"], splits={"all": ["**"]}, url_prefix=listing.url_prefix))
    assert made[0] == made[1] == made[2]
    assert made[0][0].path == f"{bucket.url}/corpus/{made[0][0].relpath}"


def test_a_downloaded_object_is_verified_and_not_downloaded_again(bucket: Bucket) -> None:
    bucket.put(DATA)
    source, done = bucket.source(), list[int]()
    entries = entries_of(source)
    total = sum(map(len, DATA.values()))
    assert source.bytes_to_fetch(entries) == total
    source.fetch(entries, done.append)
    assert sum(done) == total
    assert {e.relpath: source.path(e).read_bytes() for e in entries} == DATA
    assert source.bytes_to_fetch(entries) == 0
    before = len(bucket.reads())
    source.fetch(entries, done.append)
    assert len(bucket.reads()) == before
    assert sum(done) == 2 * total
    names = {p.relative_to(source.storage).as_posix() for p in source.storage.rglob("*") if p.is_file()}
    assert names == {*DATA, *(f"{name}.etag" for name in DATA)}


def test_only_a_file_with_a_flipped_byte_is_downloaded_again(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    bucket.put(DATA)
    source = bucket.source()
    entries = entries_of(source)
    source.fetch(entries)
    victim = source.path(entries[3])
    victim.write_bytes(bytes([victim.read_bytes()[0] ^ 1]) + victim.read_bytes()[1:])
    before = len(bucket.reads())
    with caplog.at_level(logging.WARNING):
        source.fetch(entries)
    assert bucket.reads()[before:] == [f"corpus/{entries[3].relpath}"]
    assert victim.read_bytes() == DATA[entries[3].relpath]
    assert entries[3].relpath in caplog.text


@pytest.mark.parametrize("record", [b'{"etag": "x', b"[]"])
def test_a_file_with_an_incomplete_record_is_not_trusted(bucket: Bucket, record: bytes) -> None:
    bucket.put({"a.jsonl.zst": b"right"})
    source = bucket.source()
    (entry,) = entries_of(source)
    source.storage.mkdir(parents=True)
    source.path(entry).write_bytes(b"wrong")
    source.path(entry).with_name("a.jsonl.zst.etag").write_bytes(record)
    assert source.bytes_to_fetch([entry]) == 5
    source.fetch([entry])
    assert source.path(entry).read_bytes() == b"right"


def test_a_multipart_object_is_downloaded_in_ranges_and_a_later_change_on_disk_is_found(s3: S3) -> None:
    content = random.Random(1).randbytes(5 * 1024 * 1024) + b"the last part"
    s3.put_in_parts("corpus/big.jsonl.zst", [content[: 5 * 1024 * 1024], content[5 * 1024 * 1024 :]])
    source = s3.source(part_bytes=1024 * 1024)
    (entry,) = entries_of(source)
    assert entry.etag is not None
    assert entry.etag.endswith("-2")
    source.fetch([entry])
    assert source.path(entry).read_bytes() == content
    assert len(s3.reads()) == 6
    record = json.loads(source.path(entry).with_name("big.jsonl.zst.etag").read_bytes())
    assert record == {"etag": entry.etag, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    source.path(entry).write_bytes(content[:-1] + b"?")
    source.fetch([entry])
    assert source.path(entry).read_bytes() == content


def test_an_object_changed_after_the_manifest_is_refused_until_the_manifest_is_rebuilt(bucket: Bucket) -> None:
    bucket.put({"a.jsonl.zst": b"first", "b.jsonl.zst": b"other"})
    source = bucket.source()
    entries = entries_of(source)
    source.fetch(entries)
    bucket.put({"a.jsonl.zst": b"again"})
    source.fetch(entries)
    assert source.path(entries[0]).read_bytes() == b"first", "what was pinned and verified stays usable"
    source.path(entries[0]).unlink()
    with raises(SourceError, "corpus/a.jsonl.zst", "`manifest`", "changed"):
        source.fetch(entries)
    assert not source.path(entries[0]).exists()
    renewed = entries_of(source)
    source.fetch(renewed)
    assert source.path(renewed[0]).read_bytes() == b"again"


def test_an_object_that_is_replaced_during_its_download_is_refused(bucket: Bucket) -> None:
    bucket.put({"a.jsonl.zst": random.Random(5).randbytes(200_000)})
    source = bucket.source(part_bytes=10_000)
    (entry,) = entries_of(source)
    replaced: list[int] = []

    def replace_once(count: int) -> None:
        if not replaced:
            replaced.append(count)
            bucket.put({"a.jsonl.zst": random.Random(6).randbytes(200_000)})

    with raises(SourceError, "corpus/a.jsonl.zst", "changed"):
        source.fetch([entry], replace_once)
    assert not source.path(entry).exists()
    (renewed,) = entries_of(source)
    source.fetch([renewed])
    assert source.path(renewed).read_bytes() == random.Random(6).randbytes(200_000)


def test_a_missing_object_and_a_missing_bucket_are_named(bucket: Bucket) -> None:
    bucket.put({"a.jsonl.zst": b"first", "b.jsonl.zst": b"other"})
    source = bucket.source()
    entries = entries_of(source)
    bucket.remove("corpus/a.jsonl.zst")
    with raises(SourceError, "corpus/a.jsonl.zst", "`manifest`", "exists"):
        source.fetch(entries)
    with raises((ConfigError, SourceError), "nobody-made-this"):
        dataclasses.replace(source, url=f"{bucket.scheme}://nobody-made-this/corpus").list()


@pytest.mark.parametrize("relpath", ["../up.jsonl.zst", "a//b.jsonl.zst", "a\nb.jsonl.zst", f"{'a' * 300}.jsonl.zst"])
def test_a_key_that_cannot_be_mirrored_is_refused(bucket: Bucket, relpath: str) -> None:
    file = SourceFile(relpath="a.jsonl.zst", size_bytes=1, etag="x")
    (entry,) = build_manifest([file], include=["**"], splits={"all": ["**"]})
    with raises(SourceError, "Rename"):
        bucket.source().fetch([entry._replace(relpath=relpath)])


def test_keys_that_conflict_as_file_and_folder_are_named(gcs: Gcs) -> None:
    gcs.put({"a.jsonl": b"x", "a.jsonl/b.jsonl": b"y", "c.jsonl": b"z", "c.jsonl.part/d.jsonl": b"{}"})
    source = gcs.source()
    listing = source.list()
    made = build_manifest(listing.files, include=["**"], splits={"all": ["**"]})
    with raises(SourceError, "a.jsonl", "a.jsonl/b.jsonl"):
        source.fetch([e for e in made if e.relpath.startswith("a")])
    with raises(SourceError, "c.jsonl", "c.jsonl.part"):
        source.fetch([e for e in made if e.relpath.startswith("c")])
    for entry in made[:1]:
        source.fetch([entry])
    with raises(SourceError, "corpus/a.jsonl"):
        source.fetch(made[1:2])


def test_two_processes_download_a_shared_object_once(bucket: Bucket) -> None:
    bucket.put({"a.jsonl.zst": random.Random(4).randbytes(200_000)})
    source = bucket.source(part_bytes=10_000)
    entries = entries_of(source)
    others = [multiprocessing.get_context("spawn").Process(target=source.fetch, args=(entries,)) for _ in range(3)]
    for other in others:
        other.start()
    for other in others:
        other.join(120)
    assert [other.exitcode for other in others] == [0, 0, 0]
    assert len(bucket.reads()) == 20
