"""What the assets of every dataset share: their keys, their storage, how they report."""

import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

import dagster as dg

from dataprep_assets.execution.processes import Meter
from dataprep_assets.graph.declaration import DatasetDeclaration
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.planning.cost import SHARDS_A_RUN
from resources import StorageResource, io_manager

SHARDS_PER_RUN = SHARDS_A_RUN
NETWORK_POOL, CPU_POOL = "dataprep_network", "dataprep_cpu"


def worker_count(declared: int | None) -> int:
    """Worker processes: the declared number, or one a core that this process may use."""
    return declared or int(os.environ.get("DATAPREP_WORKERS") or 0) or len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class DatasetAssets:
    """One dataset's declaration, and the Dagster names that follow from it."""

    declaration: DatasetDeclaration

    def key(self, name: str, split: str | None = None) -> dg.AssetKey:
        """The key of one of the dataset's assets."""
        return dg.AssetKey([p for p in (self.declaration.dataset, split, name) if p])

    def common(self, kinds: Iterable[str], description: str) -> dict[str, Any]:
        """Arguments that every asset of the dataset has."""
        return {
            "group_name": self.declaration.dataset,
            "kinds": set(kinds),
            "owners": list(self.declaration.owners),
            "description": "\n\n".join(filter(None, (description, self.declaration.description))),
            "tags": {"dataprep/sensitive": "true"} if self.declaration.sensitive else {},
            "metadata": {io_manager.STORAGE: self.declaration.storage} if self.declaration.storage else {},
            "io_manager_key": io_manager.KEY,
        }

    def store(self, storage: StorageResource) -> ArtifactStore:
        """Where this dataset's artifacts are."""
        return storage.artifacts(self.declaration.storage)


@dataclass(frozen=True)
class Step:
    """One Dagster run of a pipeline: what a person calls it, the assets it materializes, its tags."""

    title: str
    keys: Sequence[dg.AssetKey]
    tags: Mapping[str, str] = field(default_factory=dict)


def partition_range(partitions: Sequence[str]) -> dict[str, str]:
    """The run tags of consecutive partitions."""
    return {"dagster/asset_partition_range_start": partitions[0], "dagster/asset_partition_range_end": partitions[-1]}


def partitions_of_run(run: dg.DagsterRun, every: Sequence[str]) -> list[str]:
    """Which of all partitions a run is about: its partition, its range, or every one."""
    if key := run.tags.get("dagster/partition"):
        return [key] if key in every else []
    first, last = (
        run.tags.get("dagster/asset_partition_range_start"),
        run.tags.get("dagster/asset_partition_range_end"),
    )
    if first in every and last in every:
        return list(every[every.index(first) : every.index(last) + 1])
    return list(every)


def table(rows: Sequence[Mapping[str, Any]]) -> dg.MetadataValue:
    """Rows as a table in the UI; columns in the order in which they first appear, gaps empty."""
    columns = list({column: None for row in rows for column in row})
    records = [dg.TableRecord({c: row.get(c, "") for c in columns}) for row in rows]
    schema = dg.TableSchema([dg.TableColumn(c, _column_type(records, c)) for c in columns])
    return dg.MetadataValue.table(records, schema=schema)


def _column_type(records: Sequence[dg.TableRecord], column: str) -> str:
    values = [record.data[column] for record in records]
    if all(isinstance(v, int) for v in values):
        return "int"
    return "float" if all(isinstance(v, int | float) for v in values) else "string"


def location(place: str) -> dg.MetadataValue:
    """A path, or a URL, as the UI shows it."""
    return dg.MetadataValue.text(place) if "://" in place else dg.MetadataValue.path(place)


def receipt_metadata(receipt: Receipt, place: str, reused: bool) -> dict[str, dg.MetadataValue]:
    """What every materialization shows: counts that plot over time, where the artifact lies, whether work was done."""
    shown: dict[str, dg.MetadataValue] = {
        "path": location(place),
        "bytes": dg.MetadataValue.int(receipt.total_bytes),
        "files": dg.MetadataValue.int(len(receipt.files)),
        "up_to_date": dg.MetadataValue.bool(reused),
        "content_digest": dg.MetadataValue.text(receipt.content),
    }
    if (ledger := receipt.ledger) is not None:
        counts = {
            "rows_in": ledger.rows_in,
            "documents": ledger.documents,
            "tokens": ledger.tokens,
            "source_bytes": ledger.source_bytes,
            "blank_lines": ledger.blank_lines,
            "empty_documents": ledger.empty_documents,
            "special_literals": ledger.special_literals,
            "reference_documents": ledger.reference_documents,
            "sampled_documents": ledger.sampled_documents,
            "dropped": sum(ledger.dropped.values()),
            **{f"dropped_{k}": v for k, v in ledger.dropped.items()},
        }
        shown |= {name: dg.MetadataValue.int(value) for name, value in counts.items()}
        if receipt.sources:
            shown["source_files"] = dg.MetadataValue.int(len(receipt.sources))
        if cpu := receipt.measured.get("cpu_seconds"):
            shown["tokens_per_cpu_second"] = dg.MetadataValue.float(round(ledger.tokens / cpu, 1))
    return shown


def result(
    receipt: Receipt, place: str, reused: bool, extra: Mapping[str, Any] | None = None
) -> dg.MaterializeResult[Any]:
    """A materialization whose data version is the content of the artifact, so that "out of date" is true."""
    return dg.MaterializeResult(
        metadata={**receipt_metadata(receipt, place, reused), **(extra or {})},
        data_version=dg.DataVersion(receipt.content[:32]),
    )


LIVE = "DATAPREP_LIVE"
"""Set by the command line when a person watches: steps then draw on the terminal."""


class RunProgress:
    """Shows a long step: one live line in a terminal, one log line every `log_seconds` in the run."""

    def __init__(self, context: dg.AssetExecutionContext, what: str, log_seconds: float = 15.0) -> None:
        self._context, self._what, self._every = context, what, log_seconds
        self._logged = time.monotonic()
        self._drawn = 0.0
        self._terminal: TextIO | None = None
        if os.environ.get(LIVE):
            # not stderr: Dagster sends a step's output to its compute log
            with contextlib.suppress(OSError):
                self._terminal = open("/dev/tty", "w")  # noqa: SIM115 - closed by `close`

    def __call__(self, meter: Meter, workers: int) -> None:
        moment = time.monotonic()
        if self._terminal is not None and moment - self._drawn >= 0.2:
            self._drawn = moment
            self._terminal.write(f"\r\x1b[2K    {self._what}: {meter.line(workers)}")
            self._terminal.flush()
        if moment - self._logged >= self._every:
            self._logged = moment
            self._context.log.info(f"{self._what}: {meter.line(workers)}")

    def close(self, meter: Meter | None, workers: int) -> None:
        """The last line, always logged; the live one is wiped."""
        if self._terminal is not None:
            self._terminal.write("\r\x1b[2K")
            self._terminal.close()
            self._terminal = None
        if meter is not None and meter.done["source_bytes"]:
            self._context.log.info(f"{self._what}: {meter.line(workers)}")
