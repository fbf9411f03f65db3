"""A tagger that writes the score of a label of the user's text classifier in ONNX.

The classifier is a folder with `model.onnx`, `tokenizer.json` and, for names of labels, `config.json`, as Optimum
exports it. It needs the extra `onnx`.

A score must not depend on the other documents of a batch. Therefore all batches have the same number of rows, and a
row is padded to the next power of two, not to the longest row of its batch. Rows are computed by a single thread.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.module_code import digest_file
from dataprep_assets.curation.table import DocumentBatch
from dataprep_assets.curation.tagging import VersionedTagger
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity.receipt import find_installed_version, require_installed_version
from dataprep_assets.stores.files import cache_by_file

MODEL, TOKENIZER, CONFIG = "model.onnx", "tokenizer.json", "config.json"
_PACKAGE = "onnxruntime"
_MIN_LENGTH = 16
"""Tokens to which shorter rows are padded."""
_LOCATION = re.compile(rb"\n\x08location\x12([\x01-\x7f])", re.DOTALL)
"""The entry `location` of a tensor in ONNX's Protobuf, and the length of the file name that follows it."""

Activation = Literal["softmax", "sigmoid", "none"]
Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class OnnxTagger(VersionedTagger):
    """A classifier in ONNX, and the label whose score is written.

    Attributes:
        model: The classifier's folder, as an absolute path.
        label: The label's number, or its name in `config.json`.
        activation: The function that turns the model's outputs into scores.
        max_tokens: Number of tokens of a text that are read.
        batch: Rows per batch.
    """

    model: Path
    label: int | str
    activation: Activation
    max_tokens: int
    batch: int

    @property
    def version(self) -> str:
        version = _require_version()
        paths = [*self._find_model_files(), self._find_file(TOKENIZER)]
        digests = ", ".join(f"{path.name} {digest_file(path)}" for path in paths)
        settings = [self._find_label(), self.activation, self.max_tokens, self.batch]
        versions = f"{_PACKAGE} {version}, tokenizers {find_installed_version('tokenizers')}"
        return f"1, {versions}, {json.dumps(settings)}, {digests}"

    def tag_batch(self, batch: DocumentBatch) -> Mapping[str, Sequence[Any]]:
        _require_version()
        times = tuple(path.stat().st_mtime_ns for path in self._find_model_files())
        session = _load_session(str(self._find_file(MODEL)), times)
        path = self._find_file(TOKENIZER)
        tokenizer = _load_tokenizer(str(path), self.max_tokens, path.stat().st_mtime_ns)
        # Replace surrogates, because tokenizers only accept text that can be encoded as UTF-8.
        texts = [text.encode(errors="replace").decode() for text in batch.texts]
        rows = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        scores: list[float | None] = [None] * len(rows)
        for indices, length in _group_rows(rows, [text.strip() != "" for text in texts], self.batch):
            outputs = self._compute_outputs(session, [rows[index] for index in indices], length)
            for index, score in zip(indices, self._score_label(outputs), strict=False):
                # Round, because the last digits may differ between processors.
                scores[index] = round(float(score), 4)
        return dict.fromkeys(self.columns, scores)

    def _compute_outputs(self, session: Any, rows: Sequence[Sequence[int]], length: int) -> Numbers:
        """Return the model's outputs: ``(batch, labels)``. Rows that are missing in the batch are padding."""
        ids, mask = np.zeros((self.batch, length), np.int64), np.zeros((self.batch, length), np.int64)
        # Mask only the padding of rows, because the mean over a row without any token is not a number.
        mask[:, 0] = 1
        for index, row in enumerate(rows):
            ids[index, : len(row)], mask[index, : len(row)] = row, 1
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        names = [tensor.name for tensor in session.get_inputs()]
        if unsupported_inputs := [name for name in names if name not in inputs] or (
            ["no attention_mask"] if "attention_mask" not in names else []
        ):
            raise self._build_error(
                MODEL, f"unsupported inputs ({unsupported_inputs[0]}). Export a text classifier with attention_mask"
            )
        outputs: Numbers = np.asarray(session.run(None, {name: inputs[name] for name in names})[0], np.float64)
        if outputs.ndim != 2 or not 0 <= self._find_label() < outputs.shape[1]:
            raise self._build_error(
                MODEL,
                f"no output {self._find_label()} (shape {outputs.shape}). Correct `label`, or export a classifier",
            )
        return outputs

    def _score_label(self, outputs: Numbers) -> Numbers:
        label = self._find_label()
        if self.activation == "softmax":
            powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
            outputs = powers / powers.sum(axis=1, keepdims=True)
        elif self.activation == "sigmoid":
            outputs = 1 / (1 + np.exp(-outputs))
        scores: Numbers = outputs[:, label]
        return scores

    def _find_label(self) -> int:
        """Return the label's number."""
        if isinstance(self.label, int):
            return self.label
        try:
            names = json.loads(self._find_file(CONFIG).read_bytes())["id2label"]
        except (ValueError, KeyError, TypeError) as error:
            raise self._build_error(CONFIG, "no names of labels (`id2label`). Set `label` to a number") from error
        numbers = {str(name): int(number) for number, name in names.items()}
        if self.label not in numbers:
            raise self._build_error(CONFIG, f"no label {self.label!r}. Available: {', '.join(numbers)}")
        return numbers[self.label]

    def _find_model_files(self) -> list[Path]:
        """Return all files of the model, because large models keep their weights in a second file."""
        named_files = [self.model / name for name in _read_weight_files(str(self._find_file(MODEL)))]
        return sorted({*self.model.glob(f"{MODEL}*"), *(path for path in named_files if path.is_file())})

    def _find_file(self, name: str) -> Path:
        if not (path := self.model / name).is_file():
            raise self._build_error(name, "file does not exist. Correct `model`")
        return path

    def _build_error(self, name: str, reason: str) -> ConfigError:
        return ConfigError(f"tag: onnx: {self.model / name}: {reason}")


def _require_version() -> str:
    return require_installed_version("tag: onnx", _PACKAGE, "onnx")


def _group_rows(rows: Sequence[Sequence[int]], is_filled: Sequence[bool], size: int) -> Iterator[tuple[list[int], int]]:
    """Yield the indices of rows in batches of the same padded length, and this length."""
    groups: dict[int, list[int]] = {}
    for index, row in enumerate(rows):
        if is_filled[index]:
            groups.setdefault(max(_MIN_LENGTH, 1 << (len(row) - 1).bit_length()), []).append(index)
    for length, indices in sorted(groups.items()):
        for start in range(0, len(indices), size):
            yield indices[start : start + size], length


@cache_by_file
def _read_weight_files(path: str) -> frozenset[str]:
    """Return the names of the files in which a model keeps its weights."""
    with open(path, "rb") as file:
        content = file.read()
    return frozenset(
        content[match.end() : match.end() + match[1][0]].decode(errors="replace")
        for match in _LOCATION.finditer(content)
    )


@lru_cache(maxsize=4)
def _load_session(path: str, _times: tuple[int, ...]) -> Any:
    """Load a model once per process, and again only if one of its files was modified."""
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the library's errors have no common class
        raise ConfigError(f"tag: onnx: {path} is not an ONNX model ({error}). Export the model again") from error


@lru_cache(maxsize=4)
def _load_tokenizer(path: str, max_tokens: int, _time: int) -> Any:
    """Load a tokenizer once per process, and again only if its file was modified."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # the library raises this class
        raise ConfigError(f"tag: onnx: {path} is not a tokenizer ({error}). Export the model again") from error
    tokenizer.enable_truncation(max_tokens)
    tokenizer.no_padding()
    return tokenizer
