"""`dataprep check` reports publications that the Hub or a repository's owner would refuse."""

from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from huggingface_hub import constants

from dataprep_assets.library.mistakes import Mistake
from dataprep_assets.library.project import OpenProject, open_project
from dataprep_assets.project_template import write_project
from dataprep_assets_tests.cli.commands import dataprep
from dataprep_assets_tests.cli.nested_project import write_corpus
from dataprep_assets_tests.messages import assert_names


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> OpenProject:
    """Return a project whose datasets `plums` and `pears` have the same repository; `figs` has another one."""
    root = tmp_path_factory.mktemp("early") / "orchard"
    name = write_project(root)
    for dataset, repository in {"plums": "org/fruit", "pears": "org/fruit", "figs": "org/figs"}.items():
        path = write_corpus(root / name / "defs" / dataset, dataset)
        declared = path.read_text().replace("nanogpt", "hf_parquet")
        path.write_text(f"{declared}  publish:\n    private: true\n    hub: {repository}\n")
    return open_project(root)


def find_mistakes(project: OpenProject, dataset: str) -> list[Mistake]:
    """Return the mistakes at the key `publish` (line 10) and below it."""
    return [one for one in project.dataset(dataset).check() if one.line is not None and one.line >= 10]


@pytest.mark.parametrize(("dataset", "other"), [("plums", "pears"), ("pears", "plums")])
def test_two_datasets_with_the_same_repository_are_both_reported(
    project: OpenProject, dataset: str, other: str
) -> None:
    (mistake,) = find_mistakes(project, dataset)
    assert (mistake.line, mistake.hint) == (12, False)
    assert_names(mistake.sentence, "publish.hub", "org/fruit", other)


def test_another_repository_is_no_mistake(project: OpenProject) -> None:
    assert find_mistakes(project, "figs") == []


@pytest.mark.parametrize("variable", ["HF_TOKEN", "HF_HUB_OFFLINE"])
def test_a_hub_without_token_or_offline_gets_a_hint(
    project: OpenProject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    changes: dict[str, Any] = {"HF_TOKEN": (constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))}
    monkeypatch.setattr(*changes.get(variable, (constants, "HF_HUB_OFFLINE", True)))
    if variable == "HF_TOKEN":
        monkeypatch.delenv("HF_TOKEN")
    (hint,) = find_mistakes(project, "figs")
    assert (hint.line, hint.hint) == (10, True)
    assert_names(hint.sentence, "publish", variable)


def test_a_project_without_an_id_gets_a_mistake(project: OpenProject, tmp_path: Path) -> None:
    clone = copytree(project.root, tmp_path / "copy")
    path = clone / "pyproject.toml"
    path.write_text(path.read_text().replace("[tool.dataprep]", "[tool.other]"))
    ended = dataprep(tmp_path, "check", "figs", project=clone)
    assert ended.returncode == 2
    assert_names(ended.stdout, "defs.yaml:10", "pyproject.toml", "[tool.dataprep]", "publish.project")
