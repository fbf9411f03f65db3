"""Run one small case of the Ray pool and print JSON: `python -m dataprep_assets_tests.execution.ray_tasks NAME FOLDER`.

The pool's tasks run functions of this module. It is its own process, because a Ray cluster is tied to its driver.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dataprep_assets.errors import BadRecordError, DataprepError
from dataprep_assets.execution.pool import RayPool
from dataprep_assets.execution.run_task import FinishedTask, Task, TaskCounts, TaskId, report_work

SETTINGS = {"RAYON_NUM_THREADS": "1", "DATAPREP_TEST_SETTING": "seen"}


def setting(name: str) -> str | None:
    return os.environ.get(name)


def die(marks: Path, times: int) -> int:
    """Kill the current worker the given number of times, then return the number of attempts."""
    tries = len(list(marks.iterdir())) + 1
    (marks / f"{tries}-{os.getpid()}").touch()
    if tries <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return tries


def refuse() -> None:
    raise BadRecordError("a.jsonl: row 3, byte 12: not JSON")


def divide(by: int) -> float:
    return 1 / by


def count(steps: int) -> int:
    for _ in range(steps):
        report_work(tokens=10, documents=1)
        time.sleep(0.3)
    return steps


def _answers(pool: RayPool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    tokens = 0
    for event in pool.events(0.2):
        if isinstance(event, FinishedTask):
            found[str(event.task.id)] = event.result if event.error is None else repr(event.error)
        elif isinstance(event, TaskCounts):
            tokens += event.done["tokens"]
    return found | {"tokens": tokens}


def settings(pool: RayPool, _folder: Path) -> dict[str, Any]:
    pool.submit(Task(TaskId("setting"), setting, ("DATAPREP_TEST_SETTING",)))
    return _answers(pool)


def retried(pool: RayPool, folder: Path) -> dict[str, Any]:
    pool.submit(Task(TaskId("train-00004"), die, (folder, 2)))
    return _answers(pool)


def hopeless(pool: RayPool, folder: Path) -> dict[str, Any]:
    pool.submit(Task(TaskId("train-00004"), die, (folder, 99)))
    return _answers(pool)


def errors(pool: RayPool, _folder: Path) -> dict[str, Any]:
    pool.submit(Task(TaskId("refused"), refuse, ()))
    pool.submit(Task(TaskId("bug"), divide, (0,)))
    pool.submit(Task(TaskId("fine"), divide, (2,)))
    return _answers(pool)


def progress(pool: RayPool, _folder: Path) -> dict[str, Any]:
    pool.submit(Task(TaskId("counts"), count, (8,)))
    return _answers(pool)


def cancelled(pool: RayPool, _folder: Path) -> dict[str, Any]:
    for number in range(6):
        pool.submit(Task(TaskId("part", "sleep", number), time.sleep, (0.5,)))
    outstanding = pool.outstanding
    pool.cancel(lambda task: task.piece in (4, 5))
    return _answers(pool) | {"outstanding": outstanding}


CASES: list[Callable[[RayPool, Path], dict[str, Any]]] = [settings, retried, hopeless, errors, progress, cancelled]


def main(arguments: list[str]) -> int:
    """Run every case in one cluster, each with its own folder for marks."""
    (folder,) = map(Path, arguments)
    import ray

    found: dict[str, Any] = {}
    # Without an address, the outer pool starts a cluster, which the pools of all cases use.
    with RayPool(2, SETTINGS, {}):
        for case in CASES:
            (marks := folder / case.__name__).mkdir()
            try:
                with RayPool(2, SETTINGS) as pool:
                    found[case.__name__] = case(pool, marks)
            except DataprepError as error:
                found[case.__name__] = {"raised": f"{type(error).__name__}: {error}"}
            found[case.__name__]["tries"] = len(list(marks.iterdir()))
        found["cluster"] = [ray.is_initialized()]
    found["cluster"] += [ray.is_initialized()]
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    from dataprep_assets_tests.execution import ray_tasks

    sys.exit(ray_tasks.main(sys.argv[1:]))
