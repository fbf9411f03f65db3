"""A release in Dagster: planned, cut, published, repaired, and read by the ranks of a training machine."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets.errors import MissingArtifactError
from dataprep_assets.formats import sample_ids
from dataprep_assets.integrity.verify import verify_path
from dataprep_assets.pipelines.release.published import format_consumer_code, list_consumer_environment
from dataprep_assets.serving import ShardWindow
from dataprep_assets.serving.window.release import MANIFEST, read_release
from dataprep_assets.stores.connect import parse_place
from dataprep_assets.stores.store import ObjectInfo, Progress
from dataprep_assets_tests.fakes.places import Places
from dataprep_assets_tests.pipelines.release.release_project import (
    LENGTH,
    ReleaseProject,
    new_target,
    release_attributes,
    release_project,
)
from dataprep_assets_tests.project import differing_versions, failure_of

KINDS = ("folder", "swift")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReleaseProject]:
    """Return a release that is built and published to a folder."""
    folder = tmp_path_factory.mktemp("release")
    with release_project(release_attributes(str(folder / "public")), folder) as made:
        made.run_all()
        yield made


@pytest.fixture
def copied(finished: ReleaseProject, tmp_path: Path) -> Iterator[ReleaseProject]:
    """Return the finished release in another folder, with registered partitions and an empty location to publish to."""
    shutil.copytree(finished.root, tmp_path / "artifacts")
    with release_project(release_attributes(str(tmp_path / "public")), tmp_path) as made:
        assert made.run([made.key("manifest")]).success
        assert made.plan().success
        yield made


def declared_otherwise(made: ReleaseProject, **options: object) -> None:
    made.corpus = made.corpus.model_copy(update={"release": made.corpus.release.model_copy(update=options)})


# --- the plan


def test_the_plan_registers_a_partition_per_shard_and_shows_its_contents(finished: ReleaseProject) -> None:
    assert finished.registered == finished.layout.partitions == [*(f"train_{i:06d}" for i in range(4)), "val_000000"]
    event = finished.instance.get_latest_materialization_event(finished.key("release_plan"))
    assert event is not None
    assert event.asset_materialization is not None
    rows = {r.data["split"]: r.data for r in event.asset_materialization.metadata["shards"].records}  # type: ignore[attr-defined]
    assert {name: row["shards"] for name, row in rows.items()} == {"train": 4, "val": 1}
    on_disk = sum(
        path.stat().st_size for p in finished.layout.partitions for path in finished.npy(p).parent.glob("*_0*")
    )
    assert event.asset_materialization.metadata["bytes"].value == on_disk


def test_larger_shards_remove_partitions_and_all_artifacts_are_up_to_date_or_rebuilt(copied: ReleaseProject) -> None:
    declared_otherwise(copied, tokens_per_shard=8192 * LENGTH)
    assert copied.plan().success
    assert copied.registered == ["train_000000", "train_000001", "val_000000"]
    before = copied.inodes()
    assert copied.cut().success
    after = copied.inodes()
    assert {p for p in after if after[p] != before.get(p)} == {"train_000000", "train_000001"}


def test_a_plan_without_all_token_bins_names_the_missing_ones(copied: ReleaseProject) -> None:
    shutil.rmtree(copied.directory("token_bins", "train-00001"))
    outcome = copied.plan()
    assert not outcome.success
    assert "train-00001" in failure_of(outcome)


# --- shards and publication


@pytest.mark.parametrize("kind", KINDS)
def test_plan_shards_and_publication_run_in_dagster(
    kind: str, servers: Places, finished: ReleaseProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = new_target(servers, kind, monkeypatch)
    for name in ("manifest", "engine_certificate", "snapshot", "token_bins"):
        shutil.copytree(finished.root / "shared" / name, tmp_path / "artifacts" / "shared" / name)
    with release_project(release_attributes(target), tmp_path) as made:
        shards = [f"shared/npy_shards/{p}" for p in finished.layout.partitions]
        assert made.stale() == [*shards, "shared/published_shards"]
        assert made.run([made.key("manifest"), made.key("engine_certificate")]).success
        assert made.plan().success
        cut, sent = made.cut(), made.publish()
        assert cut.success
        assert sent.success
        for outcome, checks in ((cut, 6), (sent, 4)):
            found = made.checks(outcome)
            assert len(found) == checks
            assert {name: e.description for name, e in found.items() if not e.passed} == {}
        keys = [info.key for info in made.published.store.list()]
        assert sorted(keys) == sorted([*(file.key for file in read_release(made.published).files), MANIFEST])
        assert made.stale() == []
        assert [v for v in verify_path(made.root) if v.defects] == []
        materialized = made.instance.get_materialized_partitions(made.key("npy_shards"))
        assert materialized == set(made.layout.partitions)
        again = made.publish()
        (event,) = again.get_asset_materialization_events()
        assert event.materialization.metadata["reused"].value is True
        lines = event.materialization.metadata.get("consumer_environment")
        assert (lines is None) == (kind == "folder")
        if lines is not None:
            assert "R2_DATASET_READ_SECRET_ACCESS_KEY=\n" in str(lines.value)
            assert "secret-for-tests-only" not in str(event.materialization.metadata)


def test_a_second_run_builds_and_uploads_nothing(copied: ReleaseProject) -> None:
    assert copied.publish().success
    before = copied.inodes()
    written = {p: p.stat().st_mtime_ns for p in Path(copied.published.store.url.removeprefix("file://")).rglob("*")}
    for outcome in (copied.cut(), copied.publish()):
        assert outcome.success
        for event in outcome.get_asset_materialization_events():
            assert event.materialization.metadata["reused"].value is True
    assert copied.inodes() == before
    assert {p: p.stat().st_mtime_ns for p in written} == written
    assert copied.stale() == []


def test_an_upload_logs_the_number_of_sent_bytes(
    servers: Places, copied: ReleaseProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared_otherwise(copied, publish=new_target(servers, "moto", monkeypatch))
    outcome = copied.publish()
    assert outcome.success
    said = [entry.user_message for entry in copied.instance.all_logs(outcome.run_id)]
    release = read_release(copied.published)
    megabytes = f"{sum(file.bytes for file in release.files) / 1e6:,.1f}"
    *_, whole = [text for text in said if text.startswith("shared/published_shards: 100.0%")]
    assert f"{megabytes} of {megabytes} MB" in whole


def test_shards_are_cut_by_workers_and_the_log_shows_their_progress(copied: ReleaseProject) -> None:
    before = {p: copied.npy(p).read_bytes() for p in copied.layout.partitions}
    shutil.rmtree(copied.directory("npy_shards", "train_000001").parent)
    copied.corpus = copied.corpus.model_copy(update={"workers": 3})
    outcome = copied.cut()
    assert outcome.success
    assert {p: copied.npy(p).read_bytes() for p in copied.layout.partitions} == before
    said = [entry.user_message for entry in copied.instance.all_logs(outcome.run_id)]
    *_, line = [text for text in said if text.startswith("shared/npy_shards: 100.0%")]  # this line may be printed twice
    assert "of 3 workers" in line


def test_only_a_damaged_shard_fails_and_only_it_is_rebuilt(copied: ReleaseProject) -> None:
    assert copied.publish().success
    victim = "train_000002"
    good = copied.npy(victim).read_bytes()
    copied.npy(victim).write_bytes(good[:500] + bytes([good[500] ^ 1]) + good[501:])
    # The damaged shard is rebuilt with the same content, so nothing downstream changes.
    assert copied.stale() == [f"shared/npy_shards/{victim}"]
    (bad,) = [v for v in verify_path(copied.root) if v.defects]
    assert bad.name == f"shared/npy_shards/{victim}"
    before = copied.inodes()
    outcome = copied.cut()
    assert outcome.success
    after = copied.inodes()
    assert {p for p in before if before[p] != after[p]} == {victim}
    assert copied.npy(victim).read_bytes() == good
    assert copied.stale() == []


def test_only_the_shard_that_cannot_be_built_fails(copied: ReleaseProject) -> None:
    declared_otherwise(copied, shuffle_seed=None)
    assert copied.plan().success
    source = copied.directory("token_bins", "val-00000") / "tokens.bin"
    good = source.read_bytes()
    source.write_bytes(good[:-4])
    outcome = copied.cut()
    assert not outcome.success
    assert "1 of 5 shards failed" in failure_of(outcome)
    assert "val_000000" in failure_of(outcome)
    done = copied.instance.get_materialized_partitions(copied.key("npy_shards"))
    assert done == {p for p in copied.layout.partitions if p.startswith("train")}
    assert not copied.publish().success
    with pytest.raises(MissingArtifactError):
        read_release(copied.published)
    before = copied.inodes()
    source.write_bytes(good)
    assert copied.cut(["val_000000"]).success
    assert {p for p, inode in copied.inodes().items() if before.get(p) != inode} == {"val_000000"}
    assert copied.publish().success


def test_a_partial_backfill_gives_no_verdict_on_an_incomplete_split(copied: ReleaseProject) -> None:
    shutil.rmtree(copied.root / "shared" / "npy_shards")
    checks = copied.checks(copied.cut(["train_000000", "train_000001"]))
    assert all(e.passed for e in checks.values())
    assert checks["tokens_accounted"].metadata["splits_not_checked_yet"].value == 2
    assert checks["files_intact"].metadata["shards_not_checked_yet"].value == 3
    checks = copied.checks(copied.cut(["train_000002", "val_000000"]))
    assert all(e.passed for e in checks.values())
    assert checks["tokens_accounted"].metadata["splits_not_checked_yet"].value == 0
    assert checks["files_intact"].metadata["shards_not_checked_yet"].value == 0


def test_publishing_again_after_a_change_withdraws_the_manifest_first(
    copied: ReleaseProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert copied.publish().success
    first = read_release(copied.published).digest
    declared_otherwise(copied, shuffle_seed=8)
    assert copied.stale()[0] == "shared/npy_shards/train_000000"
    assert copied.cut().success
    store = type(copied.published.store)
    upload = store.upload
    there: list[bool] = []

    def watched(self: object, path: Path, key: str, *, sha256: str, progress: Progress | None = None) -> ObjectInfo:
        there.append(self.head(MANIFEST) is not None)  # type: ignore[attr-defined]
        return upload(self, path, key, sha256=sha256, progress=progress)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "upload", watched)
    assert copied.stale() == ["shared/published_shards"]
    outcome = copied.publish()
    assert outcome.success
    assert there
    assert not any(there)
    assert read_release(copied.published).digest != first
    assert all(e.passed for e in copied.checks(outcome).values())
    assert copied.stale() == []


def test_a_lost_or_changed_publication_is_stale_and_published_again(copied: ReleaseProject) -> None:
    assert copied.publish().success
    public = Path(copied.published.store.url.removeprefix("file://"))
    for path in (public / MANIFEST, public / "val" / "sample_ids_000000.bin"):
        good = path.read_bytes()
        path.unlink()
        assert copied.stale() == ["shared/published_shards"]
        assert copied.publish().success
        assert path.read_bytes() == good
        assert copied.stale() == []
    shutil.rmtree(copied.directory("published_shards"))
    assert copied.stale() == ["shared/published_shards"]


# --- effects of the declaration


def test_expected_repeats_decides_when_repeated_text_is_reported(copied: ReleaseProject) -> None:
    ids = [np.fromfile(copied.npy(p).with_name(f"sample_ids_{p[-6:]}.bin"), "<u8") for p in copied.layout.partitions]
    train = np.concatenate(ids[:4])
    share = 1 - len(np.unique(train)) / len(train)
    assert 0 < share < 0.1
    for expected, passes in ((share * 1.01, True), (share * 0.99, False)):
        declared_otherwise(copied, expected_repeats=expected)
        outcome = copied.cut()
        assert outcome.success
        found = copied.checks(outcome)["samples_unique"]
        assert found.passed == passes
        assert found.severity.value == ("ERROR" if passes else "WARN")
        assert not found.blocking


def test_a_release_joins_its_bins_only_for_views(tmp_path: Path, finished: ReleaseProject) -> None:
    def names(made: ReleaseProject) -> set[str]:
        return {key.path[-1] for key in made.definitions.resolve_asset_graph().get_all_asset_keys()}

    plain = {"manifest", "engine_certificate"}
    plain |= {f"{name}_{split}" for name in ("snapshot", "token_bins") for split in ("train", "val")}
    plain |= {"release_plan", "npy_shards", "published_shards", "data_card"}
    assert names(finished) == plain
    assert not (finished.root / "shared" / "combined_bins").exists()
    with release_project(release_attributes() | {"views": ["nanogpt"]}, tmp_path) as made:
        assert names(made) == plain - {"published_shards"} | {
            "combined_bins_train",
            "combined_bins_val",
            "nanogpt_bins",
        }


# --- on the training machine

RANK = """
import json, sys
import numpy as np
from dataprep_assets.formats.sample_ids import compute_sample_ids

