"""A prefix of a bucket as a source, against a moto server and a faulty proxy before it, over real HTTP."""

import dataclasses
import hashlib
import http.client
import json
import logging
import multiprocessing
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Literal
from urllib.error import URLError
from urllib.request import urlopen

import boto3
import pytest
import yaml

from dataprep_assets.builds.corpus import CorpusDeclaration
from dataprep_assets.builds.manifest import build_manifest_artifact, load_manifest
from dataprep_assets.builds.snapshot import build_snapshot
from dataprep_assets.components.dataset import declared
from dataprep_assets.errors import ConfigError, CorruptSourceError, SourceError, TransferError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.planning.manifest import ManifestEntry, SourceFile, build_manifest
from dataprep_assets.sources.object_store import ObjectStorePrefix
from dataprep_assets.stores.ranged import RetryPolicy
from dataprep_assets_tests.builds.pipeline import data_files, run_pipeline
from dataprep_assets_tests.project import SAMPLE, sample_attributes

KEY_ID, SECRET = "AKIATESTONLYKEYID", "secret-for-tests-only"
QUICK = RetryPolicy(attempts=4, base_seconds=0.0, max_seconds=0.0)
Fault = Literal["503", "429", "403", "reset", "short", "flip"]
DATA = {p.relative_to(SAMPLE / "data").as_posix(): p.read_bytes() for p in (SAMPLE / "data").rglob("*.zst")}


