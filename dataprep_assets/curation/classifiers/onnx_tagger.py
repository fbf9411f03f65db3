"""A tagger that writes the score of a label of the user's text classifier in ONNX.

The classifier is a folder with `model.onnx` or `onnx/model.onnx`, `tokenizer.json` and, for names of labels,
`config.json`, as Optimum exports it. A sentence-transformer also has `modules.json`, and needs a linear layer, the
head. It needs the extra `onnx`.

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

from dataprep_assets.curation.classifiers.embedding import Embedding, Numbers, load_head
from dataprep_assets.curation.classifiers.model_files import ModelFiles
from dataprep_assets.curation.module_code import digest_file
from dataprep_assets.curation.table import DocumentBatch
from dataprep_assets.curation.tagging import VersionedTagger
from dataprep_assets.errors import ConfigError, count_of
from dataprep_assets.integrity.receipt import find_installed_version, require_installed_version
from dataprep_assets.stores.files import cache_by_file

MODELS = ("model.onnx", "onnx/model.onnx")
"""Paths of the model in its folder, in the order in which they are looked up."""
TOKENIZER, CONFIG = "tokenizer.json", "config.json"
_PACKAGE = "onnxruntime"
_HEAD_PACKAGE = "safetensors"
_MAX_TOKENS = 512
_LIMITS = {"sentence_bert_config.json": "max_seq_length", "tokenizer_config.json": "model_max_length"}
"""File → its key with the maximum number of tokens."""
_EMBEDDING = "sentence_embedding"
_TOKEN_EMBEDDINGS = ("last_hidden_state", "token_embeddings")
"""Names of outputs that are not the scores of labels."""
_MIN_LENGTH = 16
"""Tokens to which shorter rows are padded."""
_LOCATION = re.compile(rb"\n\x08location\x12([\x01-\x7f])", re.DOTALL)
"""The entry `location` of a tensor in ONNX's Protobuf, and the length of the file name that follows it."""

Activation = Literal["softmax", "sigmoid", "none"]


