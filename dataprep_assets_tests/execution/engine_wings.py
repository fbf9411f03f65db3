"""Build datasets on an engine, and on Ray also run their checks: `python -m … FOLDER ENGINE DATASET…`, for a test.

A dataset is the name of a sample, or a JSON file with the declaration of a corpus.

Writes the locks to the folder, and prints as one line of JSON the findings that did not pass and the tasks submitted to
Ray. It is its own process, because a Ray cluster is tied to its driver.
"""

import json
import os
import sys
from pathlib import Path

from dataprep_assets.cli.support import project
from dataprep_assets.engine.artifact.build import iterate_builds
from dataprep_assets.engine.artifact.dataset import Dataset
from dataprep_assets.engine.lock.lock import encode_lock, lock_dataset
from dataprep_assets.execution.pool import ENGINE, RayPool
from dataprep_assets.execution.run_task import Task
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.corpus.dataset import Corpus
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets_tests.engine.building import build_all


def main(folder: Path, engine: str, names: list[str]) -> None:
    """Build each dataset; on Ray also run its checks, as other tests do with processes."""
    os.environ[ENGINE] = engine
    given = list[str]()
    if engine == "ray":
        import ray

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        submit = RayPool.submit

        def noted(pool: RayPool, task: Task, *, is_first: bool = False) -> None:
            given.append(f"{name} {task.id}")
            submit(pool, task, is_first=is_first)

        RayPool.submit = noted  # type: ignore[method-assign]
    store, failed = LocalArtifacts(folder / "artifacts"), list[str]()
    for name in names:
        specs = _open_dataset(name).specs
        for spec, partitions in iterate_builds(specs, store):
            build_all(specs, store, [(spec, partitions)])
            if engine == "ray" and spec.checks:
                found = spec.examine(store, partitions)
                failed += [f"{spec.name}: {proof}: {one.summary}" for proof, one in found if not one.passed]
        (folder / f"{Path(name).stem}.lock").write_bytes(encode_lock(lock_dataset(specs, store)))
    print(json.dumps({"failed": failed, "given": given}))


def _open_dataset(name: str) -> Dataset:
    if not name.endswith(".json"):
        return project.use_dataset(name)
    return Corpus(CorpusDeclaration.model_validate_json(Path(name).read_bytes()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
