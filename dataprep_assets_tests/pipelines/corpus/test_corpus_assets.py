"""The whole pipeline in Dagster: built artifacts, reported metadata, and rebuilds."""

import json
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard
from tokenizers import Tokenizer

from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.integrity.receipt import read_receipt
from dataprep_assets.integrity.verify import verify_path
from dataprep_assets_tests.pipelines.corpus.corpus_source import source_texts
from dataprep_assets_tests.project import Project, differing_versions, failure_of, project, sample_attributes
from dataprep_assets_tests.readers.transformers import token_ids, tokenizer_facts
from dataprep_assets_tests.samples import SAMPLE, SMALL


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with project(sample_attributes(), tmp_path_factory.mktemp("project")) as made:
        made.run_all()
        yield made


@pytest.mark.parametrize(("split", "folder"), [("train", "train"), ("val", "validation"), ("test", "test")])
def test_bins_contain_exactly_the_ids_of_the_reference_per_document(finished: Project, split: str, folder: str) -> None:
    directory = finished.directory("combined_bins", split)
    meta = pickle.loads((directory / "meta.pkl").read_bytes())
    tokens = flat_bins.open_tokens(directory / f"{split}.bin", meta["dtype"])
    ends = document_ends.open_ends(directory / "document_ends.bin").tolist()
    reference = Tokenizer.from_file(str(SAMPLE / "tokenizer" / "tokenizer.json"))
    reference.encode_special_tokens = True
    texts = source_texts(SMALL / folder)
    assert len(ends) == len(texts)
    start = 0
    for row, (text, end) in enumerate(zip(texts, ends, strict=True)):
        expected = [*reference.encode(text, add_special_tokens=False).ids, meta["eos_token_id"]]
        assert tokens[start:end].tolist() == expected, f"document {row}"
        start = end


def test_meta_values_come_from_the_tokenizer(finished: Project) -> None:
    meta = pickle.loads((finished.directory("nanogpt_bins") / "meta.pkl").read_bytes())
    assert meta["vocab_size"] == tokenizer_facts(SAMPLE / "tokenizer")["length"]
    assert [meta["eos_token_id"]] == token_ids(SAMPLE / "tokenizer", ["<|endoftext|>"])
    assert meta["dtype"] == "uint16"
    assert meta == json.loads((finished.directory("nanogpt_bins") / "meta.json").read_bytes())


def test_a_trainer_finds_plain_files_with_the_same_inodes_as_the_combined_bins(finished: Project) -> None:
    for split in finished.corpus.splits:
        combined = finished.directory("combined_bins", split) / f"{split}.bin"
        for view in ("nanogpt_bins", "megatron_bins"):
            assert (finished.directory(view) / f"{split}.bin").stat().st_ino == combined.stat().st_ino


def test_every_partition_is_materialized_with_numeric_metadata(finished: Project) -> None:
    key = finished.key("token_bins", "train")
    assert finished.instance.get_materialized_partitions(key) == set(finished.shards("train"))
    event = finished.instance.get_latest_materialization_event(key)
    assert event is not None
    assert event.asset_materialization is not None
    metadata = event.asset_materialization.metadata
    for name in ("documents", "tokens", "bytes", "source_files", "dropped", "tokens_per_cpu_second"):
        assert isinstance(metadata[name].value, int | float), name


def test_joining_shards_shows_progress(finished: Project) -> None:
    key = finished.key("combined_bins", "train")
    event = finished.instance.get_latest_materialization_event(key)
    assert event is not None
    lines = [entry.user_message for entry in finished.instance.all_logs(event.run_id)]
    megabytes = (finished.directory("combined_bins", "train") / "train.bin").stat().st_size / 1e6
    done = f"{key.to_user_string()}: 100.0%  {megabytes:,.1f} of {megabytes:,.1f} MB"
    assert any(line.startswith(done) for line in lines)


def test_the_data_version_is_the_content_digest(finished: Project) -> None:
    receipt = read_receipt(finished.directory("combined_bins", "train"))
    event = finished.instance.get_latest_materialization_event(finished.key("combined_bins", "train"))
    assert receipt is not None
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.tags is not None
    assert event.asset_materialization.tags["dagster/data_version"] == receipt.content[:32]


def test_all_checks_pass_on_good_data(finished: Project) -> None:
    graph = finished.definitions.resolve_asset_graph()
    summaries = finished.instance.event_log_storage.get_latest_asset_check_execution_by_key(
        list(graph.asset_check_keys)
    )
    assert len(summaries) == len(graph.asset_check_keys) > 60
    assert {k.name for k, record in summaries.items() if record.status.value != "SUCCEEDED"} == set()


def test_everything_is_up_to_date_and_verifies_offline(finished: Project) -> None:
    assert list(find_stale(finished.specs, finished.store)) == []
    verdicts = list(verify_path(finished.root))
    assert len(verdicts) > 15
    assert [v for v in verdicts if v.defects] == []


@pytest.fixture
def copied(finished: Project, tmp_path: Path) -> Iterator[Project]:
    shutil.copytree(finished.root, tmp_path / "artifacts", copy_function=os.link)
    with project(sample_attributes(), tmp_path) as made:
        assert made.run([made.key("manifest"), made.key("engine_certificate")]).success
        yield made


