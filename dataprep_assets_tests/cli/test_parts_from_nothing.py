"""A dataset of a fresh project that is made in parts: whoever comes first makes what all parts need, once.

Each command is typed in a project of `dataprep init`, and the last one, which makes the whole, finds the parts made.
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
    """A project of `dataprep init` with a dataset of notes beside its sample."""
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


def test_a_part_that_needs_what_is_made_of_all_partitions_is_refused_until_that_is_there(tmp_path: Path) -> None:
    part = ("run", "sample_duplicates", "--split", "val")
    refused = dataprep(tmp_path, *part)
    assert refused.returncode == 2
    assert_names(refused.stderr, "--split", "sample_duplicates/duplicates")
    assert not (tmp_path / "artifacts" / "sample_duplicates").exists()
    assert dataprep(tmp_path, "run", "sample_duplicates").returncode == 0
    done = dataprep(tmp_path, *part)
    assert done.returncode == 0, done.stderr


def on_machine(number: int, project: Path, line: Line) -> "CompletedProcess[str]":
    """A command on one of several machines: it has an instance of its own, and the artifacts of all."""
    return dataprep(
        project.parent / f"machine-{number}",
        *line,
        project=project,
        DATAPREP_ROOT=str(project.parent / "artifacts"),
    )


def at_once(project: Path, lines: Sequence[Line]) -> None:
    """Each command on a machine of its own, all at the same time."""
    with ThreadPoolExecutor(len(lines)) as machines:
        done = list(machines.map(lambda at: on_machine(at, project, lines[at]), range(len(lines))))
    assert [one.returncode for one in done] == [0] * len(lines), "\n".join(one.stdout + one.stderr for one in done)


def receipts(project: Path, dataset: str) -> dict[str, str]:
    """Each artifact there is, with what its receipt says of its bytes and of when they were made."""
    root = project.parent / "artifacts" / dataset
    found = {}
    for path in sorted(root.rglob("receipt.json")):
        if not any(part.startswith(".") for part in path.relative_to(root).parts):
            found[str(path.parent.relative_to(root))] = json.dumps(json.loads(path.read_bytes()), sort_keys=True)
    return found


def whole(project: Path, dataset: str) -> None:
    """The whole of a dataset on the first machine; what the parts made is kept as it is."""
    before = receipts(project, dataset)
    done = on_machine(0, project, ["run", dataset])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checks: " in done.stdout
    after = receipts(project, dataset)
    assert before
    assert {name: after[name] for name in before} == before


def partitions_of(project: Path, dataset: str, artifact: str) -> list[str]:
    """The partitions that are made of an artifact."""
    return [name.partition("/")[2] for name in receipts(project, dataset) if name.startswith(f"{artifact}/")]


def test_two_machines_make_the_parts_of_a_corpus_at_the_same_time(project: Path) -> None:
    at_once(project, [["run", "sample_corpus", "--process-count", "2", "--process-index", i] for i in "01"])
    made = partitions_of(project, "sample_corpus", "token_bins")
    assert len(made) > 2
    whole(project, "sample_corpus")
    assert partitions_of(project, "sample_corpus", "token_bins") == made


def test_a_range_of_shards_and_a_split_of_a_fresh_corpus(project: Path) -> None:
    done = on_machine(0, project, ["run", "sample_corpus", "--shards", "train-00000"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert partitions_of(project, "sample_corpus", "token_bins") == ["train-00000"]
    done = on_machine(1, project, ["run", "sample_corpus", "--split", "val"])
    assert done.returncode == 0, done.stdout + done.stderr
    made = partitions_of(project, "sample_corpus", "token_bins")
    assert made[0] == "train-00000"
    assert made[1:]
    assert all(name.startswith("val-") for name in made[1:])
    whole(project, "sample_corpus")


def test_what_is_wrong_with_the_last_dataset_is_said_before_the_first_is_built(project: Path) -> None:
    declared = project / "ward" / "defs" / "years" / "defs.yaml"
    declared.write_text(declared.read_text().replace("<|pad|>", "<|nothing|>"))
    done = on_machine(0, project, ["run", "sample_corpus", "years"])
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "years/defs.yaml" in line
    assert "<|nothing|>" in line
    assert receipts(project, "sample_corpus") == {}


def test_ranges_that_overlap_make_each_month_once(project: Path) -> None:
    at_once(project, [["run", "years", "--months", half] for half in ("2009-10...2009-12", "2009-11...2010-03")])
    assert partitions_of(project, "years", "tfrecord_shards") == MONTHS
    assert "tfds_directory" not in receipts(project, "years")
    rows = {name: receipt for name, receipt in receipts(project, "years").items() if name.startswith("packed_cohorts/")}
    assert [json.loads(receipt)["ledger"]["documents"] for receipt in rows.values()] == [24] * len(MONTHS)
    whole(project, "years")
    assert "tfds_directory" in receipts(project, "years")


def test_months_that_are_not_there_or_in_no_range_are_named_by_the_option_that_asked(project: Path) -> None:
    for asked in ("2009-10...2011-01", "2009-10...2009-12,2009-11"):
        done = on_machine(0, project, ["run", "years", "--months", asked])
        assert done.returncode == 2
        assert f"--months {asked}: must be FIRST...LAST. Available: 2009-10...2010-03" in done.stderr
    assert partitions_of(project, "years", "packed_cohorts") == []
