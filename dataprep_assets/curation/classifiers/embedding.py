"""The text embedding of a sentence-transformer, computed from the outputs of its model in ONNX.

`modules.json` lists the steps after the model. Supported steps are `Pooling`, `Dense` and `Normalize`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.curation.classifiers.model_files import ModelFiles
from dataprep_assets.errors import ConfigError
from dataprep_assets.stores.files import cache_by_file

Numbers = NDArray[np.float64]
MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_FORMER_POOLING = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Key in the configuration of older versions → the mode. In this order, several outputs are joined."""


def _pool_mean(tokens: Numbers, mask: Numbers) -> Numbers:
    means: Numbers = (tokens * mask).sum(axis=1) / mask.sum(axis=1)
    return means


_POOLING: Mapping[str, Callable[[Numbers, Numbers], Numbers]] = {
    "cls": lambda tokens, _: tokens[:, 0],
    "max": lambda tokens, mask: np.where(mask > 0, tokens, -np.inf).max(axis=1),
    "mean": _pool_mean,
}
"""Mode → function of the tokens, ``(batch, tokens, dimensions)``, and their mask, ``(batch, tokens, 1)``."""
_ACTIVATIONS: Mapping[str, Callable[[Numbers], Numbers]] = {
    "Identity": lambda values: values,
    "Tanh": np.tanh,
}


@dataclass(frozen=True)
class LinearLayer:
    """A linear layer: ``weight`` is ``(outputs, inputs)``, ``bias`` is ``(outputs,)``."""

    weight: Numbers
    bias: Numbers

    def apply(self, values: Numbers) -> Numbers:
        """Return the layer's outputs: ``(batch, outputs)``."""
        # Use einsum, because its result for a row does not depend on the row's position in the batch.
        outputs: Numbers = np.einsum("bi,oi->bo", values, self.weight) + self.bias
        return outputs


@dataclass(frozen=True)
class Embedding:
    """The steps after the model of a sentence-transformer."""

    files: ModelFiles

    def find_files(self) -> Iterator[Path]:
        """Yield the files that determine the steps."""
        yield self.files.require(MODULES)
        for name in (PROMPTS, *(f"{module['path']}/{_CONFIG}" for module in self._read_steps())):
            if (path := self.files.find(name)) is not None:
                yield path
        for module in self._read_steps():
            if module["type"] == "Dense":
                yield self.files.require(f"{module['path']}/{_WEIGHTS}")

    def find_prompt(self) -> str:
        """Return the text that the model expects before each text."""
        settings = self.files.read_json(PROMPTS)
        return str(settings.get("prompts", {}).get(settings.get("default_prompt_name"), ""))

    def compute(self, tokens: Numbers, mask: NDArray[np.int64]) -> Numbers:
        """Return the embedding of each row: ``(batch, dimensions)``.

        Args:
            tokens: The model's output: ``(batch, tokens, dimensions)``.
            mask: 1 for a token, 0 for padding: ``(batch, tokens)``.
        """
        values = tokens
        for module in self._read_steps():
            name, settings = f"{module['path']}/{_CONFIG}", self.files.read_json(f"{module['path']}/{_CONFIG}")
            if module["type"] == "Pooling":
                values = self._pool(values, mask[:, :, None].astype(np.float64), settings, name)
            elif module["type"] == "Dense":
                values = self._apply_dense(values, module["path"], settings)
            else:
                values = values / np.maximum(np.linalg.norm(values, axis=-1, keepdims=True), 1e-12)
        if values.ndim != 2:
            raise self.files.build_error(MODULES, "no module `Pooling`. Export a sentence-transformer")
        return values

    def _pool(self, tokens: Numbers, mask: Numbers, settings: Mapping[str, Any], name: str) -> Numbers:
        modes = settings.get("pooling_mode", [mode for key, mode in _FORMER_POOLING.items() if settings.get(key)])
        modes = [modes] if isinstance(modes, str) else modes
        if unknown_modes := [mode for mode in modes if mode not in _POOLING]:
            raise self.files.build_error(
                name, f"unsupported pooling {unknown_modes[0]!r}. Available: {', '.join(_POOLING)}"
            )
        if settings.get("include_prompt") is False and self.find_prompt():
            raise self.files.build_error(name, "unsupported `include_prompt: false`. Use a model without prompts")
        return np.concatenate([_POOLING[mode](tokens, mask) for mode in modes or ["mean"]], axis=1)

    def _apply_dense(self, values: Numbers, folder: str, settings: Mapping[str, Any]) -> Numbers:
        from safetensors import SafetensorError

        activation = str(settings.get("activation_function")).rpartition(".")[2]
        if activation not in _ACTIVATIONS or values.ndim != 2:
            raise self.files.build_error(
                f"{folder}/{_CONFIG}",
                f"unsupported layer ({activation}). Supported are layers after the pooling with "
                f"{' or '.join(_ACTIVATIONS)}",
            )
        name = f"{folder}/{_WEIGHTS}"
        try:
            layer = _build_layer(_read_tensors(str(self.files.require(name))))
        except (ValueError, KeyError, SafetensorError) as error:
            raise self.files.build_error(name, f"is not a layer ({error}). Export the model again") from error
        return _ACTIVATIONS[activation](layer.apply(values))

    def _read_steps(self) -> list[dict[str, str]]:
        """Return the path and the kind of each step after the model."""
        self.files.require(MODULES)
        modules = self.files.read_json(MODULES)
        steps = [{"path": module["path"], "type": module["type"].rpartition(".")[2]} for module in modules[1:]]
        for step in steps:
            if step["type"] not in ("Pooling", "Dense", "Normalize"):
                raise self.files.build_error(
                    MODULES, f"unsupported module {step['type']}. Available: Pooling, Dense, Normalize"
                )
        return steps


def load_head(path: Path, key: str) -> LinearLayer:
    """Return the layer that is saved with `numpy.savez(path, weight=…, bias=…)`.

    Raises ConfigError, beginning with `key`, if the file does not contain such a layer.
    """
    if not path.is_file():
        raise ConfigError(f"{key}: {path}: file does not exist. Correct `head`")
    # Read safetensors only for layers of sentence-transformers, because its writer for NumPy silently rearranges the
    # values of arrays in Fortran order, such as scikit-learn's coefficients.
    try:
        return _build_layer(_read_arrays(str(path)))
    except Exception as error:  # a file of a different kind raises many classes
        raise ConfigError(
            f"{key}: {path}: must have `weight` (labels × dimensions) and `bias` (labels) ({error}). Save them with "
            "`numpy.savez`"
        ) from error


def _build_layer(arrays: Mapping[str, Numbers]) -> LinearLayer:
    """Return a layer. Raises ValueError for wrong shapes, and KeyError for a missing array."""
    weight = np.atleast_2d(arrays["weight"])
    layer = LinearLayer(weight, np.atleast_1d(arrays.get("bias", np.zeros(len(weight)))))
    if layer.weight.ndim != 2 or layer.bias.shape != (len(layer.weight),):
        raise ValueError(f"found the shapes {layer.weight.shape} and {layer.bias.shape}")
    return layer


@cache_by_file
def _read_arrays(path: str) -> dict[str, Numbers]:
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name].astype(np.float64) for name in arrays.files}


@cache_by_file
def _read_tensors(path: str) -> dict[str, Numbers]:
    from safetensors.numpy import load_file

    return {name.removeprefix("linear."): values.astype(np.float64) for name, values in load_file(path).items()}
