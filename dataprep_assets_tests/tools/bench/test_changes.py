"""The benchmarks of a changing corpus run with seeded changes, and their judge finds mistakes."""

from pathlib import Path

import pytest

from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets_tests.fakes.hub_server import HubServer
from dataprep_assets_tests.tools.bench import retract
from dataprep_assets_tests.tools.bench.changes.__main__ import main
from dataprep_assets_tests.tools.bench.changes.keys import LEFT_ALONE, keys, leaves
from dataprep_assets_tests.tools.bench.changes.project import Project

pytestmark = pytest.mark.slow


def test_changes_are_followed_by_successful_runs_with_the_necessary_builds(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--rounds", "2", "--seed", "7"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    (of_all,) = [line.split() for line in printed.out.splitlines() if line.startswith("all ")]
    assert (of_all[1], of_all[-1]) == ("2", "0")


def test_every_key_of_a_declaration_is_changed_or_excluded_with_a_reason(tmp_path: Path) -> None:
    project = Project.made(tmp_path)
    with HubServer({"README.md": b""}, repo_id="org/imports") as hub:
        corpora = [project.corpus("harvest", tmp_path / "h", 1), project.corpus("imports", tmp_path / "i", 1, hub)]
        turned = {name for corpus in corpora for name in keys(corpus)}
    assert turned | LEFT_ALONE.keys() == set(leaves(CorpusDeclaration))


def test_retracting_a_few_thousand_documents_leaves_no_trace(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retract, "TARGET_SECONDS", 600.0)  # the measured time does not matter here
    assert retract.main(["--documents", "1600", "--retracted", "100"]) == 0
    printed = capsys.readouterr().out
    assert "only the 8 shards that held them rebuilt: True" in printed
    assert "traces: 0 in" in printed
