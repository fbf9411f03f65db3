"""Losses: source rows that a dataset's products lack, by reason and file, from receipts; and checks of ledgers.

Each spec returns the losses of its finished partitions (`ArtifactSpec.losses`), because only the spec knows the meaning
of its ledger's reasons. Runs, `dataprep show` and the library print all losses with these functions.

Entry points: `Loss`, `dropped_rows`, `losses_of`, `LossTable`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

from dataprep_assets.engine.checks.check import ledger_of, name_of
from dataprep_assets.engine.privacy import Privacy
from dataprep_assets.errors import DataprepError, IntegrityError, count_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Ledger, Receipt

if TYPE_CHECKING:
    from dataprep_assets.engine.artifact.spec import ArtifactSpec


def unbalanced(receipt: Receipt) -> Iterator[str]:
    """Yield a sentence if some rows of the ledger are neither documents nor drops."""
    name = name_of(receipt)
    try:
        ledger_of(receipt).balance(name)
    except IntegrityError as error:
        yield str(error)


def unbalanced_lines(receipt: Receipt, lines: Iterable[Mapping[str, Any]], made: str = "documents") -> Iterator[str]:
    """Yield a sentence per source file whose rows do not equal its drops plus the count in the field `made`.

    `receipt` is used only for its name.
    """
    for line in lines:
        dropped_count = sum(line["dropped"].values())
        if line["rows_in"] != line[made] + dropped_count:
            yield (
                f"{name_of(receipt)}: source file {line['file']}: {count_of(line['rows_in'], 'row')} in, but "
                f"{line[made]} {made} + {dropped_count} dropped"
            )


def wrong_sums(receipt: Receipt, lines: Sequence[Mapping[str, Any]], fields: Iterable[str]) -> Iterator[str]:
    """Yield a sentence per field whose sum over the source files' lines differs from the ledger."""
    name, ledger = name_of(receipt), ledger_of(receipt)
    for count in fields:
        if (total := sum(line[count] for line in lines)) != getattr(ledger, count):
            yield f"{name}: {count} of the source files sum to {total}, the ledger has {getattr(ledger, count)}"


def wrong_drops(receipt: Receipt) -> Iterator[str]:
    """Yield a sentence if the source files' drops do not sum to the ledger's drops."""
    ledger = ledger_of(receipt)
    by_reason = sum((Counter(line["dropped"]) for line in receipt.sources), Counter())
    # `+` removes reasons with zero drops, because the sum of counters also removes them
    if by_reason != +Counter(ledger.dropped):
        yield (
            f"{name_of(receipt)}: drops of the source files are {dict(by_reason)}, the ledger has "
            f"{dict(ledger.dropped)}"
        )


def wrong_quarantine(receipt: Receipt, path: Path, bad: int) -> Iterator[str]:
    """Yield a sentence if a JSON Lines quarantine does not have the `bad` dropped rows. A missing file has 0 rows."""
    rows = len(path.read_bytes().splitlines()) if path.exists() else 0
    if rows != bad:
        yield f"{name_of(receipt)}: {count_of(bad, 'bad row was', 'bad rows were')} dropped, but {path.name} has {rows}"


Action = Literal["dropped", "cut", "left out", "unknown", "changed"]
BAD_RECORD, RULE, FILTER = "bad record", "rule", "filter"
"""Kinds of reasons: the row is invalid, a filter rule drops it, or an option of the declaration drops it."""
WIDTH = 80
"""Width of a terminal, in columns. Only the first file's name may exceed it, because truncated names cannot be
searched for."""
_THINGS = {"file", "folder", "month", "shard"}
"""Units that count neither people nor documents."""
LINES = 10
"""Maximum number of reasons at the end of a run."""
FILES = 20
"""Maximum number of files per reason."""
_WIDEST, _LEAST = 34, 20
"""Maximum width of a reason, and minimum width of its files, in columns."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Rows, tokens, files or shards that a part of a dataset lost for one reason.

    A loss with `count` 0 only records the total of its part.

    Attributes:
        action: What happened to the items: `cut` items are kept in part, `changed` characters were replaced by others,
            and `unknown` tokens stand for text that the tokens do not contain.
        reason: The reason in the ledger, or the key of the declaration that decides.
        count: Number of lost items.
        of: Total number of items, lost ones included; 0 if unknown.
        unit: Singular noun for the items.
        part: The split, the blend's dataset or the task that the items belong to; empty for the whole dataset.
        kind: A description of the reason; empty if its name is enough.
        files: File (or month) → number of items lost from it.
    """

    action: Action
    reason: str
    count: int
    of: int
    unit: str
    part: str = ""
    kind: str = ""
    files: Mapping[str, int] = field(default_factory=dict)


