"""What the products of a dataset do not have of its sources: by reason and file, from receipts; and ledgers compared.

An artifact's spec returns the losses of its finished partitions (`ArtifactSpec.losses`), because only it knows what the
reasons of its ledger mean. The end of a run, `dataprep show` and the library print all of them with these functions.

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
        dropped_count = sum(line["dropped"].values())
        if line["rows_in"] != line[made] + dropped_count:
            yield (
                f"{name_of(receipt)}: source file {line['file']}: {count_of(line['rows_in'], 'row')} in, but "
                f"{line[made]} {made} + {dropped_count} dropped"
            )


def wrong_sums(receipt: Receipt, lines: Sequence[Mapping[str, Any]], fields: Iterable[str]) -> Iterator[str]:
    """A sentence for each field whose sum over the source files' lines is not the ledger's."""
    name, ledger = name_of(receipt), ledger_of(receipt)
    for count in fields:
        if (total := sum(line[count] for line in lines)) != getattr(ledger, count):
            yield f"{name}: {count} of the source files sum to {total}, the ledger has {getattr(ledger, count)}"


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
    rows = len(path.read_bytes().splitlines()) if path.exists() else 0
    if rows != bad:
        yield f"{name_of(receipt)}: {count_of(bad, 'bad row was', 'bad rows were')} dropped, but {path.name} has {rows}"


Action = Literal["dropped", "cut", "left out", "unknown", "changed"]
BAD_RECORD, RULE, FILTER = "bad record", "rule", "filter"
"""Kinds of reasons: the row is unusable, a filter rule drops it, or an option of the declaration does."""
WIDTH = 80
"""Width of a terminal, in columns. Only the name of a first file may exceed it, because a cut name cannot be searched
for."""
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
    """Rows, tokens, files or shards of a part of a dataset that were lost for one reason.

    One whose `count` is 0 only says how many there are in its part.

    Attributes:
        action: What was done to them: `cut` stay in part, `changed` characters became others, and `unknown` tokens
            stand for text that is not in them.
        reason: The reason, as the ledger has it, or the key that decides.
        count: How many were lost.
        of: How many there are with them; 0 if that is not known.
        unit: One of what is counted, in the singular.
        part: The split, the dataset of a blend or the task that they are of; empty for the whole dataset.
        kind: What the reason is, in words; empty if its name is enough.
        files: File (or month) → how many of its own.
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
    """The default of `ArtifactSpec.losses`: an artifact that has all that it is made of."""
    return ()


def file_lines(receipt: Receipt) -> Sequence[Mapping[str, Any]]:
    """The lines of a receipt on its source files; without any, a line on its partition, which is one file."""
    lines: Sequence[Mapping[str, Any]] = receipt.sources or receipt.facts.get("sources", ())
    drops = receipt.ledger.dropped if receipt.ledger is not None else {}
    lines = lines or [{"file": receipt.partition}]
    return [{"dropped": drops, **line} for line in lines] if len(lines) == 1 else lines


def files_of(receipts: Iterable[Receipt]) -> dict[str, Counter[str]]:
    """Reason → source file → how many of its rows were dropped, of those receipts that say so."""
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
    """The rows that the ledgers of some receipts dropped, by reason.

    Args:
        receipts: Those of a part of the dataset.
        kind: Returns what a reason is, in words.
        part: The part.
        unit: One row, in the singular.
    """
    ledger, files = Ledger.total(receipt.ledger or Ledger() for receipt in receipts), files_of(receipts)
    total_loss = Loss(action="dropped", reason="", count=0, of=ledger.rows_in, unit=unit, part=part)
    yield total_loss
    for reason, count in ledger.dropped.items():
        file_counts = dict(files.get(reason, Counter()).most_common())
        yield replace(total_loss, reason=reason, count=count, kind=kind(reason), files=file_counts)


def losses_of(specs: "Sequence[ArtifactSpec]", store: ArtifactStore) -> list[Loss]:
    """The losses of all artifacts that are there, in the order in which they are made."""
    losses: list[Loss] = []
    for spec in specs:
        with suppress(DataprepError):  # not planned, or damaged: then a run or `verify` names it
            receipts = [receipt for receipt in store.receipts(spec.artifacts(store)) if receipt is not None]
            spec_losses = spec.losses(store, receipts) if receipts else ()
            losses += map(partial(_without_names, receipts), spec_losses) if spec.declaration.sensitive else spec_losses
    return losses


