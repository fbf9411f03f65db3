"""A prefix of a bucket as a source: on OpenStack Swift behind a faulty proxy, and on the tests' GCS server."""

import dataclasses
import hashlib
import json
import logging
import multiprocessing
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
import zstandard

from dataprep_assets.errors import ConfigError, CorruptSourceError, DataprepError, SourceError, TransferError
from dataprep_assets.graph.status import stale
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.orchestration.component import declared
from dataprep_assets.pipelines.corpus.component import corpus_specs
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.manifest import build_manifest_artifact, load_manifest
from dataprep_assets.pipelines.corpus.snapshot import build_snapshot
from dataprep_assets.planning.manifest import ManifestEntry, SourceFile, build_manifest
from dataprep_assets.sources.object_store import ObjectStorePrefix
from dataprep_assets.stores.connect import S3Place
from dataprep_assets_tests.fakes.buckets import new_bucket
from dataprep_assets_tests.fakes.fault_proxy import FaultProxy
from dataprep_assets_tests.fakes.gcs_server import GcsServer
from dataprep_assets_tests.fakes.moto_server import moto_server as moto_server
from dataprep_assets_tests.fakes.swift_server import KEY_ID, SECRET, SwiftServer
from dataprep_assets_tests.pipelines.corpus.pipeline import data_files, run_pipeline
from dataprep_assets_tests.project import SAMPLE, sample_attributes
from dataprep_assets_tests.sources.buckets import S3, Bucket, Gcs, Trouble

DATA = {p.relative_to(SAMPLE / "data").as_posix(): p.read_bytes() for p in (SAMPLE / "data").rglob("*.zst")}
FOREIGN = ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN", "DATAPREP_ENDPOINT_URL", "R2_DATASET_ACCOUNT_ID")
PAIRS = [f"R2_DATASET_{kind}_{part}" for kind in ("READ", "WRITE") for part in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "project")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    for name in (*FOREIGN, *PAIRS):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def s3(swift: SwiftServer, tmp_path: Path) -> Iterator[S3]:
    with FaultProxy(swift.url) as proxy:
        yield S3(name=new_bucket(swift.url), mirror=tmp_path / "objects", proxy=proxy, upstream=swift.url)


@pytest.fixture
def gcs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gcs]:
    pytest.importorskip("google.cloud.storage", reason="needs the extra `gcs`")
    with GcsServer() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
        yield Gcs(name=server.bucket, mirror=tmp_path / "objects", server=server)


@pytest.fixture(params=["s3", "gcs"])
def bucket(request: pytest.FixtureRequest) -> Bucket:
    """One of each kind."""
    found: Bucket = request.getfixturevalue(request.param)
    return found


def entries_of(source: ObjectStorePrefix) -> list[ManifestEntry]:
    listing = source.list()
    return build_manifest(
        listing.files, include=["**/*.jsonl.zst"], splits={"all": ["**"]}, url_prefix=listing.url_prefix
    )


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


def test_a_prefix_of_several_pages_is_listed_whole_and_without_its_neighbours_on_s3(moto: str, tmp_path: Path) -> None:
    # Swift would need half a minute for so many objects.
    with FaultProxy(moto) as proxy:
        check_pages(S3(name=new_bucket(moto), mirror=tmp_path, proxy=proxy, upstream=moto), 1005)


def test_a_prefix_of_several_pages_is_listed_whole_and_without_its_neighbours_on_gcs(gcs: Gcs) -> None:
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
def test_the_manifest_is_the_same_for_every_order_of_the_listing(bucket: Bucket, end: str) -> None:
    bucket.put(DATA)
    listing = bucket.source(f"/corpus{end}").list()
    made = []
    for seed in range(3):
        files: list[SourceFile] = list(listing.files)
        random.Random(seed).shuffle(files)
        made.append(build_manifest(files, include=["**"], splits={"all": ["**"]}, url_prefix=listing.url_prefix))
    assert made[0] == made[1] == made[2]
    assert made[0][0].path == f"{bucket.url}/corpus/{made[0][0].relpath}"


