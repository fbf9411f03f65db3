"""A handle returns the same bytes from a folder, a bucket and a copy, and a trainer can read ranges."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep_assets.engine.artifact.build import WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.errors import ConfigError, IntegrityError, MissingArtifactError
from dataprep_assets.integrity.artifacts import Artifact, ArtifactHandle, ArtifactStore, LocalArtifacts, RemoteTokens
from dataprep_assets.integrity.bucket import BucketArtifacts
from dataprep_assets_tests.fakes.gcs_server import GcsServer
from dataprep_assets_tests.fakes.places import Places
from dataprep_assets_tests.integrity.builds import StreamFacts
from dataprep_assets_tests.messages import raises

ARTIFACT = Artifact(dataset="ds", name="bins")
IDS = np.random.default_rng(7).integers(0, 60_000, 300_000).astype("<u2")
TABLE = pa.table({"number": list(range(5000)), "text": [f"row {n}" for n in range(5000)]})


def publish(store: ArtifactStore, ids: np.ndarray[Any, Any] = IDS) -> ArtifactStore:
    def write(staged: Path) -> WrittenFiles:
        ids.tofile(staged / "train.bin")
        (staged / "empty.bin").touch()
        np.save(staged / "array.npy", ids)
        pq.write_table(TABLE, staged / "table.parquet")
        (staged / "odd.bin").write_bytes(b"odd")
        return WrittenFiles(inputs={}, facts=StreamFacts(dtype="uint16"))

    ensure_built(Recipe(artifact=ARTIFACT, key=str(len(ids))), store, write)
    return store


@pytest.fixture(scope="module", params=["local", "folder", "moto", "gcs"])
def handle(request: pytest.FixtureRequest, servers: Places, tmp_path_factory: pytest.TempPathFactory) -> ArtifactHandle:
    folder = tmp_path_factory.mktemp("handle")
    if request.param == "local":
        return ArtifactHandle.from_store(publish(LocalArtifacts(folder)), ARTIFACT)
    place = servers.new(request.param)
    publish(BucketArtifacts(folder / "builder", place, place.url))
    return ArtifactHandle.from_store(BucketArtifacts(folder / "reader", place, place.url), ARTIFACT)


def test_token_slices_equal_those_of_the_array(handle: ArtifactHandle) -> None:
    tokens = handle.tokens("train.bin")
    assert len(tokens) == len(IDS)
    assert tokens.dtype == np.dtype("<u2")
    assert tokens.shape == IDS.shape
    for part in (slice(0, 10), slice(-10, None), slice(5, 5), slice(1000, 9000, 7), slice(9000, 1000, -3), slice(None)):
        assert np.array_equal(tokens[part], IDS[part])
    assert tokens[17] == IDS[17]
    assert tokens[-1] == IDS[-1]
    assert np.array_equal(np.asarray(tokens), IDS)
    with pytest.raises(IndexError):
        tokens[len(IDS)]
    assert len(handle.tokens("empty.bin")) == 0


def test_numpy_and_pyarrow_read_the_open_file(handle: ArtifactHandle) -> None:
    with handle.open("array.npy") as file:
        assert np.array_equal(np.load(file), IDS)
    with handle.open("table.parquet") as file:
        assert pq.read_table(file).equals(TABLE)


def test_an_open_file_seeks_and_reads_like_a_file(handle: ArtifactHandle) -> None:
    raw = IDS.tobytes()
    with handle.open("train.bin") as file, io.BytesIO(raw) as wanted:
        for offset, whence, count in (
            (0, 0, 7),
            (100, 1, 9),
            (-11, 2, 5),
            (0, 1, 100),
            (5, 2, 3),
            (250_001, 0, 70_000),
        ):
            assert file.seek(offset, whence) == wanted.seek(offset, whence)
            assert file.read(count) == wanted.read(count)
            assert file.tell() == wanted.tell()


def test_ranges_are_verified_with_the_receipt(handle: ArtifactHandle) -> None:
    assert handle.read("odd.bin") == b"odd"
    assert handle.read("odd.bin", 1, 2) == b"d"
    assert handle.read("odd.bin", 3) == b""
    for start, stop in ((0, 4), (2, 1), (-1, 2)):
        with raises(IntegrityError, "odd.bin"):
            handle.read("odd.bin", start, stop)
    with raises(MissingArtifactError, "'nothing'"):
        handle.open("nothing")
    with raises(ConfigError, "odd.bin", "uint16"):
        handle.tokens("odd.bin")
    with raises(ConfigError, "array.npy", "`np.load`"):
        handle.tokens("array.npy")


def test_a_handle_can_be_sent_to_another_process_and_shows_no_secret(handle: ArtifactHandle) -> None:
    again = pickle.loads(pickle.dumps(handle))
    assert np.array_equal(again.tokens("train.bin")[5:9], IDS[5:9])
    assert "secret" not in repr(handle)
    assert "secret" not in repr(handle.store)


def test_a_path_is_a_copy_that_later_reads_use(handle: ArtifactHandle) -> None:
    path = handle.path("train.bin")
    assert path.read_bytes() == IDS.tobytes()
    assert isinstance(handle.tokens("train.bin"), np.memmap)
    assert np.array_equal(handle.tokens("train.bin")[5:9], IDS[5:9])


def test_a_slice_costs_one_small_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataprep_assets.stores.connect import GcsAddress

    with GcsServer() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.endpoint)
        place = GcsAddress(bucket=server.bucket, prefix=tmp_path.name, project="project")
        publish(BucketArtifacts(tmp_path / "builder", place, place.url))
        tokens = ArtifactHandle.from_store(BucketArtifacts(tmp_path / "reader", place, place.url), ARTIFACT).tokens(
            "train.bin"
        )
        assert isinstance(tokens, RemoteTokens)
        assert np.array_equal(tokens[:2], IDS[:2])
        before = len(server.log)
        assert np.array_equal(tokens[100_000:100_016], IDS[100_000:100_016])
        assert [entry.operation for entry in server.log[before:]] == ["media"]


def test_a_replaced_artifact_is_never_mixed_with_an_older_handle(servers: Places, tmp_path: Path) -> None:
    place = servers.new("folder")
    builder = BucketArtifacts(tmp_path / "builder", place, place.url)
    publish(builder)
    old = ArtifactHandle.from_store(BucketArtifacts(tmp_path / "reader", place, place.url), ARTIFACT)
    tokens = old.tokens("train.bin")
    assert tokens[0] == IDS[0]
    publish(builder, IDS[:1000] + 1)
    with raises(MissingArtifactError, "replaced"):
        tokens[0]
    with pytest.raises(MissingArtifactError):
        old.path("train.bin")
    new = ArtifactHandle.from_store(old.store, ARTIFACT)
    assert np.array_equal(new.tokens("train.bin")[:], IDS[:1000] + 1)
