"""`dataprep documents`: the documents that filter rules drop, and the rows of the document table."""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import AsJson, Name, Splits
from dataprep_assets.engine.privacy import Privacy, load_privacy
from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.library.part import parse_split_names
from dataprep_assets.screen import LAYOUT_COLUMNS, read_width

if TYPE_CHECKING:
    from dataprep_assets.engine.trace.document_table import DocumentTable

_MAX_ROWS = 20
_MAX_CHARACTERS, _MAX_LINES = 160, 6
"""Maximum length of a line of a text in the output, and maximum number of lines; JSON and CSV have the whole text."""
_CONFLICTS = (
    ("--json", "--csv"),
    ("--sample", "--limit"),
    *(("--plot", option) for option in ("--sample", "--limit", "--text", "--csv")),
)
"""Options that cannot be combined."""


def command(
    dataset: Name,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="EXPRESSION",
            help="Show only rows that match this rule expression, e.g., 'words < 50' or 'kept and words < 80'.",
        ),
    ] = None,
    reason: Annotated[
        str | None,
        typer.Option(
            metavar="REASON",
            help="Show only rows dropped for this reason: a rule's name, `duplicate`, `retracted`, or the reason of a "
            "rejected row, e.g., bad_json. For kept rows: --where kept.",
        ),
    ] = None,
    split: Splits = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, metavar="N", help="Print at most N rows, and the number of remaining rows."),
    ] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Print N of the matching rows, drawn at random.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="S", help="With --sample: seed of the random draw. Default: 0.")
    ] = None,
    text: Annotated[
        bool,
        typer.Option(
            "--text",
            help="Print the text or the messages of each row, read from its source; JSON and CSV have the whole text.",
        ),
    ] = False,
    plot: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Draw a histogram of this column of the matching rows, with the rules' thresholds. For texts: the "
            "most frequent values.",
        ),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print all matching rows as CSV, with all columns.")] = False,
    json_: AsJson = False,
) -> int:
    """Show how many documents each filter rule drops, or query the document table."""
    options = {"--plot": plot, "--sample": sample, "--limit": limit, "--text": text, "--json": json_, "--csv": as_csv}
    given_options = [name for name, value in options.items() if value not in (None, False)]
    for conflict in _CONFLICTS:
        if len(pair := [name for name in given_options if name in conflict]) > 1:
            raise ConfigError(f"{pair[0]} cannot be combined with {pair[1]}. Remove one of them")
    if seed is not None and sample is None:
        raise ConfigError("--seed needs --sample. Add --sample N")
    open_dataset = project.open_dataset(dataset)
    table, privacy = (
        open_dataset.component.documents(open_dataset.store),
        load_privacy(open_dataset.component.declaration, open_dataset.store),
    )
    if where is None and reason is None and split is None and {*given_options} <= {"--json"}:
        _print_drops(dataset, table, privacy, as_json=json_)
        return 0
    splits = parse_split_names(split)
    if open_dataset.component.declaration.sensitive:
        if shown_options := [name for name in given_options if name in ("--plot", "--sample", "--text")]:
            raise ConfigError(
                f"{dataset} is sensitive, so its rows are not shown or plotted. Remove {' and '.join(shown_options)}"
            )
        count = table.rows(where=where, reason=reason, splits=splits).count()
        print(
            f"matching rows: {privacy.public_count(count)} (the rows are not shown, because the dataset is sensitive)"
        )
        return 0
    if plot is not None:
        _print_plot(table, plot, {"where": where, "reason": reason, "splits": splits}, as_json=json_)
        return 0
    rows = open_dataset.documents(where=where, reason=reason, split=split)
    max_rows = limit if limit is not None or as_csv or json_ or sample is not None else _MAX_ROWS
    columns = [*table.columns, *(["text", "text_byte"] if text else [])]
    shown_rows: Iterable[dict[str, Any]] = islice(rows if sample is None else rows.sample(sample, seed or 0), max_rows)
    shown_rows = table.add_texts(shown_rows) if text else shown_rows
    write, printed = _start_csv(columns) if as_csv else _print_json if json_ else _print_row, 0
    for printed, row in enumerate(shown_rows, 1):  # noqa: B007
        write(row)
    note_stream = sys.stderr if as_csv or json_ else sys.stdout
    if sample is not None:
        print(
            f"{printed:,} of {count_of(rows.count(), 'matching row')}, drawn with the seed {seed or 0}",
            file=note_stream,
        )
    # Count the rows with `count`, because it reads only the columns that are needed to select the rows.
    elif max_rows is not None and (remaining := rows.count() - printed):
        advice = "use --json or --csv" + ("" if limit is None else " without --limit")
        advice = "remove --limit" if as_csv or json_ else advice
        print(f"and {count_of(remaining, 'more row')}: {advice} to print all", file=note_stream)
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
    kept_text = f"kept, {count_of(row['tokens'], 'token')}" if row.get("tokens") is not None else "kept"
    outcome = kept_text if row["kept"] else f"dropped: {row['reason']}"
    details = {k: v for k, v in row.items() if k not in _SHOWN_COLUMNS and v is not None}
    byte = f", byte {row['text_byte']:,}" if row.get("text_byte") is not None else ""
    print(f"{row['file']}:{row['row']}{byte}  {outcome}")
    print("    " + ", ".join(f"{name} {_format_value(value)}" for name, value in details.items()))
    if "text" in row:
        print("\n".join(f"    {line}" for line in _shorten_text(row["text"])))


# Columns that the second line of a printed row omits, because the first line or the lines below it show them.
_SHOWN_COLUMNS = {"file", "row", "kept", "reason", "tokens", "text", "text_byte"}


def _shorten_text(text: str | None) -> Iterator[str]:
    """Yield the first lines of a text, and the number of remaining characters."""
    if text is None:
        yield "no text, because the row was removed, or because its file has no lines"
        return
    # Cut each line, so that the first lines of a conversation are shown even if its first message is long.
    lines = [(line, line[:_MAX_CHARACTERS]) for line in text.splitlines(keepends=True)]
    for line, start in lines[:_MAX_LINES]:
        # Escape control characters, because they could change the terminal.
        shown_text = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in start.rstrip("\r\n"))
        yield f"| {shown_text} …" if len(line.rstrip("\r\n")) > _MAX_CHARACTERS else f"| {shown_text}"
    if remaining := len(text) - sum(len(start) for _, start in lines[:_MAX_LINES]):
        yield f"and {count_of(remaining, 'more character')}: use --json to print the whole text"


def _print_plot(table: "DocumentTable", column: str, selection: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the histogram of a column with numbers, or the most frequent values of any other column."""
    is_numeric = column in table.numeric_columns
    chart = table.histogram(column, **selection) if is_numeric else table.count_values(column, **selection)
    if as_json:
        print(json.dumps(chart.to_json(), ensure_ascii=False))
        return
    width = read_width(sys.stdout)
    bar, line = ("#", "-") if width is None else ("█", "─")
    print("\n".join(chart.lines(width or LAYOUT_COLUMNS, bar=bar, line=line)))


def _format_value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
