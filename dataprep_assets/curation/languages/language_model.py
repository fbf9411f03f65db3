"""The language of texts by py3langid's model, for all texts of a group at once.

py3langid walks through each text byte by byte in Python. Here, NumPy takes each step for all bytes at once. The scores
are the same to the bit, because the sums have the same terms in the same order.
"""

import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.text_arrays.split_texts import sort_with_positions

_WINDOW = 6
"""Number of bytes that determine the state of py3langid's automaton, because no byte n-gram of the model is longer."""
_GAP = b"\xff" * (_WINDOW - 1)
"""Bytes between texts. UTF-8 has no such byte, so it leads to the first state."""


class LanguageModel:
    """The automaton and the probabilities of a model, as arrays."""

    def __init__(self, identifier: Any) -> None:
        """Read a `LanguageIdentifier` of py3langid."""
        self._languages: list[str] = identifier.nb_classes
        self._aliases: list[tuple[int, int]] = identifier._alias_pairs
        # Convert the probabilities once, because NumPy converts half precision slowly.
        self._log_probabilities = np.asarray(identifier.nb_ptc, np.float32)
        self._priors = np.asarray(identifier.nb_pc)
        next_states = np.asarray(identifier.tk_nextmove)
        self._next_features = np.asarray(identifier.tk_output, np.int32)[next_states]
        rows = np.asarray(identifier.tk_row)
        # Store each row times 256, so that adding a byte gives the index of the next row.
        self._next_rows = rows[next_states].astype(np.int32) << 8
        first_rows = self._next_rows[int(rows[0]) << 8 :][:256]
        self._rows_after_pairs = self._next_rows[first_rows[:, np.newaxis] | np.arange(256)].ravel()

    def classify(self, texts: Sequence[str]) -> list[tuple[str, float]]:
        """Return the language of each text, and its probability."""
        encoded_texts = [*map(_encode_text, texts)]
        sizes = np.fromiter(map(len, encoded_texts), np.int64, len(texts))
        scores = self._score_texts(encoded_texts, sizes)
        scores *= (1 / np.sqrt(np.maximum(sizes, 1))).astype(np.float32)[:, np.newaxis]
        np.exp(scores - scores.max(axis=1, keepdims=True), out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        for kept_index, alias_index in self._aliases:
            scores[:, kept_index] += scores[:, alias_index]
            scores[:, alias_index] = 0
        best_indices = scores.argmax(axis=1)
        probabilities = scores[np.arange(len(texts)), best_indices].tolist()
        return [
            (self._languages[index], score) for index, score in zip(best_indices.tolist(), probabilities, strict=True)
        ]

    def _score_texts(self, encoded_texts: Sequence[bytes], sizes: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the score of each language for each text: ``(texts, languages)``."""
        features = self._find_features(encoded_texts)
        positions = np.flatnonzero(features >= 0)
        counts = np.diff(np.searchsorted(positions, np.cumsum(sizes + len(_GAP))), prepend=0)
        count = len(self._log_probabilities)
        keys = np.repeat(np.arange(len(sizes)) * count, counts) + features[positions]
        sorted_keys, key_positions = sort_with_positions(keys)
        firsts = np.flatnonzero(np.diff(sorted_keys, prepend=-1))
        # Keep the order of first occurrences, because the order of the terms affects the last digits of a sum.
        order = np.argsort(key_positions[firsts])
        weights = np.log1p(np.diff(firsts, append=len(keys))[order].astype(np.float32))
        texts, indices = np.divmod(sorted_keys[firsts][order], count)
        bounds = np.searchsorted(texts, np.arange(len(sizes) + 1))
        scores = np.zeros((len(sizes), len(self._languages)), np.float32)
        # Copy the rows of each text to the same memory, because new memory per text takes as long as the sum. The mode
        # changes no index, but lets NumPy write to this memory directly.
        rows = np.empty((int(np.diff(bounds).max()), len(self._languages)), np.float32)
        for text, (start, end) in enumerate(pairwise(bounds.tolist())):
            if end > start:
                text_rows = rows[: end - start]
                np.take(self._log_probabilities, indices[start:end], axis=0, out=text_rows, mode="clip")
                scores[text] = weights[start:end] @ text_rows + self._priors
        return scores

    def _find_features(self, encoded_texts: Sequence[bytes]) -> NDArray[np.int32]:
        """Return the feature at each byte of the texts and of the gaps after them; negative if there is none."""
        data = np.frombuffer(b"".join([_GAP, *[text + _GAP for text in encoded_texts]]), np.uint8)
        count = len(data) - _WINDOW + 1
        rows = np.take(self._rows_after_pairs, (data[:count].astype(np.uint16) << 8) | data[1 : count + 1])
        for offset in range(2, _WINDOW - 1):
            rows |= data[offset : count + offset]
            rows = np.take(self._next_rows, rows)
        rows |= data[_WINDOW - 1 :]
        return np.take(self._next_features, rows)


def _encode_text(text: str) -> bytes:
    """Encode a text as py3langid does, in lower case if it has no letter in lower case."""
    lower = text.lower() if text.isupper() else text
    return unicodedata.normalize("NFC", lower).encode("utf-8", "surrogatepass")
