"""Compares a ledger with the lines of its source files and with the quarantine; one sentence for each defect."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dataprep_assets.engine.checks.finding import ledger_of, name_of
from dataprep_assets.errors import IntegrityError
from dataprep_assets.integrity.receipt import Receipt


def unbalanced(receipt: Receipt) -> Iterator[str]:
    """A sentence if rows of the ledger are neither documents nor drops."""
    name = name_of(receipt)
    try:
        ledger_of(receipt).balance(name)
    except IntegrityError as error:
        yield str(error)


def unbalanced_lines(receipt: Receipt, lines: Iterable[Mapping[str, Any]], made: str = "documents") -> Iterator[str]:
    """A sentence for each source file's line whose rows are not the sum of its drops and of the field `made`.

    `receipt` is only named in the sentences.
    """
    for line in lines:
        dropped = sum(line["dropped"].values())
        if line["rows_in"] != line[made] + dropped:
            yield (
                f"{name_of(receipt)}: source file {line['file']}: {line['rows_in']} rows in, but {line[made]} {made} "
                f"+ {dropped} dropped"
            )


def wrong_sums(receipt: Receipt, lines: Sequence[Mapping[str, Any]], fields: Iterable[str]) -> Iterator[str]:
    """A sentence for each field whose sum over the source files' lines is not the ledger's."""
    name, ledger = name_of(receipt), ledger_of(receipt)
    for field in fields:
        if (total := sum(line[field] for line in lines)) != getattr(ledger, field):
            yield f"{name}: {field} of the source files sum to {total}, the ledger has {getattr(ledger, field)}"


def wrong_drops(receipt: Receipt) -> Iterator[str]:
    """A sentence for each reason whose drops in the source files do not sum to the ledger's."""
    ledger = ledger_of(receipt)
    by_reason = sum((Counter(line["dropped"]) for line in receipt.sources), Counter())
    # `+` leaves out reasons that dropped nothing, as the sum of counters does
    if by_reason != +Counter(ledger.dropped):
        yield (
            f"{name_of(receipt)}: drops of the source files are {dict(by_reason)}, the ledger has "
            f"{dict(ledger.dropped)}"
        )


def wrong_quarantine(receipt: Receipt, path: Path, bad: int) -> Iterator[str]:
    """A sentence if a quarantine of JSON lines does not have the `bad` rows that were dropped; no file means none."""
    held = len(path.read_bytes().splitlines()) if path.exists() else 0
    if held != bad:
        yield f"{name_of(receipt)}: {bad} bad rows were dropped, {path.name} holds {held}"
