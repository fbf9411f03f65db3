"""The check that a tokenizer keeps what texts hold: few tokens are unknown, few characters have no token.

Entry points: `losses_within_limit`; `as_declared` for all checks of a stream.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from dataprep_assets.engine.checks.check import Check
from dataprep_assets.engine.checks.finding import Finding, first_of, judged, ledger_of, name_of, verdict
from dataprep_assets.engine.checks.level import Level, at_level
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.plural import count_of
from dataprep_assets.stream.declaration import TokenizerDeclaration

_NAME = "losses_within_limit"
_WORST = 3
S = TypeVar("S")


def losses_check(find: Callable[[S], Finding]) -> Check[S]:
    """The check of an artifact whose text was tokenized; `find` is `losses_within_limit` of its subject."""
    return Check(
        _NAME,
        "Unknown tokens, and characters that the tokenizer leaves out, are at most `tokenizer.max_loss` of the text.",
        find,
        blocking=False,
    )


def as_declared(
    checks: Iterable[Check[S]], level: Level, tokenizer: TokenizerDeclaration | None
) -> tuple[Check[S], ...]:
    """The checks as a dataset asks for them: at its level, with the limit of its tokenizer."""
    limit = None if tokenizer is None else tokenizer.max_loss
    return tuple(replace(one, limit=limit) if one.name == _NAME else one for one in at_level(checks, level))


@judged
def losses_within_limit(receipt: Receipt, limit: float) -> Finding:
    """The share of unknown tokens among all, and that of dropped characters, are at most `limit`.

    A warning otherwise, which names the source files with the most of them, where the receipt counts by file.
    """
    ledger = ledger_of(receipt)
    kinds = (
        ("unknown_tokens", "unknown token", ledger.unknown_tokens, ledger.tokens),
        ("dropped_characters", "dropped character", ledger.dropped_characters, ledger.text_characters),
    )
    defects = [
        (f"{name_of(receipt)}: {count_of(count, noun)} of {total} ({count / total:.1%}){_worst(receipt, name)}")
        for name, noun, count, total in kinds
        if count > limit * total
    ]
    return verdict(
        defects,
        f"{count_of(ledger.unknown_tokens, 'unknown token')} and "
        f"{count_of(ledger.dropped_characters, 'dropped character')}, at most {f'{limit:.2%}'} of the text.",
        "Use a tokenizer for this language, or raise `tokenizer.max_loss`",
        facts={name: count for name, _, count, _ in kinds},
        warning=True,
    )


def _worst(receipt: Receipt, name: str) -> str:
    """The source files with the most of them; empty if the receipt does not count by file."""
    lines: list[Mapping[str, Any]] = sorted(
        (line for line in receipt.sources if line.get(name)), key=lambda line: -int(line[name])
    )
    return f", most in {first_of([line['file'] for line in lines], _WORST)}" if lines else ""
