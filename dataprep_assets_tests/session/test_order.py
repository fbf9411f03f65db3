"""The slowest files run first, or in the order of a seed; every test has a time limit."""

from pathlib import Path

from dataprep_assets_tests.session.subsession import run_session

KEPT = {"fast": {"test_a.py": 2, "test_b.py": 9, "test_e.py": 1}, "slow": {"test_d.py": 5, "test_e.py": 20}}
FILES = {
    "conftest.py": f"from dataprep_assets_tests.session import order\n\norder.read_durations = lambda: {KEPT}\n",
    **{f"test_{name}.py": "def test_it(): pass\n" for name in "abc"},
    "test_d.py": "import pytest\n\n@pytest.mark.slow\ndef test_it(): pass\n",
    "test_e.py": "import pytest\n\ndef test_it(): pass\n\n@pytest.mark.slow\ndef test_slow(): pass\n",
}


def read_order(folder: Path, *arguments: str) -> list[str]:
    """Return the files in the order in which their tests ran."""
    ended = run_session(folder, FILES, "-v", *arguments)
    assert ended.code == 0, ended.printed
    return [line[5] for line in ended.printed.splitlines() if "::test_it PASSED" in line]


def test_new_and_slow_files_come_first_by_the_selected_tests(tmp_path: Path) -> None:
    assert read_order(tmp_path) == ["c", "e", "b", "d", "a"]
    assert read_order(tmp_path, "-m", "not slow") == ["c", "b", "a", "e"]


def test_a_seed_shuffles_the_files_reproducibly(tmp_path: Path) -> None:
    orders = [read_order(tmp_path, "--shuffle-files", seed) for seed in ("1", "1", "2")]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == ["a", "b", "c", "d", "e"]


def test_a_test_has_the_time_limit_of_its_kind(tmp_path: Path) -> None:
    shown = (
        "import pytest\n\ndef pytest_runtest_setup(item):\n    print(item.name, item.get_closest_marker('timeout'))\n"
    )
    tests = "import pytest\n\ndef test_plain(): pass\n\n@pytest.mark.slow\ndef test_slow(): pass\n\n"
    tests += "@pytest.mark.timeout(7)\ndef test_own(): pass\n"
    ended = run_session(tmp_path, {"conftest.py": shown, "test_it.py": tests}, "-s", "-q")
    assert ended.code == 0, ended.printed
    assert "test_plain Mark(name='timeout', args=(240,)" in ended.printed
    assert "test_slow None" in ended.printed
    assert "test_own Mark(name='timeout', args=(7,)" in ended.printed
