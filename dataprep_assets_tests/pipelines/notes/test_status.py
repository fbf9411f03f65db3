"""Stale artifacts of notes with their reasons, in build order; nothing if no build is needed."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.staleness.decide import Decision
from dataprep_assets.engine.staleness.status import find_stale, remove_leftovers
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.notes.cohorts import packed_cohort
from dataprep_assets.pipelines.notes.dataset import notes_specs
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets_tests.pipelines.corpus.pipeline import debris
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, plain, written
from dataprep_assets_tests.pipelines.notes.pipeline import SAMPLE, declaration, run_notes

MONTHS = ("2010-01", "2010-02")


def examined(notes: NotesDeclaration, store: LocalArtifacts) -> list[Decision]:
    return list(find_stale(notes_specs(notes), store))


def names(notes: NotesDeclaration, store: LocalArtifacts) -> list[str]:
    """Return the names of stale artifacts, without the dataset."""
    return [one.name.partition("/")[2] for one in examined(notes, store)]


def test_stale_artifacts_are_listed_in_build_order(tmp_path: Path) -> None:
    source = written(tmp_path / "in", {m: [patient(m, note(f"tea {m}"))] for m in MONTHS})
    notes, store = plain(source, MONTHS), LocalArtifacts(tmp_path / "out")
    packed, shards = ([f"{name}/{month}" for month in MONTHS] for name in ("packed_cohorts", "tfrecord_shards"))
    assert names(notes, store) == ["engine_certificate", *packed, *shards, "tfds_directory"]
    run_notes(notes, tmp_path / "out")
    assert names(notes, store) == []
    longer = plain(source, MONTHS, row_length=64)
    assert names(longer, store) == [*packed, *shards, "tfds_directory"]
    smaller = plain(source, MONTHS, rows_per_shard=2)
    assert names(smaller, store) == [*shards, "tfds_directory"]
    described = plain(source, MONTHS, description="tea")
    assert names(described, store) == ["tfds_directory"]


def test_a_changed_cohort_makes_only_its_month_stale(tmp_path: Path) -> None:
    source = tmp_path / "in"
    shutil.copytree(SAMPLE, source)
    notes = declaration(source)
    run_notes(notes, tmp_path / "out")
    people = json.loads((source / "2010-12.json").read_text())
    (source / "2010-12.json").write_text(json.dumps(people[:-1]))
    run = run_notes(notes, tmp_path / "out")
    assert run.built == [
        "engine_certificate",
        "packed_cohorts/2010-12",
        "tfrecord_shards/2010-12",
        "tfds_directory",
    ]


def test_a_later_month_joins_months_whose_tokenizer_had_another_name(tmp_path: Path) -> None:
    for name in ("before", "now"):
        shutil.copytree(SAMPLE.parents[1] / "sample_corpus" / "tokenizer", tmp_path / name)
    source = written(tmp_path / "in", {m: [patient(m, note(f"tea {m}"))] for m in MONTHS})
    run_notes(plain(source, MONTHS[:1], tokenizer={"path": tmp_path / "before"}), tmp_path / "out")
    notes = plain(source, MONTHS, tokenizer={"path": tmp_path / "now"})
    packed_shards = [f"{name}/{MONTHS[1]}" for name in ("packed_cohorts", "tfrecord_shards")]
    assert run_notes(notes, tmp_path / "out").built == ["engine_certificate", *packed_shards, "tfds_directory"]
    assert names(notes, LocalArtifacts(tmp_path / "out")) == []


def test_a_different_pipeline_repacks_the_rows(tmp_path: Path) -> None:
    source = written(tmp_path / "in", {m: [patient(m, note(f"tea {m}"))] for m in MONTHS})
    store = LocalArtifacts(tmp_path / "out")
    for pipeline in ("grain", "hf", "grain", "tfds"):
        notes = plain(source, MONTHS, layout="unpacked", pipeline=pipeline)
        assert {f"packed_cohorts/{month}" for month in MONTHS} < set(run_notes(notes, store.root).built)
        made = [notes.artifact("packed_cohorts", MONTHS[1]), notes.artifact("tfds_directory")]
        assert [store.require(artifact).facts["pipeline"] for artifact in made] == [pipeline, pipeline]


def test_a_damaged_file_makes_its_artifact_stale(tmp_path: Path) -> None:
    notes, store = declaration(), LocalArtifacts(tmp_path)
    run_notes(notes, tmp_path)
    path = next(store.directory(notes.artifact("packed_cohorts", "2011-01")).glob("*.parquet"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    found = examined(notes, store)
    assert [one.name for one in found if one.kind == "damaged"] == ["sample_notes/packed_cohorts/2011-01"]
    assert names(notes, store) == ["packed_cohorts/2011-01"], "it comes back as it was, so nothing follows"
    assert run_notes(notes, tmp_path).built == ["packed_cohorts/2011-01"]
    assert names(notes, store) == []


def test_sweeping_removes_leftovers_of_a_killed_run(tmp_path: Path) -> None:
    notes, store = declaration(), LocalArtifacts(tmp_path)
    run_notes(notes, tmp_path)
    left = store.directory(notes.artifact("packed_cohorts", "2011-01")).parent / ".staging" / f"2011-01-{'0' * 16}"
    left.mkdir()
    remove_leftovers(notes_specs(notes), store)
    assert debris(tmp_path) == []


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with cohorts of two months, `in`, and the dataset that was built from them, `out`."""
    folder = tmp_path_factory.mktemp("built")
    source = written(folder / "in", {m: [patient(m, note(f"tea {m}"))] for m in MONTHS})
    assert not run_notes(plain(source, MONTHS), folder / "out").failed
    return folder


