"""The walk over every file of every pipeline's artifacts."""

from pathlib import Path

import pytest

from dataprep_assets_tests.pipelines.notes.directories import leave_tfds_out
from dataprep_assets_tests.tools.drill.campaign import prepare
from dataprep_assets_tests.tools.drill.datasets import PIPELINES
from dataprep_assets_tests.tools.drill.walk import EXCEPTIONS, walk


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_changed_byte_in_any_file_is_reported(pipeline: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_tfds_out(monkeypatch)
    box, _ = prepare(pipeline, tmp_path, aside=False)
    steps = list(walk(box, alike_once=True))
    assert len({step.file for step in steps}) > 2
    assert [step for step in steps if step.crash] == []
    # `verify` must report every change. The checks below have known exceptions.
    assert [step for step in steps if not step.verify] == []
    assert [step for step in steps if not step.proof and not step.excepted] == []


def test_every_exception_has_its_reason() -> None:
    assert all(len(why) > 20 for why in EXCEPTIONS.values())
