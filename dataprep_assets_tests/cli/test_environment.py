"""A wrong environment or storage is reported in a few lines, without a traceback, before a build."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataprep_assets.cli import main
from dataprep_assets.cli.support import project
from dataprep_assets.project_template import write_project
from dataprep_assets_tests.messages import assert_names

SECRET = "canary-secret-value-0123456789"
KEYS = {"R2_DATASET_WRITE_ACCESS_KEY_ID": "CANARYKEYID0123456789", "R2_DATASET_WRITE_SECRET_ACCESS_KEY": SECRET}
R2 = {"DATAPREP_STORAGE": "r2", "DATAPREP_BUCKET": "b", "DATAPREP_ENDPOINT_URL": "http://127.0.0.1:9", **KEYS}
MAX_LINES = 6
RUN, STATUS = ["run", "sample_corpus"], ["status", "sample_corpus"]
VERIFY = ["verify"]  # this command reads only the storage

# Each case has the command, the variables (HERE is the folder of the files below), the exit code, and the expected
# output.
CASES = [
    (VERIFY, {"DATAPREP_STORAGE": "tape"}, 2, "DATAPREP_STORAGE: unknown kind 'tape'. Available: local, gcs, r2, s3"),
    (VERIFY, {"DATAPREP_STORAGE": "gcs"}, 2, "DATAPREP_STORAGE=gcs needs DATAPREP_BUCKET"),
    (VERIFY, {"DATAPREP_STORAGE": "s3"}, 2, "DATAPREP_STORAGE=s3 needs DATAPREP_BUCKET (or R2_DATASET_BUCKET_NAME)"),
    (VERIFY, {**R2, "DATAPREP_ENDPOINT_URL": ""}, 2, "needs DATAPREP_ENDPOINT_URL (or R2_DATASET_ACCOUNT_ID)"),
    (
        VERIFY,
        {**R2, **dict.fromkeys(KEYS, "")},
        2,
        "DATAPREP_STORAGE=r2 needs credentials. Set R2_DATASET_WRITE_ACCESS_KEY_ID",
    ),
    (
        VERIFY,
        {**R2, "R2_DATASET_WRITE_SECRET_ACCESS_KEY": ""},
        2,
        "R2_DATASET_WRITE_SECRET_ACCESS_KEY is not set, but R2_DATASET_WRITE_ACCESS_KEY_ID is",
    ),
    (
        VERIFY,
        {**R2, "DATAPREP_ENDPOINT_URL": "", "R2_DATASET_ACCOUNT_ID": "https://a.b"},
        2,
        "R2_DATASET_ACCOUNT_ID: must contain only letters and digits. Set the account ID",
    ),
    (VERIFY, {**R2, "DATAPREP_ENDPOINT_URL": "minio:9000"}, 2, "DATAPREP_ENDPOINT_URL: must be http(s)://host[:port]"),
    (VERIFY, {**R2, "DATAPREP_ENDPOINT_URL": "http://exa mple"}, 2, "DATAPREP_ENDPOINT_URL: must be http(s)://host"),
    (VERIFY, {**R2, "DATAPREP_ENDPOINT_URL": f"http://k:{SECRET}@h"}, 2, "DATAPREP_ENDPOINT_URL: must be http(s)://h"),
    (
        VERIFY,
        {**R2, "DATAPREP_BUCKET": "s3://b/x"},
        2,
        "invalid bucket name 's3://b/x': must be a name without s3:// and without a path",
    ),
    (
        VERIFY,
        {"DATAPREP_STORAGE": "s3", "DATAPREP_BUCKET": "b", "AWS_PROFILE": "none"},
        2,
        "unknown profile 'none' (AWS_PROFILE, --profile)",
    ),
    (
        VERIFY,
        {"DATAPREP_STORAGE": "gcs", "DATAPREP_BUCKET": "b", "GOOGLE_APPLICATION_CREDENTIALS": "/nowhere.json"},
        2,
        "gs://b: no usable Google credentials (DefaultCredentialsError). Set GOOGLE_APPLICATION_CREDENTIALS",
    ),
    (VERIFY, {"DATAPREP_CACHE_BYTES": "10GB"}, 2, "DATAPREP_CACHE_BYTES='10GB': must be a number of bytes"),
    (VERIFY, {"DATAPREP_CACHE_BYTES": "0"}, 2, "DATAPREP_CACHE_BYTES='0': must be a number of bytes"),
    (
        VERIFY,
        {"DATAPREP_ROOT": "s3://b/x"},
        2,
        "DATAPREP_ROOT: 's3://b/x' must be a folder or, in object storage, a prefix",
    ),
    (
        VERIFY,
        {**R2, "DATAPREP_ROOT": "s3://b/x"},
        2,
        "DATAPREP_ROOT: 's3://b/x' must be a folder or, in object storage, a prefix",
    ),
    (
        VERIFY,
        {"DATAPREP_ROOT": "~no_such_user/x"},
        2,
        "DATAPREP_ROOT: '~no_such_user/x': the home folder of `~no",
    ),
    (
        VERIFY,
        {"DATAPREP_CACHE": "~no_such_user"},
        2,
        "DATAPREP_CACHE: '~no_such_user': the home folder of `~no_such_user` is unknown",
    ),
    (VERIFY, {}, 2, "no artifacts found to verify"),
    (["verify", "http://x/y"], {}, 2, "'http://x/y' is not a storage URL. Use s3://bucket/prefix, gs://"),
    (["verify", f"s3://k:{SECRET}@b/x"], {}, 2, "a storage URL contains credentials"),
    (["sync", "s3://", "HERE/copy"], {}, 2, "'s3://' is not a storage URL"),
    (["diff", "HERE/nowhere", "HERE/nowhere"], {}, 2, "nowhere: no such lock file or folder"),
    (["init", "HERE/file"], {}, 2, "file: already exists and is not empty. Choose a new folder"),
    (["init", "HERE/json"], {}, 2, "json: json is a module of Python's standard library. "),
    (["init", "/proc/nowhere/my-data"], {}, 1, "/proc/nowhere: No such file or directory"),
    (
        ["lock", "sample_corpus", "--output", "/nowhere/a.lock"],
        {},
        2,
        "--output /nowhere/a.lock: must be a file",
    ),
    (STATUS, {"DATAPREP_ROOT": "HERE/file"}, 1, "file/sample_corpus/manifest/receipt.json: Not a directory"),
    (RUN, {"DATAPREP_WORKERS": "many"}, 2, "DATAPREP_WORKERS='many': must be a whole number of at least 1"),
    (RUN, {"DATAPREP_WORKERS": "0"}, 2, "DATAPREP_WORKERS='0': must be a whole number of at least 1"),
    (RUN, {"DATAPREP_ENGINE": "spark"}, 2, "DATAPREP_ENGINE: unknown engine 'spark'. Available: processes, ray"),
    (
        ["check"],
        {"DATAPREP_SHOW": "all"},
        2,
        "DATAPREP_SHOW: unknown value 'all'",
    ),
    (RUN, {"DAGSTER_HOME": "relative/home"}, 2, "DAGSTER_HOME: 'relative/home': must be an absolute path"),
    (RUN, {"DAGSTER_HOME": "HERE/file"}, 2, "file: cannot create this folder: File exists"),
    (RUN, {"DAGSTER_HOME": "/proc/home"}, 2, "DAGSTER_HOME: /proc/home: cannot create this folder: No such file"),
    (RUN, {"DAGSTER_HOME": "HERE/no_yaml"}, 2, "no_yaml/dagster.yaml:1: invalid YAML: "),
    (RUN, {"DAGSTER_HOME": "HERE/no_key"}, 2, 'Received unexpected config entry "storrage" at the root.'),
    (RUN, {"DAGSTER_HOME": "HERE/damaged"}, 2, "damaged/dagster.yaml: Dagster cannot open its instance: (sqlite3."),
    (RUN, {"DAGSTER_HOME": "HERE/old"}, 2, "old/dagster.yaml: `storage:` and `compute_logs:`"),
    (
        STATUS,
        {"DATAPREP_PROJECT": "/nowhere"},
        2,
        "/nowhere: not a project: no pyproject.toml with [tool.dg.project] found",
    ),
    (
        STATUS,
        {"DATAPREP_PROJECT": "~no_such_user"},
        2,
        "DATAPREP_PROJECT: '~no_such_user': the home folder of `~no_such_user` is unknown",
    ),
    (STATUS, {"DATAPREP_PROJECT": "HERE/no_toml"}, 2, "no_toml/pyproject.toml: invalid TOML: Expected ']'"),
    (STATUS, {"DATAPREP_PROJECT": "HERE/no_package"}, 2, "no_package: pyproject.toml names the folder nowhere/defs"),
    (STATUS, {"DATAPREP_PROJECT": "HERE/no_module"}, 2, "[tool.dg.project] must set `root_module` or `defs_mod"),
]


OLD = """
storage:
  custom:
    module: dataprep_assets.orchestration.sqlite_storage
    class: SqliteStorage
    config: {base_dir: {env: DAGSTER_HOME}}