@contextmanager
def moto_server() -> Iterator[str]:
    """The URL of a running moto server, a process of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "no_proxy": "127.0.0.1"},
    )
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                urlopen(f"{url}/moto-api/", timeout=5).close()
                break
            except (URLError, OSError):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("moto_server did not start; pip install 'moto[server]'") from None
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class FaultyProxy:
    """Forwards GETs to `upstream` and records them; the next ones that have a Range fail as `faults` says, one each."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream.removeprefix("http://")
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str | None]] = []
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                proxy._answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def endpoint(self) -> str:
        """The proxy's URL."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def objects_read(self) -> list[str]:
        """Paths of the ranged requests, in order."""
        return [path for path, ranged in self.requests if ranged]

    def __enter__(self) -> "FaultyProxy":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        ranged = request.headers.get("Range")
        with self._lock:
            self.requests.append((request.path, ranged))
            fault = self.faults.pop(0) if ranged and self.faults else None
        if fault == "reset":
            request.close_connection = True
            return
        if fault in ("503", "429", "403"):
            code = {"503": "SlowDown", "429": "TooManyRequests", "403": "AccessDenied"}[fault]
            key = "AKIA-SAID-BY-THE-STORE"
            body = f"<Error><Code>{code}</Code><Message>key {key} is refused</Message></Error>".encode()
            request.send_response(int(fault))
            request.send_header("Content-Length", str(len(body)))
            request.send_header("Content-Type", "application/xml")
            request.send_header("Retry-After", "0")
            request.end_headers()
            request.wfile.write(body)
            return
        connection = http.client.HTTPConnection(self.upstream, timeout=30)
        try:
            connection.request("GET", request.path, headers=dict(request.headers.items()))
            response = connection.getresponse()
            body = response.read()
            request.send_response(response.status)
            for name, value in response.getheaders():
                if name.lower() not in ("transfer-encoding", "connection", "content-length", "date", "server"):
                    request.send_header(name, value)
            request.send_header("Content-Length", str(len(body)))
            request.end_headers()
            if fault == "short":
                body, request.close_connection = body[: len(body) // 2], True
            if fault == "flip":
                body = bytes([body[0] ^ 1]) + body[1:]
            request.wfile.write(body)
        finally:
            connection.close()


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with moto_server() as url:
        yield url


@pytest.fixture(scope="module")
def client(moto: str) -> Any:
    return boto3.client(
        "s3", endpoint_url=moto, region_name="us-east-1", aws_access_key_id="k", aws_secret_access_key="s"
    )


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@dataclasses.dataclass
class Store:
    """A bucket of its own, the proxy before it, and a client that goes past the proxy."""

    client: Any
    bucket: str
    proxy: FaultyProxy
    folder: Path

    def put(self, files: Mapping[str, bytes], prefix: str = "corpus/") -> None:
        def one(name: str) -> None:
            self.client.put_object(Bucket=self.bucket, Key=prefix + name, Body=files[name])

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(one, files))

    def put_in_parts(self, key: str, parts: list[bytes]) -> None:
        where = {"Bucket": self.bucket, "Key": key}
        upload = self.client.create_multipart_upload(**where)["UploadId"]
        done = []
        for n, body in enumerate(parts, 1):
            answer = self.client.upload_part(**where, UploadId=upload, PartNumber=n, Body=body)
            done.append({"PartNumber": n, "ETag": answer["ETag"]})
        self.client.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": done})

    def source(self, prefix: str = "corpus", **changes: Any) -> ObjectStorePrefix:
        url = f"s3://{self.bucket}" + (f"/{prefix}" if prefix else "")
        made = ObjectStorePrefix(
            url=url,
            cache_dir=self.folder / "objects",
            endpoint_url=self.proxy.endpoint,
            timeout_seconds=10,
            retry=QUICK,
        )
        return dataclasses.replace(made, **changes)


@pytest.fixture
def store(moto: str, client: Any, tmp_path: Path) -> Iterator[Store]:
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    client.create_bucket(Bucket=bucket)
    with FaultyProxy(moto) as proxy:
        yield Store(client, bucket, proxy, tmp_path)


def entries_of(source: ObjectStorePrefix) -> list[ManifestEntry]:
    listing = source.list()
    return build_manifest(
        listing.files, include=["**/*.jsonl.zst"], splits={"all": ["**"]}, url_prefix=listing.url_prefix
    )


def test_a_prefix_of_several_pages_is_listed_whole_and_without_its_neighbours(store: Store) -> None:
    files = {f"chunk{n % 7}/part_{n}.jsonl.zst": b"%d" % n for n in range(1005)}
    store.put({**files, "chunk0/": b"", "": b""})
    store.put({"corpus-2/x.jsonl.zst": b"no"}, prefix="")
    listing = store.source().list()
    assert {f.relpath: f.size_bytes for f in listing.files} == {name: len(body) for name, body in files.items()}
    assert {f.relpath: f.etag for f in listing.files} == {n: hashlib.md5(b).hexdigest() for n, b in files.items()}
    assert listing.url_prefix == f"s3://{store.bucket}/corpus/"
    assert len(store.proxy.requests) == 2


def test_a_whole_bucket_can_be_the_prefix(store: Store) -> None:
    store.put({"a/b.jsonl.zst": b"x"}, prefix="")
    source = store.source("")
    (entry,) = entries_of(source)
    source.fetch([entry])
    assert source.path(entry) == store.folder / "objects" / store.bucket / "a" / "b.jsonl.zst"
    assert source.path(entry).read_bytes() == b"x"


def test_the_manifest_is_the_same_for_every_order_of_the_listing(store: Store) -> None:
    store.put(DATA)
    listing = store.source().list()
    made = []
    for seed in range(3):
        files: list[SourceFile] = list(listing.files)
        random.Random(seed).shuffle(files)
        made.append(build_manifest(files, include=["**"], splits={"all": ["**"]}, url_prefix=listing.url_prefix))
    assert made[0] == made[1] == made[2]
    assert made[0][0].path.startswith(f"s3://{store.bucket}/corpus/")


def test_what_was_fetched_is_verified_and_not_fetched_again(store: Store) -> None:
    store.put(DATA)
    source, done = store.source(), list[int]()
    entries = entries_of(source)
    total = sum(map(len, DATA.values()))
    assert source.bytes_to_fetch(entries) == total
    source.fetch(entries, done.append)
    assert sum(done) == total
    assert {e.relpath: source.path(e).read_bytes() for e in entries} == DATA
    assert source.bytes_to_fetch(entries) == 0
    before = len(store.proxy.objects_read())
    source.fetch(entries, done.append)
    assert len(store.proxy.objects_read()) == before
    assert sum(done) == 2 * total
    names = {p.relative_to(source.storage).as_posix() for p in source.storage.rglob("*") if p.is_file()}
    assert names == {*DATA, *(f"{name}.etag" for name in DATA)}


def test_a_flipped_byte_is_detected_and_that_file_alone_is_fetched_again(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.put(DATA)
    source = store.source()
    entries = entries_of(source)
    source.fetch(entries)
    victim = source.path(entries[3])
    victim.write_bytes(bytes([victim.read_bytes()[0] ^ 1]) + victim.read_bytes()[1:])
    store.proxy.requests.clear()
    with caplog.at_level(logging.WARNING):
        source.fetch(entries)
    assert [p.split("?")[0] for p in store.proxy.objects_read()] == [f"/{store.bucket}/corpus/{entries[3].relpath}"]
    assert victim.read_bytes() == DATA[entries[3].relpath]
    assert entries[3].relpath in caplog.text


@pytest.mark.parametrize("record", [b'{"etag": "x', b"[]"])
def test_a_file_without_a_whole_record_is_not_trusted(store: Store, record: bytes) -> None:
    store.put({"a.jsonl.zst": b"right"})
    source = store.source()
    (entry,) = entries_of(source)
    source.storage.mkdir(parents=True)
    source.path(entry).write_bytes(b"wrong")
    source.path(entry).with_name("a.jsonl.zst.etag").write_bytes(record)
    assert source.bytes_to_fetch([entry]) == 5
    source.fetch([entry])
    assert source.path(entry).read_bytes() == b"right"


def test_a_multipart_object_comes_in_ranges_and_a_later_change_on_disk_is_seen(store: Store) -> None:
    content = random.Random(1).randbytes(5 * 1024 * 1024) + b"the last part"
    store.put_in_parts("corpus/big.jsonl.zst", [content[: 5 * 1024 * 1024], content[5 * 1024 * 1024 :]])
    source = store.source(part_bytes=1024 * 1024)
    (entry,) = entries_of(source)
    assert entry.etag is not None
    assert entry.etag.endswith("-2")
    source.fetch([entry])
    assert source.path(entry).read_bytes() == content
    assert len(store.proxy.objects_read()) == 6
    record = json.loads(source.path(entry).with_name("big.jsonl.zst.etag").read_bytes())
    assert record == {"etag": entry.etag, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    source.path(entry).write_bytes(content[:-1] + b"?")
    source.fetch([entry])
    assert source.path(entry).read_bytes() == content


def test_an_object_changed_after_the_manifest_is_refused_until_the_manifest_is_made_again(store: Store) -> None:
    store.put({"a.jsonl.zst": b"first", "b.jsonl.zst": b"other"})
    source = store.source()
    entries = entries_of(source)
    source.fetch(entries)
    store.put({"a.jsonl.zst": b"again"})
    source.fetch(entries)
    assert source.path(entries[0]).read_bytes() == b"first", "what was pinned and verified stays usable"
    source.path(entries[0]).unlink()
    with pytest.raises(SourceError, match=r"corpus/a\.jsonl\.zst: the object changed since .*412.*`manifest`"):
        source.fetch(entries)
    assert not source.path(entries[0]).exists()
    renewed = entries_of(source)
    source.fetch(renewed)
    assert source.path(renewed[0]).read_bytes() == b"again"


def test_a_missing_object_and_a_missing_bucket_are_named(store: Store) -> None:
    store.put({"a.jsonl.zst": b"first", "b.jsonl.zst": b"other"})
    source = store.source()
    entries = entries_of(source)
    store.client.delete_object(Bucket=store.bucket, Key="corpus/a.jsonl.zst")
    with pytest.raises(SourceError, match=r"corpus/a\.jsonl\.zst: the object is gone .*`manifest`"):
        source.fetch(entries)
    with pytest.raises(SourceError, match=r"no such bucket .*source\.url"):
        dataclasses.replace(source, url="s3://nobody-made-this/corpus").list()


@pytest.mark.parametrize("faults", [["503"], ["short", "reset", "429"], ["flip"]])
def test_what_may_pass_is_survived(store: Store, faults: list[Fault]) -> None:
    content = random.Random(2).randbytes(100_000)
    store.put({"a.jsonl.zst": content})
    source, done = store.source(), list[int]()
    entries = entries_of(source)
    store.proxy.faults = faults[:]
    source.fetch(entries, done.append)
    assert not store.proxy.faults
    assert source.path(entries[0]).read_bytes() == content
    assert sum(done) == len(content)


@pytest.mark.parametrize(
    ("fault", "kind", "told"),
    [
        ("503", TransferError, "HTTP 503, SlowDown"),
        ("short", TransferError, "gave up after 4 attempts"),
        ("flip", CorruptSourceError, "MD5"),
        ("403", SourceError, "s3:GetObject on"),
    ],
)
def test_what_does_not_pass_names_the_object_and_leaves_no_file(
    store: Store, fault: Fault, kind: type[SourceError], told: str
) -> None:
    # a body cut to half shrinks with each try that goes on from where the last one ended; it must outlast the budget
    store.put({"a.jsonl.zst": random.Random(3).randbytes(100_000)})
    source = store.source()
    entries = entries_of(source)
    store.proxy.faults = [fault] * 50
    with pytest.raises(kind, match=told) as raised:
        source.fetch(entries)
    assert f"s3://{store.bucket}/corpus/a.jsonl.zst" in str(raised.value)
    assert not source.path(entries[0]).exists()
    store.proxy.faults = []
    source.fetch(entries)
    assert source.path(entries[0]).stat().st_size == 100_000


def test_no_room_stops_it_before_the_first_byte(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(DATA)
    source = store.source()
    entries = entries_of(source)
    usage = shutil.disk_usage(store.folder)
    needed = sum(map(len, DATA.values()))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=int(needed * 1.1)))
    with pytest.raises(SourceError, match=f"{needed} bytes are to be fetched"):
        source.fetch(entries)
    assert store.proxy.objects_read() == []


def test_without_boto3_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    source = ObjectStorePrefix(url="s3://bucket/corpus", cache_dir=tmp_path)
    with pytest.raises(ConfigError, match=r"object_store needs the extra `r2`: pip install 'dataprep-assets\[r2\]'"):
        source.list()


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and everything that a traceback would print under it."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_no_credential_is_in_a_repr_a_message_or_a_log(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store.put({"a.jsonl.zst": b"x"})
    source = store.source()
    told = [repr(source)]

    def fails(call: Callable[[], Any]) -> None:
        with pytest.raises((SourceError, ConfigError)) as raised:
            call()
        told.extend(f"{e} {e!r}" for e in causes(raised.value))

    with caplog.at_level(logging.INFO):
        entries = entries_of(source)
        for fault in ("403", "503", "reset"):
            store.proxy.faults = [fault] * 4  # type: ignore[list-item]
            fails(lambda: source.fetch(entries))
        fails(lambda: store.source(endpoint_url=f"https://{KEY_ID}:{SECRET}@127.0.0.1"))
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        fails(source.list)
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        fails(source.list)
        assert "AWS_ACCESS_KEY_ID" in told[-1]
        monkeypatch.setenv("AWS_PROFILE", "not-there")
        fails(source.list)
        assert "AWS_PROFILE" in told[-1]
    everything = "\n".join([*told, caplog.text])
    assert not [s for s in (KEY_ID, SECRET, "AKIA-SAID-BY-THE-STORE") if s in everything]


@pytest.mark.parametrize(
    "url", ["bucket/corpus", "s3://", "s3://b", "s3://bucket//x", "s3://bucket/../x", "https://bucket/corpus"]
)
def test_a_url_that_is_no_prefix_of_a_bucket_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"source\.url"):
        ObjectStorePrefix(url=url, cache_dir=tmp_path)


def test_a_key_that_would_leave_the_mirror_is_refused(store: Store) -> None:
    source = store.source()
    for relpath in ("../up.jsonl.zst", "a//b.jsonl.zst"):
        file = SourceFile(relpath=relpath, size_bytes=1, etag="x")
        (entry,) = build_manifest([file], include=["**"], splits={"all": ["**"]})
        with pytest.raises(SourceError, match="Rename the object"):
            source.fetch([entry])


def test_keys_that_cannot_lie_beside_each_other_are_named(store: Store) -> None:
    store.put({"a.jsonl": b"x", "a.jsonl/b.jsonl": b"y", "c.jsonl": b"z", "c.jsonl.part.json": b"{}"})
    source = store.source()
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


def test_two_processes_that_want_the_same_object_fetch_it_once(store: Store) -> None:
    store.put({"a.jsonl.zst": random.Random(4).randbytes(200_000)})
    source = store.source(part_bytes=10_000)
    entries = entries_of(source)
    others = [multiprocessing.get_context("spawn").Process(target=source.fetch, args=(entries,)) for _ in range(3)]
    for other in others:
        other.start()
    for other in others:
        other.join(30)
    assert [other.exitcode for other in others] == [0, 0, 0]
    assert len(store.proxy.objects_read()) == 20


ATTRIBUTES = sample_attributes(
    tokenizer={"path": str(SAMPLE / "tokenizer"), "name": "sample", "engine": "tokenizers"}, views=["nanogpt"]
)


def corpus_yaml(store: Store, **source: Any) -> str:
    declared_source = {
        "kind": "object_store",
        "url": f"s3://{store.bucket}/corpus",
        "cache_dir": "./objects",
        "endpoint_url": store.proxy.endpoint,
        **source,
    }
    # the order of the splits is part of a declaration; the reference engine needs no long certification
    return yaml.safe_dump({**ATTRIBUTES, "source": declared_source}, sort_keys=False)


def test_a_corpus_in_a_bucket_has_the_bytes_of_the_same_local_corpus(store: Store, tmp_path: Path) -> None:
    store.put({**DATA, "README.md": b"# data\n"})
    remote = declared(CorpusDeclaration, yaml.safe_load(corpus_yaml(store)), tmp_path / "defs.yaml")
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


def test_a_shard_whose_object_changed_fails_alone(store: Store, tmp_path: Path) -> None:
    store.put(DATA)
    corpus = declared(CorpusDeclaration, yaml.safe_load(corpus_yaml(store)), tmp_path / "defs.yaml")
    artifacts = LocalArtifacts(tmp_path / "artifacts")
    build_manifest_artifact(corpus, artifacts)
    manifest = load_manifest(corpus, artifacts)
    store.put({"train/chunk1/example_train_0.jsonl.zst": b"something else"})
    first, second = manifest.partitions("train")[:2]
    with pytest.raises(SourceError, match=r"example_train_0\.jsonl\.zst: the object changed"):
        build_snapshot(corpus, artifacts, manifest, first)
    build_snapshot(corpus, artifacts, manifest, second)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"url": "gs://bucket/corpus"}, "reads s3:// only"),
        ({"url": "s3:/bucket"}, "pattern"),
        ({"cache_dir": None}, "cache_dir"),
        ({"secret": "x"}, "Extra inputs"),
    ],
)
def test_a_wrong_declaration_says_what_is_allowed(
    store: Store, tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        declared(CorpusDeclaration, yaml.safe_load(corpus_yaml(store, **change)), tmp_path / "defs.yaml")
