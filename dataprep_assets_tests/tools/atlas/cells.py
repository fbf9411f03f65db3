"""Judge a cell of the atlas: the result of a template for a kind of conversation.

Entry points: `judge`, `written_by`; `forms`, `with_first_key`, the ways of giving a message to a bare template.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

from dataprep_assets.tokenization.chat.message_form import MessageForm
from dataprep_assets.tokenization.chat.messages import REASONING_KEYS
from dataprep_assets.tokenization.chat.template import Renderer, TemplateRenderError
from dataprep_assets_tests.tools.atlas.kinds import Kind

FULL, PART, REFUSED, WRONG = "full", "part", "refused", "wrong"
Piece = tuple[str, bool]
"""A text, and whether it is in the loss."""


@dataclass(frozen=True)
class Cell:
    """The result for a kind of conversation.

    Attributes:
        verdict: `full`, `part`, `refused` or `wrong`.
        reason: The reason for a refusal or a partial use, or the mistake.
        sequences: The pieces of each sequence.
    """

    verdict: str
    reason: str = ""
    sequences: tuple[tuple[Piece, ...], ...] = ()


def judge(kind: Kind, sequences: Sequence[Sequence[Piece]], reasons: Sequence[str]) -> Cell:
    """Return the cell of a kind.

    Args:
        kind: The kind of conversation.
        sequences: The pieces of its sequences; none if it is refused.
        reasons: The reasons for which it is refused or cut.
    """
    sequence_pieces = tuple(tuple(sequence) for sequence in sequences)
    reason = ", ".join(reasons)
    faults = list(_faults(kind, sequence_pieces, bool(reasons)))
    if faults:
        return Cell(WRONG, "; ".join(faults), sequence_pieces)
    if not sequence_pieces:
        return Cell(REFUSED, reason) if reason else Cell(WRONG, "no sequence and no reason")
    return Cell(PART if reason else FULL, reason, sequence_pieces)


def _faults(kind: Kind, sequences: tuple[tuple[Piece, ...], ...], has_reason: bool) -> Iterator[str]:
    """Yield the mistakes in the sequences of a kind that are wrong for any template."""
    spans = [text for sequence in sequences for text, in_loss in sequence if in_loss]
    joined = "\n".join("".join(text for text, _ in sequence) for sequence in sequences)
    if not sequences:
        return
    for own in kind.trained:
        if (count := sum(span.count(own) for span in spans)) > 1 or (count == 0 and not has_reason):
            yield f"{own} is in the loss {count} times"
    for own in kind.untrained:
        if any(own in span for span in spans):
            yield f"{own} is in the loss"
        if own not in joined and not has_reason:
            yield f"{own} is lost"
    for span in spans:
        if not any(own in span for own in kind.trained):
            yield f"{span!r} is in the loss"


def forms() -> Iterator[MessageForm]:
    """Yield the forms in which a template may read a message."""
    for reasoning, text, null, parts in product((*REASONING_KEYS, "content"), *[(False, True)] * 3):
        yield MessageForm(reasoning=reasoning, text_arguments=text, null_content=null, parts=parts)


def written_by(renderer: Renderer, kind: Kind) -> bool:
    """Return whether the bare template writes all texts of a kind, in one of the forms in which it may read them."""
    messages = [with_first_key(message) for message in kind.row["messages"]]
    texts = (*kind.trained, *kind.untrained)
    # Render the messages up to each answer and search the texts in all of these renderings, because templates omit the
    # reasoning of earlier answers by design.
    ends = [i + 1 for i, message in enumerate(messages) if message["role"] == "assistant"]
    tools = kind.row.get("tools")
    for form, thinking in product(forms(), (True, False)):
        # Skip this form, because it puts the reasoning into the content, so the template does not write the reasoning
        # separately.
        if form.reasoning == "content":
            continue
        with suppress(TemplateRenderError):
            renderings = [
                renderer.render(form.apply_form(messages[:end]), tools, prompt=False, thinking=thinking) for end in ends
            ]
            if all(any(own in rendering for rendering in renderings) for own in texts):
                return True
    return False


def with_first_key(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message whose reasoning has the first of its names."""
    return {REASONING_KEYS[0] if key in REASONING_KEYS else key: value for key, value in message.items()}
