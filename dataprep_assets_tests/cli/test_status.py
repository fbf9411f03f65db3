"""`dataprep status` after a run that a check blocked, and `dataprep run` after a check that only warned."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
import zstandard

from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.retract import retract_documents
from dataprep_assets_tests.cli.commands import dataprep, environment
from dataprep_assets_tests.docs.json_keys import STATUS, list_paths
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.corpus.pipeline import run_pipeline
from dataprep_assets_tests.project import cloned_project
from dataprep_assets_tests.samples import SAMPLE

pytestmark = pytest.mark.slow


def declare(project: Path, name: str, texts: list[str]) -> None:
    """Declare a corpus of these texts in a project, with one split, one shard and no view."""
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
    # This text fails the blocking check `random_batches_load`, because a model can learn nothing from a single repeated
    # token.
    declare(clone, "words", [" the" * 60_000])
    # This valid text causes a warning of the check `looks_like_text`, because it looks like token ids of a different
    # width.
    declare(clone, "numbers", [",".join(["0"] * 2000)] * 40)
    return clone


def read_status(project: Path, folder: Path, name: str) -> dict[str, Any]:
    done = dataprep(folder, "status", name, "--json", project=project)
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if found["up_to_date"] else 1)
    assert found.keys() == {path for path in STATUS if "." not in path}
    assert STATUS.keys() >= set(list_paths(found, {}))
    return found


def test_a_blocked_run_is_out_of_date_and_names_the_check(project: Path, tmp_path: Path) -> None:
    blocked = dataprep(tmp_path, "run", "words", project=project)
    assert blocked.returncode == 1
    assert "check random_batches_load" in blocked.stderr
    rows = read_status(project, tmp_path, "words")["rebuild"]
    assert [(row["artifact"], row["kind"]) for row in rows] == [
        ("combined_bins_train", "check failed"),
        ("data_card", "missing"),
    ]
    shown = dataprep(tmp_path, "status", "words", project=project)
    cause, row = shown.stdout.splitlines()[3:5]
    assert cause.startswith("its blocking check random_batches_load failed: ")
    assert row.startswith("  combined_bins_train")
    assert "everything is up to date" not in shown.stdout
    summary = dataprep(tmp_path, "show", "words", project=project).stdout
    assert "\n  failed, blocking: words/combined_bins_train: random_batches_load: " in summary
    assert "\n  not run yet: words/data_card: card_matches_receipts\n" in summary
    assert "Run `dataprep status words`" in summary.splitlines()[-2], "the others may be of an earlier run"


def test_valid_text_that_looks_damaged_is_a_warning_that_can_be_accepted(project: Path, tmp_path: Path) -> None:
    done = dataprep(tmp_path, "run", "numbers", project=project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning, not passed: numbers/token_bins_train: looks_like_text" in done.stdout
    assert "accept: {looks_like_text: <why>}" in done.stdout
    again = dataprep(tmp_path, "run", "numbers", project=project)
    assert_names(again.stdout, "up to date")
    path = project / "dataprep_assets" / "defs" / "numbers" / "defs.yaml"
    declared = yaml.safe_load(path.read_text())
    declared["attributes"]["accept"] = {"looks_like_text": "numbers only"}
    path.write_text(yaml.safe_dump(declared))
    assert read_status(project, tmp_path, "numbers")["up_to_date"], "no byte depends on it"
    accepted = dataprep(tmp_path, "run", "numbers", project=project)
    assert accepted.returncode == 0, accepted.stdout + accepted.stderr
    assert "not passed" not in accepted.stdout
    assert_names(dataprep(tmp_path, "run", "numbers", project=project).stdout, "up to date")
    for name, why in (
        ("random_batches_load", "is a blocking check, whose failure cannot be accepted"),
        ("nonesuch", "unknown check of this dataset"),
    ):
        declared["attributes"]["accept"] = {name: "because"}
        path.write_text(yaml.safe_dump(declared))
        refused = dataprep(tmp_path, "status", "numbers", project=project)
        assert refused.returncode == 2
        assert f"accept.{name}: {why}" in refused.stderr


def test_a_pending_check_is_reported_until_a_run_executes_it(project: Path, tmp_path: Path) -> None:
    declare(project, "plain", [f"text number {number}, which is like no other" for number in range(200)])
    assert dataprep(tmp_path, "run", "plain", project=project).returncode == 0
    assert read_status(project, tmp_path, "plain")["checks_due"] == []
    (verdict,) = Path(environment(tmp_path)["DATAPREP_ROOT"]).rglob("combined_bins_train.json")
    verdict.unlink()
    found = read_status(project, tmp_path, "plain")
    assert found["rebuild"] == []
    (due,) = found["checks_due"]
    assert due["name"] == "plain/combined_bins/train"
    shown = dataprep(tmp_path, "status", "plain", project=project)
    assert shown.returncode == 1
    assert shown.stdout.splitlines()[0] == "plain: nothing to build, 1 artifact to check"
    assert f"combined_bins_train: {due['reason']}" in shown.stdout.splitlines()
    assert "expected:" not in shown.stdout
    assert dataprep(tmp_path, "run", "plain", project=project).returncode == 0
    assert read_status(project, tmp_path, "plain")["up_to_date"]


def test_without_an_instance_only_receipts_are_read_and_a_dry_run_writes_nothing(project: Path, tmp_path: Path) -> None:
    found = read_status(project, tmp_path, "words")
    assert [row["artifact"] for row in found["rebuild"]] == [
        *("manifest", "engine_certificate", "snapshot_train", "token_bins_train", "combined_bins_train", "data_card"),
    ]
    assert {row["kind"] for row in found["rebuild"]} == {"missing"}
    tried = dataprep(tmp_path, "run", "words", "--dry-run", project=project)
    assert tried.returncode == 1
    assert tried.stdout.startswith("words: 6 ")
    assert list(tmp_path.iterdir()) == [], "no artifact, no instance"
    both = dataprep(tmp_path, "run", "words", "words", "--dry-run", "--json", project=project)
    assert [json.loads(line)["dataset"] for line in both.stdout.splitlines()] == ["words", "words"]


def test_two_datasets_of_one_file_show_which_still_contains_a_retracted_document(project: Path, tmp_path: Path) -> None:
    root, ids = Path(environment(tmp_path)["DATAPREP_ROOT"]), tmp_path / "ids"
    ids.write_text("a.jsonl.zst:3\n")

    def build(name: str, *, without: bool = False) -> None:
        folder = project / "dataprep_assets" / "defs" / name
        attributes = yaml.safe_load((folder / "defs.yaml").read_text())["attributes"]
        source = {"kind": "local", "path": folder / "data"}
        attributes |= {"source": source, "retractions": folder / "retracted.jsonl"}
        corpus = CorpusDeclaration.model_validate(attributes)
        if without:
            retract_documents(corpus, LocalArtifacts(root), ids)
        assert not run_pipeline(corpus, root).failed

    for name in ("first", "second"):
        declare(project, name, [f"text number {number}" for number in range(6)])
        build(name)
    build("first", without=True)
    second = {"dataset": "second", "artifact": "token_bins", "partitions": 1, "noun": "shard", "retracted_by": "first"}
    assert read_status(project, tmp_path, "first")["still_held"] == [second]
    said = dataprep(tmp_path, "status", "second", project=project).stdout
    assert_names(said, "second/token_bins", "1 shard", "first")
    build("second", without=True)
    assert read_status(project, tmp_path, "first")["still_held"] == []
