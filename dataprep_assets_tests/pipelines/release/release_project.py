"""A Dagster project with a release of npy shards, and locations of each kind to which it can be published."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.engine.card.card import DATA_CARD
from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.pipelines.release.component import ShardRelease
from dataprep_assets.pipelines.release.declaration import ReleaseDeclaration
from dataprep_assets.pipelines.release.layout import ReleaseLayout, compute_release_layout
from dataprep_assets.resources import StorageResource
from dataprep_assets.serving.window.release import ReleaseLocation, locate_release
from dataprep_assets.stores.connect import S3Address
from dataprep_assets_tests.fakes.places import Places
from dataprep_assets_tests.project import Project, new_instance, sample_attributes
from dataprep_assets_tests.samples import SAMPLE

LENGTH = 64


def release_attributes(publish: str | None = None, /, **options: Any) -> dict[str, Any]:
    """Return the attributes of a release of the project's own sample data; `options` replace keys of `release`."""
    release = {
        "sequence_length": LENGTH,
        "tokens_per_shard": 4096 * LENGTH,
        "shuffle_seed": 7,
        "expected_repeats": 0.1,
        **({"publish": publish} if publish else {}),
        **options,
    }
    attributes = sample_attributes(
        dataset="shared",
        source={"kind": "local", "path": str(SAMPLE / "data")},  # this folder has enough data for several shards
        splits={"train": ["train/**"], "val": ["validation/**"]},
        dtype="uint32",
        release=release,
    )
    return {key: value for key, value in attributes.items() if key not in ("views", "olmo_sequence_length")}


@dataclass
class ReleaseProject(Project):
    """The definitions of a release with its instance and its storage."""

    corpus: ReleaseDeclaration

    @property
    def component(self) -> ShardRelease:
        """The component of the release."""
        return ShardRelease(self.corpus)

    @property
    def layout(self) -> ReleaseLayout:
        """The layout of the release."""
        return compute_release_layout(self.corpus, self.store)

    @property
    def published(self) -> ReleaseLocation:
        """The location of the published release."""
        assert self.corpus.release.publish
        return locate_release(self.corpus.release.publish)

    @property
    def registered(self) -> list[str]:
        """The partitions of npy_shards that are registered in the instance."""
        return list(self.instance.get_dynamic_partitions(f"{self.corpus.dataset}_npy_shards"))

    def stale(self) -> list[str]:
        """Return everything missing, damaged or out of date, except the data card, which depends on the rest."""
        specs = [spec for spec in self.component.specs if spec.name != DATA_CARD]
        return [one.name for one in find_stale(specs, self.store)]

    def plan(self) -> dg.ExecuteInProcessResult:
        """Materialize the plan of the release."""
        return self.run([self.key("release_plan")])

    def cut(self, partitions: Sequence[str] | None = None) -> dg.ExecuteInProcessResult:
        """Materialize a range of npy shards, by default all."""
        chosen = partitions or self.layout.partitions
        return self.run([self.key("npy_shards")], (chosen[0], chosen[-1]))

    def publish(self) -> dg.ExecuteInProcessResult:
        """Materialize the publication."""
        return self.run([self.key("published_shards")])

    def tokenize_all(self) -> None:
        """Build everything from which a release is cut."""
        key = self.key
        assert self.run([key("manifest"), key("engine_certificate")]).success
        for split in self.corpus.splits:
            assert self.tokenize(split).success

    def run_all(self) -> None:
        """Build everything; each run must succeed."""
        self.tokenize_all()
        assert self.plan().success
        assert self.cut().success
        if self.corpus.release.publish:
            assert self.publish().success
        assert self.run([self.key("data_card")]).success

    def npy(self, partition: str) -> Path:
        """Return the token file of a shard in the storage."""
        return self.directory("npy_shards", partition) / f"{partition}.npy"

    def inodes(self) -> dict[str, int]:
        """Return the inodes of the existing token files; a rebuilt file has another."""
        found = {partition: self.npy(partition) for partition in self.layout.partitions}
        return {partition: path.stat().st_ino for partition, path in found.items() if path.exists()}


@contextmanager
def release_project(attributes: Mapping[str, Any], folder: Path) -> Iterator[ReleaseProject]:
    """Yield a release in a folder, on a `new_instance`, with its artifacts in the folder's `artifacts`."""
    folder.mkdir(parents=True, exist_ok=True)
    release = validate_declaration(ReleaseDeclaration, attributes, folder / "defs.yaml")
    with new_instance() as instance:
        root = folder / "artifacts"
        yield ReleaseProject(release, instance, root, StorageResource(root=str(root)))


def new_target(servers: Places, kind: str, environment: pytest.MonkeyPatch) -> str:
    """Return a location to publish to as users name it: a URL, with its settings in the environment."""
    place = servers.new(kind, "remote/tokenized")
    if isinstance(place, S3Address):
        assert place.endpoint_url
        assert place.access_key_id
        assert place.secret_access_key
        environment.setenv("DATAPREP_ENDPOINT_URL", place.endpoint_url)
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        environment.setenv("R2_DATASET_WRITE_ACCESS_KEY_ID", place.access_key_id)
        environment.setenv("R2_DATASET_WRITE_SECRET_ACCESS_KEY", place.secret_access_key)
    return place.url