@pytest.fixture
def copied(built: Path, tmp_path: Path) -> Path:
    shutil.copytree(built, tmp_path / "copy")
    return tmp_path / "copy"


def remove_receipt(folder: Path, _: pytest.MonkeyPatch) -> NotesDeclaration:
    (folder / "out" / "notes" / "packed_cohorts" / "2010-02" / "receipt.json").unlink()
    return plain(folder / "in", MONTHS)


def cut_a_file(folder: Path, _: pytest.MonkeyPatch) -> NotesDeclaration:
    path = folder / "out" / "notes" / "packed_cohorts" / "2010-02" / "2010-02.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    return plain(folder / "in", MONTHS)


def another_cohort(folder: Path, _: pytest.MonkeyPatch) -> NotesDeclaration:
    people = {month: [patient(month, note(f"tea {month}"))] for month in MONTHS}
    people["2010-02"].append(patient("new", note("cake")))
    return plain(written(folder / "in", people), MONTHS)


def a_month_without_its_file(folder: Path, _: pytest.MonkeyPatch) -> NotesDeclaration:
    (folder / "in" / "2010-02.json").unlink()
    return plain(folder / "in", MONTHS)


def longer_rows(folder: Path, _: pytest.MonkeyPatch) -> NotesDeclaration:
    return plain(folder / "in", MONTHS, row_length=64)


def another_key(folder: Path, _: pytest.MonkeyPatch) -> NotesDeclaration:
    return plain(folder / "in", MONTHS, patient_key={"public": "another key for fictional data alone"})


MADE = packed_cohort.VERSION


def newer_step(folder: Path, monkeypatch: pytest.MonkeyPatch) -> NotesDeclaration:
    monkeypatch.setattr(packed_cohort, "VERSION", MADE + 1)
    return plain(folder / "in", MONTHS)


def smaller_shards(folder: Path, _: pytest.MonkeyPatch) -> NotesDeclaration:
    return plain(folder / "in", MONTHS, rows_per_shard=2)


def another_version(folder: Path, _: pytest.MonkeyPatch) -> NotesDeclaration:
    return plain(folder / "in", MONTHS, tfds_version="2.0.0")


def another_engine(folder: Path, _: pytest.MonkeyPatch) -> NotesDeclaration:
    tokenizer = plain(folder / "in", MONTHS).tokenizer
    return plain(folder / "in", MONTHS, tokenizer=tokenizer.model_copy(update={"refuse": ("long",)}).model_dump())


