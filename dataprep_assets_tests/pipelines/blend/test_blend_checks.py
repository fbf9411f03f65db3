"""Every check of training blends fails in Dagster on a planted fault; a check without a fault fails the suite."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pytest

from dataprep_assets.integrity.receipt import _compute_digest, record_files
from dataprep_assets.orchestration.partitions import register_in_order
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.stream.stream_index import IndexedShard
from dataprep_assets_tests.pipelines.blend.dagster_blend import (
    Blend,
    declare_chats,
    declare_tasks,
    find_failed,
    open_blend,
)
from dataprep_assets_tests.pipelines.blend.pipeline import (
    declare_pretraining,
    make_texts,
    write_rows,
    write_small_sources,
)
from dataprep_assets_tests.project import failure_of

Fault = Callable[[Blend], object]


def declared(stage: str, sources: Path) -> BlendDeclaration:
    """Return the blend of a stage. Tokenized blends have a certificate, so that its checks pass."""
    if stage == "rl":
        return declare_tasks(sources, workers=1)
    make = {"pretrain": declare_pretraining, "sft": declare_chats}[stage]
    reference = make(sources, workers=1, held_out={"valid": 1})
    certified = reference.required_tokenizer.model_copy(update={"engine": "fastokens"})
    return reference.model_copy(update={"tokenizer": certified, "retractions": sources / "retracted.jsonl"})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Return a finished blend of each stage: stage → its folder, in which the tests' copies will also be."""
    home = tmp_path_factory.mktemp("finished")
    for stage in ("pretrain", "sft", "rl"):
        (home / stage).mkdir()
        if stage == "pretrain":
            write_small_sources(home / stage / "sources")
        with open_blend(declared(stage, home / stage / "sources"), home / stage / "artifacts") as made:
            outcomes = made.run_all()
            assert all(outcome.success for outcome in outcomes), failure_of(outcomes[-1])
    return {stage: home / stage for stage in ("pretrain", "sft", "rl")}


@pytest.fixture(scope="module")
def shared_instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def broken(finished: Mapping[str, Path], shared_instance: dg.DagsterInstance) -> Iterator[Callable[[str], Blend]]:
    """Return a function that opens a copy of a blend that a test may break, at the original path, because a run
    contains it.
    """
    kept: list[Path] = []

    def opened(stage: str) -> Blend:
        folder = finished[stage]
        shutil.copytree(folder, folder.with_name(f"{stage} kept"))
        kept.append(folder)
        return Blend(declared(stage, folder / "sources"), folder / "artifacts", shared_instance)

    yield opened
    for folder in kept:
        shutil.rmtree(folder)
        folder.with_name(f"{folder.name} kept").rename(folder)


def edit_json(path: Path, change: Callable[[Any], object]) -> None:
    value = json.loads(path.read_bytes())
    change(value)
    put(path, json.dumps(value).encode())


def put(path: Path, data: bytes) -> None:
    """Replace a file, because a run's files are links to those of the shards."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


def edit_receipt(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a receipt and update its digest, as a bug would: the numbers are wrong, but the file is consistent."""

    def signed(value: dict[str, Any]) -> None:
        change(value)
        value["digest"] = _compute_digest(value)

    edit_json(folder / "receipt.json", signed)


def shard(made: Blend, index: int = 0) -> Path:
    name, first = {
        "pretrain": ("indexed_bins", "code"),
        "sft": ("packed_sft", "first"),
        "rl": ("rl_jsonl", "knots__train"),
    }[made.declaration.stage]
    return made.directory(name, f"{first}-{index:05d}")


def signed_again(change: Callable[[Path], object]) -> Fault:
    """Return a change of a shard's files after which the receipt has their new digests."""

    def fault(made: Blend) -> None:
        folder = shard(made)
        change(folder)
        hidden = folder / "receipt.json"
        text = hidden.read_bytes()
        hidden.unlink()
        files = [{"path": r.path, "bytes": r.bytes, "sha256": r.sha256} for r in record_files(folder)]
        hidden.write_bytes(text)
        edit_receipt(folder, lambda value: value.update(files=files))

    return fault


def tokens_changed(change: Callable[[np.ndarray[Any, Any]], object]) -> Fault:
    def of(folder: Path) -> None:
        tokens = np.fromfile(folder / "tokens.bin", np.uint16)
        change(tokens)
        put(folder / "tokens.bin", tokens.tobytes())

    return signed_again(of)


