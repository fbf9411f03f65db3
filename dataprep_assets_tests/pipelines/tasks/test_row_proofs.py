"""What row counts are compared with when the contract has none."""

from collections.abc import Callable
from dataclasses import replace

from dataprep_assets.pipelines.tasks.judged_folder import TaskFolder
from dataprep_assets_tests.pipelines.tasks.defects import file
from dataprep_assets_tests.pipelines.tasks.trees import edit, prove


def test_without_reference_counts_the_original_counts(folder: Callable[..., TaskFolder]) -> None:
    made = folder("Copa", files={s: {"rows": []} for s in ("train", "validation", "test")})
    assert prove(made) == {}
    edit(made.folder / file("Copa"), lambda rows: rows[:-2])
    assert "10 rows, the reference has 12" in prove(replace(made))["row_counts"]
    assert "neither the contract nor an original" in prove(replace(made, reference=None))["row_counts"]
