"""Encodes rendered conversations to ids and loss masks, many at a time and without a Python step per token.

The text is split at the special tokens and the `structure` tokens that the template wrote. Each becomes one id. The
text between them is encoded as plain text, so no text of a conversation can become a special token. No BOS or EOS is
added. The encoder would match a structure token in that text, because it is not flagged special. A text with such a
literal is therefore encoded by the reference, with the token flagged.

The text is also split where an answer begins. A model reads its prompt as separate tokens before it answers, so no
token may span that position. Nemotron (`core/chat_sft_shard_core.py`) also encodes its chunks separately. If there is a
special token or a pre-tokenizer's boundary at the split, as in the bundled template, the ids are the same as for the
whole text.

The mask is aligned to labels (docs/formats/packed-sft.md#loss-mask): position `i` is 1 when token `i + 1` of its
sequence is trained, and the last position of a sequence is 0.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import CertificateError, TokenizerError
from dataprep_assets.tokenization.bundle import SpecialToken, TokenizerBundle
from dataprep_assets.tokenization.certificate import CertifiedEncoder, refuse_engine
from dataprep_assets.tokenization.chat.rendering import RenderedConversation
from dataprep_assets.tokenization.engines import EncodedTexts, ReferenceEngine
from dataprep_assets.tokenization.library_errors import EncodingError
from dataprep_assets.tokenization.reference import flatten_ids


@dataclass(frozen=True, eq=False)
class EncodedSequences:
    """Concatenated sequences.

    Attributes:
        tokens: Ids, uint32, shape `(tokens,)`.
        trained: Whether each token is trained, bool, shape `(tokens,)`. `align_with_labels` converts it to a loss mask.
        offsets: Bounds of the sequences, int64, shape `(sequences + 1,)`.
    """

    tokens: NDArray[np.uint32]
    trained: NDArray[np.bool_]
    offsets: NDArray[np.int64]


def align_with_labels(is_trained: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return the loss mask (uint8) of sequences: shifted left by one, and 0 at the end of each sequence.

    The arguments have the shapes of `EncodedSequences`.
    """
    mask = np.zeros(len(is_trained), np.uint8)
    mask[:-1] = is_trained[1:]
    # Skip empty sequences, because the token before their end belongs to the previous sequence.
    ends = offsets[1:][np.diff(offsets) > 0] - 1
    mask[ends] = 0
    return mask


