"""What a comparison with an original found, a row a shape."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One shape of records: `equal` of `records` are the original's, `explained` differ by what `note` names.

    That is an option, a check or a key of a contract that the docs have.
    """

    area: str
    shape: str
    records: int
    equal: int
    explained: int
    note: str


def render(rows: Iterable[Row]) -> str:
    """A Markdown table of the rows, in their order."""
    lines = ["| area | shape | records | equal | explained | note |", "|---|---|---|---|---|---|"]
    for row in rows:
        note = row.note.replace("|", "\\|")
        lines.append(f"| {row.area} | {row.shape} | {row.records} | {row.equal} | {row.explained} | {note} |")
    return "\n".join(lines) + "\n"