compute_logs:
  module: dataprep_assets.orchestration.compute_logs
  class: ThreadedComputeLogs
  config: {base_dir: {env: DAGSTER_HOME}}
telemetry: {enabled: false}
"""
"""The file that `dataprep init` wrote before Dagster's own storage was used."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a project and with files and folders that each have one mistake."""
    folder = tmp_path_factory.mktemp("environment")
    write_project(folder / "environment_project")
    (folder / "file").touch()
    for path, text in {
        "no_yaml/dagster.yaml": "storage: {sqlite: [}\n",
        "no_key/dagster.yaml": "storrage: {}\n",
        "old/dagster.yaml": OLD,
        "no_toml/pyproject.toml": "[tool.dg\n",
        "no_package/pyproject.toml": '[tool.dg.project]\nroot_module = "nowhere"\n',
        "no_module/pyproject.toml": "[tool.dg.project]\n",
    }.items():
        (folder / path).parent.mkdir()
        (folder / path).write_text(text)
    (folder / "damaged" / "history").mkdir(parents=True)
    (folder / "damaged" / "history" / "runs.db").write_bytes(bytes(4096))
    return folder


@pytest.fixture
def wrong(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Change to the project's folder, in an environment without variables."""
    for name in list(os.environ):
        if name.startswith(("DATAPREP_", "DAGSTER_HOME", "AWS_", "R2_", "GOOGLE_", "DATASET_BINS")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("DAGSTER_HOME", str(here / "environment_project" / ".dagster"))
    monkeypatch.setattr(project, "_chosen", [])
    monkeypatch.chdir(here / "environment_project")
    project.current_project.cache_clear()
    yield monkeypatch
    project.current_project.cache_clear()


def test_a_name_that_is_not_unicode_can_be_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", str(tmp_path / os.fsdecode(b"cafes\xe9"))]) == 0
    assert f"in {tmp_path}/cafes\\udce9. Next" in capsys.readouterr().out


def test_at_least_thirty_environment_mistakes_are_covered() -> None:
    assert len(CASES) >= 30


@pytest.mark.parametrize(("typed", "variables", "code", "said"), CASES)
def test_an_environment_mistake_is_reported_in_a_few_lines(
    typed: list[str],
    variables: dict[str, str],
    code: int,
    said: str,
    here: Path,
    wrong: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if variables.get("DATAPREP_STORAGE") in ("s3", "r2"):
        pytest.importorskip("dagster_aws")
    if variables.get("DATAPREP_STORAGE") == "gcs":
        pytest.importorskip("dagster_gcp")
    for name, value in variables.items():
        wrong.setenv(name, value.replace("HERE", str(here)))
    assert main([word.replace("HERE", str(here)) for word in typed]) == code
    told = capsys.readouterr()
    assert said in told.err
    assert len((told.out + told.err).splitlines()) <= MAX_LINES
    assert "Traceback" not in told.err
    assert SECRET not in told.out + told.err
    assert not (here / "environment_project" / ".dataprep").exists(), "nothing was built"


def test_commands_work_without_docstrings() -> None:
    command = [sys.executable, "-OO", "-m", "dataprep_assets.cli", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert_names(done.stdout, "training datasets.", "retract")
