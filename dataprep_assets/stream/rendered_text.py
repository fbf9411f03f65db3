"""Texts that hold special tokens, such as conversations that a template rendered: with `text` they stay plain text.

That is right for what people wrote and wrong for what was rendered for this tokenizer, so it is told.

Entry points: `literal_lines`, `rendered_remarks`.
"""

from collections.abc import Iterable, Iterator

from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.plural import count_of
from dataprep_assets.tokenization.bundle import TokenizerBundle

_MANY = 0.5
"""Share of texts with special tokens from which they look rendered."""


def literal_lines(ledger: Ledger, special_tokens: str) -> Iterator[str]:
    """A line for the end of a run, if documents hold special tokens; `special_tokens` says how those were read."""
    if ledger.special_literals:
        read = "stay plain text" if special_tokens == "text" else "have the ids of these"
        yield (
            f"special tokens in texts: {count_of(ledger.special_literals, 'document')} of {ledger.documents:,} hold "
            f"some, which {read} (`special_tokens: {special_tokens}`)"
        )


def rendered_remarks(
    texts: Iterable[str], bundle: TokenizerBundle, special_tokens: str, keys: tuple[str | int, ...]
) -> Iterator[Remark]:
    """A remark if half of the texts or more hold special tokens that stay plain text.

    Args:
        texts: The first texts of a source.
        bundle: The tokenizer.
        special_tokens: How literal special tokens are read.
        keys: Path of the key that says so.
    """
    if special_tokens != "text":
        return
    seen = list(texts)
    if (held := bundle.special_literals.count(seen)) and held >= _MANY * len(seen):
        sentence = (
            f"{'.'.join(map(str, keys))}: {held} of the first {count_of(len(seen), 'text')} hold special tokens of "
            f"{bundle.name}, which stay plain text. Set it to match if a template wrote them"
        )
        yield Remark(keys=keys, sentence=sentence, hint=True)
