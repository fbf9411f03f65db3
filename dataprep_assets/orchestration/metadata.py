"""Metadata and data version of a materialization: counts to plot over time, the artifact's location, and tables."""

import inspect
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg

from dataprep_assets.engine.artifact.metadata_values import Location, Markdown, ShownValue, Table
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.checks.check import count_rebuilt
from dataprep_assets.engine.privacy import load_privacy
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Ledger, Receipt
from dataprep_assets.orchestration.partitions import asset_key

# Data versions, which Dagster compares to find out-of-date artifacts. The data version of a partition is the digest
# of its content.
#
# Dagster gives all partitions of a step's result one data version and one set of tags, and marks everything downstream
# of a changed version as stale. A run of many partitions would therefore make each of them look changed. Here every
# artifact and partition is reported by a separate event, with the tags that Dagster would set: its code version, its
# data version, and the event and version of each input.
#
# Entry points: `build_version_tags`, `build_step_result`.

_FIRST_ENTRIES = ("tokens", "documents", "rows_in", "rows", "dropped")
"""Metadata that is shown first, if an artifact has it."""
_RARE_COUNTS = (
    *("blank_lines", "empty_documents", "special_literals", "unknown_tokens", "dropped_characters"),
    *("changed_characters", "reference_documents"),
)
"""Counts of a ledger that are 0 for most data."""
_REPORTED_BY_BODY = "__source_asset_observation__"
"""Metadata that marks an asset as already reported by the body of its step.

Dagster has no public name for it. Without it, every partition of a run would be reported a second time, without its
metadata.
"""


def build_version_tags(spec: ArtifactSpec, instance: dg.DagsterInstance) -> dict[str, str]:
    """Return the version tags of an artifact's materializations in one step, except the data version.

    The versions of its inputs come from their latest materializations.
    """
    tags = {"dagster/code_version": str(spec.version), "dagster/data_version_is_user_provided": "true"}
    for source in spec.inputs:
        key = asset_key(source)
        latest = next(iter(instance.fetch_materializations(key, limit=1).records), None)
        event = None if latest is None else latest.asset_materialization
        version = None if event is None else (event.tags or {}).get("dagster/data_version")
        name = key.to_user_string()
        # Use "INITIAL", Dagster's value for an input that was never materialized.
        tags[f"dagster/input_data_version/{name}"] = version or "INITIAL"
        tags[f"dagster/input_event_pointer/{name}"] = "NULL" if latest is None else str(latest.storage_id)
    return tags


def build_step_result() -> dg.MaterializeResult[Any]:
    """Return the result of an asset's step that has already reported each of its partitions."""
    return dg.MaterializeResult(metadata={_REPORTED_BY_BODY: True})


def render_value(value: ShownValue) -> dg.MetadataValue:
    """Convert a value to the form in which Dagster's UI shows it."""
    if isinstance(value, Table):
        return render_table(value.rows)
    if isinstance(value, Markdown):
        return dg.MetadataValue.md(value.text)
    if isinstance(value, Location):
        return dg.MetadataValue.text(value.text) if "://" in value.text else dg.MetadataValue.path(value.text)
    if isinstance(value, bool):
        return dg.MetadataValue.bool(value)
    if isinstance(value, str):
        return dg.MetadataValue.text(value)
    # Convert to builtins, because values may be NumPy scalars, which Dagster refuses.
    return dg.MetadataValue.float(float(value)) if isinstance(value, float) else dg.MetadataValue.int(int(value))


def render_table(rows: Sequence[Mapping[str, Any]]) -> dg.MetadataValue:
    """Convert rows to a table in the UI; columns keep the order of first appearance, and missing values are empty."""
    columns = list({column: None for row in rows for column in row})
    records = [dg.TableRecord({c: row.get(c, "") for c in columns}) for row in rows]
    schema = dg.TableSchema([dg.TableColumn(c, _infer_column_type(records, c)) for c in columns])
    return dg.MetadataValue.table(records, schema=schema)


def _infer_column_type(records: Sequence[dg.TableRecord], column: str) -> str:
    values = [record.data[column] for record in records]
    if all(isinstance(v, int) for v in values):
        return "int"
    return "float" if all(isinstance(v, int | float) for v in values) else "string"


def build_definition_metadata(spec: ArtifactSpec) -> dict[str, Any]:
    """Return the metadata of an asset before it is built: its columns, and the location of its build function."""
    entries: dict[str, Any] = {}
    if spec.columns:
        columns = [
            dg.TableColumn(name, kind, description=spec.column_descriptions.get(name))
            for name, kind in spec.columns.items()
        ]
        entries["dagster/column_schema"] = dg.TableSchema(columns)
    build = spec.build
    # Unwrap a `partial`, because it has no code of its own.
    while isinstance(build, partial):
        build = build.func
    code = inspect.unwrap(build).__code__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        reference = dg.LocalFileCodeReference(
            file_path=code.co_filename, line_number=code.co_firstlineno, label="build function"
        )
        entries["dagster/code_references"] = dg.CodeReferencesMetadataValue(code_references=[reference])
    return entries


