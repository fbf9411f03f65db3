"""A corpus whose source changes: what is new is made, what is touched is made again, and nothing else."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import zstandard

from dataprep_assets.engine.staleness.status import find_unplanned_artifacts
from dataprep_assets.engine.trace.trace import trace_documents
from dataprep_assets.errors import IntegrityError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.commit import open_staging
from dataprep_assets.integrity.receipt import NAME
from dataprep_assets.integrity.verify import verify_path
from dataprep_assets.pipelines.corpus.combined_bins import read_shard_receipts
from dataprep_assets.pipelines.corpus.dataset import corpus_specs
from dataprep_assets.pipelines.corpus.source.manifest import build_manifest_artifact, load_manifest
from dataprep_assets.pipelines.corpus.source.source_rows import build_corpus_tracer
from dataprep_assets.pipelines.corpus.token_bins import build_stream_plan, plan_token_shards
from dataprep_assets.stream.engine_certificate import load_certificate
from dataprep_assets.stream.token_shard import encode_piece
from dataprep_assets_tests.faults.edits import flip_byte
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.corpus.changed_corpus import ChangedCorpus
from dataprep_assets_tests.pipelines.corpus.pipeline import Outcome, products, run_pipeline, sample_declaration
from dataprep_assets_tests.pipelines.corpus.selected import Selected

TRAIN = ["train-00000", "train-00001", "train-00002"]
VIEWS = ["nanogpt_bins", "megatron_bins", "datatrove_bins", "olmo_bins"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a finished run."""
    root = tmp_path_factory.mktemp("built")
    assert run_pipeline(sample_declaration(), root, 1).failed == {}
    return root


@pytest.fixture
def corpus(tmp_path: Path, built: Path) -> ChangedCorpus:
    """A copy that the test may change."""
    return ChangedCorpus(tmp_path, built)


