"""Rebuilds of an artifact in a scratch folder, compared file by file. This checks every document of packed rows.

Packing changes the order of documents, so only a full rebuild shows the expected content of each row. The scratch
folder is as large as the artifact, and is removed after the comparison.
"""

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dataprep_assets.engine.checks.comparison import first_difference
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore, LocalArtifacts
from dataprep_assets.integrity.receipt import NAME, Receipt, versions
from dataprep_assets.integrity.scratch import OverlayArtifacts, scratch


@contextmanager
def made_again(artifact: Artifact, store: ArtifactStore, build: Callable[[ArtifactStore], object]) -> Iterator[Path]:
    """Yield the folder of an artifact of `store` that `build` rebuilds in the scratch store that it is given."""
    with scratch(store.root / artifact.dataset) as folder:
        scratch_store = LocalArtifacts(folder)
        build(scratch_store)
        yield scratch_store.directory(artifact)


@dataclass(frozen=True)
class _Rebuilding(OverlayArtifacts):
    """A scratch folder over a store that hides one artifact, so that it is rebuilt."""

    hidden: Artifact = field(kw_only=True)

    def receipt(self, artifact: Artifact) -> Receipt | None:
        return self._scratch.receipt(artifact) if artifact == self.hidden else super().receipt(artifact)

    def receipts(self, artifacts: Sequence[Artifact]) -> list[Receipt | None]:
        return [self.receipt(artifact) for artifact in artifacts]


def rebuilt_otherwise(
    artifact: Artifact,
    store: ArtifactStore,
    build: Callable[[ArtifactStore], tuple[Receipt, bool]],
    *,
    names: Set[str] = frozenset(),
) -> Iterator[str]:
    """Yield a sentence for each claim of an artifact's receipt that a rebuild from its inputs does not confirm.

    For artifacts that are cheap to build, because they link their inputs. Errors of `build` are raised. The facts in
    `names` are not compared: they only name an input, and the same input may have another name.
    """
    stored_receipt = store.require(artifact)
    with scratch(store.root / artifact.dataset) as folder:
        rebuilt, _ = build(_Rebuilding(folder, store, hidden=artifact))
    digests = [{record.path: record.sha256 for record in receipt.files} for receipt in (stored_receipt, rebuilt)]
    for name in sorted(digests[0].keys() | digests[1].keys()):
        stored_digest, rebuilt_digest = (file_digests.get(name) for file_digests in digests)
        if stored_digest is None or rebuilt_digest is None:
            yield f"{name} is {'not there' if stored_digest is None else 'there'}, unlike after a rebuild"
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
    for what in claims[0]:
        if claims[0][what] != claims[1][what]:
            yield f"{what} in its receipt: different in a rebuild"


def other_bytes(held: Path, made: Path, *, left_out: Set[str] = frozenset()) -> Iterator[str]:
    """Yield a sentence for each file that differs between `held` and `made`, or exists in only one of them.

    Receipts are ignored, and also the files `left_out`, which are compared by their content.
    """
    names = {str(path.relative_to(root)) for root in (held, made) for path in root.rglob("*") if path.is_file()}
    for name in sorted(names - left_out - {NAME}):
        held_file, made_file = held / name, made / name
        if not (held_file.is_file() and made_file.is_file()):
            yield f"{name} is {'not there' if made_file.is_file() else 'there'}, unlike after a rebuild"
        elif (byte := first_difference(held_file, made_file)) is not None:
            yield f"{name} differs from a rebuild of the source, from byte {byte:,} on"


def by_content(receipt: Receipt, names: Set[str]) -> Set[str]:
    """Return the names of the files to compare by content: all if library versions differ, otherwise none.

    Another version of a library may write the same content with different bytes.
    """
    return frozenset() if receipt.measured.get("versions") == versions() else names
