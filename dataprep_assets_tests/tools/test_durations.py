"""Durations are read from a real report of pytest."""

import json
from pathlib import Path

import pytest

from dataprep_assets_tests.session.subsession import run_session
from dataprep_assets_tests.tools.durations import main

SLEEPING = "import time\n\nclass TestThem:\n    def test_it(self): time.sleep(0.3)\n"


OTHER = "dataprep_assets_tests/tools/test_durations.py"


def test_the_seconds_of_each_file_are_stored_and_those_of_other_files_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, kept = tmp_path / "fast.xml", tmp_path / "durations.json"
    kept.write_text(json.dumps({"fast": {"gone.py": 9.0, OTHER: 8.0}, "slow": {"test_c.py": 7.0}}))
    files = {"test_a.py": SLEEPING, "test_b.py": "def test_it(): pass\n"}
    assert run_session(tmp_path, files, f"--junitxml={report}").code == 0
    assert main([str(report), "--output", str(kept), "--slowest", "1"]) == 0
    found = json.loads(kept.read_text())
    assert found["slow"] == {"test_c.py": 7.0}
    assert found["fast"].pop(OTHER) == 8.0
    assert [Path(file).name for file in found["fast"]] == ["test_a.py", "test_b.py"]
    first, second = found["fast"].values()
    assert first >= 0.3 > second
    assert capsys.readouterr().out.count("::") == 1
