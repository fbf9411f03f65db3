"""A seeded part of the zoo: hostile files through `dataprep run`; and the zoo is reproducible from its seed."""

from pathlib import Path

import pytest

from dataprep_assets.execution.watch import CAN_WATCH
from dataprep_assets_tests.tools.zoo.__main__ import table
from dataprep_assets_tests.tools.zoo.animals import KINDS, Animal, animals
from dataprep_assets_tests.tools.zoo.keeper import Keeper

SEED, LARGEST = 5, 4 << 20
COUNT = 3


@pytest.mark.slow
@pytest.mark.skipif(not CAN_WATCH, reason="processes are watched on Linux alone")
def test_hostile_files_are_read_within_limits_or_refused_by_name(tmp_path: Path) -> None:
    keeper = Keeper(tmp_path)
    chosen = [animal for animal in animals(SEED, 60) if _is_small(animal, tmp_path)][:COUNT]
    seen = list(keeper.show(chosen))
    assert [(one.animal, one.fault, one.said) for one in seen if one.fault] == []
    assert f"| all ({COUNT}) |" in table(seen)


def _is_small(animal: Animal, folder: Path) -> bool:
    """Return whether its file is small, so that the test is quick; in a large zoo it need not be small."""
    trial = folder / "trial"
    trial.mkdir(exist_ok=True)
    animal.write(trial)
    path = trial / animal.name
    size = path.stat().st_size
    path.unlink()
    return size < LARGEST


def test_a_seed_gives_the_same_zoo_and_every_kind_is_in_it(tmp_path: Path) -> None:
    some = list(animals(1, 200))
    assert some[:20] == list(animals(1, 20))
    assert {(one.pipeline, one.kind) for one in some} == {(p, kind) for p, kinds in KINDS.items() for kind in kinds}
    small = next(one for one in some if one.kind == "template")
    written = [(tmp_path / name) for name in ("a", "b")]
    for folder in written:
        folder.mkdir()
        small.write(folder)
    assert len({(folder / small.name).read_bytes() for folder in written}) == 1
