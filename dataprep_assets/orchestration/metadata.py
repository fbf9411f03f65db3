"""The metadata of a materialization in the UI: counts that plot over time, where the artifact is stored, tables."""

import inspect
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg

from dataprep_assets.engine.artifact.metadata_values import Location, Markdown, Shown, Table
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.checks.level import counted_again
from dataprep_assets.engine.privacy import privacy_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt


def rendered(value: Shown) -> dg.MetadataValue:
    """A value as Dagster's UI shows it."""
    if isinstance(value, Table):
        return table(value.rows)
    if isinstance(value, Markdown):
        return dg.MetadataValue.md(value.text)
    if isinstance(value, Location):
        return dg.MetadataValue.text(value.text) if "://" in value.text else dg.MetadataValue.path(value.text)
    if isinstance(value, bool):
        return dg.MetadataValue.bool(value)
    if isinstance(value, str):
        return dg.MetadataValue.text(value)
    # values may be NumPy scalars; Dagster accepts builtins only
    return dg.MetadataValue.float(float(value)) if isinstance(value, float) else dg.MetadataValue.int(int(value))


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


def definition_metadata(spec: ArtifactSpec) -> dict[str, Any]:
    """What an asset shows before it is made: the columns of its rows, and where its build function is defined."""
    shown: dict[str, Any] = {}
    if spec.columns:
        columns = [dg.TableColumn(name, kind) for name, kind in spec.columns.items()]
        shown["dagster/column_schema"] = dg.TableSchema(columns)
    build = spec.build
    # a `partial` has no code of its own to refer to
    while isinstance(build, partial):
        build = build.func
    code = inspect.unwrap(build).__code__
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        reference = dg.LocalFileCodeReference(
            file_path=code.co_filename, line_number=code.co_firstlineno, label="what makes it"
        )
        shown["dagster/code_references"] = dg.CodeReferencesMetadataValue(code_references=[reference])
    return shown


def metadata_of(spec: ArtifactSpec, store: ArtifactStore, receipt: Receipt, reused: bool) -> Mapping[str, Any]:
    """The metadata of a materialization: the common entries, and those of its artifact.

    Args:
        spec: The artifact.
        store: Where the artifact is.
        receipt: The receipt of the finished artifact.
        reused: Whether an existing artifact was reused.
    """
    location = store.location(spec.located(store, receipt.partition))
    shown = receipt_metadata(receipt, location, reused)
    if (rows := spec.rows(receipt)) is not None:
        shown["dagster/row_count" if spec.partitions is None else "dagster/partition_row_count"] = rows
    if spec.documents is not None:
        shown["proof"] = str(counted_again([receipt], spec.documents, spec.declaration.prove.level))
    return rendered_entries(spec, shown | dict(spec.metadata(store, receipt)))


def rendered_entries(spec: ArtifactSpec, shown: Mapping[str, Shown]) -> dict[str, dg.MetadataValue]:
    """Metadata of an artifact as the UI shows it."""
    return {name: rendered(value) for name, value in privacy_of(spec.declaration).entries(shown).items()}


def receipt_metadata(receipt: Receipt, location: str, reused: bool) -> dict[str, Shown]:
    """The metadata that every materialization has.

    Args:
        receipt: The receipt of the finished artifact.
        location: The artifact's path or URL.
        reused: Whether an existing artifact was reused.
    """
    remote = "://" in location
    shown: dict[str, Shown] = {
        "dagster/uri": location if remote else Path(location).absolute().as_uri(),
        **({} if remote else {"path": Location(location)}),
        "bytes": receipt.total_bytes,
        "files": len(receipt.files),
        "reused": reused,
        "content_digest": receipt.content,
    }
    if (ledger := receipt.ledger) is not None:
        shown |= {
            "rows_in": ledger.rows_in,
            "documents": ledger.documents,
            "tokens": ledger.tokens,
            "blank_lines": ledger.blank_lines,
            "empty_documents": ledger.empty_documents,
            "special_literals": ledger.special_literals,
            "unknown_tokens": ledger.unknown_tokens,
            "dropped_characters": ledger.dropped_characters,
            "changed_characters": ledger.changed_characters,
            "dropped": sum(ledger.dropped.values()),
            **{f"dropped_{reason}": count for reason, count in ledger.dropped.items()},
        }
        # of artifacts that read the source themselves
        if ledger.source_bytes:
            shown |= {
                "source_bytes": ledger.source_bytes,
                "reference_documents": ledger.reference_documents,
                "sampled_documents": ledger.sampled_documents,
            }
        if receipt.sources:
            shown["source_files"] = len(receipt.sources)
        if cpu := receipt.measured.get("cpu_seconds"):
            shown["tokens_per_cpu_second"] = round(ledger.tokens / cpu, 1)
    return shown
