"""Renders and encodes preferences: one prompt, and the tokens that each answer adds to it.

Each side is rendered as a conversation of its own, in which its answers follow the generation prompt. The prompt is the
text that both sides have before their answers. A template may continue a prompt for one side only, such as Qwen3 for an
answer without a thought (`<think>`, `</think>`). The shorter text is then the prompt, and the rest belongs to that
answer and is in its mask, because the model has to write it. The prompt is encoded once, so that both sides share its
tokens.

Entry points: `PreferenceEncoder`, `render_preference`, `RenderedPreference`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dataprep_assets.formats.json_columns import to_json
from dataprep_assets.formats.preference_rows import Answer, Messages, PreferenceRow
from dataprep_assets.tokenization.chat.mask import ChatEncoder
from dataprep_assets.tokenization.chat.messages import DIFFERENT_PROMPTS, EQUAL_PAIR, Preference, Refusal
from dataprep_assets.tokenization.chat.rendering import ConversationRenderer, RenderedChunk, RenderedConversation

NOT_JSON = "not_json"
"""Reason for refusing a row with a number that JSON does not have."""
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
        """The texts of all parts."""
        return [chunk.text for part in self.parts for chunks in part.sequences for chunk in chunks]

    @property
    def is_bare(self) -> bool:
        """Whether no message has a literal of a special token."""
        return all(part.mark is None for part in self.parts)

    @property
    def sides(self) -> RenderedConversation:
        """Each side as a whole, for the comparison with the reference."""
        (prompt,) = self.prompt.sequences
        return RenderedConversation(tuple((*prompt, *part.sequences[0]) for part in self.parts[1:]))


def render_preference(renderer: ConversationRenderer, preference: Preference) -> RenderedPreference | Refusal:
    """Return the rendered preference, or why it cannot be used."""
    sides: list[RenderedConversation] = []
    for conversation in preference.sides:
        rendered = renderer.render_answers(conversation, preference.prompt)
        if isinstance(rendered, Refusal):
            return rendered
        sides.append(rendered)
    prompts = [side.sequences[0][0].text for side in sides]
    shared = min(prompts, key=len)
    if not all(prompt.startswith(shared) for prompt in prompts):
        return Refusal(DIFFERENT_PROMPTS)
    answers = iter([_remove_prompt(side, len(shared)) for side in sides])
    prompt = RenderedConversation(((RenderedChunk(shared, False),),), sides[prompts.index(shared)].mark)
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
    """Return the answer in a sequence: everything after its first `length` characters."""
    first_chunk, *chunks = side.sequences[0]
    text = first_chunk.text[length:]
    return RenderedConversation((((RenderedChunk(text, True),) if text else ()) + tuple(chunks),), side.mark)


class PreferenceEncoder:
    """Encoder of rendered preferences as rows."""

    def __init__(self, encoder: ChatEncoder) -> None:
        self._encoder = encoder

    def encode(self, rendered: Sequence[RenderedPreference]) -> list[PreferenceRow]:
        """Return a row for each preference; sides may have equal ids, and rows may have any length."""
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
        """Encode one preference again by the reference; raises CertificateError if ids differ."""
        sides = [np.concatenate([row.prompt_ids, answer.ids]) for answer in row.answers]
        self._encoder.recheck(rendered.sides, np.concatenate(sides), location)


def find_fault(row: PreferenceRow) -> str | None:
    """Return why a row cannot be used, given its ids; None if it can."""
    if not len(row.prompt_ids) or not all(answer.mask.any() for answer in row.answers):
        return "empty_after_masking"
    has_equal_ids = len(row.answers) == 2 and np.array_equal(row.answers[0].ids, row.answers[1].ids)
    return EQUAL_PAIR if has_equal_ids else None


def _remove_marks(messages: Messages) -> Messages:
    """Return messages without marks for training, which mean nothing in a prompt."""
    if not any(mark in message for message in messages for mark in _MARKS):
        return messages
    return [{key: value for key, value in message.items() if key not in _MARKS} for message in messages]


def is_plain(row: PreferenceRow) -> bool:
    """Return whether a row consists of texts only, with one answer for each side: the form that every trainer reads."""
    messages = [*row.prompt, *(message for answer in row.answers for message in answer.messages)]
    return (
        not row.tools
        and not row.kwargs
        and all(len(answer.messages) == 1 for answer in row.answers)
        and all(message.keys() == {"role", "content"} for message in messages)
    )
