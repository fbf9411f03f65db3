"""Rebuilds of an artifact in a scratch folder, which are compared with it file by file to check packed rows.

Packing changes the order of documents, so only a full rebuild shows the expected content of each row. The scratch
folder needs as much space as the artifact, and is removed after the comparison.
"""

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dataprep_assets.engine.checks.comparison import find_first_difference
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore, LocalArtifacts
from dataprep_assets.integrity.receipt import NAME, Receipt, read_versions
from dataprep_assets.integrity.scratch import OverlayArtifacts, create_scratch


@contextmanager
def rebuild_artifact(
    artifact: Artifact, store: ArtifactStore, build: Callable[[ArtifactStore], object]
) -> Iterator[Path]:
    """Rebuild an artifact of `store` with `build` in a scratch store; yield its folder."""
    with create_scratch(store.root / artifact.dataset) as folder:
        scratch_store = LocalArtifacts(folder)
        build(scratch_store)
        yield scratch_store.directory(artifact)


@dataclass(frozen=True)
class _RebuildStore(OverlayArtifacts):
    """A scratch store over another store. It hides one artifact, which is therefore rebuilt."""

    hidden: Artifact = field(kw_only=True)

    def receipt(self, artifact: Artifact) -> Receipt | None:
        return self._scratch.receipt(artifact) if artifact == self.hidden else super().receipt(artifact)

    def receipts(self, artifacts: Sequence[Artifact]) -> list[Receipt | None]:
        return [self.receipt(artifact) for artifact in artifacts]


def find_claim_differences(
    artifact: Artifact,
    store: ArtifactStore,
    build: Callable[[ArtifactStore], tuple[Receipt, bool]],
    *,
    names: Set[str] = frozenset(),
) -> Iterator[str]:
    """Yield a sentence for each claim of an artifact's receipt that a rebuild from its inputs does not confirm.

    For artifacts that are cheap to build, because they link their inputs. Raises the errors of `build`. The facts in
    `names` are not compared, because they only name an input, which may have a different name now.
    """
    stored_receipt = store.require(artifact)
    with create_scratch(store.root / artifact.dataset) as folder:
        rebuilt, _ = build(_RebuildStore(folder, store, hidden=artifact))
    digests = [{record.path: record.sha256 for record in receipt.files} for receipt in (stored_receipt, rebuilt)]
    for name in sorted(digests[0].keys() | digests[1].keys()):
        stored_digest, rebuilt_digest = (file_digests.get(name) for file_digests in digests)
        if stored_digest is None or rebuilt_digest is None:
            yield _describe_rebuilt_only_file(name) if stored_digest is None else _describe_stored_only_file(name)
        elif stored_digest != rebuilt_digest:
            yield f"{name} differs from a rebuild"
    claims = [
        {
            "inputs": receipt.inputs,
            "facts": {name: value for name, value in receipt.facts.items() if name not in names},
            "ledger": receipt.ledger,
        }
        for receipt in (stored_receipt, rebuilt)
    ]
    for claim in claims[0]:
        if claims[0][claim] != claims[1][claim]:
            yield f"`{claim}` in the receipt differs from the receipt of a rebuild"


def find_byte_differences(stored_path: Path, rebuilt_path: Path, *, left_out: Set[str] = frozenset()) -> Iterator[str]:
    """Yield a sentence for each file that differs between `stored_path` and `rebuilt_path`, or that one of them lacks.

    Ignores receipts, and the files in `left_out`, which are compared by content instead.
    """
    names = {
        str(path.relative_to(root))
        for root in (stored_path, rebuilt_path)
        for path in root.rglob("*")
        if path.is_file()
    }
    for name in sorted(names - left_out - {NAME}):
        held_file, made_file = stored_path / name, rebuilt_path / name
        if not (held_file.is_file() and made_file.is_file()):
            yield _describe_rebuilt_only_file(name) if made_file.is_file() else _describe_stored_only_file(name)
        elif (byte := find_first_difference(held_file, made_file)) is not None:
            yield f"{name} differs from a rebuild (first difference: byte {byte:,})"


def _describe_rebuilt_only_file(name: str) -> str:
    return f"{name} is missing, but a rebuild writes it"


def _describe_stored_only_file(name: str) -> str:
    return f"{name} exists, but a rebuild does not write it"


def choose_compared_by_content(receipt: Receipt, names: Set[str]) -> Set[str]:
    """Return all `names` if library versions differ from the receipt's, so that files are compared by content.

    Returns no names otherwise. A different version of a library may write the same content with different bytes.
    """
    return frozenset() if receipt.measured.get("versions") == read_versions() else names
