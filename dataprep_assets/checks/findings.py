"""Findings as asset-check results: what a proof says, in the words and tables of the UI."""

from collections.abc import Mapping

import dagster as dg

from dataprep_assets.proofs.finding import Finding

MAX_ROWS = 50


def check_result(key: dg.AssetKey, name: str, finding: Finding, extra: Mapping[str, dg.MetadataValue] | None = None) -> dg.AssetCheckResult:
    """The result of the check `name` on the asset `key`."""
    metadata: dict[str, dg.MetadataValue] = {}
    for fact, value in finding.facts.items():
        metadata[fact] = (
            dg.MetadataValue.text(value) if isinstance(value, str)
            else dg.MetadataValue.float(float(value)) if isinstance(value, float) else dg.MetadataValue.int(int(value))
        )  # fmt: skip
    if finding.table:
        columns = list({column: None for row in finding.table for column in row})
        records = [dg.TableRecord({c: row.get(c, "") for c in columns}) for row in finding.table[:MAX_ROWS]]
        metadata["table"] = dg.MetadataValue.table(records, schema=dg.TableSchema([dg.TableColumn(c, _type(records, c)) for c in columns]))
    return dg.AssetCheckResult(
        asset_key=key, check_name=name, passed=finding.passed, description=finding.summary,
        severity=dg.AssetCheckSeverity.WARN if finding.warning else dg.AssetCheckSeverity.ERROR,
        metadata={**metadata, **(extra or {})},
    )


def _type(records: list[dg.TableRecord], column: str) -> str:
    values = [record.data[column] for record in records]
    if all(isinstance(v, int) for v in values):
        return "int"
    return "float" if all(isinstance(v, int | float) for v in values) else "string"
