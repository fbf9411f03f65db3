"""A built corpus with a Parquet view, and copies of it that a test publishes to a local Hub and may change."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace
from typing import Any

import pytest

from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.integrity.artifacts import ArtifactStore, LocalArtifacts
from dataprep_assets.stores.retry import RetryPolicy
from dataprep_assets_tests.engine.building import build_all, find_sample, shrink_corpus
from dataprep_assets_tests.fakes.hub_server import HubServer, Logged

REPO = "org/corpus"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Retry without pauses, upload by HTTP, because the local Hub does not speak Xet, and use no stored token."""
    import huggingface_hub.constants
    import huggingface_hub.utils._http

    from dataprep_assets.engine.publishing import repository

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    no_pauses = SimpleNamespace(**{**vars(time), "sleep": lambda _: None})
    monkeypatch.setattr(huggingface_hub.utils._http, "time", no_pauses)
    monkeypatch.setattr(repository, "RETRY", RetryPolicy(attempts=3, base_seconds=0.001, max_seconds=0.002))
    monkeypatch.setenv("HF_TOKEN", "secret")


@pytest.fixture
def hub() -> Iterator[HubServer]:
    """Return a Hub on which the repository does not exist yet."""
    with HubServer(None, repo_id=REPO) as server:
        yield server


@dataclass(frozen=True, kw_only=True)
class Published:
    """A corpus that is published to a Hub."""

    dataset: Dataset
    store: ArtifactStore
    hub: HubServer

    @property
    def spec(self) -> ArtifactSpec:
        """The spec of the publication."""
        return self.dataset.spec("published")

    def declare(self, **changes: Any) -> "Published":
        """Return the corpus with changed keys in `publish`, or, as `attributes`, of the declaration."""
        attributes = changes.pop("attributes", {})
        publish = {"hub": REPO, "endpoint": self.hub.endpoint, "project": "fruit", **changes}
        attributes = {"views": ["hf_parquet"], "publish": publish, **attributes}
        declared = shrink_corpus(find_sample("sample_corpus"), **attributes)
        return replace(self, dataset=declared)

    def run(self) -> list[str]:
        """Build everything and return the names of the rebuilt artifacts."""
        return build_all(self.dataset.specs, self.store)

    def check(self) -> dict[str, Finding]:
        """Return the findings of the publication's checks."""
        return dict(self.spec.examine(self.store, []))

    def uploads(self, since: int = 0) -> list[Logged]:
        """Return the requests of uploaded LFS files."""
        return self.hub.asked(lambda entry: entry.name == "upload" and entry.status == 200, since)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the storage of a built corpus that is not published."""
    root = tmp_path_factory.mktemp("built")
    build_all(shrink_corpus(find_sample("sample_corpus"), views=["hf_parquet"]).specs, LocalArtifacts(root))
    return root


@pytest.fixture
def corpus(built: Path, hub: HubServer, tmp_path: Path) -> Published:
    """Return a built corpus that is declared to be published."""
    root = Path(copytree(built, tmp_path / "root"))
    return Published(dataset=find_sample("sample_corpus"), store=LocalArtifacts(root), hub=hub).declare()
