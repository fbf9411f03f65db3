"""A reference with other Unicode tables: `status` tells the change, and an append does not mix them."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import zstandard

from dataprep_assets.integrity.verify import receipts_below
from dataprep_assets_tests.cli.commands import environment
from dataprep_assets_tests.project import cloned_project
from dataprep_assets_tests.tokenization import candidate


def dataprep(project: Path, *arguments: str, with_candidate: bool) -> str:
    variables = environment(project) | {"XDG_CACHE_HOME": str(project / "cache")}
    variables["PYTHONPATH"] = candidate.environment()["PYTHONPATH"] if with_candidate else str(project)
    command = [sys.executable, "-m", "dataprep_assets.cli", *arguments]
    done = subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True)
    assert done.returncode == (1 if arguments[0] == "status" else 0), done.stderr  # something is stale
    return done.stdout


def tables(project: Path) -> dict[str, int]:
    """Normalization → how many receipts of token bins name it."""
    receipts = [one for _, one in receipts_below(project / "artifacts") if one.artifact == "token_bins"]
    return Counter(one.recipe["settings"]["reference"]["normalization"] for one in receipts)


@pytest.mark.slow
@candidate.needed
def test_an_upgraded_reference_is_told_with_the_texts_that_it_touches_and_no_stream_mixes_two(tmp_path: Path) -> None:
    project = cloned_project(tmp_path / "project")
    dataprep(project, "run", "sample_corpus", with_candidate=False)
    assert tables(project) == {"Unicode 13.0": 5}
    dataprep(project, "lock", "sample_corpus", "--output", "before.lock", with_candidate=False)
    source = project / "dataprep_assets/defs/samples/sample_corpus/data/train/chunk1"
    line = '{"text": "One more document, with a mark of Unicode 16: a\u0897\u0316."}\n'
    (source / "example_train_99.jsonl.zst").write_bytes(zstandard.compress(line.encode()))
    said = dataprep(project, "status", "sample_corpus", with_candidate=True)
    assert "reference.normalization was Unicode 13.0, is Unicode 17.0 now" in said
    assert "combining marks and composed letters that Unicode 17.0 has and 13.0 has not" in said
    assert "train-00000...train-00002" in next(
        line for line in said.splitlines() if line.startswith("token_bins_train")
    )
    dataprep(project, "run", "sample_corpus", with_candidate=True)
    assert tables(project) == {"Unicode 17.0": 6}
    dataprep(project, "lock", "sample_corpus", "--output", "after.lock", with_candidate=True)
    said = subprocess.run(
        [sys.executable, "-m", "dataprep_assets.cli", "diff", "before.lock", "after.lock"],
        cwd=project,
        env=environment(project) | {"PYTHONPATH": str(project)},
        capture_output=True,
        text=True,
    ).stdout
    assert "reference.normalization: Unicode 13.0 → Unicode 17.0" in said
    assert "other ids for texts with combining marks" in said
