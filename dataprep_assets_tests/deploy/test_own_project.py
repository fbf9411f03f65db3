"""The files that `dataprep init --deploy` writes for each place, in a project with another name and layout than
ours.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from dataprep_assets.project import read_project
from dataprep_assets.project_template import write_project
from dataprep_assets.project_template.deployment import DeployTarget, write_deployment
from dataprep_assets_tests.cli.commands import dataprep
from dataprep_assets_tests.deploy.chart import KUBERNETES, OPERATORS, PLACES, make_run_job, read_literals, render
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.samples import shrink

OURS = re.compile(
    r"dataprep_assets\.definitions|dataprep_assets/defs|location_name: dataprep_assets|name: dataprep[_-]assets|"
    r"image: dataprep-assets|registry.example/dataprep-assets|host: dataprep-assets"
)
"""Names of this checkout's own project."""


def move_to_src(root: Path) -> None:
    """Move the package below `src/`, where `create-dagster` puts it."""
    (root / "src").mkdir()
    (root / "night_corpora").rename(root / "src" / "night_corpora")
    pyproject = root / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace("find]", 'find]\nwhere = ["src"]'))


@pytest.fixture(scope="module", params=["flat", "src"])
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project that has the files of every place."""
    root: Path = tmp_path_factory.mktemp(request.param) / "Night-Corpora"
    write_project(root)
    if request.param == "src":
        move_to_src(root)
    for place in DeployTarget:
        write_deployment(root, place)
    return root


def read_written_files(root: Path) -> Iterator[Path]:
    return (path for path in sorted((root / "deploy").rglob("*")) if path.is_file())


def test_no_file_names_our_own_project(project: Path) -> None:
    texts = {path: path.read_text() for path in read_written_files(project)}
    assert len(texts) > 20
    assert {str(path): found[0] for path, text in texts.items() if (found := OURS.search(text))} == {}
    assert not any(re.search(r"\b(PACKAGE|IMAGE|MODULE|LOCATION)\b", text) for text in texts.values())
    assert (project / "deploy" / "compose" / "credentials").is_dir()
    ignored = (project / "deploy" / ".gitignore").read_text().splitlines()
    assert {"compose/.env", "compose/proxy/htpasswd"} <= set(ignored)


def test_a_second_place_keeps_existing_files_and_adds_missing_ones(tmp_path: Path) -> None:
    write_project(root := tmp_path / "night_corpora")
    write_deployment(root, DeployTarget.KUBERNETES)
    own = {name: root / "deploy" / name for name in (".gitignore", "requirements.txt", "dagster-webserver")}
    for path in own.values():
        path.write_text("mine\n")
    (root / "deploy" / "Dockerfile").unlink()
    brought = write_deployment(root, DeployTarget.COMPOSE)
    assert {path.read_text() for path in own.values()} == {"mine\n"}
    assert root / "deploy" / "Dockerfile" in brought
    assert not set(own.values()) & set(brought)


def test_docker_compose_accepts_it_and_mounts_the_projects_declarations(project: Path) -> None:
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("no docker-compose on PATH (Debian's 1.29 needs no engine for `config`)")
    folder = project / "deploy" / "compose"
    (folder / ".env").write_text("DAGSTER_PG_PASSWORD=x\n")
    done = subprocess.run(
        [program, "config"], cwd=folder, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    services: dict[str, Any] = yaml.safe_load(done.stdout)["services"]
    declared = read_project(project)
    assert declared is not None
    code = services["code_location"]
    (mounted,) = (volume for volume in code["volumes"] if str(volume).count("/defs:"))
    here, there, _ = mounted.split(":")
    assert Path(here).resolve() == declared.defs.resolve()
    assert there == f"/opt/dataprep/{declared.defs.relative_to(declared.root)}"
    assert code["image"] == "night-corpora:local"
    for other in ("dagster.yaml", "workspace.yaml"):
        (mounted,) = (volume for volume in code["volumes"] if f"/{other}:" in volume)
        assert Path(mounted.partition(":")[0]).is_file()
    words = code["command"]
    assert words[words.index("-m") + 1 :] == ["night_corpora.definitions", "--location-name", "night_corpora"]
    (location,) = yaml.safe_load((folder / "workspace.yaml").read_text())["load_from"]
    assert location["grpc_server"]["location_name"] == "night_corpora"
    build = code["build"]
    assert (Path(build["context"]).resolve(), (Path(build["context"]) / build["dockerfile"]).is_file()) == (
        project,
        True,
    )


def test_the_image_copies_existing_files_and_serves_the_same_as_compose(project: Path) -> None:
    text = (project / "deploy" / "Dockerfile").read_text()
    allowed = {
        line[1:]
        for line in (project / "deploy" / "Dockerfile.dockerignore").read_text().splitlines()
        if line[:1] == "!"
    }
    copied = re.findall(r"^COPY (?!--from)(?:--\S+ )?(.+) \S+$", text, re.M)
    sources = [source for line in copied for source in line.split()]
    assert len(sources) == 5
    for source in sources:
        assert (project / source).exists(), source
        assert source in allowed, source
    (command,) = re.findall(r"^CMD (.*)$", text, re.M)
    compose = yaml.safe_load((project / "deploy" / "compose" / "docker-compose.yaml").read_text())
    assert json.loads(command) == compose["services"]["code_location"]["command"]
    assert re.search(r"^USER 10001:10001$", text, re.M)
    (base,) = re.findall(r"^ARG BASE=(.+)$", text, re.M)
    assert re.fullmatch(r"python:[\w.-]+@sha256:[0-9a-f]{64}", base)
    requirements = (project / "deploy" / "requirements.txt").read_text()
    (ours,) = (line for line in requirements.splitlines() if line.startswith("dataprep-assets["))
    assert ours.endswith(f"]=={version('dataprep-assets')}")
    assert ours.startswith("dataprep-assets[k8s,gcs,r2")
    assert ("duplicates" in ours) == (find_spec("rensa") is not None)
    assert f"dagster=={version('dagster')}\n" in requirements


@pytest.mark.parametrize("place", PLACES)
def test_a_cluster_runs_the_project_under_its_own_name(place: str, project: Path, tmp_path: Path) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    folder = project / "deploy" / "kubernetes"
    rendered = render(place, folder / "private-registry.yaml", folder=folder)
    job = make_run_job(rendered, tmp_path)
    for manifest in (*rendered.manifests, job):
        if manifest["apiVersion"] not in OPERATORS:
            validator.validate(manifest, KUBERNETES, strict=True)
    code = rendered.code_location
    assert code["args"][code["args"].index("-m") + 1] == "night_corpora.definitions"
    workspace = yaml.safe_load(rendered.get("ConfigMap", "dagster-workspace-yaml")["data"]["workspace.yaml"])
    (server,) = (entry["grpc_server"] for entry in workspace["load_from"])
    assert (server["host"], server["location_name"]) == ("night-corpora", "night_corpora")
    assert rendered.get("Service", "night-corpora")["spec"]["ports"][0]["port"] == server["port"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    images = {
        c["image"] for t in rendered.templates().values() for c in t["spec"]["containers"] if "nginx" not in c["image"]
    }
    assert images == {"registry.example/night-corpora:1"} == {container["image"]}
    assert read_literals(code)["DAGSTER_CURRENT_IMAGE"] == container["image"]


MODULES = """module() { [ "$1" = purge ] || PATH="$MODULE_BIN:$PATH"; }
export -f module
"""
ENVIRONMENTS = {
    "venv": "DATAPREP=$PWD/.venv/bin/dataprep\n",
    "modules": 'module purge && module load python/3.11 && . "$PWD/.venv/bin/activate"\n',
    "container": 'DATAPREP="apptainer exec --bind $PWD dataprep.sif dataprep"\n',
}
"""The lines of environment.sh that a user uncomments."""
_PROGRAM = """#!/bin/sh
exec "{python}" -m dataprep_assets.cli "$@"
"""
_APPTAINER = """#!/bin/sh
# what it does of `exec --bind DIR IMAGE COMMAND…`: the command of the image
[ "$1 $2 $4" = "exec --bind dataprep.sif" ] || exit 3
shift 5
exec "{python}" -m dataprep_assets.cli "$@"
"""


@pytest.fixture(scope="module")
def on_slurm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project with a small corpus; its first run builds all of it."""
    root: Path = tmp_path_factory.mktemp("slurm") / "night-corpora"
    shrink(root / write_project(root) / "defs" / "sample_corpus" / "defs.yaml")
    return root


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_a_slurm_node_runs_the_project_with_a_venv_with_modules_and_in_a_container(
    kind: str, on_slurm: Path, tmp_path: Path
) -> None:
    """Runs the script for sbatch with the variables that Slurm sets; `test_slurm.py` uses a real Slurm."""
    root, card = on_slurm, on_slurm / ".dataprep" / "artifacts" / "sample_corpus" / "data_card"
    for folder in (root / "deploy", root / ".venv", root / "bin", card):
        shutil.rmtree(folder, ignore_errors=True)
    write_deployment(root, DeployTarget.SLURM)
    environment = root / "deploy" / "slurm" / "environment.sh"
    assert f"#{ENVIRONMENTS[kind]}" in environment.read_text()
    text = environment.read_text().replace(f"#{ENVIRONMENTS[kind]}", ENVIRONMENTS[kind])
    environment.write_text(text.replace("#export DATAPREP_ROOT", "export DATAPREP_ROOT"))
    for name, content in {
        ".venv/bin/dataprep": _PROGRAM,
        "bin/apptainer": _APPTAINER,
        "bin/dataprep": _PROGRAM,
    }.items():
        if kind != "container" or name == "bin/apptainer":
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content.format(python=sys.executable))
            (root / name).chmod(0o755)
    if kind != "container":
        (root / ".venv" / "bin" / "activate").write_text(f'PATH="{root}/.venv/bin:$PATH"\n')
    path = os.pathsep.join([*([str(root / "bin")] if kind == "container" else []), "/usr/bin", "/bin"])
    variables = {"PATH": path, "HOME": str(tmp_path), "SLURM_CPUS_PER_TASK": "2", "SLURM_JOB_ID": "7"}
    script = root / "deploy" / "slurm" / "run.sbatch"
    (tmp_path / "modules").write_text(MODULES)
    words = ["bash", str(script), "sample_corpus"]
    if kind == "modules":
        variables |= {"BASH_ENV": str(tmp_path / "modules"), "MODULE_BIN": "/usr/bin"}
    done = subprocess.run(words, cwd=root, env=variables, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (card / "receipt.json").exists()


def test_the_command_adds_a_place_to_a_project_and_overwrites_nothing(tmp_path: Path) -> None:
    root = tmp_path / "night-corpora"
    done = dataprep(tmp_path, "init", str(root), "--deploy", "compose", project=tmp_path)
    assert done.returncode == 0, done.stderr
    assert_names(done.stdout, root / "deploy")
    name = tomllib.loads((root / "pyproject.toml").read_text())["project"]["name"]
    assert name == "night_corpora"
    dockerfile = root / "deploy" / "Dockerfile"
    dockerfile.write_text("mine\n")
    assert dataprep(tmp_path, "init", ".", "--deploy", "kubernetes", project=root).returncode == 0
    assert dockerfile.read_text() == "mine\n"
    assert (root / "deploy" / "kubernetes" / "values.yaml").exists()
    again = dataprep(tmp_path, "init", ".", "--deploy", "compose", project=root)
    assert again.returncode == 2
    assert_names(again.stderr, "deploy/compose")
