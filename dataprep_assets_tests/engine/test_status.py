"""Stale artifacts and their reasons, on the sample corpus: every kind of reason, in every layer."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dataprep_assets.engine.checks.check import Finding
from dataprep_assets.engine.checks.results import store_findings
from dataprep_assets.engine.checks.verdicts import identify_version, remember_verdicts
from dataprep_assets.engine.staleness.decide import Decision
from dataprep_assets.engine.staleness.status import find_stale, remove_leftovers
from dataprep_assets.integrity.commit import STAGING
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus import combined_bins
from dataprep_assets.pipelines.corpus.combined_bins import build_combined_bins
from dataprep_assets.pipelines.corpus.source.manifest import build_manifest_artifact, load_manifest
from dataprep_assets.pipelines.corpus.source.snapshot import build_snapshot
from dataprep_assets.pipelines.corpus.source.source_parts import build_corpus_engine
from dataprep_assets.pipelines.corpus.token_bins import build_stream_plan, plan_token_shards
from dataprep_assets.stream import engine_certificate, token_shard
from dataprep_assets.stream.engine_certificate import ensure_certificate, load_certificate
from dataprep_assets.stream.shard_job import build_token_bins
from dataprep_assets_tests.faults.edits import edit_receipt, flip_byte
from dataprep_assets_tests.pipelines.corpus.changed_corpus import ChangedCorpus

VIEWS = ["nanogpt_bins", "megatron_bins", "datatrove_bins", "olmo_bins"]
SHARD = "token_bins/train-00000"
VAL = "validation/chunk1/example_holdout_0.jsonl.zst"


def told(found: list[Decision]) -> dict[str, tuple[str, str]]:
    """Return the name without the dataset → kind and reason."""
    return {one.name.removeprefix("sample_corpus/"): (one.kind, one.reason) for one in found}


def because_of(name: str, state: str = "out of date") -> tuple[str, str]:
    return "input changed", f"its input sample_corpus/{name} is {state}"


def views_because_of(name: str) -> dict[str, tuple[str, str]]:
    return {view: because_of(name) for view in VIEWS}


def test_nothing_is_stale_after_a_build(corpus: ChangedCorpus) -> None:
    assert corpus.statuses() == []


def test_a_missing_shard_is_missing_and_downstream_artifacts_name_it(corpus: ChangedCorpus) -> None:
    shutil.rmtree(corpus.root / "sample_corpus/token_bins/train-00001")
    assert told(corpus.statuses()) == {
        "token_bins/train-00001": ("missing", "missing"),
        "combined_bins/train": because_of("token_bins/train-00001", "missing"),
        **views_because_of("combined_bins/train"),
    }


def test_each_stale_artifact_is_described_in_one_line(corpus: ChangedCorpus) -> None:
    shutil.rmtree(corpus.root / "sample_corpus/olmo_bins")
    assert [str(one) for one in corpus.statuses()] == ["sample_corpus/olmo_bins: missing"]


def test_damage_names_the_file_and_the_number_of_others(corpus: ChangedCorpus) -> None:
    shard = corpus.root / "sample_corpus/token_bins/val-00000"
    flip_byte(shard / "document_ends.bin")
    kind, reason = told(corpus.statuses())["token_bins/val-00000"]
    assert kind == "damaged"
    assert reason.startswith("damaged: document_ends.bin: ")
    assert "more)" not in reason
    assert list(find_stale(corpus.specs(), corpus.store, verification="size")) == [], (
        "of this size it was, as `list` looks"
    )
    (shard / "tokens.bin").unlink()
    assert "token_bins/val-00000: damaged" in str(next(find_stale(corpus.specs(), corpus.store, verification="size")))
    assert told(corpus.statuses())["token_bins/val-00000"][1].endswith(" (and 1 more)")


def test_a_damaged_receipt_counts_as_damage(corpus: ChangedCorpus) -> None:
    flip_byte(corpus.root / "sample_corpus/combined_bins/test/receipt.json")
    found = told(corpus.statuses())
    assert found.keys() == {"combined_bins/test", *VIEWS}
    assert found["combined_bins/test"][0] == "damaged"
    assert "receipt.json" in found["combined_bins/test"][1]


def test_an_artifact_downstream_of_a_stale_one_still_reports_its_own_damage(corpus: ChangedCorpus) -> None:
    shutil.rmtree(corpus.root / "sample_corpus/combined_bins/val")
    (corpus.root / "sample_corpus/nanogpt_bins/meta.json").unlink()
    shutil.rmtree(corpus.root / "sample_corpus/olmo_bins")
    found = told(corpus.statuses())
    assert found["nanogpt_bins"] == ("damaged", "damaged: meta.json: missing")
    assert found["olmo_bins"] == ("missing", "missing")
    assert found["megatron_bins"] == because_of("combined_bins/val", "missing")


def test_a_source_that_cannot_be_listed_is_reported_as_such(corpus: ChangedCorpus) -> None:
    corpus.data.rename(corpus.data.with_name("elsewhere"))
    first = corpus.statuses()[0]
    assert (first.name, first.kind) == ("sample_corpus/manifest", "input unreadable")
    assert str(corpus.data) in first.reason


def test_a_changed_source_file_makes_only_its_shard_stale(corpus: ChangedCorpus) -> None:
    path = corpus.data / VAL
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1  # the file keeps its size, so the manifest has not changed
    path.write_bytes(raw)
    assert told(corpus.statuses()) == {
        "snapshot/val-00000": ("input changed", f"its source changed: {VAL}"),
        "token_bins/val-00000": ("input changed", f"its source changed: {VAL}"),
        "combined_bins/val": because_of("token_bins/val-00000"),
        **views_because_of("combined_bins/val"),
    }


def test_each_layer_names_its_own_change_once_the_layers_before_it_are_built(corpus: ChangedCorpus) -> None:
    """A source file changes, and its artifacts are built one after another."""
    corpus.rewrite(VAL, b" the ", b" teh it is longer ")
    declared, store = corpus.declared(), corpus.store

    def first(found: list[Decision]) -> tuple[str, str, str]:
        return found[0].name.removeprefix("sample_corpus/"), found[0].kind, found[0].reason

    assert first(corpus.statuses()) == ("manifest", "input changed", f"its source changed: edited file {VAL}")
    build_manifest_artifact(declared, store)
    manifest = load_manifest(declared, store)
    found = told(corpus.statuses())
    assert found["engine_certificate"] == ("input changed", "its source changed: sampled files")
    assert found["snapshot/val-00000"] == ("input changed", f"its source changed: {VAL}")
    assert {name for name in found if name.startswith("snapshot")} == {"snapshot/val-00000"}
    ensure_certificate(build_corpus_engine(declared), store)
    build_snapshot(declared, store, manifest, "val-00000")
    assert told(corpus.statuses()) == {
        "token_bins/val-00000": ("input changed", f"its source changed: {VAL}"),
        "combined_bins/val": because_of("token_bins/val-00000"),
        **views_because_of("combined_bins/val"),
    }
    plan = build_stream_plan(declared, load_certificate(declared, store))
    (outcome,) = build_token_bins(plan_token_shards(declared, store, manifest, plan, ["val-00000"]), workers=1)
    assert outcome.error is None
    assert told(corpus.statuses()) == {
        "combined_bins/val": ("input changed", "its input changed: token_bins/val-00000"),
        **views_because_of("combined_bins/val"),
    }
    build_combined_bins(declared, store, manifest, "val")
    assert told(corpus.statuses()) == dict.fromkeys(VIEWS, ("input changed", "its input changed: combined_bins/val"))
    corpus.run()
    assert corpus.statuses() == []


@pytest.mark.parametrize(
    ("changes", "name", "reason"),
    [
        ({"shards": {"count": 2}}, "manifest", "shards.count was 3, now 2"),
        (
            {"splits": {"train": ["train/**"], "val": ["validation/**"]}},
            "manifest",
            "splits.test was test/**, now not set; "
            "its source changed: removed file test/chunk1/example_holdout_0.jsonl.zst, "
            "file test/chunk1/example_holdout_0.jsonl.zst is in no split and is not read. Widen a glob in `splits:`",
        ),
        (
            {"document": {"separator": "<|endoftext|>", "special_tokens": "match"}},
            "engine_certificate",
            "special_tokens was text, now match",
        ),
        ({"document": {"separator": "<|endoftext|>", "bos": "<|pad|>"}}, SHARD, "bos was not set, now 4095"),
        ({"document": {"separator": "<|pad|>"}}, SHARD, "separator was 4094, now 4095"),
        ({"dtype": "uint32"}, SHARD, "dtype was uint16, now uint32"),
        ({"bad_records": {"policy": "drop"}}, SHARD, "bad_records.policy was fail, now drop"),
        (
            {"bad_records": {"policy": "drop", "budget": 0.5}},
            SHARD,
            "bad_records.policy was fail, now drop",
        ),
        (
            {"bad_records": {"max_record_bytes": 1 << 20}},
            SHARD,
            "bad_records.max_record_bytes was 67108864, now 1048576",
        ),
        ({"olmo_sequence_length": 128}, "olmo_bins", "olmo_sequence_length was 512, now 128"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_changed_setting_is_named_with_its_old_and_new_value(
    corpus: ChangedCorpus, changes: dict[str, Any], name: str, reason: str
) -> None:
    first = corpus.statuses(**changes)[0]
    assert first.name == f"sample_corpus/{name}"
    assert first.reason == reason
    assert first.kind == ("settings changed" if " was " in reason else "input changed")


def test_a_changed_setting_of_a_view_affects_only_that_view(corpus: ChangedCorpus) -> None:
    assert corpus.stale(olmo_sequence_length=128) == ["olmo_bins"]


def test_a_different_tokenizer_is_a_changed_source(corpus: ChangedCorpus) -> None:
    from dataprep_assets.stream.tokenizer import load_declared_tokenizer

    path = corpus.tokenizer / "tokenizer_config.json"
    path.write_text(path.read_text() + "\n")
    load_declared_tokenizer.cache_clear()  # a new process would not have the cached tokenizer
    try:
        first = corpus.statuses()[0]
    finally:
        load_declared_tokenizer.cache_clear()
    assert told([first]) == {"engine_certificate": ("input changed", "its source changed: tokenizer")}


@pytest.mark.parametrize(
    ("module", "name"),
    [(combined_bins, "combined_bins/train"), (engine_certificate, "engine_certificate"), (token_shard, SHARD)],
    ids=["combined bins", "certificate", "token bins"],
)
def test_a_raised_version_of_a_step_is_reported(
    corpus: ChangedCorpus, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    made = module.VERSION
    monkeypatch.setattr(module, "VERSION", made + 1)
    found = told(corpus.statuses())
    assert found[name] == ("older version", f"built by version {made} of this step; the current version is {made + 1}")


def resigned(corpus: ChangedCorpus, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    edit_receipt(corpus.root / "sample_corpus" / name / "receipt.json", change)


def test_a_changed_key_without_any_recorded_difference_is_still_reported(corpus: ChangedCorpus) -> None:
    resigned(corpus, "combined_bins/val", lambda receipt: receipt.update(key="0" * 64))
    found = told(corpus.statuses())
    assert found == {
        "combined_bins/val": ("recipe changed", "built from different inputs or settings"),
        **views_because_of("combined_bins/val"),
    }


def test_an_artifact_that_failed_its_own_blocking_check_is_reported_without_its_downstream(
    corpus: ChangedCorpus,
) -> None:
    """One shard fails by its verdict, and one artifact without partitions by the verdict on the whole; a warning is no
    reason.
    """
    (shards,) = [spec for spec in corpus.specs() if (spec.name, spec.split) == ("token_bins", "train")]
    (view,) = [spec for spec in corpus.specs() if spec.name == "nanogpt_bins"]
    said = {
        proof.name: Finding(passed=proof.name not in ("round_trip", "looks_like_text"), summary="at row 3")
        for proof in shards.checks
    }
    shard, other = shards.locate_artifact(corpus.store, "train-00001"), Finding(passed=False, summary="other")
    (version,) = corpus.store.receipt_versions([shard])
    assert remember_verdicts(shard, corpus.store, version, said, shards.checks)
    before = identify_version(view.artifacts(corpus.store), corpus.store)
    store_findings(view, corpus.store, before, {proof.name: other for proof in view.checks})
    assert [(one.name, one.kind, one.reason) for one in corpus.statuses()] == [
        ("sample_corpus/token_bins/train-00001", "check failed", "its blocking check round_trip failed: at row 3"),
        (
            "sample_corpus/nanogpt_bins",
            "check failed",
            "its checks matches_combined_bins, layout_valid, no_retracted_document failed: other",
        ),
    ]


def test_before_a_build_every_artifact_is_listed_once(corpus: ChangedCorpus) -> None:
    """Shards are also listed, because the plan is predicted."""
    shutil.rmtree(corpus.root)
    found = corpus.statuses()
    shards = {"train": ("train-00000", "train-00001", "train-00002"), "val": ("val-00000",), "test": ("test-00000",)}
    assert [one.name for one in found] == [
        "sample_corpus/manifest",
        "sample_corpus/engine_certificate",
        *(f"sample_corpus/{name}/{p}" for s in shards for name in ("snapshot", "token_bins") for p in shards[s]),
        *(f"sample_corpus/combined_bins/{s}" for s in ("train", "val", "test")),
        *(f"sample_corpus/{view}" for view in VIEWS),
    ]
    assert {one.kind for one in found} == {"missing"}


def test_the_declaration_chooses_how_thoroughly_files_are_read(corpus: ChangedCorpus) -> None:
    flip_byte(corpus.root / "sample_corpus/combined_bins/val/val.bin")
    assert corpus.stale(verify="size") == []
    assert corpus.stale(verify="full")[0] == "combined_bins/val"


def test_an_unreadable_source_makes_the_manifest_stale_with_the_reason(corpus: ChangedCorpus) -> None:
    shutil.rmtree(corpus.data)
    first = corpus.statuses()[0]
    assert first.name == "sample_corpus/manifest"
    assert str(corpus.data) in first.reason


def test_an_artifact_without_files_is_as_up_to_date_as_its_inputs(corpus: ChangedCorpus) -> None:
    specs = corpus.specs()
    olmo = specs[-1]
    told_of = replace(olmo, name="order", inputs=(olmo,), kept=False, recipes=lambda store, slots: [], check_groups=())
    assert list(find_stale([*specs, told_of], corpus.store)) == []
    shutil.rmtree(corpus.root / "sample_corpus/olmo_bins")
    assert told(list(find_stale([*specs, told_of], corpus.store))) == {
        "olmo_bins": ("missing", "missing"),
        "order": because_of("olmo_bins", "missing"),
    }


def test_the_sweep_removes_leftovers_of_killed_runs_and_keeps_the_artifacts(corpus: ChangedCorpus) -> None:
    left = corpus.root / "sample_corpus/token_bins" / STAGING / f"val-00000-{'0' * 16}"
    left.mkdir(parents=True)
    (left / "00000003.tokens").write_bytes(b"half of a file")
    remove_leftovers(corpus.specs(), corpus.store)
    assert not left.exists()
    assert corpus.statuses() == []


def test_a_receipt_keeps_its_recipe(corpus: ChangedCorpus) -> None:
    receipt: Receipt = corpus.store.require(corpus.declared().artifact("combined_bins", "val"))
    assert receipt.recipe["version"] == combined_bins.VERSION
    assert receipt.recipe["upstream"].keys() == {"token_bins/val-00000"}
    assert receipt.recipe["settings"]["dtype"] == "uint16"
    assert receipt.recipe["sources"].keys() == {"tokenizer"}
