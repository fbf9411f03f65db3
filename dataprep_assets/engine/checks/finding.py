"""A finding: the result of one check of one artifact, with the numbers and places that support it.

A check never raises for a defect that it exists to find, because a check that raises has no history and shows no
numbers. Checks read files that may be damaged in any way, so `judged` also turns errors of the readers below them
(a truncated file, a missing one, a receipt without its facts) into failed findings. A bug still raises.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import ParamSpec

from dataprep_assets.engine.artifact.metadata_values import Markdown
from dataprep_assets.errors import DataprepError, IntegrityError
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt, damage
from dataprep_assets.plural import count_of

Row = Mapping[str, str | int | float]
"""One row of a finding's table."""

ACCEPTED = "accepted"
"""Name of the fact with the reason in an accepted finding."""
SHOWN = 20
"""Most rows of defects in a table: of a million defects, the first few are enough to see."""
REBUILD = "Delete the shard's directory and materialize it again"
"""What to do about a shard that is not as it was built."""

_P = ParamSpec("_P")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a check found. `facts` are numbers to plot (texts if they cannot change),
    `table` rows to look at, `plot` a picture.

    `summary` is one sentence: what holds, or what is wrong, where, and what to do. `warning` is the severity of a
    failure: True when the artifact may still be used by someone who has read the sentence.
    """

    passed: bool
    summary: str
    facts: Mapping[str, int | float | str] = field(default_factory=dict)
    table: tuple[Row, ...] = ()
    plot: Markdown | None = None
    warning: bool = False


def verdict(
    defects: Iterable[str],
    holds: str,
    todo: str,
    *,
    facts: Mapping[str, int | float | str] | None = None,
    table: Iterable[Row] | None = None,
    warning: bool = False,
) -> Finding:
    """A finding: passes with the sentence `holds` if there are no defects, else names the first and says what `todo`.

    Without a `table` the finding lists the first defects.
    """
    found = list(defects)
    facts = {**(facts or {}), "defects": len(found)}
    rows: tuple[Row, ...] = tuple(table) if table is not None else tuple({"defect": d} for d in found[:SHOWN])
    if not found:
        return Finding(passed=True, summary=holds, facts=facts, table=rows)
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    summary = f"{found[0]}{more}. {todo}."
    return Finding(passed=False, summary=summary, facts=facts, table=rows, warning=warning)


def accepted(finding: Finding, why: str) -> Finding:
    """Turn a warning that the declaration accepts into a pass with the reason. An unreadable artifact still fails."""
    if finding.passed or "unreadable" in finding.facts:
        return finding
    summary = f"Accepted: {why}. {finding.summary}"
    return replace(finding, passed=True, summary=summary, facts={**finding.facts, ACCEPTED: why})


def judged(check: Callable[_P, Finding]) -> Callable[_P, Finding]:
    """Decorate a check's function so that errors of readers and of the file system become failed findings."""

    @wraps(check)
    def wrapped(*args: _P.args, **kwargs: _P.kwargs) -> Finding:
        try:
            return check(*args, **kwargs)
        except DataprepError as error:
            return Finding(passed=False, summary=str(error), facts={"unreadable": 1})
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            return Finding(
                passed=False,
                facts={"unreadable": 1},
                summary=f"{where}{error.strerror or error}. The artifact cannot be read: restore or rebuild it.",
            )

    return wrapped


@judged
def files_intact(directory: Path, receipt: Receipt, todo: str = REBUILD) -> Finding:
    """Every file that the receipt lists is there with its size and SHA-256, and there is no other file."""
    return verdict(
        (f"{name_of(receipt)}: {d}" for d in damage(directory, receipt)),
        f"{count_of(len(receipt.files), 'file')}, {receipt.total_bytes} bytes, with the digests of the receipt.",
        todo,
        facts={"files": len(receipt.files), "bytes": receipt.total_bytes},
    )


def ledger_of(receipt: Receipt) -> Ledger:
    """The receipt's ledger; raises IntegrityError when it has none."""
    if receipt.ledger is None:
        raise IntegrityError(f"{name_of(receipt)}: its receipt has no ledger. Rebuild the artifact")
    return receipt.ledger


def name_of(receipt: Receipt) -> str:
    """How messages name the artifact of a receipt."""
    return "/".join(filter(None, (receipt.dataset, receipt.artifact, receipt.partition)))


def first_of(names: Iterable[object], limit: int = 3) -> str:
    """The first few of many names, and how many more there are."""
    known = [str(n) for n in names]
    return ", ".join(known[:limit]) + (f" and {len(known) - limit} more" if len(known) > limit else "")
