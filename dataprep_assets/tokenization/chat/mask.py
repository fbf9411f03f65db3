"""Encodes rendered conversations to ids and loss masks, many at a time and without a Python step per token.

The text is cut at the special tokens that the template wrote. Each becomes its one id; the text between them is encoded
as plain text, so nothing in a conversation can become a special token, and nothing is added: no BOS, no EOS. The text
is also cut where an answer begins. A model reads its prompt as separate tokens before it answers, so no token may span
that cut; the original (Nemotron, `core/chat_sft_shard_core.py`) also encodes its chunks separately. If there is a
special token or a pre-tokenizer's boundary at the cut, as in the bundled template, the ids are those of the whole text.

The mask is aligned to labels (docs/formats/packed-sft.md#loss-mask): position `i` is 1 when token `i + 1` of its
sequence is trained, and the last position of a sequence is 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import CertificateError, TokenizerError
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import CertifiedEncoder, refused_outright
from dataprep_assets.tokenization.chat.chunks import Rendered
from dataprep_assets.tokenization.chat.layouts import Layouts
from dataprep_assets.tokenization.engines import ReferenceEngine

__all__ = ["ChatEncoder", "EncodedSequences", "check_cutting", "label_aligned"]


@dataclass(frozen=True, eq=False)
class EncodedSequences:
    """Sequences end to end. `tokens` uint32 and `trained` bool, shape `(tokens,)`; `offsets` int64, `(sequences + 1,)`.

    `trained` says for each token whether it is trained; `label_aligned` turns it into the trainer's mask.
    """

    tokens: NDArray[np.uint32]
    trained: NDArray[np.bool_]
    offsets: NDArray[np.int64]


def label_aligned(trained: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The loss mask of sequences: shifted left by one, 0 at each end. Shapes as in `EncodedSequences`; uint8."""
    mask = np.zeros(len(trained), np.uint8)
    mask[:-1] = trained[1:]
    ends = offsets[1:][np.diff(offsets) > 0] - 1
    mask[ends] = 0
    return mask


class ChatEncoder:
    """Encodes rendered conversations. The given encoder must read special tokens as text."""

    def __init__(self, bundle: TokenizerBundle, encoder: CertifiedEncoder) -> None:
        if encoder.certificate.special_tokens != "text":
            raise TokenizerError("a chat is encoded between its special tokens: certify the engine for `text`")
        self._bundle, self._encoder = bundle, encoder
        self._layouts = Layouts(bundle.special_tokens, lambda text: encoder.encode([text])[0].tolist())

    def encode(self, conversations: Sequence[Rendered]) -> EncodedSequences:
        """The sequences of the conversations, in order."""
        texts: list[str] = []
        layouts = [self._layouts.of(rendered, texts) for rendered in conversations]
        if not layouts:
            return EncodedSequences(np.zeros(0, np.uint32), np.zeros(0, np.bool_), np.zeros(1, np.int64))
        runs = np.concatenate([layout.runs for layout in layouts])
        lengths, is_text = runs.copy(), runs == 0
        if texts:
            flat, bounds = self._encoder.encode(texts)
            lengths[is_text] = np.diff(bounds)
        ends = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=ends[1:])
        tokens = np.empty(int(ends[-1]), np.uint32)
        known = _ranges(ends[:-1][~is_text], runs[~is_text])
        tokens[known] = np.concatenate([layout.known for layout in layouts])
        if texts:
            from_text = np.ones(len(tokens), np.bool_)
            from_text[known] = False
            tokens[from_text] = flat
        trained = np.repeat(np.concatenate([layout.trained for layout in layouts]), lengths)
        items = np.concatenate([np.zeros(1, np.int64), *(layout.items for layout in layouts)])
        return EncodedSequences(tokens, trained, ends[np.cumsum(items)])

    @cached_property
    def _reference(self) -> ReferenceEngine:
        return ReferenceEngine(self._bundle, "match")

    def recheck(self, rendered: Rendered, tokens: Any, where: str) -> None:
        """Encode one conversation again, each chunk as a whole and by the reference.

        Raises CertificateError if ids differ.

        `rendered` is the conversation, which must have no placeholders; `tokens` are those of all its sequences, one
        after another; `where` names it in the error (file and row).
        """
        self._encoder.sampled_documents += 1
        if not np.array_equal(_whole(self._reference, rendered), tokens):
            raise CertificateError(
                f"{where}: ids differ from those of the reference for the whole text of each chunk. Set "
                "`tokenizer.engine: tokenizers`; if they still differ, this tokenizer cannot be cut at special tokens"
            )


def _whole(reference: ReferenceEngine, rendered: Rendered) -> NDArray[np.uint32]:
    """Ids of each chunk encoded as a whole, special tokens matched and none added."""
    return reference.encode([chunk.text for chunks in rendered.sequences for chunk in chunks])[0]


def check_cutting(bundle: TokenizerBundle, rendered: Rendered) -> None:
    """Compare, on one conversation, encoding between special tokens with encoding each chunk whole, by the reference.

    Raises TokenizerError for a tokenizer that encodes the two differently: one whose special tokens absorb white space
    (`lstrip`, `rstrip`), or that begins every text with a space of its own (SentencePiece).
    """
    refused = refused_outright(bundle, "text", "tokenizers", "comparison with the reference itself")
    tokens = ChatEncoder(bundle, CertifiedEncoder(bundle, "text", refused)).encode([rendered]).tokens
    if not np.array_equal(tokens, _whole(ReferenceEngine(bundle, "match"), rendered)):
        raise TokenizerError(
            f"{bundle.name}: text between special tokens has other ids on its own than in the whole conversation "
            "(special tokens with `lstrip` or `rstrip`, or a space before every text). Such tokenizers are not "
            "supported for packed chat data"
        )


def _ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers of ranges, one range after another."""
    before = np.cumsum(lengths) - lengths
    found: NDArray[np.int64] = np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths)
    return found