def test_what_was_fetched_is_verified_and_not_fetched_again(bucket: Bucket) -> None:
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


def test_a_flipped_byte_is_detected_and_that_file_alone_is_fetched_again(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
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
def test_a_file_without_a_whole_record_is_not_trusted(bucket: Bucket, record: bytes) -> None:
    bucket.put({"a.jsonl.zst": b"right"})
    source = bucket.source()
    (entry,) = entries_of(source)
    source.storage.mkdir(parents=True)
    source.path(entry).write_bytes(b"wrong")
    source.path(entry).with_name("a.jsonl.zst.etag").write_bytes(record)
    assert source.bytes_to_fetch([entry]) == 5
    source.fetch([entry])
    assert source.path(entry).read_bytes() == b"right"


def test_a_multipart_object_comes_in_ranges_and_a_later_change_on_disk_is_seen(s3: S3) -> None:
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


def test_an_object_changed_after_the_manifest_is_refused_until_the_manifest_is_made_again(bucket: Bucket) -> None:
    bucket.put({"a.jsonl.zst": b"first", "b.jsonl.zst": b"other"})
    source = bucket.source()
    entries = entries_of(source)
    source.fetch(entries)
    bucket.put({"a.jsonl.zst": b"again"})
    source.fetch(entries)
    assert source.path(entries[0]).read_bytes() == b"first", "what was pinned and verified stays usable"
    source.path(entries[0]).unlink()
    with pytest.raises(SourceError, match=r"corpus/a\.jsonl\.zst: the object changed since .*`manifest`"):
        source.fetch(entries)
    assert not source.path(entries[0]).exists()
    renewed = entries_of(source)
    source.fetch(renewed)
    assert source.path(renewed[0]).read_bytes() == b"again"


def test_an_object_that_is_replaced_while_it_is_fetched_is_refused(bucket: Bucket) -> None:
    bucket.put({"a.jsonl.zst": random.Random(5).randbytes(200_000)})
    source = bucket.source(part_bytes=10_000)
    (entry,) = entries_of(source)
    replaced: list[int] = []

    def replace_once(count: int) -> None:
        if not replaced:
            replaced.append(count)
            bucket.put({"a.jsonl.zst": random.Random(6).randbytes(200_000)})

    with pytest.raises(SourceError, match=r"corpus/a\.jsonl\.zst: the object changed since"):
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
    with pytest.raises(SourceError, match=r"corpus/a\.jsonl\.zst: the object is gone.*`manifest`"):
        source.fetch(entries)
    with pytest.raises(DataprepError, match=r"nobody-made-this.*there is no bucket"):
        dataclasses.replace(source, url=f"{bucket.scheme}://nobody-made-this/corpus").list()


@pytest.mark.parametrize("troubles", [["503"], ["truncate", "reset", "429"], ["flip"]])
def test_what_may_pass_is_survived(bucket: Bucket, troubles: list[Trouble]) -> None:
    content = random.Random(2).randbytes(100_000)
    bucket.put({"a.jsonl.zst": content})
    source, done = bucket.source(), list[int]()
    entries = entries_of(source)
    bucket.fail(*troubles)
    source.fetch(entries, done.append)
    assert bucket.unspent() == 0
    assert source.path(entries[0]).read_bytes() == content
    assert sum(done) == len(content)


@pytest.mark.parametrize(
    ("trouble", "kind", "told"),
    [
        ("503", TransferError, "HTTP 503"),
        ("truncate", TransferError, "gave up after 4 attempts"),
        ("flip", CorruptSourceError, "MD5"),
        ("403", DataprepError, "Check AWS_ACCESS_KEY_ID|storage.objects.get is needed"),
    ],
)
def test_what_does_not_pass_names_the_object_and_leaves_no_file(
    bucket: Bucket, trouble: Trouble, kind: type[DataprepError], told: str
) -> None:
    bucket.put({"a.jsonl.zst": random.Random(3).randbytes(100_000)})
    source = bucket.source()
    entries = entries_of(source)
    bucket.fail(trouble, always=True)
    with pytest.raises(kind, match=told) as raised:
        source.fetch(entries)
    assert f"{bucket.url}/corpus/a.jsonl.zst" in str(raised.value)
    assert not source.path(entries[0]).exists()
    bucket.heal()
    source.fetch(entries)
    assert source.path(entries[0]).stat().st_size == 100_000


@pytest.mark.parametrize("digest", ["sha256", "CRC32C"])
def test_bytes_that_are_always_wrong_are_found_by_whatever_digest_there_is(
    gcs: Gcs, tmp_path: Path, digest: str
) -> None:
    source, name = gcs.source(), "a.jsonl.zst"
    store = source.open()
    if digest == "sha256":
        store.put(name, b"recorded with its digest")
    else:
        # Nobody has seen the whole of what the server joins.
        store.compose([store.put(f"parts/{number}", b"part").key for number in range(2)], name)
    (entry,) = [entry for entry in entries_of(source) if entry.relpath == name]
    gcs.fail("flip", always=True)
    with pytest.raises(CorruptSourceError, match=digest):
        source.fetch([entry])
    assert not source.path(entry).exists()
    gcs.heal()
    source.fetch([entry])


def test_no_room_stops_it_before_the_first_byte(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put(DATA)
    source = bucket.source()
    entries = entries_of(source)
    usage = shutil.disk_usage(bucket.mirror.parent)
    needed = sum(map(len, DATA.values()))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=int(needed * 1.1)))
    with pytest.raises(SourceError, match=f"{needed} bytes are to be fetched"):
        source.fetch(entries)
    assert bucket.reads() == []


