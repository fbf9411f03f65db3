"""Every check of a release's shards and of its publication fails on a planted fault."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import numpy as np
import pytest

from dataprep_assets.orchestration import checks
from dataprep_assets.serving.window.release import locate_release
from dataprep_assets_tests.faults.edits import edit_receipt, flip_byte
from dataprep_assets_tests.pipelines.release.release_project import (
    LENGTH,
    ReleaseProject,
    release_attributes,
    release_project,
)
from dataprep_assets_tests.project import evaluated
from dataprep_assets_tests.serving.releases import make_release, publish

Fault = Callable[[ReleaseProject, pytest.MonkeyPatch], None]
SHARD = "val_000000"
WARNINGS = {"samples_unique", "no_orphans"}


def attributes(folder: Path) -> dict[str, object]:
    return release_attributes(str(folder / "public"), tokens_per_shard=8192 * LENGTH)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReleaseProject]:
    folder = tmp_path_factory.mktemp("finished")
    with release_project(attributes(folder), folder) as made:
        made.run_all()
        yield made


@pytest.fixture
def copied(finished: ReleaseProject, tmp_path: Path) -> Iterator[ReleaseProject]:
    for name in ("artifacts", "public"):
        shutil.copytree(finished.root.parent / name, tmp_path / name)
    with release_project(attributes(tmp_path), tmp_path) as made:
        yield made


def ids_of(made: ReleaseProject) -> Path:
    return made.npy(SHARD).with_name("sample_ids_000000.bin")


def public(made: ReleaseProject, name: str) -> Path:
    return made.root.parent / "public" / name


def flip_shard(made: ReleaseProject, _: pytest.MonkeyPatch) -> None:
    flip_byte(made.npy(SHARD))


def wider_ids(made: ReleaseProject, _: pytest.MonkeyPatch) -> None:
    """Replace a shard by one with another dtype than the others (docs/formats/npy-shards.md#layout)."""
    np.save(made.npy(SHARD), np.load(made.npy(SHARD)).astype("<u2"))


def reversed_samples(made: ReleaseProject, _: pytest.MonkeyPatch) -> None:
    """Reverse samples with their ids, so that only the order differs from the stream."""
    tokens = np.load(made.npy(SHARD)).reshape(-1, LENGTH)
    np.save(made.npy(SHARD), tokens[::-1].reshape(-1))
    np.fromfile(ids_of(made), "<u8")[::-1].tofile(ids_of(made))


def uncounted_tail(made: ReleaseProject, _: pytest.MonkeyPatch) -> None:
    edit_receipt(
        made.npy(SHARD).with_name("receipt.json"),
        lambda r: r["facts"].update(tail_dropped_tokens=r["facts"]["tail_dropped_tokens"] + 1),
    )


def repeated_ids(made: ReleaseProject, _: pytest.MonkeyPatch) -> None:
    ids = np.fromfile(ids_of(made), "<u8")
    ids[: len(ids) // 2] = ids[0]
    ids.tofile(ids_of(made))


def listed_document(made: ReleaseProject, _: pytest.MonkeyPatch) -> None:
    """Put a document on the retraction list without a rebuild."""
    (bins,) = (made.root / made.corpus.dataset / "token_bins").glob("val-00000")
    first = int(np.fromfile(bins / "document_ids.bin", "<u8")[0])
    assert made.corpus.retractions is not None
    made.corpus.retractions.write_text(f'{{"hash": "{first:016x}", "of": "text"}}\n')


def another_release(made: ReleaseProject, _: pytest.MonkeyPatch) -> None:
    shutil.rmtree(public(made, ""))
    publish(make_release(made.root.parent / "other"), made.root.parent / "other", locate_release(public(made, "")))


def flip_published(made: ReleaseProject, _: pytest.MonkeyPatch) -> None:
    flip_byte(public(made, "train_000001.npy"))


def headerless(made: ReleaseProject, _: pytest.MonkeyPatch) -> None:
    path = public(made, "val/val_000000.npy")
    path.write_bytes(path.read_bytes()[128:])


def orphan(made: ReleaseProject, _: pytest.MonkeyPatch) -> None:
    shutil.copy(public(made, "train_000000.npy"), public(made, "train_000007.npy"))


FAULTS: dict[tuple[str, str], Fault] = {
    ("npy_shards", "files_intact"): flip_shard,
    ("npy_shards", "format_valid"): wider_ids,
    ("npy_shards", "matches_stream"): reversed_samples,
    ("npy_shards", "tokens_accounted"): uncounted_tail,
    ("npy_shards", "no_retracted_document"): listed_document,
    ("npy_shards", "samples_unique"): repeated_ids,
    ("published_shards", "manifest_published"): another_release,
    ("published_shards", "remote_matches_local"): flip_published,
    ("published_shards", "remote_readable"): headerless,
    ("published_shards", "no_orphans"): orphan,
}


def checks_of(made: ReleaseProject) -> dict[str, dg.AssetChecksDefinition]:
    return {name: checks.build_checks(made.component.spec(name)) for name in ("npy_shards", "published_shards")}


def run_checks(made: ReleaseProject, artifact: str) -> dict[str, dg.AssetCheckEvaluation]:
    """Run the checks of one asset on the current artifacts."""
    return {e.check_name: e for e in evaluated([made.component.spec(artifact)], made.storage)}


def test_every_check_has_a_planted_fault_and_passes_without_it(finished: ReleaseProject) -> None:
    declared = {
        (artifact, key.name): artifact for artifact, made in checks_of(finished).items() for key in made.check_keys
    }
    assert declared.keys() == FAULTS.keys()
    for artifact in ("npy_shards", "published_shards"):
        evaluations = run_checks(finished, artifact)
        assert {name: e.description for name, e in evaluations.items() if not e.passed} == {}
        assert {name for name, e in evaluations.items() if not e.blocking} == WARNINGS & set(evaluations)


@pytest.mark.parametrize(("artifact", "name"), list(FAULTS), ids=lambda part: str(part))
def test_the_check_fails_on_its_fault(
    copied: ReleaseProject, monkeypatch: pytest.MonkeyPatch, artifact: str, name: str
) -> None:
    FAULTS[artifact, name](copied, monkeypatch)
    evaluations = run_checks(copied, artifact)
    assert not evaluations[name].passed
    assert evaluations[name].description
    wanted = dg.AssetCheckSeverity.WARN if name in WARNINGS else dg.AssetCheckSeverity.ERROR
    assert evaluations[name].severity == wanted


@pytest.mark.parametrize("damage", ["gone", "receipt altered"])
def test_a_missing_shard_fails_its_own_checks_and_others_keep_their_verdicts(
    copied: ReleaseProject, damage: str
) -> None:
    receipt = copied.npy("train_000001").with_name("receipt.json")
    if damage == "gone":
        shutil.rmtree(receipt.parent)
    else:
        receipt.write_text(receipt.read_text().replace('"tokens"', '"tokenz"', 1))
    evaluations = run_checks(copied, "npy_shards")
    for name in ("files_intact", "matches_stream"):
        (row,) = evaluations[name].metadata["table"].records  # type: ignore[attr-defined]
        assert row.data["shard"] == "train_000001"
        assert evaluations[name].metadata["shards_failed"].value == 1
    assert run_checks(copied, "published_shards")["manifest_published"].passed is False


def test_a_verdict_on_one_shard_covers_all_shards(copied: ReleaseProject) -> None:
    flip_byte(copied.npy("train_000000"))
    assert not run_checks(copied, "npy_shards")["files_intact"].passed
    assert copied.plan().success
    outcome = copied.cut(["val_000000", "val_000000"])
    found = copied.checks(outcome)["files_intact"]
    assert not found.passed
    assert "train_000000" in str(found.description)
    assert copied.cut().success
    assert run_checks(copied, "npy_shards")["files_intact"].passed


def test_listing_the_checks_needs_no_credentials(copied: ReleaseProject, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("R2_", "AWS_"))]:
        monkeypatch.delenv(name)
    options = copied.corpus.release.model_copy(update={"publish": "s3://dataset/tokenized"})
    copied.corpus = copied.corpus.model_copy(update={"release": options})
    assert len(list(checks_of(copied)["published_shards"].check_keys)) == 4
