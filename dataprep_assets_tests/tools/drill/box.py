"""A box: finished datasets where they were built, which a fault may damage and which are put back after each.

The originals lie aside and are hard links of the same files, so a box costs no second copy. Whoever changes a file in
it writes a new one in its place (`write`); `Box.unharmed` tells whether somebody did not. Locks and what is staged are
written in place by the builds themselves, so they are copied.
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
    """One artifact of a box: its spec, and its partition where it has any."""

    spec: ArtifactSpec
    slot: str | None

    def __str__(self) -> str:
        return "/".join(filter(None, (*self.spec.path, self.slot)))


@dataclass
class Box:
    """See the module. `bench` is what a fault may change, `components` what is declared of it now.

    Attributes:
        bench: The finished datasets, in the folder in which they were built.
        others: Other datasets' or an older run's artifacts, which a fault may take files of: name → root.
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
        """Where the artifacts are."""
        return self.bench.root

    def restore(self) -> None:
        """Put everything back as it was built."""
        shutil.rmtree(self.bench.folder)
        shutil.copytree(self._aside, self.bench.folder, symlinks=True, copy_function=_link)
        self.components = self.bench.components

    @property
    def unharmed(self) -> bool:
        """Whether the originals still have the bytes that they were built with."""
        return _digest(self._aside) == self._digest

    @property
    def specs(self) -> list[ArtifactSpec]:
        """What is declared now."""
        return [spec for component in self.components for spec in component.specs]

    def targets(self) -> list[Target]:
        """Every artifact that is kept."""
        store = self.bench.store
        return [Target(spec, slot) for spec in self.specs if spec.kept for slot in spec.slots(store)]

    def now(self, target: Target) -> Target:
        """The same artifact as it is declared now."""
        return replace(target, spec=next(spec for spec in self.specs if spec.path == target.spec.path))

    def folder(self, target: Target) -> Path:
        """Where an artifact lies."""
        return self.bench.store.directory(target.spec.locate_artifact(self.bench.store, target.slot))

    def redeclare(self, dataset: str, change: Callable[[Any], Any]) -> None:
        """Let a dataset be declared otherwise: `change` gets its declaration and returns another."""
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
    """A file with this content, in a new inode: other names of the old one keep theirs."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def edit_json(path: Path, change: Callable[[Any], Any]) -> None:
    """Alter a JSON file: `change` edits the value, or returns another."""
    value = json.loads(path.read_bytes())
    changed = change(value)
    write(path, json.dumps(value if changed is None else changed, indent=1, sort_keys=True).encode() + b"\n")


def edit_receipt(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Alter a receipt and sign it again: the lie is in the numbers, not in the file."""

    def signed(value: dict[str, Any]) -> None:
        change(value)
        value["digest"] = _compute_digest(value)

    edit_json(folder / NAME, signed)


def reseal(folder: Path) -> None:
    """Let the receipt have the digests of the files as they are now, as if it had been made of them."""
    (receipt := folder / NAME).rename(aside := folder.with_name(f".{folder.name}.resealed"))
    files = [{"path": r.path, "bytes": r.bytes, "sha256": r.sha256} for r in record_files(folder)]
    aside.rename(receipt)

    def change(value: dict[str, Any]) -> None:
        from dataprep_assets.stores.files import digest_value

        value["files"] = files
        value["content"] = digest_value([[f["path"], f["bytes"], f["sha256"]] for f in files])

    edit_receipt(folder, change)
