"""Reasons why a shard or a publication is stale, and the checks that are repeated for it."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.card.card import DATA_CARD
from dataprep_assets.engine.staleness.decide import Decision
from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.pipelines.release.component import ShardRelease
from dataprep_assets.pipelines.release.npy_shard import NPY_SHARDS, get_shard_artifact
from dataprep_assets.pipelines.release.npy_shards import SHARD_CHECKS
from dataprep_assets.pipelines.release.published_shards import PUBLISHED_SHARDS, publish_release
from dataprep_assets.serving.window.release import MANIFEST, Release, locate_release
from dataprep_assets_tests.faults.edits import edit_receipt, flip_byte
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.release.conftest import LENGTH, Bins

SHARD = "train_000000"


@dataclass(frozen=True)
class Published:
    """A release of the sample's token bins, built and published to a folder next to them."""

    bins: Bins

    @property
    def public(self) -> Path:
        """The location of the published release."""
        return self.bins.root.parent / "public"

    def declare(self, **options: Any) -> ShardRelease:
        """Return the component with other options than it was built with."""
        wanted = {"tokens_per_shard": 4096 * LENGTH, "publish": str(self.public), **options}
        return ShardRelease(self.bins.declare(**wanted))

    def build(self) -> None:
        """Build and publish the release."""
        release = self.declare().declaration
        publish_release(release, self.bins.store, self.bins.build(release), locate_release(str(self.public)))

    def shard(self, name: str) -> Path:
        """Return a file of a shard, or its folder."""
        return self.bins.store.directory(get_shard_artifact(self.declare().declaration, SHARD)) / name

    def stale(self, **options: Any) -> dict[str, Decision]:
        """Return its own stale artifacts, by name without the dataset."""
        specs = [spec for spec in self.declare(**options).specs if spec.name != DATA_CARD]
        found = {one.name.partition("/")[2]: one for one in find_stale(specs, self.bins.store)}
        assert {name.partition("/")[0] for name in found} <= {NPY_SHARDS, PUBLISHED_SHARDS}
        return found


@pytest.fixture(scope="module")
def built(bins: Bins, tmp_path_factory: pytest.TempPathFactory) -> Published:
    made = Published(bins.copied(tmp_path_factory.mktemp("built")))
    made.build()
    return made


@pytest.fixture
def own(built: Published, tmp_path: Path) -> Published:
    """Return a copy to damage. It is published to its own folder, which the receipt does not name."""
    copied = Published(built.bins.copied(tmp_path))
    publish = locate_release(str(copied.public))
    release = copied.declare().declaration
    publish_release(release, copied.bins.store, copied.bins.layout(release), publish)
    assert copied.stale() == {}
    return copied


def lose_shard(made: Published) -> None:
    shutil.rmtree(made.shard(""))


def damage_shard(made: Published) -> None:
    flip_byte(made.shard(f"{SHARD}.npy"))


