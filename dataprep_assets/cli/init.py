"""`dataprep init`: create a project with a sample that builds offline, or write its deployment files."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.project import read_project
from dataprep_assets.project_template import Sample, write_project
from dataprep_assets.project_template.deployment import PAGE, DeployTarget, find_wheel_command, write_deployment


def command(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Folder of the new project. With --deploy, it can also be an existing project."
        ),
    ],
    sample: Annotated[
        Sample | None,
        typer.Option(help="Create this sample dataset: a declaration and a small amount of data. [default: corpus]"),
    ] = None,
    deploy: Annotated[
        DeployTarget | None, typer.Option(help="Also write deployment files for this platform to deploy/.")
    ] = None,
) -> int:
    """Create a project with a sample dataset that builds offline."""
    if deploy is None or read_project(folder) is None:
        new_sample = sample or Sample.CORPUS
        write_project(folder, new_sample)
        print(f"Created a project with the sample {new_sample.datasets[-1]} in {folder}. Next:")
        print(f"  cd {shlex.quote(str(folder))}")
        if (extra := new_sample.missing_extra) is not None:
            print(f"  pip install 'dataprep-assets[{extra}]'")
        print(f"  dataprep run {' '.join(new_sample.datasets)}")
        print("To declare a dataset of your own:")
        print(f"  {new_sample.scaffold}")
    elif sample is not None:
        raise ConfigError(f"--sample: {folder} is already a project. Choose a new or empty folder")
    if deploy is not None:
        files = write_deployment(folder, deploy)
        print(f"Wrote {count_of(len(files), 'file')} for {deploy.value} to {folder / 'deploy'}. Next:")
        print(f"  {_FIRST[deploy]}")
        # Omit these lines for Slurm, because no image is written for it.
        if deploy != DeployTarget.SLURM:
            print(
                "  deploy/requirements.txt lists the packages of the image; put wheels that are not on an index into "
                "deploy/wheels"
            )
            if (command := find_wheel_command(folder)) is not None:
                print(f"  {command}")
        print(f"  for details, see {PAGE}")
    return 0


_FIRST = {
    DeployTarget.COMPOSE: "run the commands at the top of deploy/compose/docker-compose.yaml",
    DeployTarget.KUBERNETES: "run docker build -f deploy/Dockerfile -t REGISTRY/NAME:1 . ; then edit "
    "deploy/kubernetes/values.yaml",
    DeployTarget.SLURM: "edit deploy/slurm/environment.sh, then: sbatch deploy/slurm/run.sbatch DATASET",
}