def inodes(made: Project, split: str) -> dict[str, int]:
    return {s: (made.directory("token_bins", s) / "tokens.bin").stat().st_ino for s in made.shards(split)}


def test_a_deleted_output_is_rebuilt_by_itself(copied: Project) -> None:
    before = inodes(copied, "train")
    victim = copied.shards("train")[1]
    original = (copied.directory("token_bins", victim) / "tokens.bin").read_bytes()
    (copied.directory("token_bins", victim) / "tokens.bin").unlink()
    behind = list(find_stale(copied.specs, copied.store))
    assert (behind[0].kind, behind[0].reason) == ("damaged", "damaged: tokens.bin: missing")
    assert [one.name for one in behind] == [f"corpus/token_bins/{victim}"], "it comes back as it was"
    assert copied.tokenize("train").success
    after = inodes(copied, "train")
    assert {s for s in before if before[s] != after[s]} == {victim}
    assert (copied.directory("token_bins", victim) / "tokens.bin").read_bytes() == original


def test_a_second_run_builds_nothing(copied: Project) -> None:
    before = inodes(copied, "train")
    outcome = copied.tokenize("train")
    assert outcome.success
    assert inodes(copied, "train") == before
    for event in outcome.get_asset_materialization_events():
        assert event.materialization.metadata["reused"].value is True


def test_a_missing_shard_is_refused_by_name(copied: Project) -> None:
    victim = copied.shards("train")[2]
    shutil.rmtree(copied.directory("token_bins", victim))
    old = (copied.directory("combined_bins", "train") / "receipt.json").read_bytes()
    outcome = copied.run([copied.key("combined_bins", "train")])
    assert not outcome.success
    assert victim in failure_of(outcome)
    assert (copied.directory("combined_bins", "train") / "receipt.json").read_bytes() == old


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SMALL, tmp_path / "source"))


def test_only_a_bad_shard_fails_and_a_rerun_repairs_only_it(source: Path, tmp_path: Path) -> None:
    victim = source / "train" / "chunk2" / "example_train_1.jsonl.zst"
    good = victim.read_bytes()
    victim.write_bytes(good[: len(good) // 2])
    with project(
        sample_attributes(source={"kind": "local", "path": str(source)}, shards={"count": 7}), tmp_path
    ) as made:
        key = made.key
        assert made.run([key("manifest"), key("engine_certificate")]).success
        outcome = made.tokenize("train")
        assert not outcome.success
        assert "example_train_1.jsonl.zst: truncated" in failure_of(outcome)
        done = made.instance.get_materialized_partitions(key("token_bins", "train"))
        assert len(done) == 6
        (red,) = set(made.shards("train")) - done
        kept = {s: i for s, i in inodes_present(made).items() if s in done}
        assert not made.run([key("combined_bins", "train")]).success
        victim.write_bytes(good)
        assert made.run([key("manifest"), key("engine_certificate")]).success
        assert made.tokenize("train").success
        after = inodes_present(made)
        assert {s: after[s] for s in kept} == kept
        assert red in after
        assert made.run([key("combined_bins", "train")]).success


def inodes_present(made: Project) -> dict[str, int]:
    found = {}
    for shard in made.shards("train"):
        path = made.directory("token_bins", shard) / "tokens.bin"
        if path.exists():
            found[shard] = path.stat().st_ino
    return found


def test_a_changed_byte_of_the_source_rebuilds_exactly_its_shard(source: Path, tmp_path: Path) -> None:
    with project(
        sample_attributes(source={"kind": "local", "path": str(source)}, shards={"count": 7}), tmp_path
    ) as made:
        made.run_all()
        before = inodes_present(made)
        path = source / "train" / "chunk1" / "example_train_2.jsonl.zst"
        raw = zstandard.ZstdDecompressor().decompress(path.read_bytes())
        size = path.stat().st_size
        # Write different bytes of equal length, so that the file size does not show the change.
        changed = zstandard.ZstdCompressor(level=19, write_checksum=True).compress(raw.replace(b"the", b"eht", 1))
        path.write_bytes(changed if len(changed) == size else changed + skippable(size - len(changed)))
        behind = [one.name for one in find_stale(made.specs, made.store)]
        assert behind[0].startswith("corpus/snapshot/train-") or behind[0] == "corpus/manifest"
        if behind[0] != "corpus/manifest":
            shard = behind[0].removeprefix("corpus/snapshot/")
            views = [f"corpus/{view}_bins" for view in made.corpus.views]
            assert behind[1:] == [
                f"corpus/token_bins/{shard}",
                "corpus/combined_bins/train",
                *views,
                "corpus/data_card",
            ]
        else:
            assert made.run([made.key("manifest"), made.key("engine_certificate")]).success
        assert made.tokenize("train").success
        after = inodes_present(made)
        assert len({s for s in before if before[s] != after[s]}) == 1


def skippable(size: int) -> bytes:
    """Return a zstd skippable frame of exactly `size` bytes if possible, else nothing."""
    return b"" if size < 8 else b"\x50\x2a\x4d\x18" + (size - 8).to_bytes(4, "little") + bytes(size - 8)


def test_the_code_versions_of_its_assets_are_the_versions_that_built_its_artifacts(finished: Project) -> None:
    assert differing_versions(finished.specs, finished.store) == {}
