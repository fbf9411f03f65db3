"""`dataprep documents`: the documents that filter rules drop, and the rows of the document table."""

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import AsJson, Name, Splits
from dataprep_assets.engine.privacy import Privacy, load_privacy
from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.library.part import parse_split_names

if TYPE_CHECKING:
    from dataprep_assets.engine.trace.document_table import DocumentTable

_MAX_ROWS = 20


def command(
    dataset: Name,
    where: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help="Show only rows that match this rule expression, e.g., 'words < 50'."),
    ] = None,
    reason: Annotated[
        str | None,
        typer.Option(
            metavar="REASON", help="Show only rows dropped for this reason: a rule's name, `duplicate` or `retracted`."
        ),
    ] = None,
    split: Splits = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, metavar="N", help="Print at most N rows, and the number of remaining rows."),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print all matching rows as CSV, with all columns.")] = False,
    json_: AsJson = False,
) -> int:
    """Show how many documents each filter rule drops, or query the document table."""
    if as_csv and json_:
        raise ConfigError("--json cannot be combined with --csv. Remove one of them")
    open_dataset = project.open_dataset(dataset)
    table, privacy = (
        open_dataset.component.documents(open_dataset.store),
        load_privacy(open_dataset.component.declaration, open_dataset.store),
    )
    if where is None and reason is None and split is None and limit is None and not as_csv:
        _print_drops(dataset, table, privacy, as_json=json_)
        return 0
    if open_dataset.component.declaration.sensitive:
        count = table.rows(where=where, reason=reason, splits=parse_split_names(split)).count()
        print(
            f"matching rows: {privacy.public_count(count)} (the rows are not shown, because the dataset is sensitive)"
        )
        return 0
    rows = open_dataset.documents(where=where, reason=reason, split=split)
    max_rows = limit if limit is not None or as_csv or json_ else _MAX_ROWS
    write, printed = _start_csv(table.columns) if as_csv else _print_json if json_ else _print_row, 0
    for printed, row in enumerate(islice(rows, max_rows), 1):  # noqa: B007
        write(row)
    # Count the rows with `count`, because it reads only the columns that are needed to select the rows.
    if max_rows is not None and (remaining := rows.count() - printed):
        advice = "use --json or --csv" + ("" if limit is None else " without --limit")
        advice = "remove --limit" if as_csv or json_ else advice
        print(
            f"and {count_of(remaining, 'more row')}: {advice} to print all",
            file=sys.stderr if as_csv or json_ else sys.stdout,
        )
    return 0


def _print_drops(dataset: str, table: "DocumentTable", privacy: Privacy, *, as_json: bool) -> None:
    """Print the number of rows that each filter rule drops; without rules, print the columns and the drop reasons."""
    drops = table.drops()
    if as_json:
        report = None if drops is None else {**drops.to_json(privacy), "unprotected": list(table.unprotected())}
        print(json.dumps(report, ensure_ascii=False))
        return
    if drops is None:
        reasons = table.reasons()
        print(f"{dataset}: no filter rules. Columns: {', '.join(table.columns)}")
        if reasons:
            print("dropped rows by reason:")
        for reason, count in reasons.items():
            hint = "" if privacy.closed else f"  (list with `--reason {reason}`)"
            print(f"  {reason:<20}{privacy.public_count(count):>12}{hint}")
    else:
        if not privacy.closed:
            print(f"{dataset}: {count_of(drops.documents, 'document')}, {count_of(drops.bytes, 'byte')} of text")
        print("\n".join(drops.lines(privacy)))
    project.print_unless_private(table.unprotected(), f"{dataset}: some taggers are not protected")


def _start_csv(columns: Sequence[str]) -> Callable[[Mapping[str, Any]], object]:
    """Print the CSV header; return the function that prints a row."""
    # Ignore additional columns, which a table built before the declaration's last edit may have.
    writer = csv.DictWriter(sys.stdout, columns, extrasaction="ignore")
    writer.writeheader()
    return writer.writerow


def _print_json(row: Mapping[str, Any]) -> None:
    print(json.dumps(row, ensure_ascii=False))


def _print_row(row: Mapping[str, Any]) -> None:
    outcome = f"kept, {count_of(row['tokens'], 'token')}" if row["kept"] else f"dropped: {row['reason']}"
    details = {k: v for k, v in row.items() if k not in _SHOWN_COLUMNS and v is not None}
    print(f"{row['file']}:{row['row']}  {outcome}")
    print("    " + ", ".join(f"{name} {_format_value(value)}" for name, value in details.items()))


# Columns that the second line of a printed row omits, because the first line shows them.
_SHOWN_COLUMNS = {"file", "row", "kept", "reason", "tokens"}


def _format_value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