@dataclass(frozen=True, kw_only=True)
class OnnxTagger(VersionedTagger):
    """A classifier in ONNX, and the label whose score is written.

    Attributes:
        model: The classifier's folder.
        head: The file with the linear layer after a sentence-transformer.
        label: The label's number, or its name in `config.json`. None if there is only one.
        activation: The function that turns the model's outputs into scores.
        max_tokens: Number of tokens of a text that are read. None for the model's limit, but at most 512.
        batch: Rows per batch.
    """

    model: ModelFiles
    head: Path | None
    label: int | str | None
    activation: Activation
    max_tokens: int | None
    batch: int

    @property
    def version(self) -> str:
        version = _require_version()
        paths = [*self._find_model_files(), self.model.require(TOKENIZER)]
        versions = f"{_PACKAGE} {version}, tokenizers {find_installed_version('tokenizers')}"
        if self.head is not None:
            load_head(self.head, self.model.key)
            paths += [self.head, *Embedding(self.model).find_files()]
            versions += f", {_HEAD_PACKAGE} {require_installed_version('tag: onnx', _HEAD_PACKAGE, 'onnx')}"
        digests = ", ".join(filter(None, (self.model.commit, *(f"{path.name} {digest_file(path)}" for path in paths))))
        settings = [self._find_label(), self.activation, self._find_max_tokens(), self.batch]
        return f"1, {versions}, {json.dumps(settings)}, {digests}"

    @property
    def is_local(self) -> bool:
        return self.model.is_local([TOKENIZER, CONFIG]) and any(self.model.is_local([name]) for name in MODELS)

    def tag_batch(self, batch: DocumentBatch) -> Mapping[str, Sequence[Any]]:
        _require_version()
        paths = self._find_model_files()
        session = _load_session(str(paths[0]), tuple(path.stat().st_mtime_ns for path in paths))
        path = self.model.require(TOKENIZER)
        tokenizer = _load_tokenizer(str(path), self._find_max_tokens(), path.stat().st_mtime_ns)
        prompt = "" if self.head is None else Embedding(self.model).find_prompt()
        # Replace surrogates, because tokenizers only accept text that can be encoded as UTF-8.
        texts = [prompt + text.encode(errors="replace").decode() for text in batch.texts]
        rows = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        scores: list[float | None] = [None] * len(rows)
        for indices, length in _group_rows(rows, [text.strip() != "" for text in batch.texts], self.batch):
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
            raise self._build_model_error(
                f"unsupported inputs ({unsupported_inputs[0]}). Export a text classifier with attention_mask"
            )
        output = self._choose_output([tensor.name for tensor in session.get_outputs()])
        values: Numbers = np.asarray(session.run([output], {name: inputs[name] for name in names})[0], np.float64)
        return values if self.head is None else self._apply_head(values, mask)

    def _choose_output(self, names: Sequence[str]) -> str:
        """Return the name of the output with the scores of labels, or with the embedding that the head reads."""
        embeddings = [name for name in (_EMBEDDING, *_TOKEN_EMBEDDINGS) if name in names]
        if self.head is None:
            output = "logits" if "logits" in names else names[0]
            if output in embeddings:
                raise self._build_model_error(
                    f"the output {output!r} is an embedding, not the scores of labels. Set `head` to a linear layer, "
                    "or export a text classifier"
                )
            return output
        if not embeddings:
            raise self._build_model_error(
                f"no embedding for the head (outputs: {', '.join(names)}). Remove `head`, or export a "
                "sentence-transformer"
            )
        return embeddings[0]

    def _apply_head(self, values: Numbers, mask: NDArray[np.int64]) -> Numbers:
        """Return the head's outputs, ``(batch, labels)``, for the model's output."""
        embedding = Embedding(self.model).compute(values, mask) if values.ndim == 3 else values
        assert self.head is not None
        layer = load_head(self.head, self.model.key)
        if layer.weight.shape[1] != embedding.shape[1]:
            raise ConfigError(
                f"{self.model.key}: {self.head}: `weight` has {count_of(layer.weight.shape[1], 'dimension')}, but the "
                f"embedding has {embedding.shape[1]:,}. Set the head of this model"
            )
        return layer.apply(embedding)

    def _score_label(self, outputs: Numbers) -> Numbers:
        """Return the label's score for each row."""
        label, count = self._find_label(), outputs.shape[-1]
        if outputs.ndim != 2 or not 0 <= (label or 0) < count:
            raise self._build_model_error(
                f"no output {label} (shape {outputs.shape}). Correct `label`, or export a classifier"
            )
        if label is None and count > 1:
            raise self._build_model_error(f"{count:,} outputs. Set `label` to a number from 0 to {count - 1}")
        if self.activation == "softmax":
            if count == 1:
                raise self._build_model_error(
                    "has one output, whose softmax is always 1. Set `activation` to `none` for a regression, or to "
                    "`sigmoid` for a probability"
                )
            powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
            outputs = powers / powers.sum(axis=1, keepdims=True)
        elif self.activation == "sigmoid":
            outputs = 1 / (1 + np.exp(-outputs))
        scores: Numbers = outputs[:, label or 0]
        return scores

    def _find_label(self) -> int | None:
        """Return the label's number, if there is one."""
        if self.label is None or isinstance(self.label, int):
            return self.label
        try:
            self.model.require(CONFIG)
            names = self.model.read_json(CONFIG)["id2label"]
        except (KeyError, TypeError) as error:
            raise self.model.build_error(CONFIG, "no names of labels (`id2label`). Set `label` to a number") from error
        numbers = {str(name): int(number) for number, name in names.items()}
        if self.label not in numbers:
            raise self.model.build_error(CONFIG, f"no label {self.label!r}. Available: {', '.join(numbers)}")
        return numbers[self.label]

    def _find_max_tokens(self) -> int:
        """Return the number of tokens of a text that are read."""
        if self.max_tokens is not None:
            return self.max_tokens
        limits = [self.model.read_json(name).get(key) for name, key in _LIMITS.items()]
        return min([_MAX_TOKENS, *(int(limit) for limit in limits if limit)])

    def _find_model_files(self) -> list[Path]:
        """Return the model's file, and the files in which a large model keeps its weights."""
        name = next((name for name in MODELS if self.model.find(name) is not None), MODELS[0])
        path = self.model.require(name)
        weights = [
            self.model.find(name.removesuffix(path.name) + file) for file in sorted(_read_weight_files(str(path)))
        ]
        return [path, *(path for path in weights if path is not None)]

    def _build_model_error(self, reason: str) -> ConfigError:
        name = next((name for name in MODELS if self.model.find(name) is not None), MODELS[0])
        return self.model.build_error(name, reason)


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
