"""Run a dataset without end: `python -m dataprep_assets_tests.orchestration.endless_run FOLDER`.

Builds the notices of FOLDER on the instance of DAGSTER_HOME, as `dataprep run` does. Once the run is at work it writes
`FOLDER/at_work` and waits to be killed.
"""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import dagster as dg

from dataprep_assets.engine.artifact.spec import BuildRequest
from dataprep_assets.execution.jobs import Outcome
from dataprep_assets.orchestration.component import build_definitions
from dataprep_assets.orchestration.partitions import job_name
from dataprep_assets.orchestration.runs.runs import execute_job
from dataprep_assets.resources import StorageResource, create_resources
from dataprep_assets_tests.engine.notices import make_notices_specs, write_notices


def main(folder: Path) -> None:
    """Run the dataset of a folder; see the module."""

    def waits(_request: BuildRequest) -> Iterator[Outcome]:
        (folder / "at_work").touch()
        time.sleep(600)
        yield from ()

    notices, *_ = make_notices_specs(write_notices(folder / "words"))
    specs = [replace(notices, build=waits)]
    storage = StorageResource(root=str(folder / "artifacts"))
    built = dg.Definitions.merge(build_definitions(specs), dg.Definitions(resources=create_resources(storage)))
    with dg.DagsterInstance.from_config(os.environ["DAGSTER_HOME"]) as instance:
        execute_job(built.resolve_job_def(job_name("notices")), instance)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
