"""What a token stream does not have of its source rows: of corpora, releases and pretraining blends alike."""

from collections import Counter
from collections.abc import Iterator, Sequence

from dataprep_assets.curation.selection import NO_TOKENS, SHORT
from dataprep_assets.engine.artifact.losses import BAD_RECORD, FILTER, Action, Loss, dropped_rows, file_lines
from dataprep_assets.integrity.ledger import RETRACTED, SELECTED, Ledger
from dataprep_assets.integrity.receipt import Receipt

_KINDS = {RETRACTED: "", SHORT: FILTER, NO_TOKENS: FILTER}
_OF_TOKENIZERS: dict[str, Action] = {
    "unknown_tokens": "unknown",
    "dropped_characters": "dropped",
    "changed_characters": "changed",
}


def stream_losses(receipts: Sequence[Receipt], part: str) -> Iterator[Loss]:
    """The losses of some shards of token bins, which are `part` of their dataset.

    What their selection dropped is among its own losses, which know the reason.
    """
    dropped = dropped_rows(receipts, lambda reason: _KINDS.get(reason, BAD_RECORD), part=part)
    yield from (loss for loss in dropped if loss.reason != SELECTED)
    total = Ledger.total(receipt.ledger or Ledger() for receipt in receipts)
    cut = sum(int(receipt.facts.get("truncated", 0)) for receipt in receipts)
    yield Loss(action="cut", reason="max_doc_tokens", count=cut, of=total.documents, unit="document", part=part)
    yield from tokenizer_losses(receipts, part)


def tokenizer_losses(receipts: Sequence[Receipt], part: str = "") -> Iterator[Loss]:
    """What the tokenizer could not say of the texts of some shards, where their receipts count it."""
    total = Ledger.total(receipt.ledger or Ledger() for receipt in receipts)
    for name, action in _OF_TOKENIZERS.items():
        of, unit = (total.tokens, "token") if action == "unknown" else (total.text_characters, "character")
        yield _sum_count(receipts, action, name, of=of, unit=unit, part=part)


def _sum_count(receipts: Sequence[Receipt], action: Action, name: str, *, of: int, unit: str, part: str) -> Loss:
    """The sum of a count, by file where the lines of the receipts have it."""
    files, count = Counter[str](), 0
    for receipt in receipts:
        count += receipt.facts.get(name) or getattr(receipt.ledger, name, None) or 0
        for line in file_lines(receipt):
            files[str(line["file"])] += line.get(name, 0)
    return Loss(
        action=action, reason=name, count=count, of=of, unit=unit, part=part, files=dict((+files).most_common())
    )