def edit(made: Published, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the receipt of the shard as if it had been built differently."""

    def changed(receipt: dict[str, Any]) -> None:
        receipt["key"] = "0" * 64
        change(receipt["recipe"])

    edit_receipt(made.shard("receipt.json"), changed)


def older(made: Published) -> None:
    edit(made, lambda recipe: recipe.update(version=0))


def other_input(made: Published) -> None:
    edit(made, lambda recipe: recipe["upstream"].update({"token_bins/train-00001": "0" * 64}))


def other_place_in_the_stream(made: Published) -> None:
    edit(made, lambda recipe: recipe["settings"].update(stream_start=64))


@pytest.mark.parametrize(
    ("change", "kind", "reason"),
    [
        (lose_shard, "missing", "missing"),
        (damage_shard, "damaged", f"damaged: {SHARD}.npy"),
        (older, "older version", "built by version 0 of this step; the current version is 2"),
        (other_input, "input changed", "its input changed: token_bins/train-00001"),
        (other_place_in_the_stream, "settings changed", "stream_start was 64, now 0"),
    ],
)
def test_a_stale_shard_has_a_reason_and_blocks_only_the_publication(
    own: Published, change: Callable[[Published], None], kind: str, reason: str
) -> None:
    change(own)
    found = own.stale()
    assert found[f"{NPY_SHARDS}/{SHARD}"].kind == kind
    assert found[f"{NPY_SHARDS}/{SHARD}"].reason.startswith(reason), found[f"{NPY_SHARDS}/{SHARD}"].reason
    if kind == "damaged":  # the shard is rebuilt with the same content, so nothing downstream changes
        assert list(found) == [f"{NPY_SHARDS}/{SHARD}"]
        return
    assert list(found) == [f"{NPY_SHARDS}/{SHARD}", PUBLISHED_SHARDS]
    state = "missing" if kind == "missing" else "out of date"
    assert found[PUBLISHED_SHARDS].reason == f"its input sample_corpus/{NPY_SHARDS}/{SHARD} is {state}"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"shuffle_seed": 8}, "release.shuffle_seed was 7, now 8"),
        ({"shuffle_seed": None}, "release.shuffle_seed was 7, now not set"),
        ({"mix": 1}, "release.mix was 2, now 1"),
        ({"sequence_length": 128}, "release.sequence_length was 64, now 128"),
        ({"tokens_per_shard": 2048 * LENGTH}, "release.tokens_per_shard was 262144, now 131072"),
    ],
)
def test_a_changed_option_is_the_reason_even_if_other_token_bins_are_read(
    built: Published, options: dict[str, Any], reason: str
) -> None:
    assert built.stale(**options)[f"{NPY_SHARDS}/{SHARD}"].reason.startswith(reason)


def test_the_tail_changes_only_the_last_shard_of_a_split(built: Published) -> None:
    found = built.stale(tail="pad")
    partitions = built.bins.layout(built.declare().declaration).partitions
    last = {p for p, following in zip(partitions, [*partitions[1:], ""], strict=True) if following[:3] != p[:3]}
    assert set(found) == {*(f"{NPY_SHARDS}/{p}" for p in last), PUBLISHED_SHARDS}
    assert all(found[f"{NPY_SHARDS}/{p}"].reason.startswith("release.tail was drop, now pad") for p in last)


def test_a_publication_reports_what_its_location_lacks(own: Published) -> None:
    manifest, shard = own.public / MANIFEST, own.public / f"{SHARD}.npy"
    good = manifest.read_bytes()
    manifest.unlink()
    assert own.stale()[PUBLISHED_SHARDS].reason == (
        f"file://{own.public}/{MANIFEST}: missing or damaged. Publish the release again"
    )
    manifest.write_bytes(good)
    assert own.stale() == {}
    shard.unlink()
    assert own.stale()[PUBLISHED_SHARDS].reason.startswith(f"file://{own.public}/{SHARD}.npy: missing (1 file)")
    found = own.stale(publish=f"{own.public}2")
    assert {name: one.reason for name, one in found.items()} == {
        PUBLISHED_SHARDS: "its source changed: release.publish"
    }


def test_if_another_datasets_release_is_there_no_message_advises_to_publish_again(own: Published) -> None:
    manifest = own.public / MANIFEST
    other = replace(Release.from_bytes(manifest.read_bytes(), "here"), dataset="other")
    manifest.write_bytes(other.to_bytes())
    reason = own.stale()[PUBLISHED_SHARDS].reason
    assert_names(reason, "'other'")
    assert "again" not in reason


def test_other_shards_at_the_location_do_not_make_a_publication_stale(own: Published) -> None:
    shutil.copy(own.public / f"{SHARD}.npy", own.public / "train_000099.npy")
    assert own.stale() == {}


def test_a_check_with_a_raised_version_is_examined_again(own: Published) -> None:
    spec: ArtifactSpec = own.declare().spec(NPY_SHARDS)
    store = own.bins.store
    partitions = spec.slots(store)
    fresh = dict(spec.examine(store, [str(p) for p in partitions]))
    assert all(fresh[proof.name].passed for proof in SHARD_CHECKS)

    def unexamined() -> dict[str, object]:
        found = dict(spec.examine(store, []))
        return {proof.name: found[proof.name].facts["shards_not_checked_yet"] for proof in SHARD_CHECKS}

    assert set(unexamined().values()) == {0}
    raised = tuple(replace(c, version=c.version + 1) if c.name == "format_valid" else c for c in SHARD_CHECKS)
    spec = replace(spec, check_groups=(replace(spec.check_groups[0], checks=raised), *spec.check_groups[1:]))
    assert set(unexamined().values()) == {len(partitions)}
