"""A dataset in a fresh project that is built in parts: the first part builds the shared artifacts, once.

Each command is typed in a `dataprep init` project. The last command builds the whole dataset and reuses the parts.
"""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import yaml

from dataprep_assets.project_template import write_project
from dataprep_assets_tests.cli.commands import dataprep
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, written
from dataprep_assets_tests.samples import shrink

pytestmark = pytest.mark.slow
MONTHS = ["2009-10", "2009-11", "2009-12", "2010-01", "2010-02", "2010-03"]
Line = Sequence[str]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a `dataprep init` project with a dataset of notes in addition to its sample."""
    root = tmp_path / "ward"
    write_project(root)
    folder = root / "ward" / "defs" / "years"
    shrink(folder.with_name("sample_corpus") / "defs.yaml")
    written(
        folder / "cohorts",
        {m: [patient(f"{m} {i}", *[note(f"tea and cake of {m}, {i}")] * 4) for i in range(6)] for m in MONTHS},
    )
    declared = {
        "dataset": "years",
        "sensitive": False,
        "source": {"kind": "local", "path": "./cohorts"},
        "cohorts": {},
        "months": {"first": MONTHS[0], "last": MONTHS[-1]},
        "template": {},
        "tokenizer": {"path": "../sample_corpus/tokenizer", "name": "sample"},
        "document": {"separator": "<|endoftext|>"},
        "pad": {"token": "<|pad|>"},
        "patient_key": {"public": "a key for fictional data, known to everyone"},
        "splits": {"train": 0.8, "val": 0.2},
        "row_length": 64,
        "rows_per_shard": 8,
    }
    text = yaml.safe_dump({"type": "dataprep_assets.components.PackedCohorts", "attributes": declared})
    (folder / "defs.yaml").write_text(text)
    return root


def test_a_part_that_needs_an_artifact_of_all_partitions_is_refused_until_it_exists(tmp_path: Path) -> None:
    part = ("run", "sample_duplicates", "--split", "val")
    refused = dataprep(tmp_path, *part)
    assert refused.returncode == 2
    assert_names(refused.stderr, "--split", "sample_duplicates/duplicates")
    assert not (tmp_path / "artifacts" / "sample_duplicates").exists()
    assert dataprep(tmp_path, "run", "sample_duplicates").returncode == 0
    done = dataprep(tmp_path, *part)
    assert done.returncode == 0, done.stderr


def run_on_machine(number: int, project: Path, line: Line) -> "CompletedProcess[str]":
    """Run a command on one of several machines, which has its own instance and shares all artifacts."""
    return dataprep(
        project.parent / f"machine-{number}",
        *line,
        project=project,
        DATAPREP_ROOT=str(project.parent / "artifacts"),
    )


def run_concurrently(project: Path, lines: Sequence[Line]) -> None:
    """Run each command on its own machine, all at the same time."""
    with ThreadPoolExecutor(len(lines)) as machines:
        done = list(machines.map(lambda at: run_on_machine(at, project, lines[at]), range(len(lines))))
    assert [one.returncode for one in done] == [0] * len(lines), "\n".join(one.stdout + one.stderr for one in done)


def read_receipts(project: Path, dataset: str) -> dict[str, str]:
    """Return each existing artifact with its digests and build time from its receipt."""
    root = project.parent / "artifacts" / dataset
    found = {}
    for path in sorted(root.rglob("receipt.json")):
        if not any(part.startswith(".") for part in path.relative_to(root).parts):
            found[str(path.parent.relative_to(root))] = json.dumps(json.loads(path.read_bytes()), sort_keys=True)
    return found


def run_whole(project: Path, dataset: str) -> None:
    """Build the whole dataset on the first machine; artifacts that the parts built must stay unchanged."""
    before = read_receipts(project, dataset)
    done = run_on_machine(0, project, ["run", dataset])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checks: " in done.stdout
    after = read_receipts(project, dataset)
    assert before
    assert {name: after[name] for name in before} == before


def list_partitions(project: Path, dataset: str, artifact: str) -> list[str]:
    """Return the built partitions of an artifact."""
    return [name.partition("/")[2] for name in read_receipts(project, dataset) if name.startswith(f"{artifact}/")]


def test_two_machines_build_the_parts_of_a_corpus_at_the_same_time(project: Path) -> None:
    run_concurrently(project, [["run", "sample_corpus", "--process-count", "2", "--process-index", i] for i in "01"])
    made = list_partitions(project, "sample_corpus", "token_bins")
    assert len(made) > 2
    run_whole(project, "sample_corpus")
    assert list_partitions(project, "sample_corpus", "token_bins") == made


def test_a_range_of_shards_and_a_split_of_a_fresh_corpus_can_be_built(project: Path) -> None:
    done = run_on_machine(0, project, ["run", "sample_corpus", "--shards", "train-00000"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert list_partitions(project, "sample_corpus", "token_bins") == ["train-00000"]
    done = run_on_machine(1, project, ["run", "sample_corpus", "--split", "val"])
    assert done.returncode == 0, done.stdout + done.stderr
    made = list_partitions(project, "sample_corpus", "token_bins")
    assert made[0] == "train-00000"
    assert made[1:]
    assert all(name.startswith("val-") for name in made[1:])
    run_whole(project, "sample_corpus")


def test_a_mistake_in_the_last_dataset_is_reported_before_the_first_is_built(project: Path) -> None:
    declared = project / "ward" / "defs" / "years" / "defs.yaml"
    declared.write_text(declared.read_text().replace("<|pad|>", "<|nothing|>"))
    done = run_on_machine(0, project, ["run", "sample_corpus", "years"])
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "years/defs.yaml" in line
    assert "<|nothing|>" in line
    assert read_receipts(project, "sample_corpus") == {}


def test_overlapping_ranges_build_each_month_once(project: Path) -> None:
    run_concurrently(
        project, [["run", "years", "--months", half] for half in ("2009-10...2009-12", "2009-11...2010-03")]
    )
    assert list_partitions(project, "years", "tfrecord_shards") == MONTHS
    assert "tfds_directory" not in read_receipts(project, "years")
    rows = {
        name: receipt for name, receipt in read_receipts(project, "years").items() if name.startswith("packed_cohorts/")
    }
    assert [json.loads(receipt)["ledger"]["documents"] for receipt in rows.values()] == [24] * len(MONTHS)
    run_whole(project, "years")
    assert "tfds_directory" in read_receipts(project, "years")


def test_missing_months_are_named_with_the_option_that_selected_them(project: Path) -> None:
    for asked in ("2009-10...2011-01", "2009-10...2009-12,2009-11"):
        done = run_on_machine(0, project, ["run", "years", "--months", asked])
        assert done.returncode == 2
        assert_names(done.stderr, f"--months {asked}", "Available: 2009-10...2010-03")
    assert list_partitions(project, "years", "packed_cohorts") == []
