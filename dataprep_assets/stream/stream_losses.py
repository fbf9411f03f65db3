"""Losses of a token stream compared with its source rows, and the check that a tokenizer represents the texts.

Corpora, releases, pretraining blends, conversations and notes have the same losses.

Entry points: `stream_losses`, `find_tokenizer_losses`; `losses_within_limit`; `configure_checks` for all checks of a
stream.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from dataprep_assets.curation.selection import NO_TOKENS, SHORT
from dataprep_assets.engine.artifact.losses import BAD_RECORD, FILTER, Action, Loss, find_dropped_rows, list_file_lines
from dataprep_assets.engine.checks.check import (
    Check,
    Finding,
    Level,
    build_verdict,
    describe_artifact,
    fail_on_errors,
    join_first,
    require_ledger,
    set_level,
)
from dataprep_assets.errors import count_of
from dataprep_assets.integrity.receipt import RETRACTED, SELECTED, Ledger, Receipt
from dataprep_assets.stream.declaration import TokenizerDeclaration
from dataprep_assets.table import format_share

_KINDS = {RETRACTED: "", SHORT: FILTER, NO_TOKENS: FILTER}
_LOSS_ACTIONS: dict[str, Action] = {
    "unknown_tokens": "unknown",
    "dropped_characters": "dropped",
    "changed_characters": "changed",
}
_NAME = "losses_within_limit"
_WORST = 3
S = TypeVar("S")


def stream_losses(receipts: Sequence[Receipt], part: str) -> Iterator[Loss]:
    """Yield the losses of some shards of token bins; `part` names their part of the dataset.

    Rows dropped by a selection are left out, because the selection reports them itself, with reasons.
    """
    losses = find_dropped_rows(receipts, lambda reason: _KINDS.get(reason, BAD_RECORD), part=part)
    yield from (loss for loss in losses if loss.reason != SELECTED)
    total = Ledger.total(receipt.ledger or Ledger() for receipt in receipts)
    truncated_documents = sum(int(receipt.facts.get("truncated", 0)) for receipt in receipts)
    yield Loss(
        action="cut", reason="max_doc_tokens", count=truncated_documents, of=total.documents, unit="document", part=part
    )
    yield Loss(
        action="empty",
        reason=NO_TOKENS,
        count=total.empty_documents,
        of=total.documents,
        unit="document",
        part=part,
    )
    yield from find_tokenizer_losses(receipts, part)


def find_tokenizer_losses(receipts: Sequence[Receipt], part: str = "") -> Iterator[Loss]:
    """Yield the tokenizer's losses in the texts of some shards, as far as their receipts count them."""
    total = Ledger.total(receipt.ledger or Ledger() for receipt in receipts)
    for name, action in _LOSS_ACTIONS.items():
        unit_count, unit = (total.tokens, "token") if action == "unknown" else (total.text_characters, "character")
        yield _sum_count(receipts, action, name, total=unit_count, unit=unit, part=part)


def _sum_count(receipts: Sequence[Receipt], action: Action, name: str, *, total: int, unit: str, part: str) -> Loss:
    """Sum a count over receipts, and per file if the source lines of the receipts contain it."""
    files, count = Counter[str](), 0
    for receipt in receipts:
        count += receipt.facts.get(name) or getattr(receipt.ledger, name, None) or 0
        for line in list_file_lines(receipt):
            files[str(line["file"])] += line.get(name, 0)
    return Loss(
        action=action, reason=name, count=count, of=total, unit=unit, part=part, files=dict((+files).most_common())
    )


def build_losses_check(find: Callable[[S], Finding]) -> Check[S]:
    """Return the check of an artifact with tokenized text; `find` applies `losses_within_limit` to its subject."""
    return Check(
        _NAME,
        "The share of unknown tokens and the share of dropped characters are each at most `tokenizer.max_loss`.",
        find,
        blocking=False,
    )


def configure_checks(
    checks: Iterable[Check[S]], level: Level, tokenizer: TokenizerDeclaration | None
) -> tuple[Check[S], ...]:
    """Return the checks as a dataset declares them: at its level, with the limit of its tokenizer."""
    limit = None if tokenizer is None else tokenizer.max_loss
    return tuple(replace(check, limit=limit) if check.name == _NAME else check for check in set_level(checks, level))


@fail_on_errors
def losses_within_limit(receipt: Receipt, limit: float) -> Finding:
    """Check that the shares of unknown tokens and of dropped characters are at most `limit`.

    A failure is a warning that names the source files with the highest counts, if the receipt counts by file.
    """
    ledger = require_ledger(receipt)
    kinds = (
        ("unknown_tokens", "unknown token", ledger.unknown_tokens, ledger.tokens),
        ("dropped_characters", "dropped character", ledger.dropped_characters, ledger.text_characters),
    )
    defects = [
        f"{describe_artifact(receipt)}: {count_of(count, noun)} of {total:,} "
        f"({format_share(count / total)}), more than {format_share(limit)}{_list_worst_files(receipt, name)}"
        for name, noun, count, total in kinds
        if count > limit * total
    ]
    return build_verdict(
        defects,
        f"{count_of(ledger.unknown_tokens, 'unknown token')} and "
        f"{count_of(ledger.dropped_characters, 'dropped character')}, within the limit of {format_share(limit)} each.",
        "Use a tokenizer for this language, or raise `tokenizer.max_loss`",
        facts={name: count for name, _, count, _ in kinds},
        warning=True,
    )


def _list_worst_files(receipt: Receipt, name: str) -> str:
    """List the source files with the highest counts; empty if the receipt does not count by file."""
    lines: list[Mapping[str, Any]] = sorted(
        (line for line in receipt.sources if line.get(name)), key=lambda line: -int(line[name])
    )
    return f"; most are in {join_first([line['file'] for line in lines], _WORST)}" if lines else ""