@pytest.mark.parametrize(
    ("url", "modules", "extra"),
    [
        ("s3://bucket/corpus", ["botocore", "botocore.config", "boto3"], "r2"),
        ("gs://bucket/corpus", ["google.cloud.storage", "google.auth.exceptions"], "gcs"),
    ],
)
def test_without_its_library_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, modules: list[str], extra: str
) -> None:
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    source = ObjectStorePrefix(url=url, cache_dir=tmp_path)
    with pytest.raises(ConfigError, match=rf"extra `{extra}`: pip install 'dataprep-assets\[{extra}\]'"):
        source.list()


# Where it is, and with whose credentials.


def s3_place(tmp_path: Path, **settings: Any) -> S3Place:
    place = ObjectStorePrefix(url="s3://bucket/corpus", cache_dir=tmp_path, **settings).place()
    assert isinstance(place, S3Place)
    return place


def test_the_environments_store_is_reached_with_its_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("R2_DATASET_ACCOUNT_ID", "account")
    monkeypatch.setenv("R2_DATASET_READ_ACCESS_KEY_ID", "reader")
    monkeypatch.setenv("R2_DATASET_READ_SECRET_ACCESS_KEY", "its-secret")
    endpoint = "https://account.r2.cloudflarestorage.com"
    for settings in ({}, {"endpoint_url": endpoint}, {"endpoint_url": f"{endpoint}/"}):
        place = s3_place(tmp_path, **settings)
        assert (str(place.endpoint_url).rstrip("/"), place.region) == (endpoint, "auto")
        assert (place.access_key_id, place.secret_access_key) == ("reader", "its-secret")


def test_another_store_is_reached_with_botos_own_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("R2_DATASET_ACCOUNT_ID", "account")
    monkeypatch.setenv("R2_DATASET_READ_ACCESS_KEY_ID", "reader")
    monkeypatch.setenv("R2_DATASET_READ_SECRET_ACCESS_KEY", "its-secret")
    place = s3_place(tmp_path, endpoint_url="https://minio.example", region="eu-west-1")
    assert (place.endpoint_url, place.region) == ("https://minio.example", "eu-west-1")
    assert (place.access_key_id, place.secret_access_key) == (None, None)


