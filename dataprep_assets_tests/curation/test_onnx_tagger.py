"""A tagger with the user's classifier in ONNX: here one that counts a word among a text's tokens."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.curation.tagging import BatchTagger
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity import receipt
from dataprep_assets_tests.curation.models_of_users import (
    VOCABULARY,
    build_tagger,
    needs_onnx,
    score,
    write_classifier,
    write_model,
    write_tokenizer,
)
from dataprep_assets_tests.messages import raises


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a classifier."""
    return write_classifier(tmp_path / "classifier")


def build(folder: Path, **changes: Any) -> BatchTagger:
    return build_tagger("onnx", folder, **{"label": "high", **changes})


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


@needs_onnx
@pytest.mark.parametrize("name", ["model.onnx_data", "parts.bin"])
def test_the_version_depends_on_weights_in_a_file_of_any_name(folder: Path, name: str) -> None:
    import onnx
    from onnx import numpy_helper

    path, tagger = folder / "model.onnx", build(folder)
    model = onnx.load(str(path))
    weights = next(tensor for tensor in model.graph.initializer if tensor.name == "weights")
    weights.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weights), "weights"))
    onnx.save_model(model, str(path), save_as_external_data=True, location=name, size_threshold=20)
    version = tagger.version
    assert score(tagger, "good", "bad") == [0.982, 0.018]
    (folder / name).write_bytes(bytes(32))
    assert tagger.version != version
    assert score(tagger, "good", "bad") == [0.5, 0.5]


@needs_onnx
def test_a_changed_tokenizer_is_loaded_again(folder: Path) -> None:
    tagger, path = build(folder), folder / "tokenizer.json"
    assert score(tagger, "good", "bad") == [0.982, 0.018]
    swapped_words = {**VOCABULARY, "good": VOCABULARY["bad"], "bad": VOCABULARY["good"]}
    write_tokenizer(path, swapped_words)
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
