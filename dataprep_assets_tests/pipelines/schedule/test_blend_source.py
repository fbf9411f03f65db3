"""A blend as a source of a schedule: its datasets keep their weights, are read once per epoch, and are reported by file
and row.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.serving.sampler.simulation import simulate_reads
from dataprep_assets_tests.cli.commands import dataprep
from dataprep_assets_tests.pipelines.schedule.training_project import RUN, SCHEDULE, TrainingProject

pytestmark = pytest.mark.slow
BLEND, PARTS = "mixture", {"fables": range(1000, 1090), "sagas": range(2000, 2060)}
SOURCES = [{"dataset": BLEND, "blend": True, "split": "train", "weight": 3}, {"dataset": "tales", "weight": 1}]


def declare(project: TrainingProject, name: str, kind: str, attributes: dict[str, Any]) -> None:
    """Write the declaration of a dataset."""
    (project.defs / name).mkdir(exist_ok=True)
    value = {"type": f"dataprep_assets.components.{kind}", "attributes": {"dataset": name, **attributes}}
    (project.defs / name / "defs.yaml").write_text(json.dumps(value))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> TrainingProject:
    """Return a corpus, a blend of two files with one blank row, and a schedule of both."""
    made = TrainingProject(tmp_path_factory.mktemp("blended"))
    dataprep(made.folder, "init", str(made.root)).check_returncode()
    made.write_texts("train_0.jsonl", range(80))
    tokenizer = {"path": "../sample_corpus/tokenizer"}
    corpus = {"source": {"kind": "local", "path": "./texts"}, "include": ["*.jsonl"], "splits": {"train": ["*"]}}
    document = {"document": {"separator": "<|endoftext|>"}, "shards": {"count": 2}, "views": ["nanogpt"]}
    declare(made, "tales", "TokenizedCorpus", {**corpus, **document, "tokenizer": tokenizer})
    for part, numbers in PARTS.items():
        lines = ["\n".join([f"tale {number:06d} goes on"] * (5 + number % 40)) for number in numbers]
        lines.insert(3, "")
        (made.defs / BLEND).mkdir(exist_ok=True)
        rows = [json.dumps({"text": text}) + "\n" for text in lines]
        (made.defs / BLEND / f"{part}.jsonl").write_text("".join(rows))
    blend = {"datasets": [
        {"name": name, "path": f"{name}.jsonl", "weight": weight, "text_field": "text"}
        for name, weight in (("fables", 2.0), ("sagas", 1.0))
    ]}  # fmt: skip
    (made.defs / BLEND / "blend.json").write_text(json.dumps(blend))
    declared = {"stage": "pretrain", "blend": "./blend.json", "num_shards": 4, "held_out": {"valid": 1}}
    pretrain = {"separator": "<|endoftext|>", "sequence_length": 64}
    declare(made, BLEND, "TrainingBlend", {**declared, "tokenizer": tokenizer, "pretrain": pretrain})
    made.declare(sources=SOURCES)
    made("run", "tales", BLEND)
    made("run", RUN)
    return made


def test_the_datasets_divide_the_weight_of_their_blend(project: TrainingProject) -> None:
    data = project.data()
    read = {one.source: one for one in simulate_reads(data.sampler, data.steps)}
    assert {name: round(one.share, 3) for name, one in read.items()} == {
        f"{BLEND}/fables": 0.5, f"{BLEND}/sagas": 0.25, "tales": 0.25
    }  # fmt: skip
    listed = project("schedule", RUN).stdout
    assert all(f"{BLEND}/{part} " in listed for part in PARTS)
    assert "everything is up to date" in project("status", RUN).stdout
    assert project("verify", RUN).returncode == 0


def find_document(file: str, row: int) -> int:
    """Return the number of the document in a row; the fourth row is blank."""
    assert row != 4
    return PARTS[file.removesuffix(".jsonl")][row - 1 if row < 4 else row - 2]


def test_the_reads_of_a_step_are_reported_by_file_and_row(project: TrainingProject) -> None:
    data = project.data(boundaries=True)
    of_blend = 0
    for step in (0, 7, 200):
        batch = data.batch(step)
        hooked = project.told(batch)
        seen = [json.loads(line) for line in project("seen", RUN, "--step", str(step), "--json").stdout.splitlines()]
        for position in batch.positions.tolist():
            told = [one for one in seen if one["position"] == position]
            assert sum(one["tokens"] for one in told) == int((batch.document_ids[position] >= 0).sum())  # type: ignore[index]
            parts = {one["source"].partition("/")[2] for one in told}
            if parts == {""}:
                continue
            of_blend += 1
            assert {one["file"] for one in told} == {f"{part}.jsonl" for part in parts}
            assert set(hooked[position]) <= {find_document(one["file"], one["row"]) for one in told}
    assert of_blend >= 9


def test_an_epoch_reads_every_document_that_is_not_held_out_once(project: TrainingProject) -> None:
    data = project.data()
    source = data.schedule.revisions[0].source(f"{BLEND}/fables")
    assert source is not None
    assert {shard.name for shard in source.shards} < {f"fables-{number:05d}" for number in range(4)}
    read = {shard.content: np.zeros(shard.tokens, np.int64) for shard in source.shards}
    names = [one.name for one in data.schedule.revisions[0].sources]
    for step in range(data.steps):
        spans = data.sampler.find_step_spans(step, list(range(SCHEDULE["batch"])))
        for _, number, epoch, shard, start, stop in zip(*(column.tolist() for column in spans), strict=True):
            if names[number] == source.name and epoch == 0:
                read[source.shards[shard].content][start:stop] += 1
    assert all((counts == 1).all() for counts in read.values())


def test_a_document_of_a_blend_is_found_at_its_steps(project: TrainingProject) -> None:
    lines = project("seen", RUN, "--step", "0", "--json").stdout.splitlines()
    one = next(one for one in map(json.loads, lines) if one["source"] != "tales")
    told = project("seen", RUN, "--document", f"{one['file']}:{one['row']}").stdout
    assert f"step 0, sample {one['position']}" in told
    step, position = map(int, re.findall(r"step (\d+), sample (\d+)", told)[-1])
    batch = project.data(boundaries=True).sample(step, position)
    assert find_document(one["file"], one["row"]) in project.told(batch)[position]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"sources": [{"dataset": BLEND}]},
            "mixture: a TrainingBlend has no artifact `token_bins`. Set `blend: true` for a blend",
        ),
        (
            {"sources": [{"dataset": "tales", "blend": True}]},
            "tales: a TokenizedCorpus has no artifact `blend`. Remove `blend: true` from it",
        ),
        ({"sources": [{**SOURCES[0], "split": "test"}]}, "unknown split 'test'. Available: train, valid"),
        (
            {"sources": SOURCES, "megatron": {"tokenizer": {"class": "x"}}},
            "megatron: the blend mixture has no view `megatron`",
        ),
    ],
)
def test_incompatible_settings_are_reported(
    project: TrainingProject, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    other = project.defs / "other"
    other.mkdir()
    value = {"type": "dataprep_assets.components.TrainingSchedule", "attributes": {**SCHEDULE, "dataset": "other"}}
    value["attributes"] |= changes  # type: ignore[operator]
    (other / "defs.yaml").write_text(json.dumps(value))
    try:
        done = dataprep(project.folder, "run", "other", DATAPREP_PROJECT=str(project.root))
    finally:
        (other / "defs.yaml").unlink()
        other.rmdir()
    assert done.returncode == 2, done.stdout + done.stderr
    assert says in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("is_marked", [False, True])
def test_a_blend_of_another_stage_is_refused_with_its_stage_as_the_reason(
    project: TrainingProject, is_marked: bool
) -> None:
    records = {"datasets": [{"name": "tasks", "path": str(project.defs / BLEND / "fables.jsonl")}]}
    declare(project, "tasks", "TrainingBlend", {"stage": "rl", "blend": records, "rl": {"prompt": "text"}})
    sources = [{"dataset": "tasks", "blend": is_marked}]
    declare(project, "other", "TrainingSchedule", {**SCHEDULE, "dataset": "other", "sources": sources})
    try:
        done = dataprep(project.folder, "check", DATAPREP_PROJECT=str(project.root))
    finally:
        for name in ("tasks", "other"):
            (project.defs / name / "defs.yaml").unlink()
            (project.defs / name).rmdir()
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "tasks is a blend" in line or "has no artifact" in line]
    assert "`stage: pretrain`" in line
    assert "blend: true" not in line
