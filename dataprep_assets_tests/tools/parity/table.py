"""The results of a comparison with an upstream program, a row per shape."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A shape of records: `equal` of `records` match upstream, `explained` differ for the reason in `note`.

    The reason is an option, a check or a key of a contract in the docs.
    """

    area: str
    shape: str
    records: int
    equal: int
    explained: int
    note: str


def render(rows: Iterable[Row]) -> str:
    """Return the rows as a Markdown table, in their order."""
    lines = ["| area | shape | records | equal | explained | note |", "|---|---|---|---|---|---|"]
    for row in rows:
        note = row.note.replace("|", "\\|")
        lines.append(f"| {row.area} | {row.shape} | {row.records} | {row.equal} | {row.explained} | {note} |")
    return "\n".join(lines) + "\n"