url, cache, rank, epochs, log = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
from dataprep_assets.serving import ShardWindow
assert not {"dagster", "tensorflow", "torch"} & set(sys.modules)
seen = []
with ShardWindow(url, cache, steps_per_shard=3, keep=2) as window:
    shards = window.schedule.shards
    for step in range(3 * shards * epochs):
        shard = window.swap(step)
        number, steps = window.schedule.sample_steps(step)
        rows = np.arange(len(shard))[rank::2][number::steps]
        found = compute_sample_ids(shard.batch(rows).reshape(-1), shard.sequence_length)
        assert found.tolist() == [shard.sample_id(k) for k in rows]
        seen += [[window.schedule.epoch(step), int(i)] for i in found]
json.dump(seen, open(log, "w"))
"""


@pytest.mark.slow
def test_two_ranks_read_every_sample_of_the_published_release_once_per_epoch(
    servers: Places, copied: ReleaseProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = new_target(servers, "moto", monkeypatch)
    declared_otherwise(copied, publish=target)
    assert copied.publish().success
    logs = [tmp_path / f"rank{rank}.json" for rank in range(2)]
    cache = tmp_path / "cache"
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, target, cache, str(rank), "2", log], stderr=subprocess.PIPE)
        for rank, log in enumerate(logs)
    ]
    for process in ranks:
        _, told = process.communicate(timeout=120)
        assert process.returncode == 0, told.decode()
    train = [np.load(copied.npy(p)) for p in copied.layout.partitions if p.startswith("train")]
    expected = Counter(int(i) for tokens in train for i in sample_ids.compute_sample_ids(tokens, LENGTH))
    for epoch in range(2):
        read = Counter(i for log in logs for e, i in json.loads(log.read_text()) if e == epoch)
        assert read == expected
    assert 1 <= len(list(cache.glob("train_*.npy"))) <= 2


def test_the_printed_line_of_the_demo_opens_the_release(finished: ReleaseProject, tmp_path: Path) -> None:
    (line,) = finished.component.describe_trainers(finished.store)
    assert line == format_consumer_code(finished.published)
    done = subprocess.run(
        [sys.executable, "-c", f"{line}; print(shard.index, len(shard), shard[0][:3].tolist()); window.close()"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PROJECT_ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    tokens = np.load(finished.npy("train_000000"))
    assert done.stdout.strip() == f"0 {len(tokens) // LENGTH} {tokens[:3].tolist()}"


def test_the_prefixes_of_a_release_do_not_collide(finished: ReleaseProject, tmp_path: Path) -> None:
    for prefix, shards in (("train", 4), ("val", 1)):
        with ShardWindow(finished.published, tmp_path / "cache", 1, prefix=prefix, sequence_length=LENGTH) as window:
            for index in range(shards):
                shard = window.swap(index)
                assert np.array_equal(shard.tokens, np.load(finished.npy(f"{prefix}_{index:06d}")))


def test_the_trainer_lines_match_the_location(tmp_path: Path) -> None:
    account = {"R2_DATASET_ACCOUNT_ID": "abc123", "R2_DATASET_WRITE_ACCESS_KEY_ID": "id"}
    account["R2_DATASET_WRITE_SECRET_ACCESS_KEY"] = "hidden"
    assert list_consumer_environment(parse_place("s3://dataset/tokenized", account)) == [
        "R2_DATASET_ACCOUNT_ID=abc123",
        "R2_DATASET_BUCKET_NAME=dataset",
        "R2_DATASET_READ_ACCESS_KEY_ID=",
        "R2_DATASET_READ_SECRET_ACCESS_KEY=",
        "DATASET_BINS_PATH=tokenized",
    ]
    assert list_consumer_environment(parse_place(str(tmp_path), {})) == []
    assert list_consumer_environment(parse_place("gs://dataset/tokenized", {})) == []


def test_the_code_versions_of_its_assets_are_the_versions_that_built_its_artifacts(finished: ReleaseProject) -> None:
    assert differing_versions(finished.component.specs, finished.store) == {}
