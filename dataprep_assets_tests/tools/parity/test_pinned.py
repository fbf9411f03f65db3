"""An upstream program runs with the versions that it pins, in its own process."""

from pathlib import Path

import pytest

from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.tools.parity import pinned as module
from dataprep_assets_tests.tools.parity.__main__ import MODULES
from dataprep_assets_tests.tools.parity.pinned import installed, pinned


def test_the_requirements_of_a_clone_are_installed_as_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUILD", tmp_path / "build")
    wanted = "transformers>=4.57.6,<5"
    (tmp_path / "pyproject.toml").write_text(f'[project]\ndependencies = ["numpy>=2", "{wanted}"]\n')
    made = tmp_path / "build" / wanted
    made.mkdir(parents=True)  # as if pip had installed it
    assert pinned(tmp_path, "transformers") == made
    assert pinned(tmp_path, "transformers") == installed(wanted)
    with raises(ValueError, "unpack"):
        pinned(tmp_path, "datasets")


def test_training_with_upstream_programs_is_compared_with_their_files() -> None:
    assert {"maxtext", "maxtext_training", "templar", "megatron_lm"} <= {m for some in MODULES.values() for m in some}
