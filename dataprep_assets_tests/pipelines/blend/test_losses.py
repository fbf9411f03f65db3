"""The end of `dataprep run`, and `dataprep show`, say what a blend lost: the command, in a project of another name."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from dataprep_assets_tests.cli.commands import dataprep
from dataprep_assets_tests.pipelines.blend.pipeline import text_of, write_rows
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer
from dataprep_assets_tests.tokenization.chat.trap import QWEN

BAD: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]},
    {"messages": [{"role": "user", "content": "a"}]},
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]},
]


def _chat(name: str, count: int) -> list[dict[str, Any]]:
    return [
        {"messages": [{"role": "user", "content": f"{name} {i}?"}, {"role": "assistant", "content": text_of(name, i)}]}
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of `dataprep init`."""
    folder = tmp_path_factory.mktemp("losses")
    made = dataprep(folder, "init", str(folder / "harbour-lights"), project=folder)
    assert made.returncode == 0, made.stderr
    return folder / "harbour-lights"


def _declare(project: Path, name: str, **attributes: Any) -> None:
    declared = {"type": "dataprep_assets.components.TrainingBlend", "attributes": {"dataset": name, **attributes}}
    (path := project / "harbour_lights" / "defs" / name / "defs.yaml").parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(declared))


def _told(project: Path, name: str) -> list[str]:
    """The lines on losses at the end of the run, which are those of `show`."""
    ran = dataprep(project.parent, "run", name, project=project)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    shown = dataprep(project.parent, "show", name, project=project)
    said = [
        [line for line in out.splitlines() if line.startswith(("lost", "turns"))] for out in (ran.stdout, shown.stdout)
    ]
    assert said[0] == said[1]
    return said[0]


def test_of_chat_data_in_rows_sequences_and_shards(project: Path) -> None:
    sources = project / "sources"
    write_rows(sources / "big.jsonl", [*_chat("big", 77), *BAD])
    write_rows(sources / "small.jsonl", _chat("small", 20))
    write_chat_tokenizer(project / "tokenizer")
    (project / "style.jinja").write_text(QWEN)
    _declare(
        project,
        "tides",
        stage="sft",
        blend={"datasets": [{"name": n, "path": str(sources / f"{n}.jsonl")} for n in ("big", "small")]},
        tokenizer={"path": str(project / "tokenizer"), "engine": "tokenizers"},
        sft={"pack_size": 96, "chat_template": str(project / "style.jinja")},
        num_shards=8,
        tolerance=0.1,
        bad_records={"policy": "drop", "budget": 0.1},
    )
    rows, *others, turns = _told(project, "tides")
    assert rows == "lost of big: 3 of 80 rows dropped (3.8 %): 2 empty_after_masking, 1 empty_assistant"
    assert turns == "turns: always: as the template wants it"
    kinds = r"lost of (big|small): [\d,]+ of (77 sequences cut to `pack_size: 96`|20 sequences cut to `pack_size: 96`|"
    kinds += r"8 shards left out to meet the weights: [\d,]+ of [\d,]+ packed rows)"
    assert all(re.fullmatch(rf"{kinds} \([\d.]+ %\)", line) for line in others), others
    assert any("left out to meet the weights" in line and line.startswith("lost of big") for line in others)
    assert any("cut to `pack_size" in line for line in others)


def test_of_records_and_of_texts_of_which_nothing_is_lost(project: Path) -> None:
    rows = [{"text": "one"}, {"text": "two"}]
    path = write_rows(project / "sources" / "texts.jsonl", rows)
    assert json.loads(path.read_text().splitlines()[0]) == rows[0]
    _declare(
        project,
        "records",
        stage="rl",
        blend={"train": [{"name": "a", "path": str(path)}]},
        rl={"transforms": ["passthrough"]},
    )
    assert _told(project, "records") == ["lost: nothing of 2 rows"]
