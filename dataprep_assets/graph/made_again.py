"""Makes an artifact again in a scratch folder, and compares its files: how every document of packed rows is proven.

What is packed is in another order than its source, so nothing less than packing it again tells what each row should be.
The scratch folder takes as much room as the artifact, and is gone when the comparison is done.
"""

from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore, LocalArtifacts
from dataprep_assets.integrity.receipt import NAME, Receipt, versions
from dataprep_assets.integrity.scratch import scratch

# bytes that are compared at once; only the block that differs is walked byte by byte
_BLOCK = 1 << 20


@contextmanager
def made_again(artifact: Artifact, store: ArtifactStore, build: Callable[[ArtifactStore], object]) -> Iterator[Path]:
    """Yield the folder of an artifact of `store` that `build` makes in the store that it is given."""
    with scratch(store.root / artifact.dataset) as folder:
        made = LocalArtifacts(folder)
        build(made)
        yield made.directory(artifact)


def other_bytes(held: Path, made: Path, *, left_out: Set[str] = frozenset()) -> Iterator[str]:
    """A sentence for each file of `held` that is not as in `made`, or is in one of them alone.

    Files whose names are `left_out`, because they are compared by their content, and receipts are not looked at.
    """
    names = {str(path.relative_to(root)) for root in (held, made) for path in root.rglob("*") if path.is_file()}
    for name in sorted(names - left_out - {NAME}):
        here, there = held / name, made / name
        if not (here.is_file() and there.is_file()):
            yield f"{name} is {'not there' if there.is_file() else 'there'}, and not when it is made again"
        elif (at := _first_difference(here, there)) is not None:
            yield f"{name} differs from byte {at:,} on from what is made again of the source"


def by_content(receipt: Receipt, names: Set[str]) -> Set[str]:
    """Those of these files that another version of a library may have written in other bytes: all, or none."""
    return frozenset() if receipt.measured.get("versions") == versions() else names


def _first_difference(one: Path, other: Path) -> int | None:
    with open(one, "rb") as left, open(other, "rb") as right:
        at = 0
        while True:
            a, b = left.read(_BLOCK), right.read(_BLOCK)
            if a != b:
                return at + next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            if not a:
                return None
            at += len(a)