Change = Callable[[Path, pytest.MonkeyPatch], NotesDeclaration]
PACKED, SHARDS = "packed_cohorts/2010-02", "tfrecord_shards/2010-02"
REASONS: dict[Change, tuple[str, str, str]] = {
    remove_receipt: (PACKED, "missing", "missing"),
    cut_a_file: (PACKED, "damaged", "damaged: 2010-02.jsonl"),
    another_cohort: ("engine_certificate", "input changed", "its source changed: sampled cohorts"),
    a_month_without_its_file: ("engine_certificate", "input changed", "its source changed: sampled cohorts"),
    longer_rows: (PACKED, "settings changed", "row_length was 32, now 64"),
    another_key: (PACKED, "input changed", "its source changed: patient_key"),
    newer_step: (PACKED, "older version", f"built by version {MADE} of this step; the current version is {MADE + 1}"),
    smaller_shards: (SHARDS, "settings changed", "rows_per_shard was 4, now 2"),
    another_version: ("tfds_directory", "settings changed", "tfds_version was 1.0.0, now 2.0.0"),
    another_engine: ("engine_certificate", "settings changed", "tokenizer.refuse was empty, now long"),
}


@pytest.mark.parametrize("change", REASONS, ids=lambda change: change.__name__)
def test_each_stale_artifact_has_a_reason(change: Change, copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = change(copied, monkeypatch)
    name, kind, reason = REASONS[change]
    found = {one.name: one for one in examined(notes, LocalArtifacts(copied / "out"))}
    first = found[f"notes/{name}"]
    assert (first.kind, first.reason[: len(reason)]) == (kind, reason)
    if kind == "damaged":  # the artifact is rebuilt with the same content, so nothing downstream changes
        assert found.keys() == {f"notes/{name}"}
    else:
        assert found["notes/tfds_directory"].kind in (kind, "input changed")


def test_a_month_without_its_file_has_a_changed_source_and_others_are_up_to_date(copied: Path) -> None:
    notes, store = plain(copied / "in", MONTHS), LocalArtifacts(copied / "out")
    (copied / "in" / "2010-02.json").unlink()
    recipes = list(notes_specs(notes)[1].recipes(store, MONTHS))
    changes = [recipe.find_change(store.require(recipe.artifact)) for recipe in recipes]
    assert changes[0] is None
    assert changes[1] is not None
    assert changes[1].reason == "its source changed: cohort"


def test_the_receipt_names_the_upstream_artifacts(copied: Path) -> None:
    """`verify` compares these names with the existing artifacts."""
    notes, store = plain(copied / "in", MONTHS), LocalArtifacts(copied / "out")
    shards = store.require(notes.artifact("tfrecord_shards", "2010-02"))
    packed = store.require(notes.artifact("packed_cohorts", "2010-02"))
    assert shards.recipe["upstream"] == {"packed_cohorts/2010-02": packed.content}
    directory = store.require(notes.artifact("tfds_directory"))
    assert directory.recipe["upstream"]["tfrecord_shards/2010-02"] == shards.content
    assert len(directory.recipe["upstream"]) == 4


def test_a_check_with_a_raised_version_is_examined_again(copied: Path) -> None:
    notes, store = plain(copied / "in", MONTHS, workers=1), LocalArtifacts(copied / "out")
    spec = notes_specs(notes)[1]

    def unexamined(spec: ArtifactSpec) -> object:
        """Return the cohorts without a verdict when a run examines only the first month."""
        return dict(spec.examine(store, MONTHS[:1]))["rows_valid"].facts["cohorts_not_checked_yet"]

    assert unexamined(spec) == 1
    assert all(finding.passed for _, finding in spec.examine(store, MONTHS))
    assert unexamined(spec) == 0
    (group,) = spec.check_groups
    stricter = tuple(replace(one, version=one.version + (one.name == "rows_valid")) for one in group.checks)
    assert unexamined(replace(spec, check_groups=(replace(group, checks=stricter),))) == 1