def no_losses(store: ArtifactStore, receipts: Sequence[Receipt]) -> Iterable[Loss]:
    """Default of `ArtifactSpec.losses`, for an artifact that loses nothing."""
    return ()


def file_lines(receipt: Receipt) -> Sequence[Mapping[str, Any]]:
    """Return a receipt's lines about its source files; if it has none, one line for its partition as the only file."""
    lines: Sequence[Mapping[str, Any]] = receipt.sources or receipt.facts.get("sources", ())
    drops = receipt.ledger.dropped if receipt.ledger is not None else {}
    lines = lines or [{"file": receipt.partition}]
    return [{"dropped": drops, **line} for line in lines] if len(lines) == 1 else lines


def files_of(receipts: Iterable[Receipt]) -> dict[str, Counter[str]]:
    """Return reason → source file → number of dropped rows, from the receipts that record it."""
    files_by_reason: dict[str, Counter[str]] = {}
    for receipt in receipts:
        for line in file_lines(receipt):
            for reason, count in line.get("dropped", {}).items():
                if count:
                    files_by_reason.setdefault(reason, Counter())[str(line["file"])] += count
    return files_by_reason


def dropped_rows(
    receipts: Sequence[Receipt], kind: Callable[[str], str], *, part: str = "", unit: str = "row"
) -> Iterator[Loss]:
    """Yield the rows that the ledgers of some receipts dropped, by reason.

    Args:
        receipts: The receipts of one part of the dataset.
        kind: Returns the description of a reason.
        part: The part.
        unit: Singular noun for a row.
    """
    ledger, files = Ledger.total(receipt.ledger or Ledger() for receipt in receipts), files_of(receipts)
    total_loss = Loss(action="dropped", reason="", count=0, of=ledger.rows_in, unit=unit, part=part)
    yield total_loss
    for reason, count in ledger.dropped.items():
        file_counts = dict(files.get(reason, Counter()).most_common())
        yield replace(total_loss, reason=reason, count=count, kind=kind(reason), files=file_counts)


def losses_of(specs: "Sequence[ArtifactSpec]", store: ArtifactStore) -> list[Loss]:
    """Return the losses of all existing artifacts, in build order."""
    losses: list[Loss] = []
    for spec in specs:
        with suppress(DataprepError):  # an unplanned or damaged artifact is reported by the next run or `verify`
            receipts = [receipt for receipt in store.receipts(spec.artifacts(store)) if receipt is not None]
            spec_losses = spec.losses(store, receipts) if receipts else ()
            losses += map(partial(_without_names, receipts), spec_losses) if spec.declaration.sensitive else spec_losses
    return losses


def _without_names(receipts: Sequence[Receipt], loss: Loss) -> Loss:
    """Return the loss without source file names, which may be people's names. Partition names appear everywhere."""
    partitions = {receipt.partition for receipt in receipts}
    return replace(loss, files={name: count for name, count in loss.files.items() if name in partitions})


