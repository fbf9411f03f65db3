"""Encodes rendered conversations to ids and loss masks, many at a time and without a Python step per token.

The text is cut at the special tokens that the template wrote, and at others that it writes (`structure`). Each becomes
its one id; the text between them is encoded as plain text, so nothing in a conversation can become a special token, and
nothing is added: no BOS, no EOS. A token that is not flagged special would be matched in that text, so a text with a
literal one is encoded by the reference, to which it is special. The text is also cut where an answer begins. A model
reads its prompt as separate tokens before it answers, so no token may span that cut; the original (Nemotron,
`core/chat_sft_shard_core.py`) also encodes its chunks separately. If there is a special token or a pre-tokenizer's
boundary at the cut, as in the bundled template, the ids are those of the whole text.

The mask is aligned to labels (docs/formats/packed-sft.md#loss-mask): position `i` is 1 when token `i + 1` of its
sequence is trained, and the last position of a sequence is 0.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import CertificateError, TokenizerError
from dataprep_assets.tokenization.bundle import EncodingError, SpecialToken, TokenizerBundle
from dataprep_assets.tokenization.certificate import CertifiedEncoder, refused_outright
from dataprep_assets.tokenization.chat.rendering import RenderedConversation
from dataprep_assets.tokenization.engines import Encoded, ReferenceEngine
from dataprep_assets.tokenization.reference import flat_ids


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
    # an empty sequence has no last token: the one before its end is another's
    ends = offsets[1:][np.diff(offsets) > 0] - 1
    mask[ends] = 0
    return mask


class ChatEncoder:
    """Encodes rendered conversations. The given encoder must read special tokens as text.

    `structure` are the tokens that the template writes without their being special, as the renderer has them behind
    the special ones.
    """

    def __init__(
        self, bundle: TokenizerBundle, encoder: CertifiedEncoder, structure: Sequence[SpecialToken] = ()
    ) -> None:
        if encoder.certificate.special_tokens != "text":
            raise TokenizerError("a chat is encoded between its special tokens: certify the engine for `text`")
        self.bundle, self._encoder = bundle, encoder
        self._ids = {token.content: token.id for token in (*bundle.special_tokens, *structure)}
        self._contents = list(self._ids)
        self._structure = tuple(token.content for token in structure)
        longest_first = sorted(map(re.escape, self._contents), key=len, reverse=True)
        self._special = re.compile(f"({'|'.join(longest_first) or '(?!)'})")

    def encode(self, conversations: Sequence[RenderedConversation]) -> EncodedSequences:
        """The sequences of the conversations, in order."""
        texts: list[str] = []
        is_literal: list[bool] = []  # of each text: whether the encoder would match a literal in it
        ids: list[int] = []  # of each part: that of a special token, or -1 for a text
        trained_parts: list[bool] = []
        ends: list[int] = [0]  # where each sequence ends, in parts
        for rendered in conversations:
            for chunks in rendered.sequences:
                for chunk in chunks:
                    # the group in the pattern keeps the special tokens, and no text between them is one
                    for part in filter(None, self._special.split(chunk.text)):
                        # restored after the cut, so that a special token in a message stays text
                        ids.append(self._ids.get(part, -1))
                        trained_parts.append(chunk.trained)
                        if ids[-1] < 0:
                            text = part if rendered.mark is None else self._restored(part, rendered.mark)
                            texts.append(text)
                            is_literal.append(
                                rendered.mark is not None and any(literal in text for literal in self._structure)
                            )
                ends.append(len(ids))
        special = np.array(ids, np.int64) >= 0
        # a special token is one id, a text as many as the encoder gives
        lengths = np.ones(len(ids), np.int64)
        flat = np.zeros(0, np.uint32)
        if texts:
            flat, bounds = self._encode(texts, is_literal)
            lengths[~special] = np.diff(bounds)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        tokens = np.empty(int(offsets[-1]), np.uint32)
        is_special = np.repeat(special, lengths)
        tokens[is_special] = np.array(ids, np.int64)[special]
        tokens[~is_special] = flat
        return EncodedSequences(tokens, np.repeat(np.array(trained_parts, np.bool_), lengths), offsets[ends])

    def _encode(self, texts: list[str], is_literal: list[bool]) -> Encoded:
        if not any(is_literal):
            return self._encoder.encode(texts)
        rows: dict[int, NDArray[np.uint32]] = {}
        for engine, is_flagged in ((self._encoder, False), (self._flagged, True)):
            indices = [index for index, flag in enumerate(is_literal) if flag == is_flagged]
            if indices:
                ids, bounds = engine.encode([texts[index] for index in indices])
                rows |= dict(zip(indices, np.split(ids, bounds[1:-1].astype(np.int64)), strict=True))
        return flat_ids([rows[index] for index in range(len(texts))])

    def _restored(self, text: str, mark: str) -> str:
        """Text with its placeholders put back."""
        parts = text.split(mark)
        parts[1::2] = [self._contents[int(index)] for index in parts[1::2]]
        return "".join(parts)

    @cached_property
    def _flagged(self) -> ReferenceEngine:
        return ReferenceEngine(replace(self.bundle, structure=self._structure), "text")

    @cached_property
    def _reference(self) -> ReferenceEngine:
        # in a whole chunk the special tokens of the template have to be matched
        return ReferenceEngine(self.bundle, "match")

    def recheck(self, rendered: RenderedConversation, tokens: Any, where: str) -> None:
        """Encode one conversation again, each chunk as a whole and by the reference.

        Raises CertificateError if ids differ.

        `rendered` is the conversation, which must have no placeholders; `tokens` are those of all its sequences, one
        after another; `where` names it in the error (file and row).
        """
        self._encoder.sampled_documents += 1
        if not np.array_equal(_encode_whole(self._reference, rendered), tokens):
            raise CertificateError(
                f"{where}: the ids of the whole text differ from the reference's ids of the chunks. Set "
                "`tokenizer.engine: tokenizers`. If they still differ, this tokenizer cannot be split at special "
                "tokens"
            )


def _encode_whole(reference: ReferenceEngine, rendered: RenderedConversation) -> NDArray[np.uint32]:
    """Ids of each chunk encoded as a whole, special tokens matched and none added."""
    return reference.encode([chunk.text for chunks in rendered.sequences for chunk in chunks])[0]


def check_cutting(
    bundle: TokenizerBundle, rendered: RenderedConversation, structure: Sequence[SpecialToken] = ()
) -> None:
    """Compare, on one conversation, encoding between special tokens with encoding each chunk whole, by the reference.

    Raises TokenizerError for a tokenizer that encodes the two differently: one whose special tokens absorb white space
    (`lstrip`, `rstrip`), or that begins every text with a space of its own (SentencePiece), or that cannot encode it.
    """
    # the reference on both sides, so that nothing but the cutting can differ
    certificate = refused_outright(bundle, "text", "tokenizers", "comparison with the reference itself")
    encoder = ChatEncoder(bundle, CertifiedEncoder(bundle, "text", certificate), structure)
    try:
        tokens = encoder.encode([rendered]).tokens
    except EncodingError as error:
        raise TokenizerError(
            f"{bundle.name}: cannot encode the conversation used to test templates: {error}. Use a tokenizer with an "
            "unknown token"
        ) from None
    if not np.array_equal(tokens, _encode_whole(ReferenceEngine(bundle, "match"), rendered)):
        raise TokenizerError(
            f"{bundle.name}: text between special tokens gets different ids than in the whole conversation (special "
            "tokens with `lstrip` or `rstrip`, or a space before every text). Such tokenizers are not supported for "
            "packed chat data"
        )
