"""What can be wrong between a ledger, the lines of its source files and the quarantine: one sentence a defect."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dataprep_assets.errors import IntegrityError
from dataprep_assets.graph.finding import ledger_of, name_of
from dataprep_assets.integrity.receipt import Receipt

__all__ = ["unbalanced", "unbalanced_lines", "wrong_drops", "wrong_quarantine", "wrong_sums"]


def unbalanced(receipt: Receipt) -> Iterator[str]:
    """Rows of the ledger that are neither documents nor drops."""
    name = name_of(receipt)
    try:
        ledger_of(receipt).balance(name)
    except IntegrityError as error:
        yield str(error)


def unbalanced_lines(receipt: Receipt, lines: Iterable[Mapping[str, Any]], made: str = "documents") -> Iterator[str]:
    """Lines of source files whose rows do not sum to drops and to what was `made` of them, as the line calls it.

    `receipt` is the one that messages name.
    """
    for line in lines:
        dropped = sum(line["dropped"].values())
        if line["rows_in"] != line[made] + dropped:
            yield (
                f"{name_of(receipt)}: source file {line['file']}: {line['rows_in']} rows in, but {line[made]} {made} "
                f"+ {dropped} dropped"
            )


def wrong_sums(receipt: Receipt, lines: Sequence[Mapping[str, Any]], fields: Iterable[str]) -> Iterator[str]:
    """Fields of which the source files' lines do not sum to the ledger."""
    name, ledger = name_of(receipt), ledger_of(receipt)
    for field in fields:
        if (total := sum(line[field] for line in lines)) != getattr(ledger, field):
            yield f"{name}: {field} of the source files sum to {total}, the ledger has {getattr(ledger, field)}"


def wrong_drops(receipt: Receipt) -> Iterator[str]:
    """Reasons of which the source files' drops are not those of the ledger."""
    ledger = ledger_of(receipt)
    by_reason = sum((Counter(line["dropped"]) for line in receipt.sources), Counter())
    if by_reason != +Counter(ledger.dropped):
        yield (
            f"{name_of(receipt)}: drops of the source files are {dict(by_reason)}, the ledger has "
            f"{dict(ledger.dropped)}"
        )


def wrong_quarantine(receipt: Receipt, path: Path, bad: int) -> Iterator[str]:
    """A quarantine of JSON lines that does not hold as many rows as were dropped for being bad; no file is none."""
    held = len(path.read_bytes().splitlines()) if path.exists() else 0
    if held != bad:
        yield f"{name_of(receipt)}: {bad} bad rows were dropped, {path.name} holds {held}"
