"""The files below `splits/` have the shards' bytes, verified by `verify` and, where a receipt exists, by a check."""

from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path

import pytest

from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.blend.component import TrainingBlend
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets_tests.engine.building import build_all
from dataprep_assets_tests.pipelines.blend.blend_project import load_sample_blend
from dataprep_assets_tests.pipelines.blend.finished_blend import FinishedBlend, finish
from dataprep_assets_tests.pipelines.blend.rl.records import declare_weighted_records
from dataprep_assets_tests.tools.drill.box import reseal, write
from dataprep_assets_tests.tools.drill.judge import failed_proofs


def _flipped(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a byte": _flipped,
    "its first half twice": lambda data: data[: len(data) // 2] * 2 + data[len(data) // 2 * 2 :],
    "a byte more": lambda data: data + b"x",
}


def _check_named(blend: BlendDeclaration, store: LocalArtifacts, folder: Path) -> None:
    """Damage every file below `splits/` in every way; `verify` must name it, or a check if the receipt matches."""
    (spec,) = [spec for spec in TrainingBlend(blend).specs if spec.name == "blend"]
    assert list(failed_proofs(spec, store, [])) == []
    artifact = spec.locate_artifact(store, None)
    files = [path for path in sorted((folder / "splits").rglob("*")) if path.is_file()]
    receipt, sealed = store.require(artifact), (folder / "receipt.json").read_bytes()
    pairs = zip(cycle(files), cycle(DAMAGES.values()), strict=False)
    for path, damage in islice(pairs, max(len(files), len(DAMAGES))):
        whole = path.read_bytes()
        write(path, damage(whole))
        assert any(path.name in defect for defect in store.damage(artifact, receipt))
        reseal(folder)
        assert store.damage(artifact, store.require(artifact)) == []
        told = dict(failed_proofs(spec, store, []))
        assert path.name in told["blend_run_intact"]
        write(folder / "receipt.json", sealed)
        write(path, whole)
    assert list(failed_proofs(spec, store, [])) == []


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_every_damage_of_an_rl_blend_is_found(tmp_path: Path, compression: str) -> None:
    options = {"transforms": ["passthrough"], "compression": compression}
    made: FinishedBlend = finish(declare_weighted_records(tmp_path / "s", (2.0, 1.0), rl=options), tmp_path / "out")
    _check_named(made.blend, made.store, made.directory)


def test_every_damage_of_an_sft_blend_is_found(tmp_path: Path) -> None:
    declaration, store = load_sample_blend("sft"), LocalArtifacts(tmp_path)
    build_all(TrainingBlend(declaration).specs, store)
    (folder,) = (path for path in (tmp_path / declaration.dataset / "runs").iterdir() if path.name[0] != ".")
    _check_named(declaration, store, folder)
