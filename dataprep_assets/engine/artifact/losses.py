"""Losses: source rows that are missing from a dataset's products, by reason and file; and checks of ledgers.

The losses are computed from receipts. Each spec returns the losses of its finished partitions (`ArtifactSpec.losses`),
because only the spec knows the meaning of its ledger's reasons. Runs, `dataprep show` and the library print all losses
with these functions.

Entry points: `Loss`, `find_dropped_rows`, `find_losses`, `LossTable`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Literal

from dataprep_assets.engine.checks.check import describe_artifact, require_ledger
from dataprep_assets.engine.privacy import Privacy
from dataprep_assets.errors import DataprepError, IntegrityError, count_of
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Ledger, Receipt
from dataprep_assets.screen import LAYOUT_COLUMNS
from dataprep_assets.table import format_share

if TYPE_CHECKING:
    from dataprep_assets.engine.artifact.spec import ArtifactSpec


def find_ledger_imbalance(receipt: Receipt) -> Iterator[str]:
    """Yield a sentence if the ledger's documents and dropped rows do not add up to its rows."""
    name = describe_artifact(receipt)
    try:
        require_ledger(receipt).require_balance(name)
    except IntegrityError as error:
        yield str(error)


def find_unbalanced_lines(
    receipt: Receipt, lines: Iterable[Mapping[str, Any]], count_field: str = "documents"
) -> Iterator[str]:
    """Yield a sentence for each source file whose written and dropped rows do not add up to its rows.

    `count_field` is the field with the number of written rows. `receipt` is used only for its name.
    """
    for line in lines:
        dropped_count = sum(line["dropped"].values())
        if line["rows_in"] != line[count_field] + dropped_count:
            yield (
                f"{describe_artifact(receipt)}: source file {line['file']} has {count_of(line['rows_in'], 'row')}, but "
                f"{count_of(line[count_field], count_field.removesuffix('s'))} and "
                f"{count_of(dropped_count, 'dropped row')} are recorded"
            )


