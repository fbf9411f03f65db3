"""Read-only store of the files of one commit of a dataset repository on the Hugging Face Hub.

Unlike a web server in general, the Hub lists its files, with the SHA-256 of each LFS file.

Entry points: `HubStore`, and `open_hub_store` for `hf://datasets/…` addresses.
"""

import os
from collections.abc import Iterator, Mapping
from functools import cached_property

from dataprep_assets.errors import ConfigError
from dataprep_assets.sources.hub import HubRepo
from dataprep_assets.sources.hub_cache import HubFile
from dataprep_assets.stores.endpoints import allows_http
from dataprep_assets.stores.http import HttpStore
from dataprep_assets.stores.store import ObjectInfo

HUB_DATASETS = "hf://datasets/"
"""Start of the address of a dataset repository: `hf://datasets/organization/name[@revision][/folder]`."""


class HubStore(HttpStore):
    """The files of a commit below a folder.

    Args:
        repo: The repository. Its token, or the stored token of the Hub's client, is sent only to the Hub.
        commit: The commit, 40 hex digits.
        folder: The folder, without a slash at its end; empty for the whole repository.
    """

    def __init__(self, repo: HubRepo, commit: str, folder: str = "") -> None:
        from huggingface_hub import get_token, hf_hub_url

        self._repo, self._commit, self._prefix = repo, commit, f"{folder}/" if folder else ""
        base = hf_hub_url(repo.repo_id, folder, repo_type="dataset", revision=commit, endpoint=repo.hub_url)
        super().__init__(
            base,
            token=repo.token or get_token(),
            token_name="HF_TOKEN",
            allow_http=repo.allow_http,
            retry=repo.retry,
            timeout_seconds=repo.timeout_seconds,
        )

    @property
    def url(self) -> str:
        return f"{HUB_DATASETS}{self._repo.repo_id}@{self._commit}/{self._prefix}".rstrip("/")

    @cached_property
    def files(self) -> Mapping[str, HubFile]:
        """Key → file of the Hub's list, sorted by key."""
        start = len(self._prefix)
        files = self._repo.read_files(self._commit)
        return {file.relpath[start:]: file for file in files if file.relpath.startswith(self._prefix)}

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        infos = (
            ObjectInfo(key=key, bytes=file.size, version=file.etag, sha256=file.sha256)
            for key, file in self.files.items()
            if key.startswith(prefix)
        )
        # Sort by bytes, because the Hub's list is sorted by code points.
        return iter(sorted(infos, key=lambda info: info.key.encode()))


def open_hub_store(address: str) -> HubStore:
    """Return the store at `hf://datasets/organization/name[@revision][/folder]`, at the revision's current commit.

    Raises ConfigError for an address without a name, and the errors of `HubRepo.resolve_commit`.
    """
    organization, _, path = address.removeprefix(HUB_DATASETS).strip("/").partition("/")
    repository, _, folder = path.partition("/")
    name, _, revision = repository.partition("@")
    if not organization or not name:
        raise ConfigError(f"{address!r} is not a repository URL. Use hf://datasets/organization/name@revision/folder")
    repo = HubRepo(
        repo_id=f"{organization}/{name}",
        revision=revision or "main",
        endpoint=os.environ.get("HF_ENDPOINT"),
        allow_http=allows_http(os.environ),
    )
    return HubStore(repo, repo.resolve_commit(), folder)