def _without_names(receipts: Sequence[Receipt], loss: Loss) -> Loss:
    """The loss without the names of source files, which may be those of people; partitions are named everywhere."""
    partitions = {receipt.partition for receipt in receipts}
    return replace(loss, files={name: count for name, count in loss.files.items() if name in partitions})


class LossTable:
    """The losses of a dataset as text and as JSON, with the counts that leave."""

    def __init__(self, losses: Sequence[Loss], privacy: Privacy) -> None:
        self._all, self._privacy = losses, privacy
        self.losses = sorted(
            (one for one in losses if one.count), key=lambda one: (-one.count / max(one.of, 1), one.reason)
        )
        self._counts: dict[int, int | str] = {}
        # reasons of one part have a sum: beside a small count the others would tell it
        for members in _groups(self.losses, lambda loss: (loss.part, loss.unit)).values():
            numbers = [loss.count for loss in members]
            counts = [*map(privacy.value, numbers)] if members[0].unit in _THINGS else privacy.counts(numbers)
            self._counts |= {id(loss): count for loss, count in zip(members, counts, strict=True)}

    @property
    def headline(self) -> str:
        """All of it in one line."""
        sums = _groups(self._all, lambda loss: (loss.action, loss.unit)).values()
        texts = [self._sum(members) for members in sums if any(loss.count for loss in members)]
        return "lost: " + (", ".join(texts) or "nothing")

    def lines(self, most: int | None = None, more: str = "") -> Iterator[str]:
        """The headline, and a line for each reason.

        Args:
            most: How many reasons are listed; None for all.
            more: The command that lists the others.
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
            # beside a long reason there is no room for them
            first_text = texts.pop(0) if len(start) <= indent else ""
            yield f"{start}{first_text}".rstrip()
            yield from (" " * indent + text for text in texts)
        if len(shown_losses) < len(self.losses):
            yield f"  and {len(self.losses) - len(shown_losses)} more: {more}"

    def to_json(self) -> list[dict[str, Any]]:
        """Plain builtins."""
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
        """The counts of its files, as they are shown."""
        if loss.unit in _THINGS:
            return {name: self._privacy.value(count) for name, count in loss.files.items()}
        # the sum of the files would be the count that is not shown
        if isinstance(total := self._counts[id(loss)], str):
            return dict.fromkeys(loss.files, total)
        return dict(zip(loss.files, self._privacy.counts(list(loss.files.values())), strict=True))

    def _is_shown(self, loss: Loss) -> bool:
        # beside the count the total tells what is left of it, which may be few, too
        is_counted = loss.unit not in _THINGS
        return not loss.count or (
            isinstance(self._counts[id(loss)], int) and not (is_counted and self._privacy.hides(loss.of - loss.count))
        )

    def _sum(self, losses: Sequence[Loss]) -> str:
        unit, action = losses[0].unit, losses[0].action
        if self._privacy.closed:
            return f"{unit}s {action}"
        count = sum(loss.count for loss in losses)
        # what several reasons took of one part was there once
        total = sum({loss.part: loss.of for loss in losses}.values())
        numbers = [f"{number:,}" for number in (count, total)]
        return f"{' of '.join(numbers if total else numbers[:1])} {unit}{'' if (total or count) == 1 else 's'} {action}"

    def _row(self, loss: Loss) -> tuple[str, str, str]:
        count = self._counts[id(loss)]
        # a count that is hidden is in the plural, which does not tell that it is one
        amount = (
            f"{count:,} {loss.unit}{'' if count == 1 else 's'}" if isinstance(count, int) else f"{count} {loss.unit}s"
        )
        share = f"{100 * loss.count / loss.of:.1f} %" if loss.of and not self._privacy.closed else ""
        why = loss.reason if not loss.kind else f"{loss.reason} ({loss.kind})"
        verb = "" if loss.action == "dropped" else f"{loss.action}: "
        return amount, share, f"{verb}{why}"

    def _where(self, loss: Loss, room: int | None) -> str:
        """The part and its files: those that there is room for, or some more."""
        file_texts = [
            # a file that is a loss itself has no number
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
