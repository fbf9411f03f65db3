"""`dataprep documents`: what the rules of a dataset drop, and the rows of its table of documents."""

import csv
import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import AsJson, Name
from dataprep_assets.engine.privacy import Privacy, privacy_of
from dataprep_assets.errors import ConfigError, count_of

_SHOWN = 20


def command(
    dataset: Name,
    where: Annotated[
        str | None, typer.Option(metavar="EXPRESSION", help="Rows of which this is true, written as a rule is.")
    ] = None,
    reason: Annotated[
        str | None,
        typer.Option(
            metavar="REASON", help="Rows that were dropped for this reason: a rule, `duplicate`, `retracted`."
        ),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV: all of these rows, with all columns.")] = False,
    json_: AsJson = False,
) -> int:
    """Say what each rule drops, or which rows of the table of documents are as asked."""
    if as_csv and json_:
        raise ConfigError("--json and --csv: give one of them")
    component = project.component(dataset)
    store = component.store(project.storage())
    asked, privacy = component.documents(store), privacy_of(component.declaration, store)
    if where is None and reason is None and not as_csv:
        drops = asked.drops()
        if json_:
            report = None if drops is None else {**drops.to_json(privacy), "unprotected": list(asked.unprotected())}
            print(json.dumps(report, ensure_ascii=False))
        elif drops is None:
            print(f"{dataset}: no rules. Columns: {', '.join(asked.columns)}")
            for gone, count in asked.reasons().items():
                print(f"  {gone:<20}{privacy.count(count):>12}  `--reason {gone}` lists them")
        else:
            if not privacy.closed:
                print(f"{dataset}: {count_of(drops.documents, 'document')}, {count_of(drops.bytes, 'byte')} of text")
            print("\n".join(drops.lines(privacy)))
        if not json_:
            project.tell(asked.unprotected(), f"{dataset}: some taggers are not protected")
        return 0
    if component.declaration.sensitive:
        return _count(asked.rows(where=where, reason=reason), privacy)
    rows = asked.rows(where=where, reason=reason)
    if as_csv:
        writer = csv.DictWriter(sys.stdout, asked.columns)
        writer.writeheader()
        writer.writerows(rows)
    elif json_:
        for row in rows:
            print(json.dumps(row, ensure_ascii=False))
    else:
        _show(rows)
    return 0


def _count(rows: Iterator[dict[str, Any]], privacy: Privacy) -> int:
    """Print of a sensitive dataset the number of rows alone."""
    print(f"rows (not shown: the dataset is sensitive)  {privacy.count(sum(1 for _ in rows))}")
    return 0


def _show(rows: Iterator[dict[str, Any]]) -> None:
    for row in islice(rows, _SHOWN):
        tokens = row["tokens"]
        became = f"kept, {count_of(tokens, 'token')}" if row["kept"] else f"dropped: {row['reason']}"
        left = {k: v for k, v in row.items() if k not in _TOLD and v is not None}
        print(f"{row['file']}:{row['row']}  {became}")
        print("    " + ", ".join(f"{name} {_plain(value)}" for name, value in left.items()))
    if more := sum(1 for _ in rows):
        print(f"and {count_of(more, 'row')} more: all of them with --json or --csv")


# columns that the first line of a row tells
_TOLD = {"file", "row", "kept", "reason", "tokens"}


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