def packed_changed(change: Callable[[list[dict[str, Any]]], object]) -> Fault:
    def of(folder: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = folder / "packed.parquet"
        read = pq.read_table(path)
        packed = read.to_pylist()
        change(packed)
        path.unlink()
        pq.write_table(pa.Table.from_pylist(packed, read.schema), path, compression="zstd", row_group_size=1000)

    return signed_again(of)


def lines_changed(change: Callable[[list[bytes]], list[bytes]]) -> Fault:
    def of(folder: Path) -> None:
        path = folder / "records.jsonl"
        put(path, b"\n".join(change(path.read_bytes().splitlines())) + b"\n")

    return signed_again(of)


def in_facts(artifact: Callable[[Blend], Path], change: Callable[[dict[str, Any]], object]) -> Fault:
    return lambda made: edit_receipt(artifact(made), lambda value: change(value["facts"]))


def replan(change: Callable[[dict[str, Any]], object]) -> Fault:
    def fault(made: Blend) -> None:
        edit_json(made.directory("blend_plan") / "plan.json", change)

    return fault


def forget_part(plan: dict[str, Any]) -> None:
    plan["datasets"][0]["shards"][0]["parts"] = plan["datasets"][0]["shards"][0]["parts"][:-1]


def grown(made: Blend) -> None:
    write_rows(made.root.parent / "sources" / "web" / "train-00000.parquet", make_texts("web", 61))


def doubled(packed: list[dict[str, Any]]) -> None:
    """Write a special token twice: the token that opens a turn replaces the one after it."""
    packed[0]["input_ids"][1] = packed[0]["input_ids"][0]


def unshifted(packed: list[dict[str, Any]]) -> None:
    for row in packed:
        starts = [*row["seq_start_id"], len(row["input_ids"])]
        for start, stop in pairwise(starts):
            mask = row["loss_mask"]
            mask[start:stop] = [0, *mask[start : stop - 1]]


def swapped_words(packed: list[dict[str, Any]]) -> None:
    for row in packed:
        at = row["loss_mask"].index(1)
        row["input_ids"][at + 1], row["input_ids"][at + 2] = row["input_ids"][at + 2], row["input_ids"][at + 1]


def later(packed: list[dict[str, Any]]) -> None:
    """Leave the first three labels of an answer untrained, as if a prompt had claimed them."""
    at = packed[0]["loss_mask"].index(1)
    packed[0]["loss_mask"][at : at + 3] = [0, 0, 0]


def half(packed: list[dict[str, Any]]) -> None:
    packed[0]["loss_mask"] = [0] * len(packed[0]["loss_mask"])


def elsewhere(made: Blend) -> None:
    """Make the certificate name another library version than the installed one."""
    folder = made.directory("engine_certificate")
    edit_json(folder / "certificate.json", lambda value: value.update(reference_version="0.0.1"))


def refusing(made: Blend) -> None:
    edit_json(made.directory("engine_certificate") / "certificate.json", lambda v: v.update(refused=["emoji"]))


def same_rows_in_two_splits(made: Blend) -> None:
    def change(facts: dict[str, Any]) -> None:
        facts["used"]["valid"].append(facts["used"]["train"][0])

    edit_receipt(made.run_directory, lambda value: change(value["facts"]))


def other_weights(made: Blend) -> None:
    def change(value: dict[str, Any]) -> None:
        value["facts"]["realised"][0]["realised"] *= 0.5

    edit_receipt(made.run_directory, change)


def fewer_rows(made: Blend) -> None:
    edit_receipt(made.directory("indexed_bins", "web-00000"), _one_row_less)


def _one_row_less(value: dict[str, Any]) -> None:
    value["ledger"]["rows_in"] -= 1


def card_changed(change: Callable[[Any], object]) -> Fault:
    return lambda m: edit_json(m.directory("data_card") / "croissant.json", change)


def removed_without_a_list(made: Blend) -> None:
    """Add a removed row to the shard's ledger, although the blend has no retraction list."""
    edit_receipt(shard(made), lambda value: value["ledger"]["dropped"].update(retracted=1))


def listed_and_kept(made: Blend) -> None:
    """Put the first document of a shard on the retraction list."""
    folder = shard(made)
    artifact = made.declaration.artifact("indexed_bins", folder.name)
    index = IndexedShard(made.store, artifact, made.store.require(artifact))
    assert made.declaration.retractions is not None
    line = {"hash": f"{int(index.hashes[0]):016x}", "of": "text"}
    made.declaration.retractions.write_text(json.dumps(line) + "\n")


FAULTS: dict[str, tuple[str, Fault]] = {
    "indexed_bins.no_retracted_document": ("pretrain", listed_and_kept),
    "packed_sft.no_retracted_document": ("sft", removed_without_a_list),
    "rl_jsonl.no_retracted_document": ("rl", removed_without_a_list),
    "blend_plan.plan_covers_sources": ("pretrain", replan(forget_part)),
    "blend_plan.plan_is_current": ("pretrain", grown),
    "blend_preview.every_dataset_sampled": (
        "pretrain",
        in_facts(lambda m: m.directory("blend_preview"), lambda f: f["sources"][1].update(samples=0)),
    ),
    "blend_preview.disk_headroom": (
        "pretrain",
        in_facts(lambda m: m.directory("blend_preview"), lambda f: f.update(disk_bytes=1 << 60)),
    ),
    "blend_snapshot.digests_match": ("pretrain", grown),
    "engine_certificate.engine_unchanged": ("sft", elsewhere),
    "engine_certificate.fast_engine_accepted": ("pretrain", refusing),
    "indexed_bins.files_intact": ("pretrain", lambda m: os.truncate(_own(shard(m) / "tokens.bin"), 3)),
    "indexed_bins.ledger_balances": ("pretrain", fewer_rows),
    "indexed_bins.index_matches_stream": (
        "pretrain",
        signed_again(lambda f: put(f / "tokens.idx", (f / "tokens.idx").read_bytes()[:-8])),
    ),
    "indexed_bins.ids_in_vocabulary": ("pretrain", tokens_changed(lambda t: t.__setitem__(0, 65_000))),
    "indexed_bins.document_boundaries_valid": ("pretrain", tokens_changed(lambda t: t.__setitem__(-1, 5))),
    "indexed_bins.engine_certified": (
        "pretrain",
        in_facts(shard, lambda f: f["certificate"].update(tokenizer_digest="0" * 64)),
    ),
    "indexed_bins.round_trip": ("pretrain", tokens_changed(lambda t: t.__setitem__(slice(0, 40), t[:40][::-1].copy()))),
    "indexed_bins.losses_within_limit": (
        "pretrain",
        lambda m: edit_receipt(shard(m), lambda r: r["ledger"].update(dropped_characters=9_999)),
    ),
    "packed_sft.losses_within_limit": (
        "sft",
        lambda m: edit_receipt(shard(m), lambda r: r["ledger"].update(unknown_tokens=9_999)),
    ),
    "packed_sft.files_intact": ("sft", lambda m: put(shard(m) / "left_behind.bin", b"x")),
    "packed_sft.ledger_balances": ("sft", lambda m: edit_receipt(shard(m), _one_row_less)),
    "packed_sft.counts_match": ("sft", in_facts(shard, lambda f: f.update(trained_tokens=1))),
    "packed_sft.rows_valid": ("sft", packed_changed(lambda p: p[0]["loss_mask"].__setitem__(-1, 1))),
    "packed_sft.ids_in_vocabulary": ("sft", packed_changed(lambda p: p[0]["input_ids"].__setitem__(2, 70_000))),
    "packed_sft.stop_tokens_in_loss": ("sft", packed_changed(unshifted)),
    "packed_sft.no_repeated_special_tokens": ("sft", packed_changed(doubled)),
    "packed_sft.sampled_sequences_trained": ("sft", packed_changed(half)),
    "packed_sft.round_trip": ("sft", packed_changed(swapped_words)),
    "packed_sft.answers_in_loss": ("sft", packed_changed(later)),
    "rl_jsonl.files_intact": ("rl", lambda m: put(shard(m) / "records.jsonl", b"{}\n")),
    "rl_jsonl.ledger_balances": ("rl", lambda m: edit_receipt(shard(m), _one_row_less)),
    "rl_jsonl.round_trip": ("rl", lines_changed(lambda lines: lines[::-1])),
    "blend.shards_complete": ("rl", lambda m: shutil.rmtree(shard(m, 1))),
    "blend.rows_read_once": ("pretrain", fewer_rows),
    "blend.blend_run_intact": ("sft", lambda m: put(m.run_directory / "config.json", b"{}")),
    "blend.splits_disjoint": ("sft", same_rows_in_two_splits),
    "blend.mixture_matches_weights": ("pretrain", other_weights),
    "blend.blend_sources_unchanged": ("pretrain", grown),
    "rl_manifest.files_intact": ("rl", lambda m: put(m.directory("rl_manifest") / "shards.json", b"{}")),
    "rl_manifest.points_to_latest_run": (
        "rl",
        lambda m: edit_json(m.directory("rl_manifest") / "manifest.json", lambda v: v.update(run_hash="0")),
    ),
    "data_card.card_matches_receipts": ("rl", card_changed(lambda card: card.update(description="others"))),
}


def _own(path: Path) -> Path:
    """Give the file its own inode, without links."""
    put(path, path.read_bytes())
    return path


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_fails_its_check_and_is_reported(broken: Callable[[str], Blend], name: str) -> None:
    stage, fault = FAULTS[name]
    made = broken(stage)
    fault(made)
    found = made.check()
    assert name in find_failed(found)
    assert len(str(found[name].description)) > 20


def test_every_check_has_a_fault_and_passes_without_it(
    finished: Mapping[str, Path], shared_instance: dg.DagsterInstance
) -> None:
    names: set[str] = set()
    for stage, folder in finished.items():
        found = Blend(declared(stage, folder / "sources"), folder / "artifacts", shared_instance).check()
        assert find_failed(found) == set()
        names |= set(found)
    # `separator_ends_documents` has no fault here, because it depends only on the separator's name, and the tests of
    # other pipelines make it fail.
    assert names == {*FAULTS, "engine_certificate.separator_ends_documents"}


def test_checks_that_only_report_do_not_stop_downstream_artifacts(finished: Mapping[str, Path]) -> None:
    reports = set()
    for stage, folder in finished.items():
        with open_blend(declared(stage, folder / "sources"), folder / "artifacts") as made:
            specs = [s for c in made.definitions.asset_checks or () for s in c.check_specs]
            reports |= {f"{s.asset_key.path[-1]}.{s.name}" for s in specs if not s.blocking}
    assert reports == {
        "blend.blend_sources_unchanged",
        "blend_preview.disk_headroom",
        "engine_certificate.fast_engine_accepted",
        "engine_certificate.separator_ends_documents",
        "indexed_bins.losses_within_limit",
        "packed_sft.losses_within_limit",
    }


def test_a_run_of_one_shard_shows_the_verdicts_on_the_others(broken: Callable[[str], Blend]) -> None:
    made = broken("rl")
    assert find_failed(made.check()) == set()
    register_in_order(made.instance, "small_rl_shards", made.plan.partitions)
    assert _of_a_run_about_one_shard(made)["round_trip"].metadata["shards_checked"].value == 0, "its verdict stands"
    (memory,) = made.root.rglob(".findings/rl_jsonl/knots__train-00001.json")
    memory.unlink()
    found = _of_a_run_about_one_shard(made)["round_trip"]
    assert found.passed
    assert found.metadata["shards_checked"].value == 1
    assert found.metadata["shards_not_checked_yet"].value == 0


def test_stored_verdicts_from_before_a_check_existed_do_not_count(broken: Callable[[str], Blend]) -> None:
    made = broken("rl")
    made.check()
    register_in_order(made.instance, "small_rl_shards", made.plan.partitions)
    (memory,) = made.root.rglob(f".findings/rl_jsonl/{made.plan.partitions[-1]}.json")
    kept = json.loads(memory.read_bytes())
    del kept["findings"]["round_trip"]
    memory.write_text(json.dumps(kept))
    found = _of_a_run_about_one_shard(made)
    assert {name: found[name].metadata["shards_not_checked_yet"].value for name in ("files_intact", "round_trip")} == {
        "files_intact": 1,
        "round_trip": 1,
    }


def _of_a_run_about_one_shard(made: Blend) -> dict[str, dg.AssetCheckEvaluation]:
    job = made.definitions.resolve_implicit_global_asset_job_def()
    outcome = job.execute_in_process(
        asset_selection=[made.key("rl_jsonl")],
        tags={"dagster/partition": "knots__train-00001"},
        instance=made.instance,
    )
    return {e.check_name: e for e in outcome.get_asset_check_evaluations()}
