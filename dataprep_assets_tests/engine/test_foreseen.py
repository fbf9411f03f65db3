"""A run builds exactly what `status` predicts, for edits, settings and damage of every kind."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.integrity.bucket import BucketArtifacts
from dataprep_assets.pipelines.corpus.dataset import corpus_specs
from dataprep_assets_tests.fakes.places import Places
from dataprep_assets_tests.faults.edits import flip_byte
from dataprep_assets_tests.pipelines.corpus.changed_corpus import ChangedCorpus
from dataprep_assets_tests.pipelines.corpus.pipeline import data_files, run_pipeline, sample_declaration
from dataprep_assets_tests.samples import SMALL

TRAIN = "train/chunk1/example_train_0.jsonl.zst"
VAL = "validation/chunk1/example_holdout_0.jsonl.zst"
VIEWS = {"nanogpt_bins", "megatron_bins", "datatrove_bins", "olmo_bins"}
SHARDS = {f"{split}-0000{i}" for split, count in (("train", 3), ("val", 1), ("test", 1)) for i in range(count)}
COMBINED = {f"combined_bins/{split}" for split in ("train", "val", "test")}
EVERY_TOKEN = {f"token_bins/{shard}" for shard in SHARDS} | COMBINED | VIEWS


def change_nothing(_: ChangedCorpus) -> None:
    """Leave everything unchanged."""


def edit_document(corpus: ChangedCorpus) -> None:
    corpus.rewrite(VAL, b" the ", b" teh it is longer ")


def edit_in_place(corpus: ChangedCorpus) -> None:
    path = corpus.data / VAL
    raw = zstandard.ZstdDecompressor().decompress(path.read_bytes())
    changed = zstandard.ZstdCompressor(write_checksum=False).compress(raw.replace(b"the", b"teh", 1))
    path.write_bytes(changed)


def add_file(corpus: ChangedCorpus) -> None:
    line = b'{"text": "One more document."}\n'
    (corpus.data / "validation" / "chunk1" / "example_holdout_99.jsonl.zst").write_bytes(zstandard.compress(line))


def remove_file(corpus: ChangedCorpus) -> None:
    (corpus.data / TRAIN).unlink()


def touch_file(corpus: ChangedCorpus) -> None:
    for path in corpus.data.rglob("*.zst"):
        os.utime(path, (1, 1))


def damage_artifact(name: str) -> Callable[[ChangedCorpus], None]:
    def damage(corpus: ChangedCorpus) -> None:
        flip_byte(corpus.root / "sample_corpus" / name)

    damage.__name__ = f"damaged {name}"
    return damage


def names(corpus: ChangedCorpus, **changes: Any) -> set[str]:
    return set(corpus.stale(**changes))


@pytest.mark.parametrize(
    ("change", "settings", "wanted"),
    [
        (change_nothing, {}, set()),
        (touch_file, {}, set()),
        (edit_document, {}, None),
        (edit_in_place, {}, None),
        (add_file, {}, None),
        (remove_file, {}, None),
        (change_nothing, {"document": {"separator": "<|pad|>"}}, EVERY_TOKEN),
        (change_nothing, {"olmo_sequence_length": 128}, {"olmo_bins"}),
        (change_nothing, {"shards": {"count": 2}}, None),
        (damage_artifact("token_bins/train-00001/tokens.bin"), {}, {"token_bins/train-00001"}),
        (damage_artifact("token_bins/val-00000/document_ends.bin"), {}, {"token_bins/val-00000"}),
        (damage_artifact("combined_bins/val/val.bin"), {}, {"combined_bins/val"}),
        (damage_artifact("nanogpt_bins/train.bin"), {}, {"nanogpt_bins"}),
        (damage_artifact("manifest/manifest.jsonl"), {}, {"manifest"}),
        (damage_artifact("manifest/shard_plan.json"), {}, {"manifest"}),
        (damage_artifact("snapshot/train-00000/files.jsonl"), {}, {"snapshot/train-00000"}),
        (damage_artifact("snapshot/train-00000/receipt.json"), {}, {"snapshot/train-00000"}),
        (damage_artifact("engine_certificate/certificate.json"), {}, {"engine_certificate"}),
        (damage_artifact("engine_certificate/receipt.json"), {}, {"engine_certificate"}),
    ],
    # Sort sets, because their order differs between processes.
    ids=lambda value: (
        value.__name__ if callable(value) else str(sorted(value) if isinstance(value, set) else value)[:40]
    ),
)
def test_a_run_builds_exactly_the_predicted_artifacts(
    corpus: ChangedCorpus,
    change: Callable[[ChangedCorpus], None],
    settings: dict[str, Any],
    wanted: set[str] | None,
) -> None:
    change(corpus)
    told = {one.name.removeprefix("sample_corpus/"): one.provisional for one in corpus.statuses(**settings)}
    if wanted is not None:
        assert told.keys() == wanted
    outcome = corpus.run(**settings)
    assert outcome.failed == {}
    if "shards" in settings:  # the combined bins keep their content, because the new shards have the same documents
        assert set(outcome.built) == told.keys() - VIEWS
        assert all(told[view] for view in VIEWS), "provisional"
    else:
        assert told.keys() == set(outcome.built)
    assert names(corpus, **settings) == set(), "a run leaves nothing to do"


def test_a_changed_text_field_is_the_reason_for_every_shard(corpus: ChangedCorpus) -> None:
    """The dataset cannot be built, because the documents lack that field, so only the prediction is compared."""
    found = corpus.statuses(text_field="body")
    assert {one.name.removeprefix("sample_corpus/") for one in found} == EVERY_TOKEN
    shards = [one for one in found if "/token_bins/" in one.name]
    assert {one.reason for one in shards} == {"text_field was text, now body"}
    assert [one.provisional for one in found] == [False] * len(shards) + [True] * (len(COMBINED) + len(VIEWS))


def test_a_newly_refused_class_rebuilds_every_token_shard(corpus: ChangedCorpus) -> None:
    """Only the certificate's content shows the change, so it is built to predict what follows."""
    declared = corpus.declared()
    refusing = declared.tokenizer.model_copy(update={"refuse": ("ascii",)})
    changed = declared.model_copy(update={"tokenizer": refusing})
    told = {
        one.name.removeprefix("sample_corpus/"): one.reason for one in find_stale(corpus_specs(changed), corpus.store)
    }
    assert told.keys() == {"engine_certificate", *EVERY_TOKEN}
    assert told["token_bins/val-00000"].startswith("refused was ")
    built = set(run_pipeline(changed, corpus.root, 2).built)
    assert built == {"engine_certificate", *(f"token_bins/{shard}" for shard in SHARDS)}, "the same ids, so no more"