def test_without_an_endpoint_boto_decides_on_the_region(tmp_path: Path) -> None:
    assert (s3_place(tmp_path).endpoint_url, s3_place(tmp_path).region) == (None, None)
    assert s3_place(tmp_path, region="eu-west-1").region == "eu-west-1"


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and everything that a traceback would print under it."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_no_credential_is_in_a_repr_a_message_or_a_log(
    s3: S3, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    s3.put({"a.jsonl.zst": b"x"})
    source = s3.source()
    plain = ObjectStorePrefix(url=source.url, cache_dir=s3.mirror, **s3.settings())
    told = [repr(source), repr(plain.place()), repr(plain.open())]

    def fails(call: Callable[[], Any]) -> None:
        with pytest.raises((SourceError, ConfigError)) as raised:
            call()
        told.extend(f"{e} {e!r}" for e in causes(raised.value))

    with caplog.at_level(logging.INFO):
        entries = entries_of(source)
        for trouble in ("403", "503", "reset"):
            s3.fail(trouble, always=True)
            fails(lambda: source.fetch(entries))
        fails(lambda: s3.source(endpoint_url=f"https://{KEY_ID}:{SECRET}@127.0.0.1"))
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        fails(plain.list)
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        fails(plain.list)
        assert "AWS_ACCESS_KEY_ID" in told[-1]
        monkeypatch.setenv("AWS_PROFILE", "not-there")
        fails(plain.list)
        assert "profile" in told[-1]
        monkeypatch.delenv("AWS_PROFILE")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"{SECRET}-and-more")
        fails(plain.list)
        assert "AWS_SECRET_ACCESS_KEY" in told[-1]
    everything = "\n".join([*told, caplog.text])
    assert not [s for s in (KEY_ID, SECRET, "AKIA-SAID-BY-THE-STORE") if s in everything]


@pytest.mark.parametrize(
    "url",
    [
        "bucket/corpus",
        "s3://",
        "s3://b",
        "s3://bucket//x",
        "s3://bucket/../x",
        "s3://bucket/x?y",
        "s3://bucket/x\n",
        "gs://bucket//x",
        "gcs://bucket/x",
        "https://bucket/corpus",
    ],
)
def test_a_url_that_is_no_prefix_of_a_bucket_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"source\.url"):
        ObjectStorePrefix(url=url, cache_dir=tmp_path)