class ChatEncoder:
    """Encoder of rendered conversations. Its `encoder` must read special tokens as text.

    `structure` are the tokens that the template writes although they are not flagged special. The renderer must have
    them in the same order, after the special tokens.
    """

    def __init__(
        self, bundle: TokenizerBundle, encoder: CertifiedEncoder, structure: Sequence[SpecialToken] = ()
    ) -> None:
        if encoder.certificate.special_tokens != "text":
            raise TokenizerError(
                "the engine certificate must be for `text`, because chats are encoded between special tokens"
            )
        self.bundle, self._encoder = bundle, encoder
        self._ids = {token.content: token.id for token in (*bundle.special_tokens, *structure)}
        self._contents = list(self._ids)
        self._structure = tuple(token.content for token in structure)
        longest_first = sorted(map(re.escape, self._contents), key=len, reverse=True)
        self._special = re.compile(f"({'|'.join(longest_first) or '(?!)'})")

    def encode(self, conversations: Sequence[RenderedConversation]) -> EncodedSequences:
        """Return the encoded sequences of the conversations, in order."""
        texts: list[str] = []
        is_literal: list[bool] = []  # for each text: whether the encoder would match a literal in it
        ids: list[int] = []  # for each part: the id of a special token, or -1 for text
        trained_parts: list[bool] = []
        ends: list[int] = [0]  # for each sequence: its end, as a number of parts
        for rendered in conversations:
            for chunks in rendered.sequences:
                for chunk in chunks:
                    # The group in the pattern makes `split` return the special tokens as parts.
                    for part in filter(None, self._special.split(chunk.text)):
                        # Placeholders are restored only after the split, so that a special token in a message stays
                        # text.
                        ids.append(self._ids.get(part, -1))
                        trained_parts.append(chunk.trained)
                        if ids[-1] < 0:
                            text = part if rendered.mark is None else self.restore(part, rendered.mark)
                            texts.append(text)
                            is_literal.append(rendered.mark is not None and self.has_literals(text))
                ends.append(len(ids))
        special = np.array(ids, np.int64) >= 0
        # Start with a length of 1 for every part, because a special token has one id.
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

    def _encode(self, texts: list[str], is_literal: list[bool]) -> EncodedTexts:
        if not any(is_literal):
            return self._encoder.encode(texts)
        rows: dict[int, NDArray[np.uint32]] = {}
        for engine, is_flagged in ((self._encoder, False), (self._flagged, True)):
            indices = [index for index, flag in enumerate(is_literal) if flag == is_flagged]
            if indices:
                ids, bounds = engine.encode([texts[index] for index in indices])
                rows |= dict(zip(indices, np.split(ids, bounds[1:-1].astype(np.int64)), strict=True))
        return flatten_ids([rows[index] for index in range(len(texts))])

    def split_parts(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield the parts of a chunk's text: each special token with its id, and the text between them with -1."""
        for part in filter(None, self._special.split(text)):
            yield self._ids.get(part, -1), part

    def has_literals(self, text: str) -> bool:
        """Return whether a text contains a structure token, which the encoder would match unless it is flagged."""
        return any(literal in text for literal in self._structure)

    def choose_definition(self, *, is_flagged: bool) -> str:
        """Return the `tokenizer.json` that encodes the text between special tokens.

        With `is_flagged`, structure tokens are flagged special, so that literals in a text stay text.
        """
        bundle = replace(self.bundle, structure=self._structure) if is_flagged else self.bundle
        return bundle.build_engine_json("text")

    def restore(self, text: str, mark: str) -> str:
        """Replace the placeholders in a text with the literals."""
        parts = text.split(mark)
        parts[1::2] = [self._contents[int(index)] for index in parts[1::2]]
        return "".join(parts)

    @cached_property
    def _flagged(self) -> ReferenceEngine:
        return ReferenceEngine(replace(self.bundle, structure=self._structure), "text")

    @cached_property
    def _reference(self) -> ReferenceEngine:
        # Match special tokens, because a whole chunk contains the template's own special tokens.
        return ReferenceEngine(self.bundle, "match")

    def recheck(self, rendered: RenderedConversation, tokens: Any, location: str) -> None:
        """Encode a conversation again with the reference, each chunk as a whole. Raises CertificateError if ids differ.

        `rendered` must have no placeholders. `tokens` are the concatenated ids of its sequences. `location` names the
        file and row in the error.
        """
        self._encoder.sampled_documents += 1
        if not np.array_equal(_encode_whole(self._reference, rendered), tokens):
            raise CertificateError(
                f"{location}: the ids of the whole text differ from the reference's ids of the chunks. Set "
                "`tokenizer.engine: tokenizers`. If the ids still differ, use a different tokenizer"
            )


def _encode_whole(reference: ReferenceEngine, rendered: RenderedConversation) -> NDArray[np.uint32]:
    """Encode each chunk as a whole, matching special tokens and adding none."""
    return reference.encode([chunk.text for chunks in rendered.sequences for chunk in chunks])[0]


def check_cutting(
    bundle: TokenizerBundle, rendered: RenderedConversation, structure: Sequence[SpecialToken] = ()
) -> None:
    """Check on one conversation that encoding between special tokens equals encoding each chunk as a whole.

    Raises TokenizerError if they differ, because special tokens absorb white space (`lstrip`, `rstrip`) or because the
    tokenizer adds a space before every text (SentencePiece). Also raises it if the conversation cannot be encoded.
    """
    # Use the reference in both cases, so that only the splitting can differ.
    certificate = refuse_engine(bundle, "text", "tokenizers", "comparison with the reference itself")
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
            f"{bundle.name}: text between special tokens has different ids than in the whole conversation (special "
            "tokens with `lstrip` or `rstrip`, or a space before every text). Use a different tokenizer, "
            "because packed chat data does not support this one"
        )