def write(path: Path, *texts: str) -> None:
    """A source file of documents."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(f'{{"text": "{text}"}}\n' for text in texts)
    path.write_bytes(zstandard.compress(lines.encode()))


def made(outcome: Outcome, *names: str) -> list[str]:
    """What a run built of these artifacts."""
    assert outcome.failed == {}
    return sorted(name for name in outcome.built if name.split("/")[0] in names)


def shards(corpus: ChangedCorpus) -> dict[str, list[str]]:
    """Partition key → its files."""
    manifest = load_manifest(corpus.declared(), corpus.store)
    return {key: [entry.relpath for entry in manifest.shard(key)] for key in manifest.plan}


def from_scratch(corpus: ChangedCorpus, folder: Path) -> dict[str, bytes]:
    """Everything built anew, of the same manifest."""
    shutil.copytree(corpus.root / "sample_corpus/manifest", folder / "sample_corpus/manifest")
    assert run_pipeline(corpus.declared(), folder).failed == {}
    return products(folder)


def test_new_files_make_a_new_shard_and_nothing_else_is_touched(corpus: ChangedCorpus, tmp_path: Path) -> None:
    before, old = shards(corpus), products(corpus.root)
    write(corpus.data / "train/chunk0/example_train_0.jsonl.zst", "The first in natural order.")
    write(corpus.data / "train/chunk2/example_train_9.jsonl.zst", "One more document.", "And another.")
    outcome = corpus.run()
    assert made(outcome, "snapshot", "token_bins") == ["snapshot/train-00003", "token_bins/train-00003"]
    assert made(outcome, "combined_bins", *VIEWS) == ["combined_bins/train", *sorted(VIEWS)]
    assert before.items() < shards(corpus).items()
    now = products(corpus.root)
    kept = [name for name in old if "/token_bins/" in name or "/snapshot/" in name or "/combined_bins/val" in name]
    assert {name: now[name] for name in kept} == {name: old[name] for name in kept}
    joined = "sample_corpus/combined_bins/train/train.bin"
    new = now["sample_corpus/token_bins/train-00003/tokens.bin"]
    assert new
    assert now[joined] == old[joined] + new
    assert corpus.statuses() == []
    assert now == from_scratch(corpus, tmp_path / "scratch")


def test_receipts_after_changes_are_those_of_a_build_from_scratch(corpus: ChangedCorpus, tmp_path: Path) -> None:
    (recompressed, *_) = shards(corpus)["val-00000"]
    text = zstandard.decompress((corpus.data / recompressed).read_bytes(), 1 << 20)
    (corpus.data / recompressed).write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(text))
    # Add a file to `train`, so that the ordinals of the files of the other splits increase.
    write(corpus.data / "train/chunk2/example_train_9.jsonl.zst", "One more document.")
    assert made(corpus.run(), "combined_bins", "token_bins") == [
        "combined_bins/train",
        "token_bins/train-00003",
        "token_bins/val-00000",
    ]
    from_scratch(corpus, tmp_path / "scratch")
    assert receipts(corpus.root) == receipts(tmp_path / "scratch")


def receipts(root: Path) -> dict[str, dict[str, Any]]:
    """The receipts of a root without what tells how a shard was made."""
    found = {str(path.relative_to(root)): json.loads(path.read_text()) for path in root.rglob(NAME)}
    for receipt in found.values():
        for part, name in (
            ("facts", "certificate"),
            ("ledger", "reference_documents"),
            ("ledger", "sampled_documents"),
        ):
            (receipt[part] or {}).pop(name, None)
        del receipt["measured"], receipt["digest"]
    return found


def test_a_removed_and_an_edited_file_touch_their_own_shards_alone(corpus: ChangedCorpus, tmp_path: Path) -> None:
    (first, *_), (second, *_) = shards(corpus)["train-00000"], shards(corpus)["train-00002"]
    (corpus.data / first).unlink()
    write(corpus.data / second, "Other text.")
    outcome = corpus.run()
    assert made(outcome, "token_bins") == ["token_bins/train-00000", "token_bins/train-00002"]
    assert corpus.statuses() == []
    assert products(corpus.root) == from_scratch(corpus, tmp_path / "scratch")


def test_a_shard_without_files_leaves_the_plan_and_is_told_of(corpus: ChangedCorpus) -> None:
    for path in shards(corpus)["train-00001"]:
        (corpus.data / path).unlink()
    assert made(corpus.run(), "token_bins") == []
    assert [key for key in shards(corpus) if key in TRAIN] == ["train-00000", "train-00002"]
    assert [str(a) for a in find_unplanned_artifacts(corpus.specs(), corpus.store)] == [
        "sample_corpus/snapshot/train-00001",
        "sample_corpus/token_bins/train-00001",
    ]
    write(corpus.data / "train/chunk1/new.jsonl.zst", "New.")
    assert made(corpus.run(), "token_bins") == ["token_bins/train-00003"]


def test_a_renamed_file_of_the_last_shard_leaves_nothing_that_names_the_old_one(corpus: ChangedCorpus) -> None:
    (path,) = shards(corpus)["val-00000"]
    (corpus.data / path).rename((corpus.data / path).with_name("renamed.jsonl.zst"))
    before = products(corpus.root)["sample_corpus/combined_bins/val/val.bin"]
    (told,) = [one for one in corpus.statuses() if one.name == "sample_corpus/combined_bins/val"]
    assert made(corpus.run(), "token_bins", "combined_bins") == ["combined_bins/val", "token_bins/val-00001"]
    assert not told.provisional
    for artifact in list(find_unplanned_artifacts(corpus.specs(), corpus.store)):
        corpus.store.remove(artifact)
    assert products(corpus.root)["sample_corpus/combined_bins/val/val.bin"] == before
    assert [str(one) for one in verify_path(corpus.root) if one.defects] == []
    (spec,) = [spec for spec in corpus.specs() if spec.path == ("sample_corpus", "combined_bins_val")]
    findings = dict(spec.examine(corpus.store, []))
    assert {name for name, finding in findings.items() if not finding.passed} == set()
    tracer = build_corpus_tracer(corpus.declared(), corpus.store, corpus.specs())
    (found,) = trace_documents(tracer, split="val", token=0)
    assert tracer.notes == ()
    assert found.source == "validation/chunk1/renamed.jsonl.zst:1"


def test_what_changed_is_told_when_the_manifest_is_made(corpus: ChangedCorpus) -> None:
    told: list[str] = []
    build_manifest_artifact(corpus.declared(), corpus.store, told.append)
    assert told == []
    (corpus.data / shards(corpus)["train-00001"][0]).unlink()
    write(corpus.data / "validation/chunk1/new.jsonl.zst", "New.")
    build_manifest_artifact(corpus.declared(), corpus.store, told.append)
    assert told == ["the source changed: 1 file added, 1 file removed, 1 shard new"]


def test_replan_and_another_size_of_shards_cut_anew(corpus: ChangedCorpus) -> None:
    write(corpus.data / "train/chunk0/example_train_0.jsonl.zst", "The first in natural order.")
    again = corpus.declared(shards={"count": 3, "on_change": "replan"})
    build_manifest_artifact(again, corpus.store)
    assert list(shards(corpus))[:3] == TRAIN
    assert shards(corpus)["train-00000"][0] == "train/chunk0/example_train_0.jsonl.zst"
    assert "train-00003" not in shards(corpus)
    build_manifest_artifact(corpus.declared(shards={"count": 2}), corpus.store)
    assert [key for key in shards(corpus) if key in TRAIN] == TRAIN[:2]


def test_a_size_that_cuts_the_files_alike_is_no_other_size(tmp_path: Path) -> None:
    pages = Selected(tmp_path, shards={}, duplicates=None)
    pages.write({f"train/m{n}.jsonl": ["x" * 1000] for n in range(4)})
    build_manifest_artifact(pages.corpus, pages.store)
    declared = Selected(tmp_path, shards={"target_bytes": 5000}, duplicates=None)
    assert build_manifest_artifact(declared.corpus, declared.store)[1], "nothing is made of another size"
    declared.write({f"train/a{n}.jsonl": ["y" * 1000] for n in range(4)})
    build_manifest_artifact(declared.corpus, declared.store)
    manifest = load_manifest(declared.corpus, declared.store)
    assert {key: [entry.relpath[6] for entry in manifest.shard(key)] for key in manifest.plan} == {
        "train-00000": ["m"] * 4,
        "train-00001": ["a"] * 4,
    }


@pytest.mark.parametrize("file", ["manifest.jsonl", "shard_plan.json", "receipt.json"])
def test_a_damaged_manifest_is_planned_by_the_shards_that_are_there(corpus: ChangedCorpus, file: str) -> None:
    write(corpus.data / "train/chunk0/example_train_0.jsonl.zst", "The first in natural order.")
    corpus.run()
    before = shards(corpus)
    flip_byte(corpus.root / "sample_corpus/manifest" / file)
    outcome = corpus.run()
    assert made(outcome, "manifest", "snapshot", "token_bins", "combined_bins") == ["manifest"]
    assert shards(corpus) == before


@pytest.mark.parametrize("gone", ["receipt.json", "."])
def test_a_manifest_that_is_gone_is_planned_by_the_shards_that_are_there(corpus: ChangedCorpus, gone: str) -> None:
    write(corpus.data / "train/chunk0/example_train_0.jsonl.zst", "The first in natural order.")
    corpus.run()
    before = shards(corpus)
    manifest = corpus.root / "sample_corpus/manifest"
    (manifest / gone).unlink() if gone != "." else shutil.rmtree(manifest)
    assert made(corpus.run(), "manifest", "snapshot", "token_bins", "combined_bins") == ["manifest"]
    assert shards(corpus) == before


@pytest.mark.parametrize("count", [3, 2])
@pytest.mark.parametrize("gone", ["receipt.json", "."])
def test_a_file_that_comes_when_the_manifest_is_gone_is_a_new_shard(
    corpus: ChangedCorpus, gone: str, count: int
) -> None:
    """Also beside left-over shards of an earlier plan, of three, whose files are in other shards now."""
    corpus.run(shards={"count": count})
    before = shards(corpus)
    manifest = corpus.root / "sample_corpus/manifest"
    (manifest / gone).unlink() if gone != "." else shutil.rmtree(manifest)
    new = "train/chunk0/example_train_0.jsonl.zst"
    write(corpus.data / new, "The first in natural order.")
    assert made(corpus.run(shards={"count": count}), "token_bins") == [f"token_bins/train-0000{count}"]
    assert shards(corpus) == before | {f"train-0000{count}": [new]}


def test_combined_bins_never_mix_two_plans(corpus: ChangedCorpus) -> None:
    (corpus.data / shards(corpus)["train-00001"][0]).unlink()
    build_manifest_artifact(corpus.declared(), corpus.store)
    manifest = load_manifest(corpus.declared(), corpus.store)
    with raises(IntegrityError, "token_bins/train-00001", "files"):
        read_shard_receipts(corpus.declared(), corpus.store, manifest, "train")


def test_parts_of_a_killed_shard_are_not_taken_for_each_others(tmp_path: Path) -> None:
    """A file more in an earlier split moves every ordinal; the parts that a killed run left keep their files."""
    data = tmp_path / "data"
    write(data / "a/1.jsonl.zst", "one")
    for number in range(3):
        write(data / f"b/{number}.jsonl.zst", *[f"text {number}"] * (number + 1))
    changes = {"splits": {"a": ["a/**"], "b": ["b/**"]}, "shards": {"count": 1}, "views": ["nanogpt"]}
    corpus = sample_declaration(data, **changes)
    root = tmp_path / "root"
    store = LocalArtifacts(root)
    assert run_pipeline(corpus, root).failed == {}
    manifest = load_manifest(corpus, store)
    plan = build_stream_plan(corpus, load_certificate(corpus, store))
    (shard,) = plan_token_shards(corpus, store, manifest, plan, ["b-00000"])
    shutil.rmtree(shard.directory)
    # Create the parts that a run leaves if it is killed before its last file.
    with open_staging(shard.directory, shard.key) as staged:
        for piece in range(2):
            encode_piece(plan, shard.files[piece], staged, piece)
    write(data / "a/2.jsonl.zst", "two")
    assert run_pipeline(corpus, root).failed == {}
    assert run_pipeline(corpus, tmp_path / "fresh").failed == {}
    name = "sample_corpus/token_bins/b-00000/tokens.bin"
    assert products(root)[name] == products(tmp_path / "fresh")[name]
    assert list(find_unplanned_artifacts(corpus_specs(corpus), store)) == []
