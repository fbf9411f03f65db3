"""Every asset check of a corpus fails on a planted fault; a check without a fault fails the suite."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import pytest
from numpy.typing import NDArray

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.orchestration.checks import build_checks
from dataprep_assets_tests.faults.edits import edit_ids, edit_json, edit_receipt, flip_byte
from dataprep_assets_tests.messages import assert_names
from dataprep_assets_tests.project import Project, evaluated, project, sample_attributes
from dataprep_assets_tests.samples import SAMPLE, SMALL

Fault = Callable[[Project, pytest.MonkeyPatch], None]


def attributes(folder: Path) -> dict[str, object]:
    return sample_attributes(
        source={"kind": "local", "path": str(folder / "source")},
        splits={"val": ["validation/**"], "test": ["test/**"]},
        shards={},
        tokenizer={"path": str(folder / "tokenizer"), "name": "sample"},
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    folder = tmp_path_factory.mktemp("finished")
    shutil.copytree(SMALL, folder / "source")
    shutil.copytree(SAMPLE / "tokenizer", folder / "tokenizer")
    with project(attributes(folder), folder) as made:
        made.run_all()
        yield made


@pytest.fixture
def copied(finished: Project, tmp_path: Path) -> Iterator[Project]:
    for name in ("source", "tokenizer", "artifacts"):
        shutil.copytree(finished.root.parent / name, tmp_path / name)
    with project(attributes(tmp_path), tmp_path) as made:
        yield made


SHARD, SPLIT = "val-00000", "val"


def shard(made: Project, name: str) -> Path:
    return made.directory("token_bins", SHARD) / name


def combined(made: Project, name: str) -> Path:
    return made.directory("combined_bins", SPLIT) / name


def source_file(made: Project) -> Path:
    return made.root.parent / "source" / "validation" / "chunk1" / "example_holdout_0.jsonl.zst"


def add_source_file(made: Project, _: pytest.MonkeyPatch) -> None:
    shutil.copy(source_file(made), source_file(made).with_name("example_holdout_1.jsonl.zst"))


def lose_source_file(made: Project, _: pytest.MonkeyPatch) -> None:
    source_file(made).unlink()


def retract_first_document(made: Project, _: pytest.MonkeyPatch) -> None:
    first = int(np.fromfile(shard(made, "document_ids.bin"), "<u8")[0])
    assert made.corpus.retractions is not None
    made.corpus.retractions.write_text(f'{{"hash": "{first:016x}", "of": "text"}}\n')


def shift_plan(made: Project, _: pytest.MonkeyPatch) -> None:
    edit_json(made.directory("manifest") / "shard_plan.json", lambda plan: plan.update({"test-00000": [0, 2]}))


def other_engine_version(made: Project, _: pytest.MonkeyPatch) -> None:
    edit_json(made.directory("engine_certificate") / "certificate.json", lambda c: c.update(engine_version="0.0.1"))


def refused_class(made: Project, _: pytest.MonkeyPatch) -> None:
    edit_json(
        made.directory("engine_certificate") / "certificate.json", lambda c: c.update(refused=["long"], reason="seen")
    )


def chat_turn_separator(made: Project, _: pytest.MonkeyPatch) -> None:
    path = made.root.parent / "tokenizer" / "tokenizer.json"
    path.write_text(path.read_text().replace("<|endoftext|>", "<|im_end|>"))
    made.corpus = made.corpus.model_copy(
        update={"document": made.corpus.document.model_copy(update={"separator": "<|im_end|>"})}
    )
    from dataprep_assets.stream.tokenizer import load_declared_tokenizer

    load_declared_tokenizer.cache_clear()


def flip_source(made: Project, _: pytest.MonkeyPatch) -> None:
    flip_byte(source_file(made))


def full_disk(_: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1))


def flip_shard(made: Project, _: pytest.MonkeyPatch) -> None:
    flip_byte(shard(made, "tokens.bin"))


def unbalanced(made: Project, _: pytest.MonkeyPatch) -> None:
    edit_receipt(shard(made, "receipt.json"), lambda r: r["ledger"].update(rows_in=r["ledger"]["rows_in"] + 1))


def truncate_shard(made: Project, _: pytest.MonkeyPatch) -> None:
    data = shard(made, "tokens.bin").read_bytes()
    shard(made, "tokens.bin").unlink()
    shard(made, "tokens.bin").write_bytes(data[:-2])


def foreign_id(made: Project, _: pytest.MonkeyPatch) -> None:
    edit_ids(shard(made, "tokens.bin"), lambda ids: ids.__setitem__(100, 60_000))


def lost_separator(made: Project, _: pytest.MonkeyPatch) -> None:
    edit_ids(shard(made, "tokens.bin"), lambda ids: ids.__setitem__(-1, 5))


def foreign_certificate(made: Project, _: pytest.MonkeyPatch) -> None:
    edit_receipt(
        shard(made, "receipt.json"),
        lambda r: r["facts"]["certificate"].update(tokenizer_digest="0" * 64),
    )


def swapped_ids(made: Project, _: pytest.MonkeyPatch) -> None:
    def swap(ids: NDArray[Any]) -> None:
        keep = ids == ids[-1]
        moved = np.where(keep, ids, (ids + 1) % 4000)
        ids[:] = moved

    edit_ids(shard(made, "tokens.bin"), swap)


def zero_hole(made: Project, _: pytest.MonkeyPatch) -> None:
    for path in (shard(made, "tokens.bin"), combined(made, f"{SPLIT}.bin")):
        edit_ids(path, lambda ids: ids.__setitem__(slice(64, len(ids) // 2), 0))


def flip_combined(made: Project, _: pytest.MonkeyPatch) -> None:
    flip_byte(combined(made, f"{SPLIT}.bin"))


def wrong_total(made: Project, _: pytest.MonkeyPatch) -> None:
    edit_receipt(combined(made, "receipt.json"), lambda r: r["ledger"].update(tokens=1))


def forgotten_source(made: Project, _: pytest.MonkeyPatch) -> None:
    edit_receipt(shard(made, "receipt.json"), lambda r: r.update(sources=[]))


def other_meta(made: Project, _: pytest.MonkeyPatch) -> None:
    edit_json(combined(made, "meta.json"), lambda m: m.update(vocab_size=32000))


def shifted_bytes(made: Project, _: pytest.MonkeyPatch) -> None:
    path = combined(made, f"{SPLIT}.bin")
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(b"\0" + data[:-1])


def constant_stream(made: Project, _: pytest.MonkeyPatch) -> None:
    edit_ids(combined(made, f"{SPLIT}.bin"), lambda ids: ids.__setitem__(slice(None), 7))


def unknown_everywhere(made: Project, _: pytest.MonkeyPatch) -> None:
    edit_receipt(shard(made, "receipt.json"), lambda receipt: receipt["ledger"].update(unknown_tokens=1_000))


def flip_view(view: str, name: str) -> Fault:
    return lambda made, _: flip_byte(made.directory(f"{view}_bins") / name)


def cut_sidecar(view: str, name: str) -> Fault:
    def cut(made: Project, _: pytest.MonkeyPatch) -> None:
        path = made.directory(f"{view}_bins") / name
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data[:-3])

    return cut


def other_card(change: Callable[[dict[str, Any]], Any]) -> Fault:
    return lambda made, _: edit_json(made.directory("data_card") / "croissant.json", change)


FAULTS: dict[tuple[str, str], Fault] = {
    ("manifest", "count_matches_source"): add_source_file,
    ("manifest", "entries_resolve"): lose_source_file,
    ("manifest", "plan_covers_manifest"): shift_plan,
    ("token_bins", "no_retracted_document"): retract_first_document,
    ("combined_bins", "no_retracted_document"): retract_first_document,
    ("engine_certificate", "engine_unchanged"): other_engine_version,
    ("engine_certificate", "fast_engine_accepted"): refused_class,
    ("engine_certificate", "separator_ends_documents"): chat_turn_separator,
    ("snapshot", "digests_match"): flip_source,
    ("snapshot", "disk_headroom"): full_disk,
    ("token_bins", "files_intact"): flip_shard,
    ("token_bins", "ledger_balances"): unbalanced,
    ("token_bins", "size_matches"): truncate_shard,
    ("token_bins", "ids_in_vocabulary"): foreign_id,
    ("token_bins", "separators_match_documents"): lost_separator,
    ("token_bins", "engine_certified"): foreign_certificate,
    ("token_bins", "round_trip"): swapped_ids,
    ("token_bins", "losses_within_limit"): unknown_everywhere,
    ("token_bins", "looks_like_text"): zero_hole,
    ("combined_bins", "matches_shards"): flip_combined,
    ("combined_bins", "totals_match"): wrong_total,
    ("combined_bins", "sources_complete"): forgotten_source,
    ("combined_bins", "meta_matches"): other_meta,
    ("combined_bins", "labels_aligned"): shifted_bytes,
    ("combined_bins", "random_batches_load"): constant_stream,
    ("combined_bins", "looks_like_text"): zero_hole,
    ("combined_bins", "disk_headroom"): full_disk,
    ("nanogpt_bins", "matches_combined_bins"): flip_view("nanogpt", "val.bin"),
    ("nanogpt_bins", "no_retracted_document"): retract_first_document,
    ("nanogpt_bins", "layout_valid"): cut_sidecar("nanogpt", "meta.pkl"),
    ("megatron_bins", "matches_combined_bins"): flip_view("megatron", "val.bin"),
    ("megatron_bins", "no_retracted_document"): retract_first_document,
    ("megatron_bins", "layout_valid"): cut_sidecar("megatron", "val.idx"),
    ("datatrove_bins", "matches_combined_bins"): flip_view("datatrove", "val/val.ds"),
    ("datatrove_bins", "no_retracted_document"): retract_first_document,
    ("datatrove_bins", "layout_valid"): cut_sidecar("datatrove", "val/val.ds.index"),
    ("olmo_bins", "matches_combined_bins"): flip_view("olmo", "val.npy"),
    ("olmo_bins", "no_retracted_document"): retract_first_document,
    ("olmo_bins", "layout_valid"): cut_sidecar("olmo", "val_index.json"),
    ("data_card", "card_matches_receipts"): other_card(lambda card: card["distribution"][0].update(contentSize="1 B")),
}


def test_every_check_has_a_planted_fault(finished: Project) -> None:
    declared = {
        (spec.name, key.name) for spec in finished.specs if spec.checks for key in build_checks(spec).check_keys
    }
    assert declared == set(FAULTS)


@pytest.mark.parametrize(("artifact", "name"), list(FAULTS), ids=lambda part: str(part))
def test_the_check_fails_on_its_fault(
    copied: Project, monkeypatch: pytest.MonkeyPatch, artifact: str, name: str
) -> None:
    FAULTS[artifact, name](copied, monkeypatch)
    evaluations = {e.check_name: e for e in evaluated(select_val(copied, artifact), copied.storage)}
    assert name in evaluations
    assert not evaluations[name].passed
    assert evaluations[name].description


def select_val(made: Project, artifact: str) -> list[ArtifactSpec]:
    """Return the specs of an artifact, of the split `val` if it has splits."""
    return [spec for spec in made.specs if spec.name == artifact and spec.split != "test"]


def run_checks(made: Project, artifact: str) -> dict[str, dg.AssetCheckEvaluation]:
    """Run only the checks of one artifact (of the split `val`) in Dagster."""
    wanted = [build_checks(spec) for spec in select_val(made, artifact)]
    job = dg.define_asset_job("checks", selection=dg.AssetSelection.checks(*wanted))
    definitions = dg.Definitions.merge(made.definitions, dg.Definitions(jobs=[job]))
    outcome = definitions.resolve_job_def("checks").execute_in_process(
        instance=made.instance,
        raise_on_error=False,
        run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
    )
    assert outcome.success or any(not e.passed for e in outcome.get_asset_check_evaluations()), [
        str(e.step_failure_data.error)[:2000] for e in outcome.all_events if e.is_step_failure
    ]
    return {e.check_name: e for e in outcome.get_asset_check_evaluations()}


def test_a_damaged_receipt_fails_every_check_of_its_artifact(copied: Project) -> None:
    edit_json(combined(copied, "receipt.json"), lambda receipt: receipt.update(key="0" * 64))
    evaluations = run_checks(copied, "combined_bins")
    assert len(evaluations) == 9
    assert not any(e.passed for e in evaluations.values())
    assert all("the receipt was changed or is damaged (digest" in str(e.description) for e in evaluations.values())


def test_a_plan_that_lacks_a_split_of_the_manifest_is_reported(copied: Project) -> None:
    def change(plan: dict[str, Any]) -> None:
        plan["vaval-00000"] = plan.pop("val-00000")

    edit_json(copied.directory("manifest") / "shard_plan.json", change)
    evaluation = run_checks(copied, "manifest")["plan_covers_manifest"]
    assert not evaluation.passed
    assert_names(str(evaluation.description) + str(evaluation.metadata), "val")


def test_a_plan_with_a_shard_without_files_is_reported_by_every_check(copied: Project) -> None:
    edit_json(copied.directory("manifest") / "shard_plan.json", lambda plan: plan.update({"train-00000": [1, 1]}))
    evaluation = run_checks(copied, "manifest")["plan_covers_manifest"]
    assert not evaluation.passed
    assert_names(str(evaluation.description), "train-00000")


def test_a_failed_shard_blocks_work_that_would_be_wasted(copied: Project) -> None:
    os.environ.pop("DATAPREP_WORKERS", None)
    foreign_id(copied, pytest.MonkeyPatch())
    evaluations = run_checks(copied, "token_bins")
    assert evaluations["ids_in_vocabulary"].severity == dg.AssetCheckSeverity.ERROR
    assert [name for name, evaluation in evaluations.items() if not evaluation.blocking] == [
        "losses_within_limit",
        "looks_like_text",
    ]
