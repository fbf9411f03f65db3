"""The sample corpus as token bins, built once per session, from which each test builds its releases."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.corpus.source.manifest import Manifest, load_manifest
from dataprep_assets.pipelines.release.declaration import ReleaseDeclaration
from dataprep_assets.pipelines.release.layout import ReleaseLayout, compute_release_layout
from dataprep_assets.pipelines.release.npy_shard import build_npy_shard
from dataprep_assets.stream.token_shard import ENDS, TOKENS
from dataprep_assets_tests.pipelines.corpus.pipeline import run_pipeline, sample_declaration
from dataprep_assets_tests.samples import SAMPLE

LENGTH = 64


@dataclass(frozen=True)
class Bins:
    """The sample's token bins in a storage root."""

    root: Path

    @property
    def store(self) -> LocalArtifacts:
        """The store of the token bins."""
        return LocalArtifacts(self.root)

    def copied(self, target: Path) -> "Bins":
        """Copy them below `target`, for a test to change."""
        return Bins(Path(shutil.copytree(self.root, target / "root")))

    def declare(self, **release: Any) -> ReleaseDeclaration:
        """Return the declaration of a release of them."""
        corpus = sample_declaration(SAMPLE / "data", views=[]).model_dump()
        options = {"sequence_length": LENGTH, "tokens_per_shard": 256 * LENGTH, "shuffle_seed": 7, "mix": 2} | release
        return ReleaseDeclaration.model_validate(corpus | {"release": options})

    def manifest(self, declared: ReleaseDeclaration) -> Manifest:
        """Return the manifest of the release."""
        return load_manifest(declared, self.store)

    def layout(self, declared: ReleaseDeclaration) -> ReleaseLayout:
        """Return the layout of the release."""
        return compute_release_layout(declared, self.store)

    def build(self, declared: ReleaseDeclaration) -> ReleaseLayout:
        """Build all shards of the release."""
        layout = self.layout(declared)
        for partition in layout.partitions:
            build_npy_shard(declared, self.store, layout, partition)
        return layout

    def documents(self, declared: ReleaseDeclaration, split: str) -> list[NDArray[Any]]:
        """Return the ids of each document of a split, in the order of the source."""
        found = []
        for partition in self.manifest(declared).partitions(split):
            folder = self.store.directory(declared.artifact("token_bins", partition))
            ids = flat_bins.open_tokens(folder / TOKENS, "uint16")
            ends = np.asarray(document_ends.open_ends(folder / ENDS)).tolist()
            found += [np.asarray(ids[a:b]) for a, b in zip([0, *ends], ends, strict=False)]
        return found


@pytest.fixture(scope="session")
def bins(tmp_path_factory: pytest.TempPathFactory) -> Bins:
    """Return token bins of the sample, which tests must not change."""
    root = tmp_path_factory.mktemp("bins")
    outcome = run_pipeline(sample_declaration(SAMPLE / "data", views=[]), root)
    assert not outcome.failed
    return Bins(root)
