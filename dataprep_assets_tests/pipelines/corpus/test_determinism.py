"""Equal work gives equal bytes and receipts anywhere; a change rebuilds exactly the affected artifacts."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import BadRecordError, CorruptSourceError, IntegrityError, MissingArtifactError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.integrity.receipt import Receipt, find_damage, read_receipt
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.stream import token_stream
from dataprep_assets.stream.shard_job import build_token_bins
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.corpus.changed_corpus import ChangedCorpus
from dataprep_assets_tests.pipelines.corpus.pipeline import (
    Outcome,
    data_files,
    debris,
    receipts,
    run_pipeline,
    sample_declaration,
)
from dataprep_assets_tests.pipelines.corpus.shards import (
    TokenShard,
    certificate,
    shard_work,
    source,
    stream_plan,
    write_lines,
)
from dataprep_assets_tests.samples import SAMPLE, SMALL

pytestmark = pytest.mark.slow

VIEWS = ["nanogpt_bins", "megatron_bins", "datatrove_bins", "olmo_bins"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the root of a finished run with one worker."""
    root = tmp_path_factory.mktemp("built")
    run_pipeline(sample_declaration(), root)
    return root


def copy_in_another_order(target: Path) -> Path:
    """Create the sample's data with the last file first, so that directories list the files in another order."""
    files = sorted((p for p in SMALL.rglob("*") if p.is_file()), reverse=True)
    for number, path in enumerate(files):
        place = target / path.relative_to(SMALL)
        place.parent.mkdir(parents=True, exist_ok=True)
        # Create temporary files, so that the directory lists its entries in a different order.
        for filler in range(number % 3):
            (place.parent / f"filler{filler}").touch()
        shutil.copy(path, place)
        for filler in range(number % 3):
            (place.parent / f"filler{filler}").unlink()
    return target


@pytest.mark.parametrize("workers", [None, 7])
def test_worker_count_paths_and_listing_order_change_neither_bytes_nor_receipts(
    built: Path, tmp_path: Path, workers: int | None
) -> None:
    data = copy_in_another_order(tmp_path / "elsewhere" / "data")
    tokenizer = Path(shutil.copytree(SAMPLE / "tokenizer", tmp_path / "elsewhere" / "tokenizer"))
    root = tmp_path / "another" / "root"
    run_pipeline(sample_declaration(data, tokenizer), root, workers)
    assert data_files(root) == data_files(built)
    assert receipts(root) == receipts(built)
    assert str(tmp_path) not in "".join(p.read_text() for p in root.rglob("*.json*"))
    assert debris(root) == []


def test_a_worker_count_changed_half_way_does_not_change_the_bytes(built: Path, tmp_path: Path) -> None:
    corpus = sample_declaration()
    works = prepared_works(corpus, built, tmp_path)
    outcomes = build_token_bins(works, workers=2)
    next(outcomes), next(outcomes), next(outcomes)
    outcomes.close()
    for count in (7, 1):
        finished = list(build_token_bins(works, workers=count))
    assert all(result.reused for result in finished)
    assert {k: v for k, v in data_files(built).items() if "/token_bins/" in k} == data_files(tmp_path)
    assert debris(tmp_path) == []


def prepared_works(corpus: CorpusDeclaration, built: Path, root: Path) -> list[TokenShard]:
    from dataprep_assets.pipelines.corpus.source.manifest import load_manifest
    from dataprep_assets.pipelines.corpus.token_bins import build_stream_plan as declared_plan
    from dataprep_assets.pipelines.corpus.token_bins import plan_token_shards
    from dataprep_assets.stream.engine_certificate import load_certificate

    store = LocalArtifacts(built)
    manifest = load_manifest(corpus, store)
    plan = declared_plan(corpus, load_certificate(corpus, store))
    works = plan_token_shards(corpus, store, manifest, plan, manifest.plan)
    return [replace(work, store=LocalArtifacts(root)) for work in works]


# --- keys


@pytest.fixture
def work(tmp_path: Path) -> TokenShard:
    return shard_work(tmp_path, stream_plan(), [source(write_lines(tmp_path / "f.jsonl.zst", ["a", "b"]))])


