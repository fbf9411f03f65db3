"""Compares the loss mask with the source rows independently: by the text of the answers, without any template.

`round_trip` makes a mask again in the same way, so an error in that way would be in both. Here the trained labels of
sampled sequences are decoded, and each run of them must begin with the text of an answer of its row, preceded by
nothing except an opening that `chat_plan` proved (`plan.openings`), contain that answer to its end, and contain one
stop token. An answer that says of itself that it is not trained is none of them. With `unprompted_header`, an answer
that is the first message is trained with all that the template writes before it, whatever that is. An answer whose
text a template may change or leave out (reasoning within it, no text beside a call, a template that rewrites its input)
is not compared; the finding says how many are.

Entry point: `answers_trained`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.graph.finding import Finding, judged, verdict
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan
from dataprep_assets.pipelines.blend.sft.opened_shard import OpenedShard, SampledSequence
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.chat.messages import Refusal, is_trained, read_conversation
from dataprep_assets.tokenization.engines import ReferenceEngine

_BEGINNING = 40
"""Characters by which the beginning of an answer is recognized."""
_TAGS = ("<think>", "</think>", "<tool_call>")


@judged
def answers_trained(packed: OpenedShard) -> Finding:
    """The trained parts of sampled sequences are answers of their source rows, found only by their text.

    Messages name files and rows, never text.
    """
    if packed.facts.empty:
        return Finding(passed=True, summary="An empty shard, nothing to compare.")
    comparison = _Comparison(packed.plan, packed.bundle)
    defects: list[str] = []
    for source in packed.sources:
        samples = packed.compared_by_row.get(source.ordinal, {})
        for row, values in packed.compared_rows[source.ordinal].items():
            for sample in samples[row]:
                places = comparison.wrong(values, sample)
                defects += [f"{packed.name}: {source.label}: row {row}: {place}" for place in places]
    return verdict(
        defects,
        f"{comparison.compared} trained answers are those of their source rows; {comparison.others} have no text of "
        "their own to compare.",
        "The template writes answers in another way than its generation prompt; correct it, or look at `decoded_mask`",
        facts={"compared": comparison.compared, "not_compared": comparison.others},
    )


@dataclass(frozen=True)
class _Answer:
    """The text of one answer. `first` are texts with which it may begin."""

    first: tuple[str, ...]
    whole: str
    calls: bool


class _Comparison:
    """Compares sequences with their rows, and counts."""

    def __init__(self, plan: ChatPlan, bundle: TokenizerBundle) -> None:
        self._plan, self._bundle = plan, bundle
        flagged = replace(bundle, structure=tuple(token.content for token in plan.structure))
        self._engine = ReferenceEngine(flagged, "text")
        self.compared = self.others = 0

    def wrong(self, values: dict[str, Any], sample: SampledSequence) -> Iterator[str]:
        """A sentence for each trained run that is not an answer of the row."""
        conversation = read_conversation(values, self._plan.fields, self._plan.choices)
        if isinstance(conversation, Refusal):
            return  # reported by `round_trip`
        answers = [m for m in conversation.messages if m["role"] == "assistant" and is_trained(m)]
        begun = self._plan.choices.unprompted_header and conversation.messages[0]["role"] == "assistant"
        as_given = [_said(message, str.strip) for message in answers]
        given_back: list[_Answer | None] | None = None
        for start, stop in _runs(sample.mask):
            labels = sample.tokens[start:stop]
            text, is_cut = self._bundle.decode(labels), stop == len(sample.tokens) and not self._ends(labels)
            said, is_whole = as_given, begun and start == 1  # the first token is nobody's label
            if not self._is_any(text, said, is_cut, is_whole):
                # most tokenizers give a text back as it was, so few answers have to be encoded to know
                given_back = given_back or [_said(message, self._given_back) for message in answers]
                said = given_back
            if self._is_any(text, said, is_cut, is_whole):
                self.compared += 1
                if self._holds_several(labels):
                    yield (
                        f"what is trained from token {start} of sequence {sample.number} on runs through a stop token"
                    )
            elif not self._plan.openings or (is_whole and is_cut) or any(s is None or s.calls for s in said):
                self.others += 1
            else:
                yield f"what is trained from token {start} of sequence {sample.number} on is none of its answers"

    def _given_back(self, text: str) -> str:
        """A text after encoding and decoding, because some tokenizers normalize."""
        return self._bundle.decode(self._engine.encode([text.strip()])[0]).strip() if text.strip() else ""

    def _is_any(self, text: str, answers: Sequence[_Answer | None], is_cut: bool, is_whole: bool) -> bool:
        if is_whole:  # what precedes the first of the row's answers is no other's
            answers = answers[:1]
        return any(said is not None and self._is_answer(text, said, is_cut, is_whole) for said in answers)

    def _is_answer(self, text: str, said: _Answer, is_cut: bool, is_whole: bool) -> bool:
        if is_whole:
            found = [text[place:] for first in said.first if (place := text.find(first)) >= 0]
            return any(said.whole in b or (is_cut and said.whole.startswith(b.rstrip("\ufffd"))) for b in found)
        bodies = [text[len(o) :].lstrip() for o in self._plan.openings if text.startswith(o)]
        if is_cut:
            # the cut may go through a character of several tokens, of which the first decode to U+FFFD
            bodies = [body.rstrip("\ufffd") for body in bodies]
            return any(b[:_BEGINNING].startswith(f) or f.startswith(b) for b in bodies for f in said.first)
        begins = any(body.startswith(first) for body in bodies for first in said.first)
        return (begins or said.calls) and said.whole in text

    def _ends(self, labels: NDArray[np.int32]) -> bool:
        # what the template writes behind the stop token may be trained, too
        tail = len(self._plan.turn_end) + 1
        return bool(np.any(labels[-tail:] == self._plan.stop.id))

    def _holds_several(self, labels: NDArray[np.int32]) -> bool:
        if self._plan.choices.special_literals == "special":
            return False  # what people wrote may hold one
        return int(np.count_nonzero(labels == self._plan.stop.id)) > 1


def _said(message: dict[str, Any], read: Callable[[str], str]) -> _Answer | None:
    """The text of a message, after `read`; None if a template may change it."""
    texts = [message.get(key) for key in ("reasoning_content", "content")]
    if not all(text is None or isinstance(text, str) for text in texts):
        return None
    reasoning, content = (read(text or "") for text in texts)
    if not content or any(tag in content for tag in _TAGS):
        return None
    first = tuple(text[:_BEGINNING] for text in (reasoning, content) if text)
    return _Answer(first, content, bool(message.get("tool_calls")))


def _runs(mask: NDArray[np.uint8]) -> Iterator[tuple[int, int]]:
    """The runs of trained labels of a sequence: first token and the one after the last."""
    # shifted back from labels to tokens; the one behind them, which is not trained, ends the last run
    trained = np.zeros(len(mask) + 1, np.int8)
    trained[1:-1] = mask[:-1]
    cuts = np.flatnonzero(np.diff(trained, prepend=np.int8(0)))
    yield from list(pairwise(cuts.tolist()))[::2]  # beginnings and ends alternate