@pytest.mark.parametrize("settings", [{"endpoint_url": "https://storage.googleapis.com"}, {"region": "eu-west-1"}])
def test_settings_of_s3_are_refused_with_gcs(settings: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"source\.endpoint_url, source\.region: .*remove them"):
        ObjectStorePrefix(url="gs://bucket", cache_dir=tmp_path, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("relpath", ["../up.jsonl.zst", "a//b.jsonl.zst", "a\nb.jsonl.zst", f"{'a' * 300}.jsonl.zst"])
def test_a_key_that_cannot_be_mirrored_is_refused(bucket: Bucket, relpath: str) -> None:
    source = bucket.source()
    (entry,) = build_manifest(
        [SourceFile(relpath=relpath, size_bytes=1, etag="x")], include=["**"], splits={"all": ["**"]}
    )
    with pytest.raises(SourceError, match="Rename the object"):
        source.fetch([entry])


def test_keys_that_cannot_lie_beside_each_other_are_named(gcs: Gcs) -> None:
    gcs.put({"a.jsonl": b"x", "a.jsonl/b.jsonl": b"y", "c.jsonl": b"z", "c.jsonl.part.json": b"{}"})
    source = gcs.source()
    listing = source.list()
    made = build_manifest(listing.files, include=["**"], splits={"all": ["**"]})
    with pytest.raises(SourceError, match=r"a\.jsonl and a\.jsonl/b\.jsonl"):
        source.fetch([e for e in made if e.relpath.startswith("a")])
    with pytest.raises(SourceError, match=r"c\.jsonl and c\.jsonl\.part\.json"):
        source.fetch([e for e in made if e.relpath.startswith("c")])
    for entry in made[:1]:
        source.fetch([entry])
    with pytest.raises(SourceError, match=r"corpus/a\.jsonl is in the way"):
        source.fetch(made[1:2])


def test_two_processes_that_want_the_same_object_fetch_it_once(bucket: Bucket) -> None:
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


ATTRIBUTES = sample_attributes(
    tokenizer={"path": str(SAMPLE / "tokenizer"), "name": "sample", "engine": "tokenizers"}, views=["nanogpt"]
)


def corpus_yaml(bucket: Bucket, **source: Any) -> str:
    declared_source = {
        "kind": "object_store",
        "url": f"{bucket.url}/corpus",
        "cache_dir": "./objects",
        **bucket.settings(),
        **source,
    }
    # the order of the splits is part of a declaration; the reference engine needs no long certification
    return yaml.safe_dump({**ATTRIBUTES, "source": declared_source}, sort_keys=False)


def test_a_corpus_in_a_bucket_has_the_bytes_of_the_same_local_corpus(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put({**DATA, "README.md": b"# data\n"})
    remote = declared(CorpusDeclaration, yaml.safe_load(corpus_yaml(bucket)), tmp_path / "defs.yaml")
    local = declared(CorpusDeclaration, ATTRIBUTES, tmp_path / "defs.yaml")
    assert not run_pipeline(remote, tmp_path / "remote").failed
    assert not run_pipeline(local, tmp_path / "local").failed
    ours, theirs = data_files(tmp_path / "remote"), data_files(tmp_path / "local")
    assert ours.keys() == theirs.keys()
    differing = {name for name in ours if ours[name] != theirs[name]}
    assert {name.split("/")[-1] for name in differing} == {"manifest.jsonl", "manifest_summary.json"}
    assert {"train.bin", "val.bin", "test.bin", "files.jsonl"} <= {name.split("/")[-1] for name in ours}
    again = run_pipeline(remote, tmp_path / "remote")
    assert again.built == []
    other = zstandard.compress(b'{"text": "Other text."}\n')
    bucket.put({"train/chunk1/example_train_0.jsonl.zst": other, "train/chunk9/new.jsonl.zst": other})
    (first, *_) = stale(corpus_specs(remote), LocalArtifacts(tmp_path / "remote"))
    assert first.reason == "its source changed: 1 file added, 1 file changed, 1 shard new"
    built = run_pipeline(remote, tmp_path / "remote").built
    assert sum(name.startswith("token_bins") for name in built) == 2
    assert list(stale(corpus_specs(remote), LocalArtifacts(tmp_path / "remote"))) == []


def test_a_shard_whose_object_changed_fails_alone(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put(DATA)
    corpus = declared(CorpusDeclaration, yaml.safe_load(corpus_yaml(bucket)), tmp_path / "defs.yaml")
    artifacts = LocalArtifacts(tmp_path / "artifacts")
    build_manifest_artifact(corpus, artifacts)
    manifest = load_manifest(corpus, artifacts)
    bucket.put({"train/chunk1/example_train_0.jsonl.zst": b"something else"})
    first, second = manifest.partitions("train")[:2]
    with pytest.raises(SourceError, match=r"example_train_0\.jsonl\.zst: the object changed"):
        build_snapshot(corpus, artifacts, manifest, first)
    build_snapshot(corpus, artifacts, manifest, second)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"url": "gcs://bucket/corpus"}, "pattern"),
        ({"url": "s3:/bucket"}, "pattern"),
        ({"cache_dir": None}, "cache_dir"),
        ({"secret": "x"}, "Extra inputs"),
    ],
)
def test_a_wrong_declaration_says_what_is_allowed(gcs: Gcs, tmp_path: Path, change: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        declared(CorpusDeclaration, yaml.safe_load(corpus_yaml(gcs, **change)), tmp_path / "defs.yaml")