def test_a_changed_tokenizer_rebuilds_the_certificate_and_every_token_shard(corpus: ChangedCorpus) -> None:
    from dataprep_assets.stream.tokenizer import load_declared_tokenizer

    path = corpus.tokenizer / "tokenizer_config.json"
    path.write_text(path.read_text() + "\n")
    load_declared_tokenizer.cache_clear()  # a new process would not have the cached tokenizer
    try:
        told = names(corpus)
        assert told == {"engine_certificate", *EVERY_TOKEN}
        assert set(corpus.run().built) == told
    finally:
        load_declared_tokenizer.cache_clear()


def test_an_added_file_leaves_other_splits_unchanged(corpus: ChangedCorpus) -> None:
    add_file(corpus)
    found = {one.name.removeprefix("sample_corpus/"): one.provisional for one in corpus.statuses()}
    assert not found["combined_bins/val"], "one shard more: it is another for certain"
    assert found["nanogpt_bins"]
    told = found.keys()
    assert told >= {"manifest", "snapshot/val-00001", "token_bins/val-00001", "combined_bins/val", *VIEWS}
    assert not [name for name in told if "train" in name or "test" in name or name.endswith("val-00000")]


def test_a_missing_input_is_reported_and_downstream_builds_are_provisional(corpus: ChangedCorpus) -> None:
    """A run finds that the rebuilt shard is unchanged, which nobody can know before."""
    shutil.rmtree(corpus.root / "sample_corpus/token_bins/train-00001")
    found = corpus.statuses()
    assert {one.name.removeprefix("sample_corpus/"): one.provisional for one in found} == {
        "token_bins/train-00001": False,
        "combined_bins/train": True,
        **dict.fromkeys(VIEWS, True),
    }
    assert corpus.run().built == ["token_bins/train-00001"]


def test_a_prediction_writes_nothing(corpus: ChangedCorpus, tmp_path: Path) -> None:
    edit_document(corpus)
    flip_byte(corpus.root / "sample_corpus/snapshot/train-00000/files.jsonl")
    before = data_files(tmp_path)
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert names(corpus) >= {"snapshot/train-00000", "manifest", "snapshot/val-00000"}
    assert data_files(tmp_path) == before
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == stamps


@pytest.mark.slow
def test_a_bucket_gives_the_same_prediction_and_stays_unchanged(servers: Places, tmp_path: Path) -> None:
    place = servers.new("folder")
    store = BucketArtifacts(tmp_path / "cache", place, place.url, None)
    data = Path(shutil.copytree(SMALL, tmp_path / "data"))
    corpus = sample_declaration(data, views=["nanogpt"])
    assert run_pipeline(corpus, store, 2).failed == {}
    assert list(find_stale(corpus_specs(corpus), store)) == []
    shutil.copy(data / VAL, data / VAL.replace("_0", "_99"))
    for key in ("token_bins/train-00001/tokens.bin", "snapshot/train-00000/files.jsonl"):
        place().put(f"sample_corpus/{key}", b"damaged")
    before = {info.key: info.version for info in place().list()}
    told = {one.name.removeprefix("sample_corpus/") for one in find_stale(corpus_specs(corpus), store)}
    assert {info.key: info.version for info in place().list()} == before
    assert told >= {"manifest", "token_bins/train-00001", "snapshot/train-00000", "token_bins/val-00001"}
    assert set(run_pipeline(corpus, store, 2).built) == told
