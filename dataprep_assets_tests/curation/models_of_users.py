"""Tiny models of a user, and the taggers that read them."""

import json
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
from dataprep_assets.integrity.receipt import find_installed_version

needs_fasttext = pytest.mark.skipif(
    find_installed_version("fasttext-community") is None, reason="trains a model: install the extra fasttext"
)
needs_onnx = pytest.mark.skipif(
    None in map(find_installed_version, ("onnxruntime", "onnx")), reason="makes a model: install the extra dev"
)
GOOD, BAD = "a careful study of methods", "buy cheap deals now"
VOCABULARY = {"[UNK]": 0, "good": 1, "bad": 2, "word": 3}


def train_fasttext(folder: Path) -> Path:
    """Train a model that distinguishes two vocabularies, and return its file."""
    import fasttext  # type: ignore[import-untyped]

    lines = folder / "lines.txt"
    lines.write_text(f"__label__hq {GOOD}\n__label__cc {BAD}\n" * 50)
    trained = fasttext.train_supervised(str(lines), dim=4, epoch=25, thread=1, bucket=0, minCount=1, verbose=0)
    trained.save_model(str(folder / "quality.bin"))
    return folder / "quality.bin"


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


def write_tokenizer(path: Path, vocabulary: dict[str, int]) -> None:
    """Write a tokenizer with one token per word."""
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(path))


def write_classifier(folder: Path) -> Path:
    """Write a classifier with the labels `low` and `high` into a new folder, and return the folder."""
    folder.mkdir()
    write_model(folder / "model.onnx")
    write_tokenizer(folder / "tokenizer.json", VOCABULARY)
    (folder / "config.json").write_text(json.dumps({"id2label": {"0": "low", "1": "high"}}))
    return folder


def build_tagger(kind: str, location: Path | str, **settings: Any) -> BatchTagger:
    """Return the tagger as a declaration next to the model would."""
    name, parent = (location, Path("/")) if isinstance(location, str) else (location.name, location.parent)
    declared = {kind: {"model": name, "column": "quality", **settings}}
    (tagger,) = build_taggers(TypeAdapter(Tags).validate_python([declared]), parent)
    assert isinstance(tagger, BatchTagger)
    return tagger


def score(tagger: BatchTagger, *texts: str) -> list[float | None]:
    """Return the scores of some texts."""
    rows = [*range(len(texts))]
    batch = DocumentBatch(rows={"row": rows}, good=rows, texts=[*texts], label="shard")
    return compute_tags(tagger, batch, sensitive=False)["quality"]
