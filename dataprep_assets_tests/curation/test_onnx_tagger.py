"""A tagger with the user's classifier in ONNX: here one that counts a word among a text's tokens."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from dataprep_assets.curation.declaration import Tags, build_taggers
from dataprep_assets.curation.table import DocumentBatch
from dataprep_assets.curation.tagging import BatchTagger, compute_tags
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity import receipt
from dataprep_assets.integrity.receipt import find_installed_version
from dataprep_assets_tests.messages import raises

needs_onnx = pytest.mark.skipif(
    None in map(find_installed_version, ("onnxruntime", "onnx")), reason="makes a model: install the extra dev"
)
VOCABULARY = {"[UNK]": 0, "good": 1, "bad": 2, "word": 3}


def write_model(path: Path, *, mask: str = "attention_mask") -> None:
    """Write a model whose outputs are the shares of `bad` and `good` among a row's tokens, times 4."""
    from onnx import TensorProto, helper

    weights = helper.make_tensor("weights", TensorProto.FLOAT, [4, 2], [0, 0, 0, 4, 4, 0, 0, 0])
    nodes = [
        helper.make_node("Gather", ["weights", "input_ids"], ["scores"], axis=0),
        helper.make_node("Cast", [mask], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["wide_mask"]),
        helper.make_node("Mul", ["scores", "wide_mask"], ["masked_scores"]),
        helper.make_node("ReduceSum", ["masked_scores", "first"], ["sums"], keepdims=0),
        helper.make_node("ReduceSum", ["mask", "first"], ["counts"], keepdims=1),
        helper.make_node("Div", ["sums", "counts"], ["logits"]),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["rows", "tokens"]) for name in ("input_ids", mask)
    ]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", 2])]
    constants = [
        weights,
        helper.make_tensor("first", TensorProto.INT64, [1], [1]),
        helper.make_tensor("last", TensorProto.INT64, [1], [2]),
    ]
    graph = helper.make_graph(nodes, "classifier", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a classifier."""
    target = tmp_path / "classifier"
    target.mkdir()
    write_model(target / "model.onnx")
    tokenizer = Tokenizer(WordLevel(VOCABULARY, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(target / "tokenizer.json"))
    (target / "config.json").write_text(json.dumps({"id2label": {"0": "low", "1": "high"}}))
    return target


def build(folder: Path, **changes: Any) -> BatchTagger:
    """Return the tagger as a declaration next to the classifier's folder would."""
    settings = {"model": folder.name, "label": "high", "column": "quality", **changes}
    (tagger,) = build_taggers(TypeAdapter(Tags).validate_python([{"onnx": settings}]), folder.parent)
    assert isinstance(tagger, BatchTagger)
    return tagger


def score(tagger: BatchTagger, *texts: str) -> list[float | None]:
    rows = [*range(len(texts))]
    batch = DocumentBatch(rows={"row": rows}, good=rows, texts=[*texts], label="shard")
    return compute_tags(tagger, batch, sensitive=False)["quality"]


@needs_onnx
def test_the_score_of_the_label_is_written(folder: Path) -> None:
    tagger = pickle.loads(pickle.dumps(build(folder)))
    assert score(tagger, "good good", "bad", "word", " \n", "\ud800") == [0.982, 0.018, 0.5, None, 0.5]
    assert score(build(folder, label=0), "bad") == [0.982]
    assert score(build(folder, activation="none"), "good word") == [2.0]
    assert score(build(folder, activation="sigmoid"), "good word") == [0.8808]
    assert score(tagger) == []


@needs_onnx
def test_a_score_does_not_depend_on_other_documents_or_batches(folder: Path) -> None:
    texts = ["good " * count + "bad " * (37 - count % 37) + "word " * (count * count % 91) for count in range(40)]
    together = score(build(folder), *texts)
    assert together == [score(build(folder), text)[0] for text in texts]
    assert together[::-1] == score(build(folder), *texts[::-1])
    assert together == score(build(folder, batch=3), *texts)


@needs_onnx
def test_only_the_first_tokens_are_read(folder: Path) -> None:
    text = "good " * 20 + "bad " * 20
    assert score(build(folder, max_tokens=20), text) == score(build(folder), "good")
    assert score(build(folder), text) == [0.5]


@needs_onnx
def test_the_version_depends_on_the_classifier_s_files_and_settings(folder: Path) -> None:
    first = build(folder).version
    assert first == build(folder).version == build(folder, label=1).version
    assert len({first, build(folder, label=0).version, build(folder, batch=4).version}) == 3
    (folder / "model.onnx_data").write_bytes(b"weights")
    assert build(folder).version != first


@needs_onnx
def test_the_version_depends_on_weights_in_a_file_of_any_name(folder: Path) -> None:
    import onnx
    from onnx import numpy_helper

    path, tagger = folder / "model.onnx", build(folder)
    model = onnx.load(str(path))
    weights = next(tensor for tensor in model.graph.initializer if tensor.name == "weights")
    weights.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weights), "weights"))
    onnx.save_model(model, str(path), save_as_external_data=True, location="parts.bin", size_threshold=20)
    version = tagger.version
    assert score(tagger, "good", "bad") == [0.982, 0.018]
    (folder / "parts.bin").write_bytes(bytes(32))
    assert tagger.version != version
    assert score(tagger, "good", "bad") == [0.5, 0.5]


@needs_onnx
def test_a_changed_tokenizer_is_loaded_again(folder: Path) -> None:
    tagger, path = build(folder), folder / "tokenizer.json"
    assert score(tagger, "good", "bad") == [0.982, 0.018]
    swapped_words = {**VOCABULARY, "good": VOCABULARY["bad"], "bad": VOCABULARY["good"]}
    tokenizer = Tokenizer(WordLevel(swapped_words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(path))
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert score(tagger, "good", "bad") == [0.018, 0.982]


@needs_onnx
def test_an_unfit_classifier_is_named(folder: Path) -> None:
    with raises(ConfigError, "none", "model.onnx", "model"):
        build(folder.parent / "none", label=0).version  # noqa: B018  # the property raises the error
    with raises(ConfigError, "config.json", "'hihg'", "low", "high"):
        build(folder, label="hihg").version  # noqa: B018  # the property raises the error
    with raises(ConfigError, "model.onnx", 5, "label"):
        score(build(folder, label=5), "good")
    write_model(folder / "model.onnx", mask="other")
    with raises(ConfigError, "model.onnx", "other"):
        score(build(folder), "good")
    (folder / "model.onnx").write_bytes(b"not a model")
    with raises(ConfigError, "model.onnx", "ONNX"):
        score(build(folder), "good")


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipt, "find_installed_version", lambda _: None)
    with raises(ConfigError, "onnxruntime", "'dataprep-assets[onnx]'"):
        build(tmp_path / "classifier").version  # noqa: B018  # the property raises the error
