"""A dataset repository on the Hub as the target of a publication: its state, its differences, and uploads to it.

A publication is one commit on the branch `main`. Until this commit, readers see the previous publication. The commit
names its parent, so if another commit comes first, the repository is read and compared again. A killed upload resumes,
because the Hub keeps uploaded LFS files and does not request them again.

A file that something else changed is never replaced: the marker lists the digests that this project published.

Entry points: `Repository`, `Repository.publish`.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from json import JSONDecodeError
from typing import TYPE_CHECKING, TypeVar

from dataprep_assets.engine.publishing.marker import MARKER, Marker, read_marker
from dataprep_assets.engine.publishing.plan import PlannedFile, Publication
from dataprep_assets.engine.yaml.declaration import HubPublication
from dataprep_assets.errors import ConfigError, IntegrityError, SourceError, TransferError, count_of, raise_detached
from dataprep_assets.sources.hub import HubRepo, translate_errors
from dataprep_assets.sources.hub_cache import HubFile, check_commit
from dataprep_assets.sources.hub_store import HUB_DATASETS, HubStore
from dataprep_assets.stores.client_logs import strip_queries
from dataprep_assets.stores.retry import RetryableError, RetryPolicy

if TYPE_CHECKING:
    from huggingface_hub import HfApi

T = TypeVar("T")

RETRY = RetryPolicy(attempts=4)
"""Retries of a publication. They are few, because the Hub's client also repeats single requests of an upload."""
_BRANCH = "main"
_OF_THE_HUB = frozenset({".gitattributes"})
"""Files that the Hub writes when it creates a repository."""
_CONFLICTS = frozenset({409, 412})
"""Status codes of a commit whose parent is not the last commit."""


