"""The files of a publication: the products, the data card, their receipts, the lock, the page and the marker.

The repository has the layout of the dataset's folder in the storage, so `dataprep verify` compares it with the same
receipts, and the relative paths in `croissant.json` are valid. Three files are added at the top: the page
(`README.md`), the lock (`dataset.lock`) and the marker (`publication.json`).

Entry points: `build_publication`, `Publication`.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.card.contents import PAGE as CARD_PAGE
from dataprep_assets.engine.card.contents import CardSubject, gather_card
from dataprep_assets.engine.lock.lock import LOCK, encode_lock, gather_lock
from dataprep_assets.engine.publishing.marker import MARKER, SCHEMA, MarkedFile, Marker
from dataprep_assets.engine.publishing.page import PAGE, encode_page, list_configs
from dataprep_assets.engine.yaml.declaration import HubPublication
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import NAME, Receipt


@dataclass(frozen=True, kw_only=True)
class PlannedFile:
    """A file of a publication.

    Attributes:
        path: Path in the repository.
        size: Size in bytes.
        sha256: SHA-256 (hex), for a file of an artifact as in its receipt.
        find: Returns the content, or the local path of the file.
    """

    path: str
    size: int
    sha256: str
    find: Callable[[], bytes | Path]

    @classmethod
    def from_content(cls, path: str, content: bytes) -> "PlannedFile":
        """Return the file with this content."""
        return cls(path=path, size=len(content), sha256=hashlib.sha256(content).hexdigest(), find=lambda: content)

    def read(self) -> bytes:
        """Return the content."""
        content = self.find()
        return content if isinstance(content, bytes) else content.read_bytes()


@dataclass(frozen=True, kw_only=True)
class Publication:
    """The files of a dataset's publication.

    Attributes:
        dataset: Name of the dataset.
        project: The project that owns the repository.
        lock: SHA-256 (hex) of the dataset's lock.
        files: All files except the marker, sorted by path.
        receipts: The receipts of the published artifacts.
    """

    dataset: str
    project: str
    lock: str
    files: tuple[PlannedFile, ...]
    receipts: tuple[Receipt, ...]

    @property
    def tag(self) -> str:
        """Tag of the revision."""
        return f"lock-{self.lock[:12]}"

    @property
    def marker(self) -> PlannedFile:
        """The marker. Equal publications have equal markers."""
        value = Marker(
            dataprep_publication=SCHEMA,
            dataset=self.dataset,
            project=self.project,
            lock=self.lock,
            files={file.path: MarkedFile(bytes=file.size, sha256=file.sha256) for file in self.files},
        )
        text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
        return PlannedFile.from_content(MARKER, f"{text}\n".encode())

    def file(self, path: str) -> PlannedFile:
        """Return the file with this path."""
        return next(file for file in self.files if file.path == path)


def build_publication(
    subject: CardSubject, target: HubPublication, card: ArtifactSpec, store: ArtifactStore
) -> Publication:
    """Return the publication of a finished dataset.

    Args:
        subject: The dataset, with its products.
        target: Where it is published.
        card: The spec of its data card.
        store: Where its artifacts are stored. Only receipts and the card's page are read.

    Raises MissingArtifactError if an artifact is missing, and ConfigError if the project has no id.
    """
    specs = [*subject.products, card]
    artifacts = [artifact for spec in specs for artifact in spec.artifacts(store)]
    receipts = [store.require(artifact) for artifact in artifacts]
    content = gather_card(subject, store)
    configs = list_configs(receipts[:-1], [counts.split for counts in content.splits])
    card_page = store.local(artifacts[-1], [CARD_PAGE]) / CARD_PAGE
    page = encode_page(card_page.read_text(encoding="utf-8"), configs=configs, licenses=content.licenses)
    lock = PlannedFile.from_content(LOCK, encode_lock(gather_lock([*subject.specs, card], store)))
    files = [PlannedFile.from_content(PAGE, page), lock, *_list_files(store, artifacts, receipts)]
    return Publication(
        dataset=subject.declaration.dataset,
        project=target.require_owner(),
        lock=lock.sha256,
        files=tuple(sorted(files, key=lambda file: file.path)),
        receipts=tuple(receipts),
    )


def _build_finder(store: ArtifactStore, artifact: Artifact, receipt: Receipt, name: str) -> Callable[[], Path]:
    """Return a function that returns the local path of a file, whose copy is kept while the function lives."""

    def find_copy() -> Path:
        return store.fetch(artifact, receipt, name, find_copy)

    return find_copy


def _list_files(
    store: ArtifactStore, artifacts: Sequence[Artifact], receipts: Sequence[Receipt]
) -> Iterator[PlannedFile]:
    """Yield the files and the receipt of each artifact, with their paths in the dataset's folder."""
    for artifact, receipt in zip(artifacts, receipts, strict=True):
        folder = "/".join(filter(None, (artifact.name, artifact.partition)))
        for record in receipt.files:
            yield PlannedFile(
                path=f"{folder}/{record.path}",
                size=record.bytes,
                sha256=record.sha256,
                find=_build_finder(store, artifact, receipt, record.path),
            )
        yield PlannedFile.from_content(f"{folder}/{NAME}", (store.local(artifact, []) / NAME).read_bytes())