def test_a_key_depends_on_everything_that_decides_a_byte(work: TokenShard, monkeypatch: pytest.MonkeyPatch) -> None:
    (file,) = work.files
    changes: dict[str, Any] = {
        "tokenizer_digest": "0" * 64,
        "special_tokens": "match",
        "separator_id": 5,
        "bos_id": 5,
        "dtype": "uint32",
        "text_field": "body",
        "bad_records": "drop",
    }
    keys = [work.key]
    keys += [replace(work, plan=replace(work.plan, **{name: value})).key for name, value in changes.items()]
    keys += [
        replace(work, files=(replace(file, **change),)).key
        for change in (
            {"sha256": "0" * 64},
            {"label": "train/g.jsonl.zst"},
            {"format": "parquet"},
            {"compression": None},
        )
    ]
    keys += [replace(work, files=(file, file)).key, replace(work, exceeded_budget=0.5).key]
    monkeypatch.setattr(token_stream, "STREAM_VERSION", token_stream.STREAM_VERSION + 1)
    keys.append(work.key)
    assert len(set(keys)) == len(keys)


def test_a_key_does_not_depend_on_paths_sampling_or_the_certificate(work: TokenShard, tmp_path: Path) -> None:
    (file,) = work.files
    same = [
        replace(work, budget=0.5),
        replace(work, store=LocalArtifacts(tmp_path / "other")),
        replace(work, sizes=(0,)),
        replace(work, files=(replace(file, path=tmp_path / "g"),)),
        replace(work, plan=replace(work.plan, tokenizer=tmp_path, sample_rate=0.5)),
        replace(work, plan=replace(work.plan, certificate=replace(certificate(), compared={}).to_json())),
    ]
    assert {other.key for other in same} == {work.key}


# --- changes


@pytest.fixture
def corpus(tmp_path: Path, built: Path) -> ChangedCorpus:
    return ChangedCorpus(tmp_path, built)


def shards_built(outcome: Outcome) -> list[str]:
    return sorted(name for name in outcome.built if name.startswith("token_bins"))


def test_output_workers_verification_and_sampling_rebuild_nothing(corpus: ChangedCorpus) -> None:
    for changes in (
        {"workers": 5},
        {"sample_rate": 0.5},
        {"verify": "size"},
        {"description": "x"},
    ):
        assert corpus.stale(**changes) == []
        assert corpus.run(**changes).built == []


def test_a_changed_source_file_rebuilds_the_shard_that_contains_it(corpus: ChangedCorpus) -> None:
    name = "train/chunk2/example_train_0.jsonl.zst"
    entries = [
        json.loads(line) for line in (corpus.root / "sample_corpus/manifest/manifest.jsonl").read_bytes().splitlines()
    ]
    (ordinal,) = [e["ordinal"] for e in entries if e["relpath"] == name]
    plan = json.loads((corpus.root / "sample_corpus/manifest/shard_plan.json").read_bytes())
    (shard,) = [key for key, (first, stop) in plan.items() if first <= ordinal < stop]
    corpus.rewrite(name, b" the ", b" teh ")
    assert corpus.stale()
    outcome = corpus.run()
    assert shards_built(outcome) == [f"token_bins/{shard}"]
    assert [n for n in outcome.built if n.startswith("snapshot")] == [f"snapshot/{shard}"]
    assert [n for n in outcome.built if n.startswith("combined")] == ["combined_bins/train"]
    assert corpus.stale() == []


def test_a_flipped_bit_without_a_change_of_size_is_found_and_affects_one_shard(corpus: ChangedCorpus) -> None:
    path = corpus.data / "validation/chunk1/example_holdout_0.jsonl.zst"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1  # change a bit of the checksum
    path.write_bytes(raw)
    assert corpus.stale() == ["snapshot/val-00000", "token_bins/val-00000", "combined_bins/val", *VIEWS]
    outcome = corpus.run()
    assert list(outcome.failed) == ["val-00000"]
    assert isinstance(outcome.failed["val-00000"], CorruptSourceError)
    assert shards_built(outcome) == []


