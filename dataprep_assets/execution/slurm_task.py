"""`python -m dataprep_assets.execution.slurm_task FOLDER`: one task of an array, on the node that Slurm chose.

It finds its task below FOLDER, where `slurm_pool` put it, writes counts there once a second, and its answer at the end.
Meanwhile it watches its run's sign of life: if that is missing for long, it ends its whole array.
"""

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

from dataprep_assets.execution.answer import answer, without_output
from dataprep_assets.execution.tasks import Task

_REPORT_SECONDS = 1.0


def write(path: Path, content: bytes) -> None:
    """Write a file that other processes and nodes see either complete or not at all."""
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    with open(draft, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


class _Counts:
    """Sums up the counts of a Slurm task, and writes them once a second."""

    def __init__(self, path: Path) -> None:
        self._path, self._sums, self._written = path, dict[str, int](), time.monotonic()

    def add(self, done: dict[str, int]) -> None:
        for name, value in done.items():
            self._sums[name] = self._sums.get(name, 0) + value
        if time.monotonic() - self._written >= _REPORT_SECONDS:
            self.flush()

    def flush(self) -> None:
        write(self._path, json.dumps(self._sums).encode())
        self._written = time.monotonic()


def _watch(sign: Path, seconds: float) -> None:
    """End the array if the file has not changed for `seconds`, by this machine's clock alone."""
    seen, since = b"", time.monotonic()
    while True:
        try:
            now = sign.read_bytes()
        except OSError:
            now = seen
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > seconds:
            print(f"no sign of the run for {seconds:.0f} s: this array ends", flush=True)
            # not checked: this task ends in any case, and each of the others looks for itself
            subprocess.run(["scancel", "--quiet", os.environ["SLURM_ARRAY_JOB_ID"]], check=False)
            os._exit(1)
        time.sleep(min(2.0, seconds / 4))


def main(arguments: list[str]) -> int:
    """Run the command and return its exit code."""
    folder, index = Path(arguments[0]), os.environ["SLURM_ARRAY_TASK_ID"]
    answers = folder / "answers" / index
    if answers.exists():  # Slurm may requeue a task whose node was lost after its end
        return 0
    settings, private, sign, seconds, packed = pickle.loads((folder / "tasks" / index).read_bytes())
    os.environ.update(settings)  # before the libraries that read them are imported
    threading.Thread(target=_watch, args=(Path(sign), seconds), daemon=True).start()
    task: Task = pickle.loads(packed)
    counts = _Counts(folder / "counts" / index)
    with without_output(private):
        found = answer(task, counts.add, private=private)
    # before the answer, with which the pool reads the counts for the last time
    counts.flush()
    write(answers, pickle.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
