"""Users' assets downstream of ours, on a real instance: lazy handles on a folder, S3 and GCS, without leaked
secrets.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pytest

from dataprep_assets.integrity.artifacts import ArtifactHandle, RemoteTokens
from dataprep_assets.resources import StorageResource, create_resources
from dataprep_assets.resources.environment import build_storage
from dataprep_assets_tests.fakes.places import Places
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.project import Project, project, sample_attributes

pytestmark = pytest.mark.slow

ONE_OF_EACH: dict[str, Any] = {"splits": {"train": ["train/**"]}, "views": ["nanogpt"]}
"""A split and a view; `pipelines/corpus/test_storage.py` tests all of them on each storage."""
BINS = dg.AssetKey(["corpus", "nanogpt_bins"])
KEY_ID, SECRET = "CANARYKEYID0123456789", "canary-secret-value-0123456789"
SHARDS = dg.AssetKey(["corpus", "token_bins_train"])


def storage_at(place: Any, kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> StorageResource:
    """Return the result of `build_resources` for the environment of this location."""
    for name in [n for n in os.environ if n.startswith(("DATAPREP_", "R2_DATASET_", "AWS_", "DATASET_"))]:
        monkeypatch.delenv(name)
    values: dict[str, Any] = {"DATAPREP_CACHE": folder / "cache", "DATAPREP_STORAGE": kind}
    if kind == "local":
        values |= {"DATAPREP_ROOT": folder / "artifacts"}
    elif kind == "gcs":
        values |= {"DATAPREP_BUCKET": place.bucket, "DATAPREP_ROOT": place.prefix, "GOOGLE_CLOUD_PROJECT": "project"}
    else:
        # moto accepts any key, so the tests can use unique secrets and search for them in all output.
        canary = kind == "moto"
        values |= {
            "DATAPREP_STORAGE": "r2",
            "R2_DATASET_BUCKET_NAME": place.bucket,
            "DATASET_BINS_PATH": place.prefix,
            "DATAPREP_ENDPOINT_URL": place.endpoint_url,
            "R2_DATASET_WRITE_ACCESS_KEY_ID": KEY_ID if canary else place.access_key_id,
            "R2_DATASET_WRITE_SECRET_ACCESS_KEY": SECRET if canary else place.secret_access_key,
            "AWS_DEFAULT_REGION": place.region,
        }
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))
    return build_storage(folder)


def run(found: Project, assets: list[dg.AssetsDefinition], keys: list[dg.AssetKey], **named: Any) -> Any:
    ours = found.definitions
    definitions = dg.Definitions(
        assets=[*(ours.assets or []), *assets],
        asset_checks=ours.asset_checks,
        resources=create_resources(found.storage),
    )
    job = definitions.resolve_implicit_global_asset_job_def()
    return job.execute_in_process(asset_selection=keys, instance=found.instance, raise_on_error=False, **named)


@pytest.mark.parametrize("kind", ["local", "moto", "gcs"])
def test_the_whole_graph_runs_and_a_trainer_reads_by_ranges(
    kind: str,
    servers: Places,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    place = servers.new("folder" if kind == "local" else kind)
    storage = storage_at(place, kind, tmp_path, monkeypatch)
    seen: dict[str, Any] = {}

    @dg.asset(ins={"bins": dg.AssetIn(BINS)}, io_manager_key="artifacts")
    def train(bins: ArtifactHandle) -> None:
        tokens = bins.tokens("train.bin")
        seen["ids"], seen["view"], seen["count"] = np.array(tokens[100:200]), type(tokens), len(tokens)

    @dg.asset(ins={"shards": dg.AssetIn(SHARDS)})
    def count(shards: dict[str, ArtifactHandle]) -> dg.MaterializeResult[Any]:
        seen["shards"] = {name: len(handle.tokens("tokens.bin")) for name, handle in shards.items()}
        return dg.MaterializeResult()

    home = tmp_path / "home" if kind == "moto" else None
    with project(sample_attributes(**ONE_OF_EACH), tmp_path / "project", storage, home) as found:
        found.run_all()
        graph = found.definitions.resolve_asset_graph()
        for check in graph.asset_check_keys:
            (record,) = found.instance.event_log_storage.get_asset_check_execution_history(check, limit=1)
            assert record.status.value == "SUCCEEDED", check
        other = tmp_path / "other-machine"
        monkeypatch.setenv("DATAPREP_CACHE", str(other))
        found.storage = build_storage(tmp_path)
        assert run(found, [train, count], [train.key, count.key]).success
        assert seen["shards"].keys() == {"train-00000", "train-00001", "train-00002"}
        assert seen["count"] == sum(seen["shards"].values())
        assert issubclass(seen["view"], np.memmap if kind == "local" else RemoteTokens)
        directory = found.store.local(found.corpus.artifact("nanogpt_bins"), ["train.bin"])
        assert np.array_equal(seen["ids"], np.fromfile(directory / "train.bin", "<u2")[100:200])

        in_one_run = run(found, [train], [BINS, train.key])
        assert in_one_run.success
        if kind == "moto":
            # Also look for secrets after a failed run.
            monkeypatch.setenv("R2_DATASET_BUCKET_NAME", "no-such-bucket")
            found.storage = build_storage(tmp_path)
            assert not found.run([found.key("manifest")]).success
    if home is not None:
        no_secrets(home, "".join(capfd.readouterr()))


def no_secrets(home: Path, shown: str) -> None:
    """Assert that neither the instance's databases and logs nor the terminal contain the keys of moto."""
    written = [path for path in home.rglob("*") if path.is_file()]
    assert any(path.suffix == ".db" for path in written)
    for text in (shown.encode(), *(path.read_bytes() for path in written)):
        assert SECRET.encode() not in text
        assert KEY_ID.encode() not in text


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Return a finished dataset that declares its own storage."""
    folder = tmp_path_factory.mktemp("finished")
    with project(sample_attributes(**ONE_OF_EACH, storage=str(folder / "mine")), folder) as found:
        found.run_all()
        yield found


def test_a_partitioned_asset_gets_the_handle_of_its_partition(finished: Project) -> None:
    seen: dict[str, Any] = {}

    @dg.asset(
        ins={"shard": dg.AssetIn(SHARDS)}, partitions_def=dg.DynamicPartitionsDefinition(name="corpus_train_shards")
    )
    def statistics(context: dg.AssetExecutionContext, shard: ArtifactHandle) -> int:
        seen[context.partition_key] = shard
        return len(shard.tokens("tokens.bin"))

    assert run(finished, [statistics], [statistics.key], partition_key="train-00001").success
    assert seen["train-00001"].artifact == finished.corpus.artifact("token_bins", "train-00001")


def test_a_dataset_with_its_own_storage_is_found_there(finished: Project) -> None:
    seen: list[str] = []

    @dg.asset(ins={"bins": dg.AssetIn(BINS)}, io_manager_key="artifacts")
    def train(bins: ArtifactHandle) -> None:
        seen.append(bins.location)

    assert run(finished, [train], [train.key]).success
    assert run(finished, [train], [BINS, train.key]).success
    assert seen == [f"{finished.corpus.storage}/corpus/nanogpt_bins"] * 2


def error_of(found: Project, asset: dg.AssetsDefinition) -> str:
    outcome = run(found, [asset], [asset.key])
    assert not outcome.success
    (event,) = [e for e in outcome.all_events if e.event_type_value == "STEP_FAILURE"]
    return str(event.event_specific_data.error)


def test_a_missing_input_and_a_pickled_output_are_refused_with_the_remedy(tmp_path: Path) -> None:
    @dg.asset(ins={"bins": dg.AssetIn(BINS)})
    def train(bins: ArtifactHandle) -> int:
        return 1

    @dg.asset(key=dg.AssetKey(["corpus", "made_elsewhere"]), io_manager_key="artifacts")
    def pickled() -> dict[str, int]:
        return {"a": 1}

    @dg.asset(key=dg.AssetKey(["corpus", "not_published"]), io_manager_key="artifacts")
    def unpublished() -> dg.MaterializeResult[Any]:
        return dg.MaterializeResult(value=None)

    with project(sample_attributes(), tmp_path) as found:
        assert_names(error_of(found, train), "missing")
        assert "stores no Python objects" in error_of(found, pickled)
        assert "missing or incomplete" in error_of(found, unpublished)