def test_another_view_or_shard_count_rebuilds_only_what_differs(corpus: ChangedCorpus) -> None:
    assert corpus.run(views=["nanogpt"], olmo_sequence_length=128).built == []
    assert corpus.run(olmo_sequence_length=128).built == ["olmo_bins"]
    assert "token_bins/val-00000" in corpus.run(shards={"count": 2}).reused


@pytest.mark.parametrize("damaged", ["tokens.bin", "receipt.json"])
def test_only_a_damaged_shard_is_rebuilt_with_the_same_bytes(corpus: ChangedCorpus, built: Path, damaged: str) -> None:
    path = corpus.root / "sample_corpus/token_bins/train-00001" / damaged
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    # A damaged receipt also makes downstream artifacts stale, because they compare the content digest in the receipt.
    # Rebuilding the shard restores this digest.
    downstream = ["combined_bins/train", *VIEWS] if damaged == "receipt.json" else []
    assert corpus.stale() == ["token_bins/train-00001", *downstream]
    assert shards_built(corpus.run()) == ["token_bins/train-00001"]
    assert data_files(corpus.root) == data_files(built)


@pytest.mark.parametrize("name", ["shard_plan.json", "receipt.json"])
def test_a_damaged_manifest_is_stale_and_is_rebuilt(corpus: ChangedCorpus, built: Path, name: str) -> None:
    path = corpus.root / "sample_corpus/manifest" / name
    path.write_bytes(path.read_bytes()[:-10])
    assert corpus.stale()[0] == "manifest"
    assert corpus.run().built == ["manifest"]
    assert data_files(corpus.root) == data_files(built)


def test_a_damaged_snapshot_is_stale_and_is_rebuilt(corpus: ChangedCorpus) -> None:
    (corpus.root / "sample_corpus/snapshot/val-00000/receipt.json").write_text("{}")
    assert corpus.stale() == ["snapshot/val-00000"]
    assert corpus.run().built == ["snapshot/val-00000"]


def test_a_missing_shard_is_an_error_and_not_a_shorter_file(corpus: ChangedCorpus) -> None:
    from dataprep_assets.pipelines.corpus.combined_bins import build_combined_bins
    from dataprep_assets.pipelines.corpus.source.manifest import load_manifest

    shutil.rmtree(corpus.root / "sample_corpus/token_bins/train-00001")
    declared = corpus.declared()
    with raises(MissingArtifactError, "sample_corpus/train", 1, 3, "train-00001"):
        build_combined_bins(declared, corpus.store, load_manifest(declared, corpus.store), "train")


def test_a_shard_with_other_settings_is_not_joined(corpus: ChangedCorpus) -> None:
    from dataprep_assets.pipelines.corpus.combined_bins import build_combined_bins
    from dataprep_assets.pipelines.corpus.source.manifest import load_manifest

    other = sample_declaration(corpus.data, corpus.tokenizer, dtype="uint32")
    works = prepared_works(other, corpus.root, corpus.root)
    list(build_token_bins([w for w in works if w.partition == "train-00001"], workers=1))
    declared = corpus.declared()
    with raises(IntegrityError, "dtype, separator_id, bos_id, special_tokens, tokenizer"):
        build_combined_bins(declared, corpus.store, load_manifest(declared, corpus.store), "train")


def test_a_failing_rebuild_keeps_the_old_artifact(corpus: ChangedCorpus, built: Path) -> None:
    corpus.rewrite("test/chunk1/example_holdout_0.jsonl.zst", b'{"text"', b'{"text')
    outcome = corpus.run()
    assert isinstance(outcome.failed["test-00000"], BadRecordError)
    directory = corpus.root / "sample_corpus/token_bins/test-00000"
    assert assert_whole(directory).key == assert_whole(built / "sample_corpus/token_bins/test-00000").key
    combined = corpus.root / "sample_corpus/combined_bins/test"
    assert assert_whole(combined).key == assert_whole(built / "sample_corpus/combined_bins/test").key


def assert_whole(directory: Path) -> Receipt:
    """Return the receipt of an artifact, which must have no defect."""
    receipt = read_receipt(directory)
    assert receipt is not None
    assert find_damage(directory, receipt) == []
    return receipt
