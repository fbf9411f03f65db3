"""A dataset has one name, `dataset:`, in every command and in the code location, wherever its `defs.yaml` is."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets_tests import forked
from dataprep_assets_tests.cli.commands import dataprep
from dataprep_assets_tests.cli.nested_project import nested_project, write_corpus
from dataprep_assets_tests.messages import assert_names

pytestmark = pytest.mark.slow
LOCATION = """
import json, sys
from pathlib import Path
from dataprep_assets.code_location import definitions_of
found = definitions_of(Path(sys.argv[1]))
print(json.dumps({
    "assets": sorted(spec.key.to_user_string() for spec in found.resolve_all_asset_specs()),
    "jobs": sorted(job.name for job in found.resolve_all_job_defs()),
}))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the project, in which `d00` has run."""
    found = nested_project(tmp_path_factory.mktemp("nested"))
    done = dataprep(found, "run", "d00", project=found)
    assert done.returncode == 0, done.stderr + done.stdout
    return found


def test_every_command_accepts_the_declared_name(project: Path) -> None:
    ids = project / "ids"
    ids.write_text("train.jsonl:3\n")
    lock = project / "d00.lock"
    for arguments, said in (
        (["run", "d00"], "everything is up to date"),
        (["status", "d00"], "everything is up to date"),
        (["status", "--json", "d00"], '"dataset": "d00"'),
        (["run", "--dry-run", "d00"], "everything is up to date"),
        (["show", "d00"], "TokenizedCorpus, declared in "),
        (["plan", "d00"], "d00"),
        (["trace", "d00", "--split", "train", "--token", "0"], "train.jsonl:1"),
        (["lock", "d00", "--output", str(lock)], "artifacts"),
        (["run", "d00", "--lock", str(lock)], "artifacts match the lock"),
        (["diff", str(lock), str(project / "artifacts"), "--dataset", "d00"], "no differences"),
        (["prune", "d00"], "nothing to remove"),
        (["check", "d00", "d01"], "no errors found"),
        (["retract", "d00", "--ids", str(ids)], "Added 1 entry to "),
    ):
        done = dataprep(project, *arguments, project=project)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        assert said in done.stdout, arguments
    assert dataprep(project, "status", "d01", project=project).returncode == 1  # this dataset was never built
    (project / "my_texts" / "defs" / "team" / "first" / "retracted.jsonl").unlink()
    assert dataprep(project, "lock", "d00", project=project).returncode == 0
    assert (project / "my_texts" / "defs" / "team" / "first" / "dataset.lock").is_file()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("first", "'first' is a folder, not a dataset. Use the name of its dataset, 'd00'"),
        ("team/eu/second/", "not a dataset. Use the name of its dataset, 'd01'"),
        ("d000", "unknown dataset 'd000'; did you mean 'd00'?"),
        ("xyz", "unknown dataset 'xyz'; available: d00, d01, d02, d03, theirs/table"),
    ],
)
def test_a_wrong_name_is_reported_with_the_right_one(project: Path, given: str, told: str) -> None:
    done = dataprep(project, "run", given, project=project)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


def test_nothing_is_built_if_a_name_is_wrong_or_its_declaration_is_broken(project: Path) -> None:
    for other in ("d02", "nowhere"):
        done = dataprep(project, "run", "d01", other, project=project)
        assert (done.returncode, done.stdout) == (2, "")
    assert not (project / "artifacts" / "d01").exists()


def test_list_names_each_dataset_with_its_state(project: Path) -> None:
    done = dataprep(project, "list", "--json", project=project)
    rows = {row["dataset"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert {name: row["state"] for name, row in rows.items()} == {
        "d00": "up to date",
        "d01": "never run",
        "d02": "cannot be loaded",
        "d03": "cannot be loaded",
        "theirs/table": "unknown",
    }
    assert_names(rows["d02"]["why"], "spilts", "`splits`")


def test_the_code_location_loads_valid_datasets_and_reports_the_others(project: Path) -> None:
    # Add a second broken file with the dataset name `d02`, and a broken file with the name of a valid dataset.
    write_corpus(project / "my_texts" / "defs" / "late" / "third", "d02").write_text("type: [\n  dataset: d02\n")
    write_corpus(project / "my_texts" / "defs" / "late" / "fourth", "d00").write_text("type: [\n  dataset: d00\n")
    # Add a mistake that is visible only after templates are resolved, and two datasets that depend on each other.
    for name, changed in (
        ("d05", ("./texts", '"{{ env.SURELY_NOT_SET }}"')),
        ("d06", ("  views", "  duplicates: {against: [d07]}\n  views")),
        ("d07", ("  views", "  duplicates: {against: [d06]}\n  views")),
    ):
        path = write_corpus(project / "my_texts" / "defs" / "late" / name, name)
        path.write_text(path.read_text().replace(*changed))
    environment = {**os.environ, "DAGSTER_HOME": str(project / "home"), "DATAPREP_ROOT": str(project / "artifacts")}
    done = forked.run(["-c", LOCATION, project], env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"d00/manifest", "d01/manifest", "d00_rows/table", "somebody_elses"} <= set(found["assets"])
    broken = {key.partition("/")[0] for key in found["assets"] if key.endswith("/cannot_be_loaded")}
    assert broken == {"team_eu_third", "late_third", "d03", "late_fourth", "d05", "d06", "d07"}
    assert {"build_d00", "build_d01"} <= set(found["jobs"])
    # The command finds the valid dataset `d00`, although a broken file has the same dataset name.
    done = dataprep(project, "status", "d00", project=project)
    assert done.returncode == 0, done.stderr


def parse_json_lines(project: Path, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    """Return the JSON objects that a command prints; it must print nothing else."""
    done = dataprep(project, *arguments, "--json", project=project)
    assert done.returncode == code, (arguments, done.stdout, done.stderr)
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_command_output_is_available_as_json(project: Path, tmp_path: Path) -> None:
    mistakes = parse_json_lines(project, "check", code=2)
    (spilts,) = [one for one in mistakes if one["sentence"].startswith("spilts: unknown key")]
    assert (Path(spilts["file"]).parent.name, spilts["line"], spilts["hint"]) == ("third", 6, False)
    (shown,) = parse_json_lines(project, "show", "d00")
    assert (shown["dataset"], shown["component"]) == ("d00", "TokenizedCorpus")
    made = {one["artifact"]: one for one in shown["artifacts"]}
    assert made["nanogpt_bins"]["product"]
    assert Path(made["nanogpt_bins"]["location"]).is_dir()
    assert (made["token_bins_train"]["there"], made["token_bins_train"]["planned"]) == (1, 1)
    assert any("nanoGPT: data_dir" in line for line in shown["summary"])
    (planned,) = parse_json_lines(project, "plan", "d00", "--cores", "4")
    assert planned["machine"]["cores"] == 4
    assert planned["tokens"] > 0
    assert set(planned["seconds_on"]) == {"processes", "ray"}
    (unmade,) = parse_json_lines(project, "show", "d01")
    assert unmade["summary"] is None
    assert parse_json_lines(project, "prune", "d00") == []
    verdicts = parse_json_lines(project, "verify")
    assert {verdict["artifact"].partition("/")[0] for verdict in verdicts} == {"d00"}
    assert [verdict["defects"] for verdict in verdicts] == [[]] * len(verdicts)
    copy = tmp_path / "copy"
    (copied,) = parse_json_lines(project, "sync", str(project / "artifacts"), str(copy))
    assert copied["copied"]
    assert sum(one["bytes"] for one in copied["objects"]) == copied["bytes"] > 0
    victim = copy / "d00" / "nanogpt_bins" / "meta.json"
    victim.write_bytes(victim.read_bytes()[:-1] + b"x")
    (bad,) = [one for one in parse_json_lines(project, "verify", str(copy), code=1) if one["defects"]]
    assert bad["artifact"] == "d00/nanogpt_bins"
    quiet = dataprep(project, "verify", str(copy), "--quiet", project=project)
    assert (quiet.returncode, quiet.stdout) == (1, "")
    assert quiet.stderr.startswith("DAMAGED d00/nanogpt_bins: ")


def test_quiet_prints_only_problems(project: Path) -> None:
    for arguments, code in ((["run", "d00"], 0), (["status", "d01"], 1), (["check", "d00"], 0), (["list"], 0)):
        done = dataprep(project, *arguments, "--quiet", project=project)
        assert (done.returncode, done.stdout, done.stderr) == (code, "", ""), arguments
    wrong = dataprep(project, "--quiet", "check", project=project)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "spilts: unknown key" in wrong.stderr


EXECUTORS = """
import sys
from pathlib import Path
import dagster as dg
from dataprep_assets.code_location import definitions_of
root = Path(sys.argv[1])
mine = dg.Definitions(executor=dg.multi_or_in_process_executor)
assert definitions_of(root).executor is dg.in_process_executor
merged = dg.Definitions.merge(mine, definitions_of(root, executor=None))
assert merged.executor is dg.multi_or_in_process_executor
assert merged.resolve_job_def("build_d00").executor_def is dg.in_process_executor
Path(sys.argv[1], "my_texts", "defs", "own_executor.py").write_text(
    "import dagster as dg\\n@dg.asset\\ndef alone(): ...\\n"
    "defs = dg.Definitions(assets=[alone], executor=dg.multi_or_in_process_executor)\\n"
)
"""
ITS_OWN = """
import sys
from pathlib import Path
import dagster as dg
from dataprep_assets.code_location import definitions_of
found = definitions_of(Path(sys.argv[1]))
assert found.executor is dg.multi_or_in_process_executor
assert dg.AssetKey("alone") in found.resolve_asset_graph().get_all_asset_keys()
"""


def test_the_executor_of_a_users_own_definitions_is_unchanged(project: Path) -> None:
    variables = {**os.environ, "PYTHONPATH": str(project), "DAGSTER_HOME": str(project / "home")}
    try:
        for code in (EXECUTORS, ITS_OWN):
            done = forked.run(["-c", code, project], env=variables, cwd=project)
            assert done.returncode == 0, done.stderr
    finally:
        (project / "my_texts" / "defs" / "own_executor.py").unlink(missing_ok=True)
