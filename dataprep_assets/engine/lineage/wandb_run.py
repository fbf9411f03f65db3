"""Weights & Biases: the run of a step, and references to the artifacts that the step built.

Only `open_run` imports wandb, and only when it is called. Its settings disable wandb's own data collection (console
output, machine, code, installed packages).

Entry points: `open_run`, `WandbReferences`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dataprep_assets.engine.yaml.declaration import WandbDeclaration
from dataprep_assets.errors import TransferError, build_missing_extra_error
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.stores.files import digest_value

_LOGIN_SECONDS = 60


@contextmanager
def open_run(
    declaration: WandbDeclaration, *, dataset: str, name: str, job_type: str, config: Mapping[str, Any], failure: str
) -> Iterator[tuple[Any, Any]]:
    """Yield the module `wandb` and a W&B run, which is resumed if a run with this dataset and name exists.

    Raises ConfigError if the extra `wandb` is not installed, and TransferError with `failure`, which names the
    finished work and the remedy, if W&B cannot be reached or refuses the data.
    """
    try:
        import wandb
    except ImportError as error:
        raise build_missing_extra_error("wandb", "wandb", "wandb") from error
    settings = wandb.Settings(
        console="off",
        silent=True,
        # Without a timeout, wandb would wait indefinitely for an API key on the terminal.
        login_timeout=_LOGIN_SECONDS,
        disable_git=True,
        disable_code=True,
        save_code=False,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
    )
    try:
        run = wandb.init(
            project=declaration.project,
            entity=declaration.entity,
            mode=declaration.mode,
            id=f"{dataset}-{name}",
            name=name,
            group=dataset,
            job_type=job_type,
            resume="allow",
            config=dict(config),
            settings=settings,
        )
        try:
            yield wandb, run
        finally:
            run.finish()
    except wandb.Error as error:
        raise TransferError(failure.format(error=error)) from error
    finally:
        # Call `teardown` explicitly, because wandb's exit hook may not run in processes started by `multiprocessing`.
        wandb.teardown()


class WandbReferences:
    """Sender of a W&B artifact with references to the partitions that a step built, and their digests.

    Args:
        declaration: The project.
        store: Where the artifacts are stored.
    """

    def __init__(self, declaration: WandbDeclaration, store: ArtifactStore) -> None:
        self._declaration, self._store = declaration, store
        self._receipts: list[Receipt] = []

    def send(self, receipt: Receipt, rows: int | None) -> None:
        """Add a built artifact, which `finish` sends."""
        self._receipts.append(receipt)

    def finish(self) -> None:
        """Send the references. Raises the errors of `open_run`."""
        if not self._receipts:
            return
        receipts = sorted(self._receipts, key=lambda receipt: receipt.partition or "")
        dataset, name = receipts[0].dataset, receipts[0].artifact
        digests = {receipt.partition or name: receipt.content for receipt in receipts}
        with open_run(
            self._declaration,
            dataset=dataset,
            name=f"{name}-{digest_value(digests)[:16]}",
            job_type="data-prep-lineage",
            config={},
            failure=f"lineage.wandb: {dataset}/{name} is finished, but its references were not logged: {{error}}. Log "
            "in with `wandb login`, or set `mode: offline`",
        ) as (wandb, run):
            references = wandb.Artifact(f"{dataset}.{name}", type="dataset", metadata={"digests": digests})
            for receipt in receipts:
                artifact = Artifact(dataset=dataset, name=name, partition=receipt.partition)
                location = self._store.location(artifact)
                # Do not let wandb read the files, because their digests are in the metadata.
                references.add_reference(
                    location if "://" in location else f"file://{location}",
                    name=receipt.partition or name,
                    checksum=False,
                )
            run.log_artifact(references)
