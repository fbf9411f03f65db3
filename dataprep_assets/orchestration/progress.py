"""Where the progress of a step is shown: in the run's log, on the asset's page, and to whoever started the command.

Dagster gets few events, however often the step reports: a line in the run's log every `LOG_SECONDS`, and observations
of the asset that become rarer as the step goes on. Terminals and pipes are served by the module `terminal`.
"""

import time

import dagster as dg

from dataprep_assets.execution.progress import Progress, Sink
from dataprep_assets.graph.spec import ArtifactSpec
from dataprep_assets.orchestration.keys import Context, asset_key
from dataprep_assets.orchestration.terminal import watching

LOG_SECONDS = 15.0
OBSERVE_SECONDS = 60.0
"""Time before the first observation: a shorter step is over before anybody opens the asset's page."""
OBSERVE_SHARE = 0.1
"""Time until the next observation, as a share of the time so far: about 60 observations in a day."""


class LogSink:
    """Writes a line to the run's log every `LOG_SECONDS`, and always the last one."""

    def __init__(self, context: Context, what: str) -> None:
        self._log, self._what = context.log.info, what
        self._logged = time.monotonic()

    def show(self, progress: Progress) -> None:
        if time.monotonic() - self._logged >= LOG_SECONDS:
            self._logged = time.monotonic()
            self._log(f"{self._what}: {progress.line()}")

    def close(self, progress: Progress) -> None:
        if progress.counted:
            self._log(f"{self._what}: {progress.line()}")


class ObservationSink:
    """Reports observations of the asset while its step is at work.

    Their metadata are texts: the numbers of an unfinished step would become points of the asset's plots.
    """

    def __init__(self, context: Context, spec: ArtifactSpec) -> None:
        self._context, self._key = context, asset_key(spec)
        self._started = time.monotonic()
        self._next = self._started + OBSERVE_SECONDS

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + max(OBSERVE_SECONDS, OBSERVE_SHARE * (now - self._started))
        self._context.log_event(
            dg.AssetObservation(
                asset_key=self._key,
                description=f"At work: {progress.line().strip()}",
                metadata={
                    "progress": f"{progress.fraction:.1%}",
                    "done": progress.amount,
                    "rate": progress.rate,
                    "time_left": progress.time_left,
                },
            )
        )

    def close(self, progress: Progress) -> None:
        """Report nothing: the materialization, or the failure, says how the step ended."""


def sinks_of(context: Context, spec: ArtifactSpec) -> list[Sink]:
    """The sinks that show the progress of a step that makes an artifact."""
    what = "/".join(spec.path)
    return [LogSink(context, what), ObservationSink(context, spec), *watching(what)]
