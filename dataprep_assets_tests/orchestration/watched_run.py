"""`python -m dataprep_assets_tests.orchestration.watched_run YES`: a step that shows its progress.

For half a second it counts and shows; the run draws on the terminal when YES is `yes`. Prints the names of the sinks,
those of a step after the watched run, and the environment variables that were not there before.
"""

import os
import sys
import time

import dagster as dg

from dataprep_assets.execution.progress import Progress
from dataprep_assets.orchestration.progress import sinks_of, watched


def main(arguments: list[str]) -> int:
    """The command."""
    sinks: list[list[str]] = []

    @dg.asset(key=["corpus", "token_bins"])
    def shows(context: dg.AssetExecutionContext) -> None:
        found = sinks_of(context)
        sinks.append([type(sink).__name__ for sink in found])
        progress = Progress(source_bytes=1_000_000, sinks=found)
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            progress.add({"source_bytes": 100})
            progress.show()
            time.sleep(0.001)
        progress.close()

    before = set(os.environ)
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    with dg.DagsterInstance.ephemeral() as instance:
        with watched(arguments == ["yes"]):
            first = dg.materialize([shows], instance=instance, run_config=quiet)
        second = dg.materialize([shows], instance=instance, run_config=quiet)
        messages = [entry.user_message for entry in instance.all_logs(first.run_id)]
        logged = [message for message in messages if "corpus/token_bins: " in message]
    print(sinks, sorted(set(os.environ) - before), len(logged), logged[-1])
    return int(not (first.success and second.success))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
