"""Logs the tables of a finished blend to Weights & Biases, if that is declared.

The only module that imports wandb, and only when it is called. Keys are those of Nemotron's `wandb_hook.py`
(docs/formats/wandb-tables.md#keys): `<stage>/plan_table`, `progress_table`, `stage_table`. The W&B run is named after
the run hash and its id follows from it, so that logging the same run again adds to the same W&B run. What wandb would
gather by itself (console, machine, code, installed packages) is switched off.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dataprep_assets.errors import ConfigError, TransferError
from dataprep_assets.pipelines.blend.declaration import WandbDeclaration

_LOGIN_SECONDS = 60
Rows = Sequence[Mapping[str, Any]]


def log_tables(
    declared: WandbDeclaration, *, dataset: str, stage: str, config: Mapping[str, Any], tables: Mapping[str, Rows]
) -> str:
    """Log the tables and the configuration, whose `run_hash` names the run; the run's URL, or its folder when offline.

    Raises ConfigError without the extra, TransferError if W&B cannot be reached or refuses. The blend is finished by
    then.
    """
    try:
        import wandb
    except ImportError as error:
        raise ConfigError(
            "wandb: logging to W&B needs the extra `wandb`: pip install 'dataprep-assets[wandb]'"
        ) from error
    run_hash = str(config["run_hash"])
    settings = wandb.Settings(
        console="off",
        silent=True,
        login_timeout=_LOGIN_SECONDS,  # never wait for somebody to type a key
        disable_git=True,
        disable_code=True,
        save_code=False,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
    )
    try:
        run = wandb.init(
            project=declared.project,
            entity=declared.entity,
            mode=declared.mode,
            id=f"{dataset}-{run_hash}",
            name=run_hash,
            group=dataset,
            job_type=f"data-prep-{stage}",
            resume="allow",
            config=dict(config),
            settings=settings,
        )
        try:
            run.log({f"{stage}/{name}": _table(wandb, rows) for name, rows in tables.items()})
            return str(run.url or run.dir)
        finally:
            run.finish()
    except wandb.Error as error:
        raise TransferError(
            f"wandb: the run {run_hash} is finished and kept, its tables were not logged: {error}. Log in with `wandb "
            "login`, or set `wandb: {mode: offline}`, then materialize `blend` again"
        ) from error
    finally:
        # wandb itself calls its hook at exit unreliable where `multiprocessing` started the process
        wandb.teardown()


def _table(wandb: Any, rows: Rows) -> Any:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    # a cell is a number or, where nothing was measured, an empty text
    return wandb.Table(columns=columns, data=[[row.get(c) for c in columns] for row in rows], allow_mixed_types=True)
