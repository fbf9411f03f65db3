"""Models of taggers in a repository on a local hub."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from dataprep_assets.curation.classifiers import model_files
from dataprep_assets.curation.declaration import find_tagger_remarks
from dataprep_assets.errors import ConfigError, SourceError
from dataprep_assets_tests.curation.models_of_users import (
    BAD,
    GOOD,
    build_tagger,
    needs_fasttext,
    needs_onnx,
    score,
    train_fasttext,
    write_classifier,
)
from dataprep_assets_tests.fakes.hub_server import HubServer
from dataprep_assets_tests.messages import raises

REPO = "org/quality"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """Return an empty repository of models, whose files are downloaded to an empty cache."""
    model_files._fetch.cache_clear()
    with HubServer({"README.md": b"# quality\n"}, repo_id=REPO, repo_type="model") as server:
        # Patch the constants, because the library reads the variables only once per process.
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.endpoint)
        template = f"{server.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a classifier."""
    return write_classifier(tmp_path / "classifier")


@needs_fasttext
def test_a_fasttext_model_is_downloaded_once(hub: HubServer, tmp_path: Path) -> None:
    model = train_fasttext(tmp_path)
    commit = hub.move_branch({"models/quality.bin": model.read_bytes()})
    address = f"hf://{REPO}@{commit}/models/quality.bin"
    tagger = build_tagger("fasttext", address, label="__label__hq")
    assert not tagger.is_local
    assert [*find_tagger_remarks([tagger])] == []
    assert hub.count("models/quality.bin") == 0
    good, bad = score(tagger, GOOD, BAD)
    assert [good, bad] == score(build_tagger("fasttext", str(model), label="__label__hq"), GOOD, BAD)
    assert tagger.is_local
    digest = build_tagger("fasttext", str(model), label="__label__hq").version.split()[-1]
    assert tagger.version.endswith(f"__label__hq of {REPO}@{commit} {digest}")
    model_files._fetch.cache_clear()
    assert tagger.version.endswith(digest)
    assert hub.count("models/quality.bin") == 1


@needs_onnx
def test_a_classifier_is_a_repository_or_a_folder_of_it(hub: HubServer, folder: Path) -> None:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    nested = {f"en/{name}": content for name, content in files.items()}
    nested["en/onnx/model.onnx"] = nested.pop("en/model.onnx")
    commit = hub.move_branch(files | nested)
    expected = score(build_tagger("onnx", str(folder), label="high"), "good word", "bad")
    versions = set()
    for path in ("", "/en"):
        tagger = build_tagger("onnx", f"hf://{REPO}@{commit}{path}", label="high")
        assert not tagger.is_local
        assert score(tagger, "good word", "bad") == expected
        assert tagger.is_local
        assert f"{REPO}@{commit}" in tagger.version
        versions.add(tagger.version)
    assert len(versions) == 1
    requests = len(hub.log)
    score(tagger, "good")
    assert len(hub.log) == requests
    # A different commit rebuilds the tags.
    moved_commit = hub.move_branch({**files, "README.md": b"# more\n"})
    assert build_tagger("onnx", f"hf://{REPO}@{moved_commit}", label="high").version not in versions


@needs_onnx
def test_weights_in_a_second_file_are_downloaded(hub: HubServer, folder: Path) -> None:
    import onnx
    from onnx import numpy_helper

    path = folder / "model.onnx"
    loaded = onnx.load(str(path))
    weights = next(tensor for tensor in loaded.graph.initializer if tensor.name == "weights")
    weights.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weights), "weights"))
    onnx.save_model(loaded, str(path), save_as_external_data=True, location="model.onnx_data", size_threshold=20)
    commit = hub.move_branch({path.name: path.read_bytes() for path in folder.iterdir()})
    tagger = build_tagger("onnx", f"hf://{REPO}@{commit}", label="high")
    assert score(tagger, "good", "bad") == [0.982, 0.018]
    assert "model.onnx_data" in tagger.version


@needs_fasttext
def test_a_missing_revision_file_or_network_is_named(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(location: str) -> None:
        build_tagger("fasttext", location, label="hq").version  # noqa: B018  # the property raises the error

    with raises(ConfigError, "tag: fasttext", f"{REPO}@{hub.commit}/no.bin", "model"):
        fail(f"hf://{REPO}@{hub.commit}/no.bin")
    with raises(ConfigError, "tag: fasttext", f"hf://{REPO}@{hub.commit}", "model"):
        fail(f"hf://{REPO}@{hub.commit}")
    with raises(SourceError, "tag: fasttext: model", f"{REPO}@{'0' * 40}", "q.bin"):
        fail(f"hf://{REPO}@{'0' * 40}/q.bin")
    with raises(SourceError, "tag: fasttext: model", "org/none", "q.bin"):
        fail(f"hf://org/none@{hub.commit}/q.bin")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with raises(SourceError, "tag: fasttext: model", f"{REPO}@{hub.commit}", "q.bin"):
        fail(f"hf://{REPO}@{hub.commit}/q.bin")


@pytest.mark.parametrize(
    "location",
    ["hf://org/quality@main/q.bin", "hf://org/quality/q.bin", "s3://bucket/q.bin", f"hf://org/quality@{'0' * 40}//q"],
)
@pytest.mark.parametrize("kind", ["fasttext", "onnx"])
def test_an_address_needs_a_commit(kind: str, location: str) -> None:
    with pytest.raises(ValidationError, match="40-digit"):
        build_tagger(kind, location, label="hq")
