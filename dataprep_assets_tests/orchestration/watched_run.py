"""Run a step that shows its progress: `python -m dataprep_assets_tests.orchestration.watched_run WATCHED`.

For half a second it counts, shows progress, and writes to the two streams that Dagster captures. With WATCHED `yes` the
command watches the run on its standard error. Lines and observations are written every 0.2 s, so that there are some.
Prints as JSON the sinks of that step and of one after the watched run, new environment variables, and the records of
Dagster.
"""

import contextlib
import json
import os
import sys
import time

import dagster as dg

from dataprep_assets.execution.progress import Progress
from dataprep_assets.orchestration.runs import step_build as events
from dataprep_assets.orchestration.runs import terminal
from dataprep_assets.orchestration.runs.step_build import build_sinks
from dataprep_assets.orchestration.runs.terminal import show_progress
from dataprep_assets_tests.engine.specs import make_spec

KEY = dg.AssetKey(["corpus", "token_bins"])
SPEC = make_spec("corpus", "token_bins")


def main(arguments: list[str]) -> int:
    """Run the step and print the result."""
    sinks: list[list[str]] = []
    terminal.LINE_SECONDS = events.OBSERVE_SECONDS = 0.2

    @dg.asset(key=KEY)
    def shows(context: dg.AssetExecutionContext) -> None:
        found = build_sinks(context, SPEC)
        sinks.append([type(sink).__name__ for sink in found])
        print("said by the step")
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
        with show_progress(sys.stderr) if arguments == ["yes"] else contextlib.nullcontext():
            first = dg.materialize([shows], instance=instance, run_config=quiet)
        second = dg.materialize([shows], instance=instance, run_config=quiet)
        messages = [entry.user_message for entry in instance.all_logs(first.run_id)]
        observed = instance.fetch_observations(KEY, limit=100).records
        shown = {
            "sinks": sinks,
            "variables": sorted(set(os.environ) - before),
            "logged": [message for message in messages if "corpus/token_bins: " in message],
            "observed": [
                {name: value.value for name, value in record.asset_observation.metadata.items()}
                for record in observed
                if record.run_id == first.run_id and record.asset_observation is not None
            ],
        }
    print(json.dumps(shown))
    return int(not (first.success and second.success))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
