"""The deduplication benchmarks succeed with few documents, and do not depend on the order of files."""

from pathlib import Path

import pytest

from dataprep_assets_tests.tools.bench import duplicate_changes, duplicates, duplicates_at_scale

pytest.importorskip("rensa", reason="the extra `duplicates`")
pytestmark = pytest.mark.slow


def test_a_few_seeded_changes_equal_a_build_from_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    code = duplicate_changes.main(["--rounds", "3", "--seed", "3", "--kills", "0.2"])
    printed = capsys.readouterr().out
    assert code == 0, printed
    assert "all 3 rounds, 0 differ" in printed


def test_ours_keeps_the_same_texts_in_another_order_and_drops_none_wrongly(capsys: pytest.CaptureFixture[str]) -> None:
    assert duplicates.main(["--documents", "400", "--only", "ours"]) == 0
    printed = capsys.readouterr().out
    assert "0 went wrongly; in another order the same" in printed
    assert "0.0% 100.00%, 0.5% 100.00%" in printed
    assert "4 appended" in printed


def test_the_join_of_invented_signatures_finds_their_versions(tmp_path: Path) -> None:
    duplicates_at_scale.invent(tmp_path / "tables", 5_000, seed=1)
    gone = duplicates_at_scale.join(tmp_path / "tables")
    assert gone == int(5_000 * duplicates_at_scale.VERSIONS)
