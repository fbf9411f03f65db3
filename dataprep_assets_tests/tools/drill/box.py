"""A box with finished datasets at their original path, which a fault may damage and which are restored after each
fault.

The originals are stored elsewhere as hard links to the same files, so a box needs no second copy. Any code that changes
a file in it must write a new one in its place (`write`); `Box.unharmed` shows whether it did. Locks and staging are
copied, because builds write them in place.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.integrity.receipt import NAME, _compute_digest, record_files
from dataprep_assets.orchestration.component import DatasetComponent
from dataprep_assets_tests.tools.drill.datasets import Bench


@dataclass(frozen=True)
class Target:
    """One artifact of a box: its spec, and its partition if it has any."""

    spec: ArtifactSpec
    slot: str | None

    def __str__(self) -> str:
        return "/".join(filter(None, (*self.spec.path, self.slot)))


@dataclass
class Box:
    """The datasets described in the module. A fault may change `bench`; `components` are the current declarations.

    Attributes:
        bench: The finished datasets, in the folder in which they were built.
        others: Artifacts of other datasets or of an older run, from which a fault may take files: name → root.
    """

    bench: Bench
    others: Mapping[str, Path] = field(default_factory=dict)
    components: tuple[DatasetComponent, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.components = self.bench.components
        shutil.rmtree(self._aside, ignore_errors=True)
        shutil.copytree(self.bench.folder, self._aside, symlinks=True, copy_function=_link)
        self._digest = _digest(self._aside)

    @property
    def _aside(self) -> Path:
        return self.bench.folder.with_name(f"{self.bench.folder.name}.aside")

    @property
    def root(self) -> Path:
        """The folder of the artifacts."""
        return self.bench.root

    def restore(self) -> None:
        """Restore everything as it was built."""
        shutil.rmtree(self.bench.folder)
        shutil.copytree(self._aside, self.bench.folder, symlinks=True, copy_function=_link)
        self.components = self.bench.components

    @property
    def unharmed(self) -> bool:
        """Whether the originals still have their original bytes."""
        return _digest(self._aside) == self._digest

    @property
    def specs(self) -> list[ArtifactSpec]:
        """The currently declared specs."""
        return [spec for component in self.components for spec in component.specs]

    def targets(self) -> list[Target]:
        """Return every artifact that is kept."""
        store = self.bench.store
        return [Target(spec, slot) for spec in self.specs if spec.kept for slot in spec.slots(store)]

    def now(self, target: Target) -> Target:
        """Return the same artifact as currently declared."""
        return replace(target, spec=next(spec for spec in self.specs if spec.path == target.spec.path))

    def folder(self, target: Target) -> Path:
        """Return the folder of an artifact."""
        return self.bench.store.directory(target.spec.locate_artifact(self.bench.store, target.slot))

    def redeclare(self, dataset: str, change: Callable[[Any], Any]) -> None:
        """Change the declaration of a dataset: `change` gets the current one and returns another."""
        self.components = tuple(
            type(one)(change(one.declaration)) if one.declaration.dataset == dataset else one for one in self.components
        )


def _link(source: str, target: str) -> None:
    if ".staging" in Path(source).parts or source.endswith(".lock"):
        shutil.copy2(source, target)
    else:
        os.link(source, target)


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(folder)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def write(path: Path, data: bytes) -> None:
    """Write a file in a new inode, so that hard links to the old one keep their content."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def edit_json(path: Path, change: Callable[[Any], Any]) -> None:
    """Change a JSON file: `change` edits the value, or returns another."""
    value = json.loads(path.read_bytes())
    changed = change(value)
    write(path, json.dumps(value if changed is None else changed, indent=1, sort_keys=True).encode() + b"\n")


def edit_receipt(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a receipt and update its digest: the numbers are wrong, but the file is consistent."""

    def signed(value: dict[str, Any]) -> None:
        change(value)
        value["digest"] = _compute_digest(value)

    edit_json(folder / NAME, signed)


def reseal(folder: Path) -> None:
    """Update the receipt to the digests of the current files, as if it had been written for them."""
    (receipt := folder / NAME).rename(aside := folder.with_name(f".{folder.name}.resealed"))
    files = [{"path": r.path, "bytes": r.bytes, "sha256": r.sha256} for r in record_files(folder)]
    aside.rename(receipt)

    def change(value: dict[str, Any]) -> None:
        from dataprep_assets.stores.files import digest_value

        value["files"] = files
        value["content"] = digest_value([[f["path"], f["bytes"], f["sha256"]] for f in files])

    edit_receipt(folder, change)