def find_wrong_sums(receipt: Receipt, lines: Sequence[Mapping[str, Any]], fields: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each field whose sum over the source files' lines differs from the ledger."""
    name, ledger = describe_artifact(receipt), require_ledger(receipt)
    for count in fields:
        if (total := sum(line[count] for line in lines)) != getattr(ledger, count):
            yield (
                f"{name}: the sum of `{count}` over the source files is {total:,}, but the ledger has "
                f"{getattr(ledger, count):,}"
            )


def find_wrong_drops(receipt: Receipt) -> Iterator[str]:
    """Yield a sentence if the source files' dropped rows do not add up to the ledger's dropped rows."""
    ledger = require_ledger(receipt)
    by_reason = sum((Counter(line["dropped"]) for line in receipt.sources), Counter())
    # Remove zero counts from the ledger's counts, because adding counters removed them from the other side.
    if by_reason != +Counter(ledger.dropped):
        yield (
            f"{describe_artifact(receipt)}: dropped rows by reason: {format_drops(by_reason)} in the source files, but "
            f"{format_drops(ledger.dropped)} in the ledger"
        )


def format_drops(counts: Mapping[str, int]) -> str:
    """Return dropped counts by reason as text; `none` if there are no reasons."""
    return ", ".join(f"{reason} {count:,}" for reason, count in counts.items()) or "none"


def find_wrong_quarantine(receipt: Receipt, path: Path, bad_count: int) -> Iterator[str]:
    """Yield a sentence if a JSON Lines quarantine does not have `bad_count` rows. A missing file has 0 rows."""
    rows = len(path.read_bytes().splitlines()) if path.exists() else 0
    if rows != bad_count:
        dropped_text = count_of(bad_count, "bad row was", "bad rows were")
        yield f"{describe_artifact(receipt)}: {dropped_text} dropped, but {path.name} has {count_of(rows, 'row')}"


Action = Literal["dropped", "cut", "left out", "unknown", "changed", "empty"]
BAD_RECORD, RULE, FILTER = "bad record", "rule", "filter"
"""Kinds of reasons: the row is invalid, a filter rule drops it, or an option of the declaration drops it."""
_ITEM_NOUNS = {"file", "folder", "month", "shard"}
"""Units that count neither people nor documents."""
LINES = 10
"""Maximum number of reasons at the end of a run."""
FILES = 20
"""Maximum number of files per reason."""
_FILES_INDENT = 4
"""Indent of files on a separate line, in columns."""
_SIZES = {"max_doc_tokens", "pack_size"}
"""Reasons that are sizes to which longer items are truncated."""
_MAX_REASON_WIDTH, _MIN_FILES_WIDTH = 34, 20
"""Maximum width of a reason, and minimum width of its files, in columns."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Rows, tokens, files or shards that a part of a dataset lost for one reason.

    A loss with `count` 0 only records the total of its part.

    Attributes:
        action: `dropped`, `left out`, `cut` (kept in part), `changed` (characters that were replaced by others),
            `empty` (kept, but without tokens of text) or `unknown` (unknown tokens, in place of text that the
            vocabulary does not contain).
        reason: The reason in the ledger, or the key of the declaration that causes the loss.
        count: Number of lost items.
        of: Total number of items, lost ones included; 0 if unknown.
        unit: Singular noun for the items, such as `row`, `document`, `token` or `file`.
        part: The split, the blend's dataset or the task that the items belong to; empty for the whole dataset.
        kind: Kind of the reason, such as `bad record`, `rule` or `filter`; empty if the reason's name is enough.
        files: File or month → number of items lost from it.
    """

    action: Action
    reason: str
    count: int
    of: int
    unit: str
    part: str = ""
    kind: str = ""
    files: Mapping[str, int] = field(default_factory=dict)


def return_no_losses(store: ArtifactStore, receipts: Sequence[Receipt]) -> Iterable[Loss]:
    """Return no losses: the default of `ArtifactSpec.losses`, for an artifact that loses nothing."""
    return ()


def list_file_lines(receipt: Receipt) -> Sequence[Mapping[str, Any]]:
    """Return a receipt's lines about its source files; without any, one line that treats its partition as a file."""
    lines: Sequence[Mapping[str, Any]] = receipt.sources or receipt.facts.get("sources", ())
    drops = receipt.ledger.dropped if receipt.ledger is not None else {}
    lines = lines or [{"file": receipt.partition}]
    return [{"dropped": drops, **line} for line in lines] if len(lines) == 1 else lines


def count_by_file(receipts: Iterable[Receipt], field: str = "dropped") -> dict[str, Counter[str]]:
    """Return reason → source file → number of dropped rows, from the receipts that record it.

    `field` is the field of a source file's line that has the counts by reason.
    """
    files_by_reason: dict[str, Counter[str]] = {}
    for receipt in receipts:
        for line in list_file_lines(receipt):
            for reason, count in line.get(field, {}).items():
                if count:
                    files_by_reason.setdefault(reason, Counter())[str(line["file"])] += count
    return files_by_reason


def find_dropped_rows(
    receipts: Sequence[Receipt], kind: Callable[[str], str], *, part: str = "", unit: str = "row"
) -> Iterator[Loss]:
    """Yield the rows that the ledgers of some receipts dropped, by reason.

    Args:
        receipts: The receipts of one part of the dataset.
        kind: Returns the description of a reason.
        part: The part.
        unit: Singular noun for a row.
    """
    ledger, files = Ledger.total(receipt.ledger or Ledger() for receipt in receipts), count_by_file(receipts)
    total_loss = Loss(action="dropped", reason="", count=0, of=ledger.rows_in, unit=unit, part=part)
    yield total_loss
    for reason, count in ledger.dropped.items():
        file_counts = dict(files.get(reason, Counter()).most_common())
        yield replace(total_loss, reason=reason, count=count, kind=kind(reason), files=file_counts)


def find_losses(
    specs: "Sequence[ArtifactSpec]",
    store: ArtifactStore,
    partitions: "Mapping[ArtifactSpec, Sequence[str | None]] | None" = None,
) -> list[Loss]:
    """Return the losses of all existing artifacts, or only of the given `partitions`, in build order."""
    losses: list[Loss] = []
    for spec in specs:
        with suppress(DataprepError):  # the next run plans or repairs the artifact
            artifacts = spec.artifacts(store)
            if partitions is not None:
                artifacts = [spec.locate_artifact(store, slot) for slot in partitions.get(spec, ())]
            receipts = [receipt for receipt in store.receipts(artifacts) if receipt is not None]
            spec_losses = spec.losses(store, receipts) if receipts else ()
            losses += map(partial(_remove_names, receipts), spec_losses) if spec.declaration.sensitive else spec_losses
    return losses


def _remove_names(receipts: Sequence[Receipt], loss: Loss) -> Loss:
    """Return the loss without source file names, which may be people's names. Partition names appear everywhere."""
    partitions = {receipt.partition for receipt in receipts}
    return replace(loss, files={name: count for name, count in loss.files.items() if name in partitions})


class LossTable:
    """The losses of a dataset as text and as JSON, with counts in their public form."""

    def __init__(self, losses: Sequence[Loss], privacy: Privacy) -> None:
        self._all, self._privacy = losses, privacy
        # Sort the losses by part, in build order, so that the losses of one split, dataset or task are adjacent.
        part_orders = {part: order for order, part in enumerate(dict.fromkeys(loss.part for loss in losses))}
        self.losses = sorted(
            (loss for loss in losses if loss.count),
            key=lambda loss: (part_orders[loss.part], -loss.count, loss.reason),
        )
        self._counts: dict[int, int | str] = {}
        # Hide counts part by part, because the counts of a part add up to a known sum, from which a single hidden count
        # could be computed.
        for members in _group_losses(self.losses, lambda loss: (loss.part, loss.unit)).values():
            numbers = [loss.count for loss in members]
            counts = (
                [*map(privacy.public_value, numbers)]
                if members[0].unit in _ITEM_NOUNS
                else privacy.public_counts(numbers)
            )
            self._counts |= {id(loss): count for loss, count in zip(members, counts, strict=True)}

    @property
    def headline(self) -> str:
        """All losses on one line."""
        sums = _group_losses(self._all, lambda loss: (loss.action, loss.unit)).values()
        texts = [self._format_sum(members) for members in sums if any(loss.count for loss in members)]
        return "lost: " + (", ".join(texts) or "nothing")

    def lines(self, max_lines: int | None = None, more: str = "", width: int = LAYOUT_COLUMNS) -> Iterator[str]:
        """Yield the headline, then the lines of each reason. With `max_lines`, all lines of a reason are one item.

        Args:
            max_lines: Maximum number of reasons to list; None for all.
            more: The command that lists the remaining reasons.
            width: Width in columns. Only the first file's name may exceed it, because truncated names cannot be
                searched for.
        """
        yield self.headline
        shown_losses = self.losses[:max_lines]
        cells = [self._format_row(loss) for loss in shown_losses]
        widths = [min(max((len(row[column]) for row in cells), default=0), _MAX_REASON_WIDTH) for column in range(3)]
        for row, loss in zip(cells, shown_losses, strict=True):
            start = f"  {row[0]:>{widths[0]}} {row[1]:<{widths[1]}}  {row[2]:<{widths[2]}}  "
            indent = sum(widths) + 7
            is_narrow = width - indent < _MIN_FILES_WIDTH
            room = max(width - indent, _MIN_FILES_WIDTH)
            location = self._describe_place(loss, room if max_lines else None)
            texts = (
                [location] if max_lines else wrap(location, room, break_long_words=False, break_on_hyphens=False)
            ) or [""]
            # Put the files on a new line if a long reason extends beyond its column, or if the columns leave too little
            # room for the files.
            is_alone = len(start) > indent
            if max_lines and len(start) + len(texts[0]) > width:
                indent, is_alone = _FILES_INDENT, True
                texts = [self._describe_place(loss, width - indent)]
            elif not max_lines and is_narrow and location:
                indent, is_alone = _FILES_INDENT, True
                texts = wrap(location, width - indent, break_long_words=False, break_on_hyphens=False)
            first_text = "" if is_alone else texts.pop(0)
            rows = [f"{start}{first_text}".rstrip(), *(" " * indent + text for text in texts)]
            # With `max_lines`, yield a reason and its files as one item, so that the files are never shown without
            # their reason.
            yield from ["\n".join(rows)] if max_lines else rows
        if len(shown_losses) < len(self.losses):
            yield f"  and {len(self.losses) - len(shown_losses)} more: {more}"

    def to_json(self) -> list[dict[str, Any]]:
        """Return the losses as plain builtins, without the totals of parts that lost nothing.

        The keys are the attributes of `Loss`. A count that must not be shown is text.
        """
        return [
            {
                **asdict(loss),
                "count": self._counts[id(loss)],
                "of": self._privacy.public_value(loss.of) if self._is_shown(loss) else "withheld",
                "files": self._find_public_file_counts(loss),
            }
            for loss in self.losses
        ]

    def list_counts(self) -> list[dict[str, int | str]]:
        """Return a row per part and reason: `source`, `reason`, `kind` and `count`, in their public form.

        A row without a reason has the total of a part, unless the total must not be shown.
        """
        hidden_totals = {(loss.part, loss.unit) for loss in self.losses if not self._is_shown(loss)}
        totals = {(loss.part, loss.unit): loss.of for loss in self._all if loss.of and loss.action == "dropped"}
        rows: list[dict[str, int | str]] = [
            {"source": part, "reason": "", "kind": f"all {unit}s", "count": self._privacy.public_value(total)}
            for (part, unit), total in totals.items()
            if (part, unit) not in hidden_totals
        ]
        return rows + [
            {
                "source": loss.part,
                "reason": loss.reason,
                "kind": f"{loss.unit}s {loss.action}",
                "count": self._counts[id(loss)],
            }
            for loss in self.losses
        ]

    def _find_public_file_counts(self, loss: Loss) -> dict[str, int | str]:
        """Return the counts per file in their public form."""
        if loss.unit in _ITEM_NOUNS:
            return {name: self._privacy.public_value(count) for name, count in loss.files.items()}
        # If the sum of the counts is hidden, hide the count of each file, because the counts would reveal their sum.
        if isinstance(total := self._counts[id(loss)], str):
            return dict.fromkeys(loss.files, total)
        return dict(zip(loss.files, self._privacy.public_counts(list(loss.files.values())), strict=True))

    def _is_shown(self, loss: Loss) -> bool:
        # Hide the total if the count is hidden or the remainder is small, because any two of total, count and remainder
        # reveal the third.
        is_counted = loss.unit not in _ITEM_NOUNS
        return not loss.count or (
            isinstance(self._counts[id(loss)], int) and not (is_counted and self._privacy.hides(loss.of - loss.count))
        )

    def _format_sum(self, losses: Sequence[Loss]) -> str:
        unit, action = losses[0].unit, losses[0].action
        if self._privacy.closed:
            return f"{unit}s {action}"
        count = sum(loss.count for loss in losses)
        # Add the total of each part only once, because a part has one loss per reason.
        total = sum({loss.part: loss.of for loss in losses}.values())
        numbers = f"{count:,} of {total:,}" if total else f"{count:,}"
        return f"{numbers} {unit}{'' if (total or count) == 1 else 's'} {action}"

    def _format_row(self, loss: Loss) -> tuple[str, str, str]:
        """Return the count, the reason, and the share with its unit."""
        count = self._counts[id(loss)]
        reason = loss.reason if not loss.kind else f"{loss.reason} ({loss.kind})"
        # Use the plural for a hidden count, because the singular would reveal that the count is 1.
        unit = loss.unit if not loss.of and count == 1 else f"{loss.unit}s"
        share = f"{format_share(loss.count / loss.of)} of " if loss.of and not self._privacy.closed else ""
        verb = "" if loss.action == "dropped" else f"{loss.action}{' to' if loss.reason in _SIZES else ':'} "
        return f"{count:,}" if isinstance(count, int) else count, f"{verb}{reason}", f"{share}{unit}"

    def _describe_place(self, loss: Loss, room: int | None) -> str:
        """Return the part and as many of its files as fit, with the number of the remaining ones."""
        file_texts = [
            # If the lost items are files, show no count per file, because each file counts once.
            name if loss.unit in _ITEM_NOUNS else f"{name} {count:,}" if isinstance(count, int) else f"{name} {count}"
            for name, count in self._find_public_file_counts(loss).items()
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


def _group_losses(losses: Iterable[Loss], key: Callable[[Loss], Any]) -> dict[Any, list[Loss]]:
    groups: dict[Any, list[Loss]] = {}
    for loss in losses:
        groups.setdefault(key(loss), []).append(loss)
    return groups
