"""The senders of lineage events that a declaration names.

Entry point: `open_senders`.
"""

from typing import Protocol

from dataprep_assets.engine.lineage.openlineage import OpenLineage
from dataprep_assets.engine.lineage.wandb_run import WandbReferences
from dataprep_assets.engine.yaml.declaration import LineageDeclaration
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt


class LineageSender(Protocol):
    """Sender of events about the artifacts that a step builds."""

    def send(self, receipt: Receipt, rows: int | None) -> None:
        """Send or collect the events of a built artifact; raises no error, because the build continues."""

    def finish(self) -> None:
        """Send the collected events; raise ConfigError or TransferError if some events were not sent."""


def open_senders(lineage: LineageDeclaration, store: ArtifactStore) -> list[LineageSender]:
    """Return the declared senders; nothing is opened before the first event."""
    senders: list[LineageSender] = []
    if lineage.openlineage is not None:
        senders.append(OpenLineage(lineage.openlineage, store))
    if lineage.wandb is not None:
        senders.append(WandbReferences(lineage.wandb, store))
    return senders
