"""Rendering and encoding of preferences: one prompt, and the tokens that each answer adds to it.

Each side is rendered as a separate conversation, in which its answers follow the generation prompt. The prompt is the
text that both sides have before their answers. A template may add text to the prompt of one side only, as Qwen3's
template does for an answer without reasoning (`<think>`, `</think>`). In this case the shorter text is the prompt. The
added text belongs to that side's answer and is in its mask, because the model must write it. The prompt is encoded
once, so that both sides share its tokens.

Entry points: `PreferenceEncoder`, `render_preference`, `RenderedPreference`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dataprep_assets.formats.conversations.preference_rows import Answer, Messages, PreferenceRow
from dataprep_assets.formats.json_columns import to_json
from dataprep_assets.tokenization.chat.mask import ChatEncoder
from dataprep_assets.tokenization.chat.messages import DIFFERENT_PROMPTS, EQUAL_PAIR, NOT_JSON, Preference, Refusal
from dataprep_assets.tokenization.chat.rendering import ConversationRenderer, RenderedChunk, RenderedConversation

_MARKS = ("train", "weight")


@dataclass(frozen=True)
class RenderedPreference:
    """The prompt and the answers of a preference, each as one sequence; a side is None if the row does not have it."""

    preference: Preference
    prompt: RenderedConversation
    chosen_side: RenderedConversation | None
    rejected_side: RenderedConversation | None

    @property
    def parts(self) -> list[RenderedConversation]:
        """The prompt, then the answers that the row has."""
        return [part for part in (self.prompt, self.chosen_side, self.rejected_side) if part is not None]

    @property
    def texts(self) -> list[str]:
        """The text of each rendered chunk, in the order of the parts."""
        return [chunk.text for part in self.parts for chunks in part.sequences for chunk in chunks]

    @property
    def is_bare(self) -> bool:
        """Whether no message contains the text of a special token."""
        return all(part.mark is None for part in self.parts)

    @property
    def sides(self) -> RenderedConversation:
        """The prompt with each answer, as one sequence per side, for the comparison with the reference engine."""
        (prompt,) = self.prompt.sequences
        return RenderedConversation(tuple((*prompt, *part.sequences[0]) for part in self.parts[1:]))


def render_preference(renderer: ConversationRenderer, preference: Preference) -> RenderedPreference | Refusal:
    """Return the rendered preference, or a Refusal with the reason why it cannot be used."""
    sides: list[RenderedConversation] = []
    for conversation in preference.sides:
        rendered = renderer.render_answers(conversation, preference.prompt)
        if isinstance(rendered, Refusal):
            return rendered
        sides.append(rendered)
    prompts = [side.sequences[0][0].text for side in sides]
    shared_prompt = min(prompts, key=len)
    if not all(prompt.startswith(shared_prompt) for prompt in prompts):
        return Refusal(DIFFERENT_PROMPTS)
    answers = iter([_remove_prompt(side, len(shared_prompt)) for side in sides])
    prompt = RenderedConversation(((RenderedChunk(shared_prompt, False),),), sides[prompts.index(shared_prompt)].mark)
    try:
        for conversation in preference.sides:
            to_json([conversation.messages, conversation.tools, conversation.kwargs])
    except ValueError:
        return Refusal(NOT_JSON)
    answer_sides = [
        None if side is None else next(answers) for side in (preference.chosen_side, preference.rejected_side)
    ]
    return RenderedPreference(preference, prompt, *answer_sides)


def _remove_prompt(side: RenderedConversation, length: int) -> RenderedConversation:
    """Return a rendered side without its prompt, which is its first `length` characters."""
    first_chunk, *chunks = side.sequences[0]
    text = first_chunk.text[length:]
    return RenderedConversation((((RenderedChunk(text, True),) if text else ()) + tuple(chunks),), side.mark)


class PreferenceEncoder:
    """Encoder that turns rendered preferences into rows."""

    def __init__(self, encoder: ChatEncoder) -> None:
        self._encoder = encoder

    def encode(self, rendered: Sequence[RenderedPreference]) -> list[PreferenceRow]:
        """Return a row for each preference, even if its sides have equal ids or it is too long."""
        encoded = self._encoder.encode([part for preference in rendered for part in preference.parts])
        bounds = encoded.offsets.tolist()
        sequences = iter(pairwise(bounds))
        rows = []
        for preference in (rendering.preference for rendering in rendered):
            prompt = preference.prompt
            answers: list[Answer | None] = []
            start, stop = next(sequences)
            prompt_ids = encoded.tokens[start:stop].astype(np.int32)
            for conversation in (preference.chosen_side, preference.rejected_side):
                if conversation is None:
                    answers.append(None)
                    continue
                start, stop = next(sequences)
                answers.append(
                    Answer(
                        messages=_remove_marks(conversation.messages[prompt:]),
                        ids=encoded.tokens[start:stop].astype(np.int32),
                        mask=encoded.trained[start:stop].astype(np.int8),
                    )
                )
            conversation = preference.sides[0]
            rows.append(
                PreferenceRow(
                    prompt=_remove_marks(conversation.messages[:prompt]),
                    prompt_ids=prompt_ids,
                    chosen_answer=answers[0],
                    rejected_answer=answers[1],
                    tools=conversation.tools or None,
                    kwargs=conversation.kwargs,
                )
            )
        return rows

    def recheck(self, rendered: RenderedPreference, row: PreferenceRow, location: str) -> None:
        """Encode a preference again with the reference engine. Raises CertificateError if the ids differ."""
        sides = [np.concatenate([row.prompt_ids, answer.ids]) for answer in row.answers]
        self._encoder.recheck(rendered.sides, np.concatenate(sides), location)


def find_fault(row: PreferenceRow) -> str | None:
    """Return the reason why an encoded row cannot be used; None if it can be used."""
    if not len(row.prompt_ids) or not all(answer.mask.any() for answer in row.answers):
        return "empty_after_masking"
    has_equal_ids = len(row.answers) == 2 and np.array_equal(row.answers[0].ids, row.answers[1].ids)
    return EQUAL_PAIR if has_equal_ids else None


def _remove_marks(messages: Messages) -> Messages:
    """Return messages without the keys that select what is trained, because the masks of a row replace them."""
    if not any(mark in message for message in messages for mark in _MARKS):
        return messages
    return [{key: value for key, value in message.items() if key not in _MARKS} for message in messages]


def is_plain(row: PreferenceRow) -> bool:
    """Return whether a row has only roles and content, and one message per answer, which every trainer can read."""
    messages = [*row.prompt, *(message for answer in row.answers for message in answer.messages)]
    return (
        not row.tools
        and not row.kwargs
        and all(len(answer.messages) == 1 for answer in row.answers)
        and all(message.keys() == {"role", "content"} for message in messages)
    )
