"""`dataprep init`: a new project with a sample that runs without a network, or what deploys one."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.project import read_project
from dataprep_assets.project_template import Sample, write_project
from dataprep_assets.project_template.deployment import PAGE, DeployTarget, wheel_wanted, write_deployment


def command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder that is empty or not there; with --deploy also a project.")
    ],
    sample: Annotated[
        Sample | None,
        typer.Option(help="What the sample of a new project is: its declaration and small data. [corpus]"),
    ] = None,
    deploy: Annotated[
        DeployTarget | None, typer.Option(help="Write deploy/PLACE as well: the image and the files of that place.")
    ] = None,
) -> int:
    """Make a project: a small dataset that runs without a network, its settings, and room for your own."""
    if deploy is None or read_project(folder) is None:
        chosen = sample or Sample.CORPUS
        write_project(folder, chosen)
        print(f"{folder}: a project with the sample {chosen.datasets[-1]}. Next:")
        print(f"  cd {shlex.quote(str(folder))}")
        print(f"  dataprep run {' '.join(chosen.datasets)}")
        print("  dg scaffold defs dataprep_assets.components.TokenizedCorpus my_corpus")
    elif sample is not None:
        raise ConfigError(f"--sample: {folder} is a project already. Name a new folder")
    if deploy is not None:
        written = write_deployment(folder, deploy)
        print(f"{folder / 'deploy'}: {count_of(len(written), 'file')} for {deploy.value}. Next:")
        print(f"  {_FIRST[deploy]}")
        print("  what the image has is in deploy/requirements.txt: wheels that no index has go into deploy/wheels")
        if (command := wheel_wanted(folder)) is not None:
            print(f"  {command}")
        print(f"  all of it, explained: {PAGE}")
    return 0


_FIRST = {
    DeployTarget.COMPOSE: "deploy/compose/docker-compose.yaml begins with the commands that start it",
    DeployTarget.KUBERNETES: "docker build -f deploy/Dockerfile -t REGISTRY/NAME:1 . ; "
    "then deploy/kubernetes/values.yaml",
    DeployTarget.SLURM: "edit deploy/slurm/environment.sh, then: sbatch deploy/slurm/run.sbatch DATASET",
}
