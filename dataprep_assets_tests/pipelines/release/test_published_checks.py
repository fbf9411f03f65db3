"""Checks of a published release: all pass on a complete one, and each fails on its own planted faults."""

from pathlib import Path

from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.pipelines.release.published_shards import CHECKS, OpenedPublishedShards, manifest_published
from dataprep_assets.serving.window.release import ReleaseLocation, read_release
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.release.planted_faults import poke
from dataprep_assets_tests.serving.releases import make_release, publish, published


def release_findings(place: ReleaseLocation) -> dict[str, Finding]:
    publication = OpenedPublishedShards(place=place, release=read_release(place))
    return {check.name: check.run(publication) for check in CHECKS}


def test_every_check_passes_on_a_published_release(tmp_path: Path) -> None:
    assert all(finding.passed for finding in release_findings(published(tmp_path, val=1)).values())


def test_each_remote_fault_fails_its_check(tmp_path: Path) -> None:
    place = published(tmp_path)
    store = tmp_path / "store"
    (store / "train_000008.npy").write_bytes(b"old")
    found = release_findings(place)
    assert not found["no_orphans"].passed
    assert found["no_orphans"].warning
    poke(store / "train_000001.npy", 300)
    assert not release_findings(place)["remote_matches_local"].passed
    poke(store / "train_000002.npy", 130)
    assert "the id of sample 0" in release_findings(place)["remote_readable"].summary
    poke(store / "train_000000.npy", 0)
    assert "no header" in release_findings(place)["remote_readable"].summary
    (store / "sample_ids_000002.bin").unlink()
    assert "missing" in release_findings(place)["remote_matches_local"].summary


def test_a_different_or_missing_manifest_fails(tmp_path: Path) -> None:
    place = published(tmp_path)
    release = read_release(place)
    publish(make_release(tmp_path / "b", (8, 4)), tmp_path / "b", place)
    publication = OpenedPublishedShards(place=place, release=release)
    assert_names(manifest_published(publication).summary, "local")
    place.store.delete("release.json")
    assert not CHECKS[0].run(publication).passed
