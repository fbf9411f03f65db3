"""Run Megatron-LM's `tools/preprocess_data.py` unchanged with some lines of arguments, for `pinned.run_apart`.

One process runs all lines, because importing Megatron takes longer than the work itself.
"""

import json
import runpy
import signal
import sys
import typing
from pathlib import Path

import typing_extensions

GUARD_SECONDS = 3600
"""The time limit of one line, because its parent waits forever for a child that died."""


def main() -> None:
    """Run the process: `{"script": path, "lines": [[argument, …], …]}` in, the number of completed lines out."""
    job = json.load(sys.stdin)
    if not hasattr(typing, "override"):  # Megatron requires Python 3.12 only for this
        typing.override = typing_extensions.override  # type: ignore[attr-defined]
    answer = Path(sys.argv[1])
    for line in job["lines"]:
        signal.alarm(GUARD_SECONDS)
        sys.argv = [job["script"], *line]
        runpy.run_path(job["script"], run_name="__main__")
    answer.write_text(json.dumps(len(job["lines"])))


if __name__ == "__main__":
    main()