def build_metadata(spec: ArtifactSpec, store: ArtifactStore, receipt: Receipt, reused: bool) -> Mapping[str, Any]:
    """Return the metadata of a materialization: the common entries and the artifact's own entries.

    Args:
        spec: The artifact.
        store: The store that contains the artifact.
        receipt: The receipt of the finished artifact.
        reused: Whether an existing artifact was reused.
    """
    location = store.location(spec.locate_artifact(store, receipt.partition))
    entries = build_receipt_metadata(receipt, location, reused)
    if (rows := spec.rows(receipt)) is not None:
        entries["dagster/row_count" if spec.partitions is None else "dagster/partition_row_count"] = rows
    if spec.documents is not None:
        entries["rebuild_check"] = str(count_rebuilt([receipt], spec.documents, spec.declaration.prove.level))
    return render_entries(spec, _sort_entries(entries | dict(spec.metadata(store, receipt))))


def build_total_metadata(spec: ArtifactSpec, store: ArtifactStore) -> dict[str, dg.MetadataValue]:
    """Return the sums over the partitions of an artifact, under names that begin with `total_`.

    Returns nothing while a partition is missing, because a backfill with a run per partition would otherwise read all
    receipts in each run.
    """
    artifacts = spec.artifacts(store)
    if None in store.receipt_versions(artifacts):
        return {}
    receipts = [receipt for receipt in store.receipts(artifacts) if receipt is not None]
    ledgers = [receipt.ledger for receipt in receipts if receipt.ledger is not None]
    sums: dict[str, ShownValue] = {}
    if ledgers:
        ledger = Ledger.total(ledgers)
        sums = {
            "tokens": ledger.tokens,
            "documents": ledger.documents,
            "rows_in": ledger.rows_in,
            "dropped": sum(ledger.dropped.values()),
        }
    sums |= {f"{spec.noun}s": len(receipts), "bytes": sum(receipt.total_bytes for receipt in receipts)}
    # Rename the entries only now, because their names decide which of them are public.
    return {f"total_{name}": value for name, value in render_entries(spec, sums).items()}


def _sort_entries(entries: Mapping[str, ShownValue]) -> dict[str, ShownValue]:
    """Return the entries, main counts first, because Dagster shows and plots them in this order."""
    return {name: entries[name] for name in (*_FIRST_ENTRIES, *entries) if name in entries}


def render_entries(spec: ArtifactSpec, entries: Mapping[str, ShownValue]) -> dict[str, dg.MetadataValue]:
    """Convert an artifact's metadata to the form in which the UI shows it, with private entries withheld."""
    return {name: render_value(value) for name, value in load_privacy(spec.declaration).public_entries(entries).items()}


def build_receipt_metadata(receipt: Receipt, location: str, reused: bool) -> dict[str, ShownValue]:
    """Return the metadata that all materializations have in common.

    Args:
        receipt: The receipt of the finished artifact.
        location: The artifact's path or URL.
        reused: Whether an existing artifact was reused.
    """
    remote = "://" in location
    entries: dict[str, ShownValue] = {}
    if (ledger := receipt.ledger) is not None:
        entries |= {
            "tokens": ledger.tokens,
            "documents": ledger.documents,
            "rows_in": ledger.rows_in,
            "dropped": sum(ledger.dropped.values()),
            **{f"dropped_{reason}": count for reason, count in ledger.dropped.items()},
            # Leave out counts that are 0 for most data, because each would be a constant plot.
            **{name: count for name in _RARE_COUNTS if (count := getattr(ledger, name))},
        }
        # Only artifacts that read the source themselves have these counts.
        if ledger.source_bytes:
            entries |= {
                "source_bytes": ledger.source_bytes,
                "sampled_documents": ledger.sampled_documents,
            }
        if receipt.sources:
            entries["source_files"] = len(receipt.sources)
        if cpu := receipt.measured.get("cpu_seconds"):
            entries["tokens_per_cpu_second"] = round(ledger.tokens / cpu, 1)
    return entries | {
        "bytes": receipt.total_bytes,
        "files": len(receipt.files),
        "reused": reused,
        "content_digest": receipt.content,
        **({} if remote else {"path": Location(location)}),
        "dagster/uri": location if remote else Path(location).absolute().as_uri(),
    }
