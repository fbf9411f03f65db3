"""Where the shard tasks of a batched run are done: processes of this machine, or an existing Ray cluster.

The assets do not know which. A dataset's `run_on`, else `DATAPREP_ENGINE`, names the engine (`processes`, the default,
or `ray`); every engine has the interface of `workers.WorkerPool`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, Self

from dataprep_assets.errors import ConfigError
from dataprep_assets.execution.processes import Finished, Progress, Task, WorkerPool

ENGINE = "DATAPREP_ENGINE"
PROCESSES, RAY = "processes", "ray"


class Pool(Protocol):
    """What every engine offers. Leaving the context ends what is still running."""

    count: int

    @property
    def outstanding(self) -> int:
        """Tasks submitted and not finished."""

    def submit(self, task: Task, *, first: bool = False) -> None:
        """Queue a task; `first` puts it before the others."""

    def cancel(self, doomed: Callable[[str], bool]) -> list[str]:
        """Forget queued tasks whose label is doomed, and say which; running ones go on."""

    def events(self, tick_seconds: float = 0.5) -> Iterator[Progress | Finished | None]:
        """Progress and ends of tasks, None at a tick without one; ends when nothing is outstanding.

        Raises WorkerDiedError naming the task whose worker ended without an answer.
        """

    def __enter__(self) -> Self: ...

    def __exit__(self, *_exception: object) -> None: ...


def chosen_engine(environment: Mapping[str, str], declared: str | None = None) -> str:
    """The engine that a dataset declares, else that the environment names; ConfigError for an unknown one."""
    engine = declared or environment.get(ENGINE) or PROCESSES
    if engine not in (PROCESSES, RAY):
        raise ConfigError(f"{ENGINE}: {engine!r}: one of {[PROCESSES, RAY]}")
    return engine


def open_pool(
    count: int, settings: Mapping[str, str], environment: Mapping[str, str], declared: str | None = None
) -> Pool:
    """The pool of the chosen engine, of at least `count` workers; `settings` are set in each of them.

    On Ray, `count` is the number of tasks in flight where the cluster has fewer CPUs, so that an autoscaler sees the
    demand.
    """
    if chosen_engine(environment, declared) == PROCESSES:
        return WorkerPool(count, dict(settings))
    from dataprep_assets.execution.ray_pool import RayPool

    return RayPool(count, settings, environment)
