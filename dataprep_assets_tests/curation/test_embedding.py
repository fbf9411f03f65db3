"""A tagger with a linear layer after a sentence-transformer: here one whose tokens have fixed vectors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.numpy import save_file

from dataprep_assets.errors import ConfigError
from dataprep_assets_tests.curation.models_of_users import (
    VOCABULARY,
    build_tagger,
    needs_onnx,
    score,
    write_classifier,
    write_model,
)
from dataprep_assets_tests.messages import raises

pytestmark = needs_onnx
VECTORS = np.array([[0, 0], [3, 4], [-2, 1], [0, 1]], np.float32)
"""Vector of each word of the vocabulary."""
WEIGHT, BIAS = np.array([[1.0, 2.0]]), np.array([0.5])


def write_embedder(path: Path, output: str = "last_hidden_state") -> None:
    """Write a model whose output is the vector of each token."""
    from onnx import TensorProto, helper, numpy_helper

    kinds = {"input_ids": TensorProto.INT64, "attention_mask": TensorProto.INT64}
    inputs = [helper.make_tensor_value_info(name, kind, ["rows", "tokens"]) for name, kind in kinds.items()]
    shape = ["rows", "tokens", 2] if output != "sentence_embedding" else ["rows", 2]
    axes = numpy_helper.from_array(np.array([1]), "axes")
    nodes = [helper.make_node("Gather", ["vectors", "input_ids"], ["found"], axis=0)]
    if output == "sentence_embedding":
        nodes.append(helper.make_node("ReduceSum", ["found", "axes"], [output], keepdims=0))
    else:
        nodes.append(helper.make_node("Identity", ["found"], [output]))
    graph = helper.make_graph(
        nodes,
        "embedder",
        inputs,
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(VECTORS, "vectors"), axes],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(model.SerializeToString())


def write_modules(folder: Path, **settings: dict[str, Any]) -> None:
    """Write the list of modules, `Pooling` and others, with the settings of each."""
    modules = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    for number, (name, values) in enumerate(settings.items(), 1):
        path = folder / f"{number}_{name}"
        path.mkdir(exist_ok=True)
        (path / "config.json").write_text(json.dumps(values))
        modules.append({"path": path.name, "type": f"sentence_transformers.models.{name}"})
    (folder / "modules.json").write_text(json.dumps(modules))


@pytest.fixture
def embedder(tmp_path: Path) -> Path:
    """Return the folder of a sentence-transformer, next to a head."""
    folder = write_classifier(tmp_path / "embedder")
    (folder / "model.onnx").unlink()
    write_embedder(folder / "onnx" / "model.onnx")
    write_modules(folder, Pooling={"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, Normalize={})
    np.savez(folder.parent / "head.npz", weight=WEIGHT, bias=BIAS)
    return folder


def build_scores(folder: Path, *texts: str, **changes: Any) -> list[float | None]:
    settings = {"head": "head.npz", "label": None, "activation": "none", **changes}
    return score(build_tagger("onnx", folder, **settings), *texts)


def test_the_head_reads_the_mean_of_the_tokens(embedder: Path) -> None:
    # The mean of `good` and `bad` is (0.5, 2.5), whose length is the root of 6.5.
    expected = [3 / 5 + 8 / 5 + 0.5, 5.5 / 6.5**0.5 + 0.5]
    assert build_scores(embedder, "good good good", "good bad", " ") == [
        *(pytest.approx(value, abs=1e-4) for value in expected),
        None,
    ]
    probability = 1 / (1 + np.exp(-expected[0]))
    assert build_scores(embedder, "good", activation="sigmoid") == [pytest.approx(probability, abs=1e-4)]


def test_a_score_does_not_depend_on_other_documents(embedder: Path) -> None:
    texts = ["good " * (number % 7) + "bad word " * (number % 40) + "word" for number in range(30)]
    assert build_scores(embedder, *texts) == [build_scores(embedder, text)[0] for text in texts]


@pytest.mark.parametrize(
    ("mode", "expected"), [("cls", 3 + 8), ("max", 3 + 8), ("mean", 0.5 + 5), (["cls", "max"], 3 + 8 + 30 + 400)]
)
def test_tokens_are_pooled_as_declared(embedder: Path, mode: str | list[str], expected: float) -> None:
    write_modules(embedder, Pooling={"pooling_mode": mode})
    if isinstance(mode, list):
        np.savez(embedder.parent / "head.npz", weight=np.array([[1, 2, 10, 100]]), bias=np.zeros(1))
    bias = 0 if isinstance(mode, list) else 0.5
    assert build_scores(embedder, "good bad") == [pytest.approx(expected + bias)]


def test_dense_layers_are_applied(embedder: Path) -> None:
    write_modules(
        embedder,
        Pooling={"pooling_mode": "mean"},
        Dense={"activation_function": "torch.nn.modules.activation.Tanh"},
    )
    weights = {"linear.weight": np.array([[0.1, 0], [0, 0.2]]), "linear.bias": np.array([0, 0.1])}
    save_file(weights, str(embedder / "2_Dense" / "model.safetensors"))
    expected = np.tanh(0.3) + 2 * np.tanh(0.9) + 0.5
    assert build_scores(embedder, "good") == [pytest.approx(expected, abs=1e-4)]


def test_an_embedding_of_the_model_needs_no_modules(embedder: Path) -> None:
    write_embedder(embedder / "onnx" / "model.onnx", "sentence_embedding")
    assert build_scores(embedder, "good " * 16) == [pytest.approx(16 * 11 + 0.5)]


def test_several_labels_need_a_number(embedder: Path) -> None:
    # Save the weights in Fortran order, as scikit-learn does.
    np.savez(embedder.parent / "head.npz", weight=np.asfortranarray([[1.0, 2], [0, 1], [3, 0]]), bias=np.zeros(3))
    assert build_scores(embedder, "good", label=2) == [pytest.approx(3 * 3 / 5)]
    with raises(ConfigError, "model.onnx", "label", 2):
        build_scores(embedder, "good")
    with raises(ConfigError, "model.onnx", "label", 3):
        build_scores(embedder, "good", label=3)
    with pytest.raises(ValidationError):
        build_tagger("onnx", embedder, head="head.npz", label="high")


def test_a_default_prompt_is_read_first(embedder: Path) -> None:
    write_modules(embedder, Pooling={"pooling_mode": "cls"})
    prompts = {"default_prompt_name": "query", "prompts": {"query": "word "}}
    (embedder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    assert build_scores(embedder, "good") == [2.5]


@pytest.mark.parametrize(
    ("name", "key"), [("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")]
)
def test_the_limit_of_the_model_is_respected(embedder: Path, name: str, key: str) -> None:
    (embedder / name).write_text(json.dumps({key: 3}))
    text = "good " * 3 + "bad " * 3
    assert build_scores(embedder, text) == build_scores(embedder, "good")
    assert build_scores(embedder, text, max_tokens=6) != build_scores(embedder, "good")


def test_every_file_of_the_model_is_part_of_the_version(embedder: Path) -> None:
    def read_version() -> str:
        return build_tagger("onnx", embedder, head="head.npz", label=None).version

    versions = [read_version()]
    write_modules(embedder, Pooling={"pooling_mode": "cls"}, Normalize={})
    versions.append(read_version())
    write_modules(embedder, Pooling={"pooling_mode": "cls"})
    versions.append(read_version())
    np.savez(embedder.parent / "head.npz", weight=WEIGHT + 1, bias=BIAS)
    versions.append(read_version())
    assert len({*versions}) == len(versions)


def test_an_unfit_model_or_head_is_named(embedder: Path) -> None:
    with raises(ConfigError, "model.onnx", "last_hidden_state", "head"):
        build_scores(embedder, "good", head=None)
    with raises(ConfigError, "none.npz", "head"):
        build_tagger("onnx", embedder, head="none.npz", label=None).version  # noqa: B018  # the property raises the error
    np.savez(embedder.parent / "wide.npz", weight=np.ones((1, 3)))
    with raises(ConfigError, "wide.npz", 3, 2):
        build_scores(embedder, "good", head="wide.npz")
    np.savez(embedder.parent / "wide.npz", bias=np.ones(3))
    with raises(ConfigError, "wide.npz", "weight"):
        build_scores(embedder, "good", head="wide.npz")
    write_modules(embedder, Pooling={"pooling_mode": "lasttoken"})
    with raises(ConfigError, "1_Pooling/config.json", "'lasttoken'", "mean"):
        build_scores(embedder, "good")
    write_modules(embedder, LSTM={})
    with raises(ConfigError, "modules.json", "LSTM", "Pooling"):
        build_scores(embedder, "good")
    (embedder / "modules.json").unlink()
    with raises(ConfigError, "modules.json"):
        build_scores(embedder, "good")
    write_model(embedder / "model.onnx")
    with raises(ConfigError, "model.onnx", "logits", "head"):
        build_scores(embedder, "good")


def test_one_output_has_no_softmax(embedder: Path) -> None:
    assert len(VOCABULARY) == len(VECTORS)
    with raises(ConfigError, "model.onnx", "activation", "sigmoid"):
        build_scores(embedder, "good", activation="softmax")