class LossTable:
    """The losses of a dataset as text and as JSON, with counts in their public form."""

    def __init__(self, losses: Sequence[Loss], privacy: Privacy) -> None:
        self._all, self._privacy = losses, privacy
        self.losses = sorted(
            (one for one in losses if one.count), key=lambda one: (-one.count / max(one.of, 1), one.reason)
        )
        self._counts: dict[int, int | str] = {}
        # the counts of one part have a known sum, so the other counts would reveal a hidden small one
        for members in _groups(self.losses, lambda loss: (loss.part, loss.unit)).values():
            numbers = [loss.count for loss in members]
            counts = [*map(privacy.value, numbers)] if members[0].unit in _THINGS else privacy.counts(numbers)
            self._counts |= {id(loss): count for loss, count in zip(members, counts, strict=True)}

    @property
    def headline(self) -> str:
        """All losses in one line."""
        sums = _groups(self._all, lambda loss: (loss.action, loss.unit)).values()
        texts = [self._sum(members) for members in sums if any(loss.count for loss in members)]
        return "lost: " + (", ".join(texts) or "nothing")

    def lines(self, most: int | None = None, more: str = "") -> Iterator[str]:
        """Yield the headline, then a line per reason.

        Args:
            most: Maximum number of reasons to list; None for all.
            more: The command that lists the remaining ones.
        """
        yield self.headline
        shown_losses = self.losses[:most]
        rows = [self._row(loss) for loss in shown_losses]
        widths = [min(max((len(row[column]) for row in rows), default=0), _WIDEST) for column in range(3)]
        for row, loss in zip(rows, shown_losses, strict=True):
            start = f"  {row[0]:>{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:<{widths[2]}}  "
            indent = sum(widths) + 8
            room = max(WIDTH - indent, _LEAST)
            where = self._where(loss, room if most else None)
            texts = ([where] if most else wrap(where, room, break_long_words=False, break_on_hyphens=False)) or [""]
            # a long reason leaves no space for files in its own line
            first_text = texts.pop(0) if len(start) <= indent else ""
            yield f"{start}{first_text}".rstrip()
            yield from (" " * indent + text for text in texts)
        if len(shown_losses) < len(self.losses):
            yield f"  and {len(self.losses) - len(shown_losses)} more: {more}"

    def to_json(self) -> list[dict[str, Any]]:
        """Return the losses as plain builtins."""
        return [
            {
                **asdict(loss),
                "count": self._counts[id(loss)],
                "of": self._privacy.value(loss.of) if self._is_shown(loss) else "withheld",
                "files": self._files(loss),
            }
            for loss in self.losses
        ]

    def _files(self, loss: Loss) -> dict[str, int | str]:
        """Return the counts per file in their public form."""
        if loss.unit in _THINGS:
            return {name: self._privacy.value(count) for name, count in loss.files.items()}
        # the sum of the files' counts would reveal the hidden count
        if isinstance(total := self._counts[id(loss)], str):
            return dict.fromkeys(loss.files, total)
        return dict(zip(loss.files, self._privacy.counts(list(loss.files.values())), strict=True))

    def _is_shown(self, loss: Loss) -> bool:
        # next to the count, the total would reveal the remainder, which may also be small
        is_counted = loss.unit not in _THINGS
        return not loss.count or (
            isinstance(self._counts[id(loss)], int) and not (is_counted and self._privacy.hides(loss.of - loss.count))
        )

    def _sum(self, losses: Sequence[Loss]) -> str:
        unit, action = losses[0].unit, losses[0].action
        if self._privacy.closed:
            return f"{unit}s {action}"
        count = sum(loss.count for loss in losses)
        # several reasons may apply to one part, whose total counts once
        total = sum({loss.part: loss.of for loss in losses}.values())
        numbers = [f"{number:,}" for number in (count, total)]
        return f"{' of '.join(numbers if total else numbers[:1])} {unit}{'' if (total or count) == 1 else 's'} {action}"

    def _row(self, loss: Loss) -> tuple[str, str, str]:
        count = self._counts[id(loss)]
        # a hidden count is plural, so that the noun does not reveal a count of one
        amount = (
            f"{count:,} {loss.unit}{'' if count == 1 else 's'}" if isinstance(count, int) else f"{count} {loss.unit}s"
        )
        share = f"{100 * loss.count / loss.of:.1f} %" if loss.of and not self._privacy.closed else ""
        why = loss.reason if not loss.kind else f"{loss.reason} ({loss.kind})"
        verb = "" if loss.action == "dropped" else f"{loss.action}: "
        return amount, share, f"{verb}{why}"

    def _where(self, loss: Loss, room: int | None) -> str:
        """Return the part and as many of its files as fit, with the number of the remaining ones."""
        file_texts = [
            # a file that is itself the lost item has no count
            name if loss.unit in _THINGS else f"{name} {count:,}" if isinstance(count, int) else f"{name} {count}"
            for name, count in self._files(loss).items()
        ]
        text = f"{loss.part}: " if loss.part and file_texts else loss.part
        for position, file in enumerate(file_texts):
            remaining = len(file_texts) - position - 1
            ending = f" and {remaining} more" if remaining else ""
            comma = ", " if position else ""
            is_full = (
                position == FILES
                if room is None
                else position and len(text) + len(comma) + len(file) + len(ending) > room
            )
            if is_full:
                return f"{text} and {remaining + 1} more"
            text += comma + file
        return text


def _groups(losses: Iterable[Loss], key: Callable[[Loss], Any]) -> dict[Any, list[Loss]]:
    groups: dict[Any, list[Loss]] = {}
    for loss in losses:
        groups.setdefault(key(loss), []).append(loss)
    return groups
