"""`dataprep status` after a run that a check has blocked, and `dataprep run` after one that a check only warned of."""

import shutil
from pathlib import Path

import pytest
import yaml
import zstandard

from dataprep_assets_tests.cli.commands import dataprep
from dataprep_assets_tests.project import SAMPLE, cloned_project

pytestmark = pytest.mark.slow


def declare(project: Path, name: str, texts: list[str]) -> None:
    """Declare a corpus of these texts in a project, one split, one shard, no view."""
    folder = project / "dataprep_assets" / "defs" / name
    (folder / "data").mkdir(parents=True)
    lines = "".join(f'{{"text": "{text}"}}\n' for text in texts)
    (folder / "data" / "a.jsonl.zst").write_bytes(zstandard.compress(lines.encode()))
    attributes = {
        "dataset": name,
        "source": {"kind": "local", "path": "./data"},
        "splits": {"train": ["**"]},
        "tokenizer": {"path": str(SAMPLE / "tokenizer")},
        "document": {"separator": "<|endoftext|>"},
        "views": [],
        "workers": 1,
    }
    text = yaml.safe_dump({"type": "dataprep_assets.components.TokenizedCorpus", "attributes": attributes})
    (folder / "defs.yaml").write_text(text)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    clone = cloned_project(tmp_path_factory.mktemp("project") / "clone")
    for other in (clone / "dataprep_assets" / "defs").iterdir():
        if other.is_dir():
            shutil.rmtree(other)
    # one id again and again: the eye test takes it for a hole in the file
    declare(clone, "zeros", ["0 " * 60_000])
    return clone


def test_a_blocked_run_is_not_up_to_date_and_names_the_check(project: Path, tmp_path: Path) -> None:
    blocked = dataprep(tmp_path, "run", "zeros", project=project)
    assert blocked.returncode == 1
    assert "check eye_test" in blocked.stdout
    told = dataprep(tmp_path, "status", "zeros", project=project)
    assert told.returncode == 1
    assert "stale: zeros/train/token_bins: its blocking check eye_test failed" in told.stdout.splitlines()
    assert "stale: zeros/combined_bins/train: absent" in told.stdout.splitlines()
    assert "all is up to date" not in told.stdout


def test_without_an_instance_the_receipts_alone_are_told(project: Path, tmp_path: Path) -> None:
    told = dataprep(tmp_path, "status", "zeros", project=project)
    assert told.returncode == 1
    assert told.stdout.splitlines()[0] == "stale: zeros/manifest: absent"
    assert not (tmp_path / "home").exists(), "status makes no instance"
