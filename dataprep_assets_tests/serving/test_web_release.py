"""A release on the hub and on a plain web server: the window reads it by ranges, through any fault."""

import logging
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataprep_assets.errors import ConfigError, IntegrityError, MissingArtifactError, SourceError
from dataprep_assets.serving import Release, ShardWindow
from dataprep_assets.serving.window.release import MANIFEST, ReleaseLocation, locate_release
from dataprep_assets.stores.http import HttpStore, build_hub_url
from dataprep_assets.stores.preflight import run_reading_preflight
from dataprep_assets.stores.retry import RetryPolicy
from dataprep_assets_tests.fakes.hub_server import HubServer
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.serving.releases import make_release
from dataprep_assets_tests.serving.watched import QUICK, assert_is

REPO = "someone/shards"
FOLDER = "v1"
AT_ONCE = RetryPolicy(attempts=4, base_seconds=0.0, max_seconds=0.0)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    """Run a hub with a release of two shards, whose tokens are on its storage host."""
    built = tmp_path_factory.mktemp("built")
    release = make_release(built, (8, 8))
    tree = {f"{FOLDER}/{file.key}": (built / file.key).read_bytes() for file in release.files}
    tree[f"{FOLDER}/{MANIFEST}"] = release.to_bytes()
    with HubServer(tree, repo_id=REPO, lfs_bytes=600, storage_host=True) as server:
        yield server


@pytest.fixture
def on_hub(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    return f"hf://datasets/{REPO}@main/{FOLDER}"


def over_web(hub: HubServer, **options: object) -> ReleaseLocation:
    return ReleaseLocation(HttpStore(f"{hub.endpoint}/datasets/{REPO}/resolve/main/{FOLDER}", retry=AT_ONCE, **options))  # type: ignore[arg-type]


def test_a_window_over_the_hub_reads_the_release_and_hides_the_token_from_the_storage_host(
    hub: HubServer, on_hub: str, tmp_path: Path
) -> None:
    since = len(hub.log)
    with ShardWindow(on_hub, tmp_path / "cache", 1, keep=2, retry=QUICK) as window:
        for step in (0, 1, 2):
            assert_is(window.swap(step), step % 2)
    asked = hub.log[since:]
    assert any(entry.storage for entry in asked)
    assert {entry.authorization for entry in asked if entry.storage} == {None}
    assert {entry.authorization for entry in asked if not entry.storage} == {"Bearer hf_secret"}


@pytest.mark.parametrize("kind", ["status", "reset", "truncate"])
def test_interrupted_reads_are_retried(hub: HubServer, kind: str, tmp_path: Path) -> None:
    name = f"{FOLDER}/train_000000.npy"
    hub.fail(name, kind, **({"status": 503} if kind == "status" else {}))  # type: ignore[arg-type]
    place = over_web(hub, range_bytes=256)
    since = len(hub.log)
    with ShardWindow(place, tmp_path / "cache", 1, retry=QUICK) as window:
        assert_is(window.swap(0), 0)
    assert len(set(hub.spans(name, since))) > 1


def test_a_missing_or_refused_file_is_reported(hub: HubServer, on_hub: str, tmp_path: Path) -> None:
    with raises(MissingArtifactError, MANIFEST):
        ShardWindow(
            ReleaseLocation(HttpStore(f"{hub.endpoint}/datasets/{REPO}/resolve/main/other", retry=AT_ONCE)), tmp_path, 1
        )
    store = over_web(hub).store
    assert store.head("nothing") is None
    assert sum(len(block) for block in store.read(MANIFEST, 3, 9)) == 6
    size = len(b"".join(store.read(MANIFEST)))
    with raises(IntegrityError, size):
        list(store.read(MANIFEST, 0, size + 1))
    hub.fail(f"{FOLDER}/{MANIFEST}", "expired", method="HEAD", times=1)
    with raises(SourceError, 403, "HF_TOKEN"):
        locate_release(on_hub).store.head(MANIFEST)
    for write in (lambda: store.put("x", b""), lambda: store.delete("x"), lambda: store.copy("x", "y")):
        with raises(ConfigError, "read-only"):
            write()
    with raises(ConfigError, "list", "manifest"):
        next(store.list())


def test_no_log_and_no_message_contains_a_signed_url(
    hub: HubServer, on_hub: str, caplog: pytest.LogCaptureFixture
) -> None:
    name, store = "train_000000.npy", over_web(hub).store
    with caplog.at_level(logging.DEBUG):
        assert b"".join(store.read(name))
        hub.fail(f"{FOLDER}/{name}", "reset", times=None)
        with pytest.raises(SourceError) as caught:
            list(store.read(name))
    hub.heal()
    told = caplog.text + "".join(traceback.format_exception(caught.value))
    assert "HTTP Request" in caplog.text
    assert "signature" not in told.lower()


def test_preflight_of_a_reader_writes_nothing(hub: HubServer, on_hub: str, tmp_path: Path) -> None:
    place = locate_release(on_hub)
    steps = list(run_reading_preflight(place.store, [place.key(MANIFEST)]))
    assert [(step.name, step.ok) for step in steps] == [
        ("credentials and an object", True),
        ("read", True),
        ("range read", True),
    ]
    nothing = list(run_reading_preflight(locate_release(tmp_path).store))
    assert [step.ok for step in nothing] == [False, False, False]
    assert_names(nothing[0].error, "bucket", "prefix")
    assert not any(tmp_path.iterdir())
    assert Release.from_bytes(b"".join(place.store.read(MANIFEST)), "here").dataset == "tiny"


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("hf://datasets/a/b@v1/c/d", "https://huggingface.co/datasets/a/b/resolve/v1/c/d"),
        ("hf://datasets/a/b", "https://huggingface.co/datasets/a/b/resolve/main"),
        ("hf://a/b@v2", "https://huggingface.co/a/b/resolve/v2"),
    ],
)
def test_addresses_of_the_hub_are_parsed(address: str, url: str) -> None:
    assert build_hub_url(address, {}) == url


@pytest.mark.parametrize("address", ["hf://datasets/a", "hf://"])
def test_an_address_without_a_repository_is_refused(address: str) -> None:
    with raises(ConfigError, address):
        build_hub_url(address, {})


def test_a_web_server_without_tls_is_refused() -> None:
    with raises(ConfigError, "unencrypted"):
        locate_release("http://mirror.example/shards")
