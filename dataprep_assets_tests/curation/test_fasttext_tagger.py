"""A tagger with the user's fastText model: here a tiny one, trained on invented lines."""

import pickle
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from dataprep_assets.curation.declaration import Tags, build_taggers
from dataprep_assets.curation.table import DocumentBatch
from dataprep_assets.curation.tagging import BatchTagger, compute_tags
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity import receipt
from dataprep_assets_tests.curation.models_of_users import BAD, GOOD, build_tagger, needs_fasttext, train_fasttext
from dataprep_assets_tests.messages import raises


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model that distinguishes two vocabularies."""
    return train_fasttext(tmp_path_factory.mktemp("model"))


def build(path: Path, *, label: str = "__label__hq") -> BatchTagger:
    return build_tagger("fasttext", path, label=label)


def batch_of(*texts: str) -> DocumentBatch:
    return DocumentBatch(rows={"row": [*range(len(texts))]}, good=[*range(len(texts))], texts=[*texts], label="shard")


@needs_fasttext
def test_the_probability_of_the_label_is_written(model: Path) -> None:
    tagger = pickle.loads(pickle.dumps(build(model)))
    good, bad, unknown, empty = compute_tags(tagger, batch_of(GOOD, BAD, "\ud800 zzz", " \n"), sensitive=False)[
        "quality"
    ]
    assert 0.9 < good <= 1
    assert 0 <= bad < 0.1
    assert 0 <= unknown <= 1
    assert empty is None
    other = compute_tags(build(model, label="__label__cc"), batch_of(GOOD), sensitive=False)["quality"]
    assert other[0] == pytest.approx(1 - good, abs=1e-4)
    assert compute_tags(tagger, batch_of(), sensitive=False) == {"quality": []}


@needs_fasttext
def test_line_ends_and_batches_do_not_change_the_probability(model: Path) -> None:
    tagger = build(model)
    lines = [GOOD.replace(" ", end) for end in (" ", "\n", "\r\n", "\n")]
    scores = compute_tags(tagger, batch_of(*lines), sensitive=False)["quality"]
    assert len(set(scores)) == 1
    assert compute_tags(tagger, batch_of(lines[1]), sensitive=False)["quality"] == scores[:1]


@needs_fasttext
def test_two_models_make_two_columns(model: Path) -> None:
    declared = [
        {"fasttext": {"model": model.name, "label": f"__label__{label}", "column": f"is_{label}"}}
        for label in ("hq", "cc")
    ]
    taggers = build_taggers(TypeAdapter(Tags).validate_python(declared), model.parent)
    assert [(tagger.name, dict(tagger.columns)) for tagger in taggers] == [
        ("is_hq", {"is_hq": "number"}),
        ("is_cc", {"is_cc": "number"}),
    ]


@needs_fasttext
def test_the_version_depends_on_the_bytes_of_the_model_and_on_the_label(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "other name.bin"
    copy.write_bytes(model.read_bytes())
    assert build(copy).version == build(model).version != build(model, label="__label__cc").version
    copy.write_bytes(model.read_bytes() + b"\0")
    assert build(copy).version != build(model).version


@needs_fasttext
def test_an_unfit_model_or_label_is_named(model: Path, tmp_path: Path) -> None:
    with raises(ConfigError, "no.bin", "model"):
        build(tmp_path / "no.bin").version  # noqa: B018  # the property raises the error
    damaged = tmp_path / "damaged.bin"
    damaged.write_bytes(b"not a model")
    with raises(ConfigError, "damaged.bin", "fastText"):
        build(damaged).tag_batch(batch_of("a"))
    with raises(ConfigError, "'hq'", "__label__cc", "__label__hq"):
        build(model, label="hq").tag_batch(batch_of("a"))


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipt, "find_installed_version", lambda _: None)
    with raises(ConfigError, "fasttext-community", "'dataprep-assets[fasttext]'"):
        build(tmp_path / "m.bin").version  # noqa: B018  # the property raises the error
