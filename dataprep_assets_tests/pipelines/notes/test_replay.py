"""Combinations keep every byte, record its origin, and refuse incompatible sources."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.engine.card.card import DATA_CARD
from dataprep_assets.engine.staleness.status import find_stale
from dataprep_assets.errors import ConfigError, IntegrityError, MissingArtifactError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.notes.component import CombinedCohorts
from dataprep_assets.pipelines.notes.replay.replay import (
    build_combined_directory_spec,
    build_replay,
    find_mixture_losses,
)
from dataprep_assets.pipelines.notes.replay.replay_declaration import MixtureDeclaration
from dataprep_assets.pipelines.notes.tfds.provenance import PROVENANCE, ShardOrigin, read_provenance
from dataprep_assets.pipelines.notes.tfds.virtual_mixture import BUILDER_DIRECTORIES, GRAIN_MIXTURE, HF_CARD, is_for_hf
from dataprep_assets_tests.engine.found import run_checks
from dataprep_assets_tests.formats.shard_reader import read_directory
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.notes.clinic import note, patient, plain, written
from dataprep_assets_tests.pipelines.notes.pipeline import run_notes
from dataprep_assets_tests.readers.hf_datasets import rows_of

SOURCES = ("finetune", "replay", "identified_notes")


def source(folder: Path, name: str, people: int = 10, **changes: Any) -> None:
    """Build the dataset `name` of one month below `folder / "out"`."""
    records = [patient(f"{name}{i}", note(f"{name} number {i}, tea at {i} o'clock " * 2)) for i in range(people)]
    declared = plain(written(folder / name, {"2010-01": records}), **({"dataset": name, "rows_per_shard": 1} | changes))
    assert not run_notes(declared, folder / "out").failed


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay")
    for name, people in zip(SOURCES, (6, 24, 12), strict=True):
        source(folder, name, people)
    return folder / "out"


def combined(**changes: Any) -> MixtureDeclaration:
    declared = {"dataset": "notes_replay_combined", "sources": [{"dataset": name} for name in SOURCES]}
    return MixtureDeclaration.model_validate(declared | changes)


def origins(root: Path) -> list[ShardOrigin]:
    place = root / "notes_replay_combined" / "tfds_directory"
    return [origin for _, origin in read_provenance(place / PROVENANCE)["train"]]


def test_rows_that_the_weights_omit_are_losses(built: Path) -> None:
    weights = [{"dataset": name, "weight": 1} for name in SOURCES]
    declared, store = combined(mode="weighted", sources=weights, tolerance=0.2), LocalArtifacts(built)
    receipt, _ = build_replay(declared, store)
    losses = {loss.part: loss for loss in find_mixture_losses(declared, store, [receipt]) if loss.count}
    assert {(loss.action, loss.reason, loss.unit) for loss in losses.values()} == {("left out", "weight", "row")}
    taken = {origin.sha256 for origin in origins(built)}
    rows = {
        name: sum(
            origin.rows
            for _, origin in read_provenance(built / name / "tfds_directory" / PROVENANCE)["train"]
            if origin.sha256 not in taken
        )
        for name in SOURCES
    }
    assert {name: loss.count for name, loss in losses.items()} == {name: count for name, count in rows.items() if count}
    assert 0 < losses["replay"].count < losses["replay"].of


def test_concat_joins_the_sources_in_declared_order_byte_for_byte(built: Path) -> None:
    receipt, _ = build_replay(combined(mode="concat"), LocalArtifacts(built))
    place = built / "notes_replay_combined" / "tfds_directory"
    where = place / "notes_replay_combined" / "1.0.0"
    info = read_directory(where)
    names = info.list_shard_names(info.splits[0])
    assert names[0] == f"notes_replay_combined-train.tfrecord-00000-of-{len(names):05d}"
    sources = [built / name / "tfds_directory" / name / "1.0.0" for name in SOURCES]
    wanted = [path for source in sources for path in sorted(source.glob("*-of-*"))]
    assert all(os.path.samefile(where / name, path) for name, path in zip(names, wanted, strict=True))
    assert [origin.dataset for origin in origins(built)] == [path.parts[-3] for path in wanted]
    assert receipt.facts["splits"]["train"]["rows"] == sum(info.splits[0].shard_lengths)


def test_interleaving_keeps_every_shard_once_and_the_mixture_in_every_prefix(built: Path) -> None:
    build_replay(combined(mode="concat"), LocalArtifacts(built))
    concatenated = Counter(origin.sha256 for origin in origins(built))
    build_replay(combined(seed=3), LocalArtifacts(built))
    found = origins(built)
    assert Counter(origin.sha256 for origin in found) == concatenated
    total = Counter(origin.dataset for origin in found)
    for stop in range(1, len(found) + 1):
        here = Counter(origin.dataset for origin in found[:stop])
        for name in SOURCES:
            assert abs(here[name] - total[name] * stop / len(found)) <= 1.5
    build_replay(combined(seed=4), LocalArtifacts(built))
    assert [o.sha256 for o in origins(built)] != [o.sha256 for o in found]
    build_replay(combined(seed=3), LocalArtifacts(built))
    assert origins(built) == found


def test_weights_are_realized_by_repeating_and_omitting_shards(built: Path) -> None:
    weights = [{"dataset": name, "weight": w} for name, w in zip(SOURCES, (2, 1, 1), strict=True)]
    receipt, _ = build_replay(combined(mode="weighted", sources=weights, tolerance=0.05), LocalArtifacts(built))
    found = origins(built)
    rows = Counter({name: sum(o.rows for o in found if o.dataset == name) for name in SOURCES})
    for name, share in zip(SOURCES, (0.5, 0.25, 0.25), strict=True):
        assert abs(rows[name] / rows.total() - share) <= 0.05
        assert receipt.facts["shares"]["train"][name]["rows"] == rows[name]
    assert max(o.repeat for o in found if o.dataset == "finetune") >= 1
    assert len({(o.sha256, o.repeat) for o in found}) == len(found)
    where = built / "notes_replay_combined" / "tfds_directory" / "notes_replay_combined" / "1.0.0"
    assert read_directory(where).splits[0].rows == rows.total()


def test_weights_that_whole_shards_cannot_realize_are_refused_with_numbers(built: Path) -> None:
    weights = [{"dataset": name, "weight": w} for name, w in zip(SOURCES, (1, 1000, 1), strict=True)]
    with raises(ConfigError, "rows_per_shard"):
        build_replay(combined(mode="weighted", sources=weights, tolerance=0.0001), LocalArtifacts(built))


def test_a_virtual_mixture_describes_the_mixing_and_writes_no_shard(built: Path) -> None:
    receipt, _ = build_replay(combined(mode="virtual"), LocalArtifacts(built))
    assert [f.path for f in receipt.files] == [BUILDER_DIRECTORIES, PROVENANCE]
    place = built / "notes_replay_combined" / "tfds_directory"
    for path in json.loads((place / BUILDER_DIRECTORIES).read_text()):
        assert read_directory(Path(path)).splits[0].rows > 0


def test_grain_accepts_a_virtual_mixture_of_array_records(tmp_path: Path) -> None:
    pytest.importorskip("array_record")
    for name in SOURCES[:2]:
        source(tmp_path, name, formats=["array_record"])
    declared = combined(
        mode="virtual",
        format="array_record",
        sources=[{"dataset": "finetune", "weight": 3}, {"dataset": "replay", "weight": 1}],
    )
    build_replay(declared, LocalArtifacts(tmp_path / "out"))
    place = tmp_path / "out" / "notes_replay_combined" / "array_record_directory"
    mixture = json.loads((place / GRAIN_MIXTURE).read_text())
    assert {name: entry["weight"] for name, entry in mixture.items()} == {"finetune": 0.75, "replay": 0.25}
    for entry in mixture.values():
        assert list(Path("/").glob(entry["path"].lstrip("/")))


def test_a_virtual_mixture_for_hf_reads_the_json_lines_of_its_sources(tmp_path: Path) -> None:
    for name in SOURCES[:2]:
        source(tmp_path, name, people=3, layout="unpacked", pipeline="hf")
    sources = [{"dataset": "replay"}, {"dataset": "finetune"}]
    store, mix = LocalArtifacts(tmp_path / "out"), combined(mode="virtual", sources=sources)
    build_replay(mix, store)
    lines = [tmp_path / "out" / of["dataset"] / "packed_cohorts" / "2010-01" / "2010-01.jsonl" for of in sources]
    wanted = [json.loads(line)["tokens"] for path in lines for line in path.read_text().splitlines()]
    place = tmp_path / "out" / "notes_replay_combined" / "tfds_directory"
    assert rows_of(place, "train", "tokens", tmp_path / "cache") == wanted
    assert len(wanted) == 9
    line = CombinedCohorts(mix).describe_trainers(store)[-1]
    assert f"dataset_type=hf hf_path={place} train_split=train max_target_length=32 " in line
    assert " packing=False " in line
    spec = build_combined_directory_spec(mix)
    assert {name: f.summary for name, f in run_checks(spec, store).items() if not f.passed} == {}
    card = place / HF_CARD
    card.chmod(0o644)
    card.write_text(card.read_text().replace("finetune/", "fine/"))
    assert not run_checks(spec, store)["files_intact"].passed
    weighed = [of | {"weight": 1} for of in sources]
    assert not is_for_hf(combined(mode="virtual", sources=weighed, format="array_record"), "hf"), "it knows no weights"


@pytest.mark.parametrize(
    ("pipeline", "format", "wanted"),
    [
        ("tfds", "tfrecord", {"dataset_type": "tfds", "train_split": "train", "packing": "True"}),
        ("grain", "tfrecord", {"dataset_type": "grain", "grain_file_type": "tfrecord", "packing": "False"}),
        ("grain", "array_record", {"dataset_type": "grain", "grain_file_type": "arrayrecord", "packing": "False"}),
        # The settings name `tfds`, because the pipeline `hf` does not read a directory of shards.
        ("hf", "tfrecord", {"dataset_type": "tfds", "train_split": "train", "packing": "True"}),
    ],
)
def test_the_settings_of_a_mixture_include_the_tokenizer_of_its_sources(
    pipeline: str, format: str, wanted: dict[str, str], tmp_path: Path
) -> None:
    source(tmp_path, "finetune", layout="unpacked", pipeline=pipeline, formats=["tfrecord", "array_record"])
    mix = combined(sources=[{"dataset": "finetune"}], format=format)
    store, component = LocalArtifacts(tmp_path / "out"), CombinedCohorts(mix)
    build_replay(mix, store)
    assert "tokenizer_path=<folder of" in component.describe_trainers(store)[0], "nothing is declared beside"
    for name, attributes in (
        ("broken", "attributes: ["),
        ("mix", ""),
        ("ours", "type: x\nattributes: {dataset: finetune, tokenizer: {path: ../bpe}}"),
    ):
        (tmp_path / "defs" / name).mkdir(parents=True)
        (tmp_path / "defs" / name / "defs.yaml").write_text(attributes)
    component.folder = tmp_path / "defs" / "mix"
    said, line = component.describe_trainers(store)[0].split(": ", 1)
    assert said == "MaxText"
    tokenizer = {"tokenizer_type": "huggingface", "tokenizer_path": str(tmp_path / "defs" / "bpe")}
    shared = {"train_data_columns": "['tokens']", "tokenize_train_data": "False", "max_target_length": "32"}
    settings = dict(setting.split("=", 1) for setting in line.split(" "))
    assert wanted | shared | tokenizer == {name: settings[name] for name in (*wanted, *shared, *tokenizer)}
    shown = component.specs[0].metadata(store, store.require(component.product(store)))["maxtext"]
    assert line in str(shown)


@pytest.mark.parametrize(
    ("changes", "mode", "split"),
    [
        ({}, "concat", "eval_split"),
        ({"layout": "unpacked"}, "concat", "eval_split"),
        ({"layout": "unpacked", "pipeline": "hf"}, "virtual", "hf_eval_split"),
    ],
)
def test_the_settings_of_a_mixture_name_its_second_split_for_evaluation(
    changes: dict[str, Any], mode: str, split: str, tmp_path: Path
) -> None:
    source(tmp_path, "finetune", 20, splits={"train": 0.5, "val": 0.5}, **changes)
    mix = combined(sources=[{"dataset": "finetune"}], splits=["train", "val"], mode=mode)
    store = LocalArtifacts(tmp_path / "out")
    build_replay(mix, store)
    line, evaluation = CombinedCohorts(mix).describe_trainers(store)
    assert evaluation.startswith("to evaluate on val, add, e.g., eval_interval=1000 eval_steps=10")
    settings = dict(setting.split("=", 1) for setting in line.split(" ") if "=" in setting)
    assert {"train_split": "train", split: "val"}.items() <= settings.items()
    assert settings.get("eval_dataset_name") == settings.get("dataset_name")
    assert ("eval_data_columns" in settings) is ("layout" in changes)


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"row_length": 64}, ("row_length", 64, 32)),
        ({"targets": True}, ("columns",)),
        ({"pad": {"id": 0, "may_occur": True}}, ("pad_id", 0)),
        ({"layout": "unpacked"}, ("layout", "unpacked")),
    ],
)
def test_incompatible_sources_are_refused_with_the_difference(
    changes: dict[str, Any], values: tuple[object, ...], tmp_path: Path
) -> None:
    source(tmp_path, "finetune")
    source(tmp_path, "replay", **changes)
    with raises(IntegrityError, *values):
        build_replay(
            combined(sources=[{"dataset": "finetune"}, {"dataset": "replay"}]), LocalArtifacts(tmp_path / "out")
        )


def test_another_tokenizer_is_refused(tmp_path: Path, shared: Path) -> None:
    source(tmp_path, "finetune")
    other = {"path": shared / "tokenizers" / "qwen3", "engine": "fastokens"}
    source(tmp_path, "replay", tokenizer=other, pad={"id": 4095, "may_occur": True})
    with raises(IntegrityError, "tokenizer"):
        build_replay(
            combined(sources=[{"dataset": "finetune"}, {"dataset": "replay"}]), LocalArtifacts(tmp_path / "out")
        )


def test_a_shard_in_two_sources_is_refused(tmp_path: Path) -> None:
    people = [patient("a", note("the same tea"))]
    for name in SOURCES[:2]:
        assert not run_notes(
            plain(written(tmp_path / name, {"2010-01": people}), dataset=name), tmp_path / "out"
        ).failed
    with raises(IntegrityError, "finetune", "replay"):
        build_replay(
            combined(sources=[{"dataset": "finetune"}, {"dataset": "replay"}]), LocalArtifacts(tmp_path / "out")
        )


def test_missing_sources_and_splits_are_named(built: Path) -> None:
    with raises(MissingArtifactError, "nobody/tfds_directory"):
        build_replay(combined(sources=[{"dataset": "nobody"}]), LocalArtifacts(built))
    with raises(ConfigError, "val"):
        build_replay(combined(splits=["train", "val"]), LocalArtifacts(built))


def directory_specs(replay: MixtureDeclaration) -> list[ArtifactSpec]:
    """Return the artifacts of a combination except its card."""
    return [spec for spec in CombinedCohorts(replay).specs if spec.name != DATA_CARD]


def test_a_combination_is_stale_when_a_source_is_rebuilt(tmp_path: Path) -> None:
    for name in SOURCES:
        source(tmp_path, name)
    store = LocalArtifacts(tmp_path / "out")
    specs = directory_specs(combined())
    assert [str(one) for one in find_stale(specs, store)] == ["notes_replay_combined/tfds_directory: missing"]
    build_replay(combined(), store)
    assert list(find_stale(specs, store)) == []
    assert build_replay(combined(), store)[1]
    source(tmp_path, "replay", people=5)
    (one,) = find_stale(specs, store)
    assert str(one) == "notes_replay_combined/tfds_directory: its input changed: replay:tfds_directory"
    changed = combined(seed=7, sources=[{"dataset": SOURCES[0]}, {"dataset": SOURCES[2]}])
    (one,) = find_stale(directory_specs(changed), store)
    assert one.kind == "input changed"
    (one,) = find_stale(directory_specs(combined(splits=["val"])), store)
    assert "no split val" in one.reason