@dataclass(frozen=True, kw_only=True)
class RemoteState:
    """A repository at one commit.

    Attributes:
        commit: The last commit of the branch.
        private: Whether the repository is private.
        store: The files of the commit.
        marker: The marker of the last publication; None if there is none.
    """

    commit: str
    private: bool
    store: HubStore
    marker: Marker | None

    @property
    def files(self) -> Mapping[str, HubFile]:
        """Path → file."""
        return self.store.files


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The files that a publication adds or replaces, and the paths that it removes."""

    uploads: tuple[PlannedFile, ...] = ()
    removals: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.uploads or self.removals)


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A repository, and how requests to it are retried."""

    target: HubPublication
    retry: RetryPolicy = field(default_factory=lambda: RETRY)

    @property
    def address(self) -> str:
        """Address for readers: `hf://datasets/organization/name`."""
        return f"{HUB_DATASETS}{self.target.hub}"

    @property
    def _repo(self) -> HubRepo:
        target = self.target
        return HubRepo(repo_id=target.hub, endpoint=target.endpoint, allow_http=target.allow_http, retry=self.retry)

    def _run(self, attempt: Callable[[], T], *, label: str) -> T:
        try:
            return self.retry.run(attempt, label=label)
        except TransferError as error:
            raise TransferError(
                f"{error}. Check that {self._repo.hub_url} can be reached, and run the dataset again"
            ) from error

    def read_state(self) -> RemoteState | None:
        """Return the repository's state; None if it does not exist or the token cannot read it.

        Raises TransferError and SourceError.
        """
        return self._run(self._request_state, label=self.address)

    def publish(self, publication: Publication, report: Callable[[int], None] = lambda _: None) -> Changes:
        """Upload the files that differ, in one commit, then tag it; return the changes of the last commit.

        `report` is called with the number of bytes of each commit before it is sent.

        Raises ConfigError if the repository's visibility differs from the declaration, IntegrityError if something else
        wrote the repository or changed a file, or if the Hub does not have the files afterwards, and TransferError.
        """
        changes = self._run(lambda: self._send(publication, report), label=self.address)
        state = self.read_state()
        defects = list(self.find_defects(publication, state))
        if defects or state is None:
            raise IntegrityError(
                f"{next(iter(defects), self.address)} after the upload ({count_of(len(defects), 'file')}). Publish the "
                "dataset again"
            )
        self._run(lambda: self._tag(publication.tag, state.commit), label=f"tag of {self.address}")
        return changes

    def find_defects(self, publication: Publication, state: RemoteState | None) -> Iterator[str]:
        """Yield a sentence for each file of the publication that the Hub lacks or has with a different digest."""
        if state is None:
            yield f"{self.address}: not found on the Hub, or not readable with this token"
            return
        for file in (*publication.files, publication.marker):
            if (remote := state.files.get(file.path)) is None:
                yield f"{self.address}/{file.path}: missing"
            elif not _is_same(file, remote):
                yield f"{self.address}/{file.path}: differs from the published file (digest {remote.etag[:12]}…)"

    def find_tag_defect(self, tag: str, lock: PlannedFile) -> str | None:
        """Return a sentence if the repository lacks a tag, or if the tagged commit has a different lock."""
        commit = self._run(lambda: self._request_tag(tag), label=f"tag of {self.address}")
        if commit is None:
            return f"{self.address}: has no tag {tag}"
        wrong_commit = f"{self.address}: the tag {tag} names the commit {commit[:12]}"
        try:
            remote = HubStore(self._repo, commit).files.get(lock.path)
        except SourceError as error:
            return f"{wrong_commit}, which cannot be read: {error}"
        if remote is None or not _is_same(lock, remote):
            return f"{wrong_commit}, whose {lock.path} differs. Delete the tag on the Hub"
        return None

    def _send(self, publication: Publication, report: Callable[[int], None]) -> Changes:
        state = self._request_state()
        if state is None:
            self._create()
            state = self._request_state()
        if state is None:
            raise SourceError(f"{self.address}: cannot be read after its creation. Check HF_TOKEN and its access")
        changes = self.find_changes(publication, state)
        if changes:
            report(sum(file.size for file in changes.uploads))
            self._commit(publication, changes, state.commit)
        return changes

    def _require_own(self, publication: Publication, state: RemoteState) -> None:
        """Raise an error if the repository has the wrong visibility, or if something else wrote it."""
        if state.private != self.target.private:
            actual, visibility = ("private", "public") if state.private else ("public", "private")
            raise ConfigError(
                f"{self.address}: is {actual}, but must be {visibility} (`publish.private`). Change the visibility on "
                "the Hub, or change `publish.private`"
            )
        if (marker := state.marker) is None:
            if foreign_paths := sorted(state.files.keys() - _OF_THE_HUB):
                raise IntegrityError(
                    f"{self.address}: contains files that this project did not publish, such as {foreign_paths[0]}. "
                    "Publish to a different repository, or delete these files on the Hub if they are unused"
                )
        elif (marker["dataset"], marker["project"]) != (publication.dataset, publication.project):
            raise IntegrityError(
                f"{self.address}: contains the dataset {marker['dataset']!r} of the project {marker['project']!r}. "
                f"Publish {publication.dataset!r} to a different repository. To take over the repository from that "
                "project, set its name as `publish.project`"
            )

    def find_changes(self, publication: Publication, state: RemoteState) -> Changes:
        """Return the files to send and to remove.

        Raises ConfigError if the repository's visibility differs from the declaration, and IntegrityError if something
        else wrote the repository or changed one of the files.
        """
        self._require_own(publication, state)
        files = (*publication.files, publication.marker)
        uploads = tuple(
            file for file in files if (remote := state.files.get(file.path)) is None or not _is_same(file, remote)
        )
        published = state.marker["files"] if state.marker is not None else {}
        planned_paths = {file.path for file in files}
        removals = tuple(path for path in published if path in state.files and path not in planned_paths)
        for path in (*(file.path for file in uploads), *removals):
            if path != MARKER and path in state.files:
                digest = published[path]["sha256"] if path in published else None
                if _compute_remote_digest(state, path) != digest:
                    raise IntegrityError(
                        f"{self.address}/{path}: changed on the Hub after it was published. Copy the change if you "
                        "need it, and delete the file on the Hub, then publish again"
                    )
        return Changes(uploads=uploads, removals=removals)

    def _open_api(self) -> "HfApi":
        from huggingface_hub import HfApi

        repo = self._repo
        return HfApi(endpoint=repo.hub_url, token=repo.token)

    def _request_state(self) -> RemoteState | None:
        from huggingface_hub.errors import RepositoryNotFoundError

        repo = self._repo
        with translate_errors(self.address):
            try:
                info = self._open_api().repo_info(
                    repo.repo_id, repo_type="dataset", revision=_BRANCH, timeout=repo.timeout_seconds
                )
            except RepositoryNotFoundError:
                return None
        commit = check_commit(info.sha or "", self.address)
        store = HubStore(repo, commit)
        return RemoteState(commit=commit, private=bool(info.private), store=store, marker=read_marker(store))

    def _create(self) -> None:
        with self._translate_upload_errors():
            self._open_api().create_repo(
                self.target.hub, repo_type="dataset", private=self.target.private, exist_ok=True
            )

    def _commit(self, publication: Publication, changes: Changes, parent: str) -> None:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete
        from huggingface_hub.utils import disable_progress_bars

        # Show only the progress of the run, because the client's bars would fill its log.
        disable_progress_bars()
        operations: list[CommitOperationAdd | CommitOperationDelete] = []
        for file in changes.uploads:
            operation = CommitOperationAdd(path_in_repo=file.path, path_or_fileobj=file.find())
            # Compare the digest that the client sends, because the file may have changed since its receipt was written.
            if (digest := operation.upload_info.sha256.hex()) != file.sha256:
                raise IntegrityError(
                    f"{file.path}: changed after it was built (sha256 {digest[:12]}… instead of {file.sha256[:12]}…). "
                    "Rebuild the artifact"
                )
            operations.append(operation)
        operations += [CommitOperationDelete(path_in_repo=path, is_folder=False) for path in changes.removals]
        with self._translate_upload_errors():
            self._open_api().create_commit(
                self.target.hub,
                operations,
                commit_message=f"Publish {publication.dataset} ({publication.tag})",
                repo_type="dataset",
                revision=_BRANCH,
                parent_commit=parent,
            )

    def _tag(self, tag: str, commit: str) -> None:
        # Keep an existing tag, because it names the first publication of the same lock.
        if self._request_tag(tag) is None:
            with self._translate_upload_errors():
                self._open_api().create_tag(
                    self.target.hub, tag=tag, revision=commit, repo_type="dataset", exist_ok=True
                )

    def _request_tag(self, tag: str) -> str | None:
        """Return the commit that a tag names; None if there is no such tag."""
        with translate_errors(self.address):
            refs = self._open_api().list_repo_refs(self.target.hub, repo_type="dataset")
        return next((ref.target_commit for ref in refs.tags if ref.name == tag), None)

    @contextmanager
    def _translate_upload_errors(self) -> Iterator[None]:
        """Convert the errors of an upload: RetryableError also for a conflicting commit, and for a cut upload."""
        from huggingface_hub.errors import HfHubHTTPError

        with translate_errors(self.address):
            try:
                yield
            except HfHubHTTPError as error:
                self._raise_refusal(error.response.status_code)
                raise
            except JSONDecodeError as error:
                raise_detached(RetryableError(f"the Hub's response is not JSON: {error}"))
            except ValueError as error:
                # The client reports the refusal of a file's content, or of the page's metadata, in a ValueError.
                message = strip_queries(" ".join(str(error).split()))
                raise_detached(SourceError(f"{self.address}: the Hub refused the upload: {message}. Correct the cause"))
            except PermissionError:
                self._raise_refusal(403)  # an error of the client's Xet library
            except (ConnectionError, TimeoutError, RuntimeError) as error:
                # The client wraps the error of one file's upload.
                cause = error.__cause__
                if isinstance(cause, HfHubHTTPError):
                    self._raise_refusal(cause.response.status_code)
                if isinstance(cause, Exception):
                    raise cause from None
                raise_detached(RetryableError(f"the upload failed: {strip_queries(str(error))}"))

    def _raise_refusal(self, status: int) -> None:
        if status in _CONFLICTS:
            raise_detached(RetryableError(f"another commit was made at the same time (HTTP {status})"))
        if status in (401, 403):
            raise_detached(
                SourceError(
                    f"{self.address}: the Hub refused the upload (HTTP {status}). Set HF_TOKEN to a token with write "
                    "access to this repository"
                )
            )


def _is_same(file: PlannedFile, remote: HubFile) -> bool:
    if remote.size != file.size:
        return False
    if remote.sha256 is not None:
        return remote.sha256 == file.sha256
    # The Hub knows only the git blob id of a small file, which is therefore computed from the local bytes.
    content = file.read()
    header = b"blob %d\0" % len(content)
    return (
        hashlib.sha256(content).hexdigest() == file.sha256
        and hashlib.sha1(header + content, usedforsecurity=False).hexdigest() == remote.etag
    )


def _compute_remote_digest(state: RemoteState, path: str) -> str:
    """Return the SHA-256 of a file on the Hub; a file without a known digest is small, and is downloaded."""
    known_digest = state.files[path].sha256
    return known_digest or hashlib.sha256(b"".join(state.store.read(path))).hexdigest()
