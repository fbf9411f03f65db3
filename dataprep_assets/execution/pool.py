"""Chooses the pool that does the work: processes of this machine or a Ray cluster; and its number of workers.

The assets do not know which one. A dataset's `run_on`, else `DATAPREP_ENGINE`, names it: `processes` (the default) or
`ray`. Both have the interface `tasks.Pool`.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from dataprep_assets.errors import ConfigError
from dataprep_assets.execution.processes import ONE_THREAD, WorkerPool
from dataprep_assets.execution.tasks import Pool

ENGINE = "DATAPREP_ENGINE"
WORKERS = "DATAPREP_WORKERS"
PROCESSES, RAY = "processes", "ray"
ENGINES = (PROCESSES, RAY)


def worker_count(declared: int | None) -> int:
    """Number of worker processes: the declared one, else DATAPREP_WORKERS, else one for each usable core.

    Raises ConfigError if the variable is not a positive integer.
    """
    said = os.environ.get(WORKERS)
    if said and not (said.isascii() and said.isdigit() and int(said) > 0):
        raise ConfigError(f"{WORKERS}: {said!r} is not a number of processes: give one from 1, or leave it unset")
    return declared or int(said or 0) or len(os.sched_getaffinity(0))


def chosen_engine(environment: Mapping[str, str], declared: str | None = None) -> str:
    """The engine that a dataset declares, else that the environment names; raises ConfigError for an unknown one."""
    engine = declared or environment.get(ENGINE) or PROCESSES
    if engine not in ENGINES:
        raise ConfigError(f"{ENGINE}: {engine!r} is not allowed; one of {', '.join(ENGINES)}")
    return engine


def require_engine(environment: Mapping[str, str], declared: str | None = None) -> None:
    """Raise ConfigError if what the chosen engine needs is not installed here."""
    engine = chosen_engine(environment, declared)
    if engine == RAY and find_spec("ray") is None:
        raise ConfigError(
            "run_on (or DATAPREP_ENGINE): `ray` needs the extra of that name: pip install 'dataprep-assets[ray]'"
        )


def open_pool(
    count: int,
    settings: Mapping[str, str],
    environment: Mapping[str, str],
    declared: str | None = None,
    prepare: Callable[[], object] | None = None,
) -> Pool:
    """The pool of the chosen engine.

    Args:
        count: Number of workers. On Ray, the least number of tasks in flight even if the cluster has fewer CPUs, so
            that an autoscaler sees the demand.
        settings: Environment variables to set in each worker.
        environment: The environment variables that name the engine and the cluster.
        declared: The engine that the dataset declares.
        prepare: As for `WorkerPool`.
    """
    if chosen_engine(environment, declared) == PROCESSES:
        return WorkerPool(count, settings, prepare)
    # imported only where it is chosen, because the extra need not be installed elsewhere
    from dataprep_assets.execution.ray_pool import RayPool

    return RayPool(count, settings, environment)


@dataclass(frozen=True)
class TaskEngine:
    """Who does the tasks of a dataset's steps.

    Attributes:
        declared: The engine that the dataset names; None leaves it to the environment.
    """

    declared: str | None = None

    @property
    def is_this_machine(self) -> bool:
        """Whether the workers are processes of this machine, which see its folders."""
        return chosen_engine(os.environ, self.declared) == PROCESSES

    def open(self, count: int, prepare: Callable[[], object] | None = None) -> Pool:
        """Open a pool of at least `count` workers, whose libraries use one thread each.

        `prepare` is as for `WorkerPool`. Raises ConfigError if the engine is not there.
        """
        return open_pool(count, ONE_THREAD, os.environ, self.declared, prepare)


ON_PROCESSES = TaskEngine(PROCESSES)
