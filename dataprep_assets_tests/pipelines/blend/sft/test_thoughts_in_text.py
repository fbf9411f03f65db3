"""Answers with a thought in their text, as one text or as text parts, packed by `dataprep run` with three template
styles.

The upstream behavior for such rows was found by running the original (`dataprep_assets_tests/tools/parity`), and
docs/formats/packed-sft.md lists the differences. These tests cover them without the original: which rows are refused,
and at which token the training of the others starts.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets_tests.cli.commands import dataprep
from dataprep_assets_tests.pipelines.blend.pipeline import write_rows
from dataprep_assets_tests.pipelines.blend.sft.conversations import END, decode_trained
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer
from dataprep_assets_tests.tokenization.chat.trap import BROKEN_THOUGHTS, HEADERS, HERMES

pytestmark = pytest.mark.slow
TEXTS = {
    "plain": "an answer of more than fifteen characters",
    "only ends": "why</think>an answer whose thought only ends",
    "whole": "<think>\nwhy</think>an answer with its thought in the text",
}
PARTS = {
    "one part": ["why</think>an answer of one part"],
    "a later part": ["why", "</think>an answer of two parts"],
    "plain parts": ["an answer of parts", "without a thought"],
}
FIRST = "the first answer, which has reasoning"
THOUGHT = "because it was asked"


def _rows() -> list[dict[str, Any]]:
    """Return a row for each answer above, as the second answer of a conversation whose first one has reasoning."""
    parts = {what: [{"type": "text", "text": text} for text in texts] for what, texts in PARTS.items()}
    first = {"role": "assistant", "content": FIRST, "reasoning_content": THOUGHT}
    return [
        {
            "messages": [
                {"role": "user", "content": f"TraceQuery of {what}?"},
                first,
                {"role": "user", "content": [{"type": "text", "text": "And?"}] if what in parts else "And?"},
                {"role": "assistant", "content": content},
            ]
        }
        for what, content in (*TEXTS.items(), *parts.items())
    ]


class Packed:
    """The packed rows of a dataset: the reasons for dropped rows, and the trained text of each answer."""

    def __init__(self, artifacts: Path, name: str, bundle: TokenizerBundle) -> None:
        (receipt,) = (artifacts / name / "packed_sft").glob("*/receipt.json")
        self.dropped: dict[str, int] = json.loads(receipt.read_bytes())["ledger"]["dropped"]
        rows = [row for path in receipt.parent.rglob("packed.parquet") for row in pq.read_table(path).to_pylist()]
        texts = decode_trained(rows, bundle)
        self.first = Counter(text for text in texts if FIRST in text)
        self.second = sorted(text for text in texts if FIRST not in text)


DATASETS: dict[str, tuple[str, dict[str, Any]]] = {
    "joined": (BROKEN_THOUGHTS, {"join_text_parts": True}),
    "theirs": (BROKEN_THOUGHTS, {"like": "nemotron"}),
    "theirs_hermes": (HERMES, {"like": "nemotron"}),
    "theirs_headers": (HEADERS, {"like": "nemotron", "join_text_parts": True}),
}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Packed]:
    """Pack the rows in each of the ways above, with one run of a `dataprep init` project."""
    folder = tmp_path_factory.mktemp("thoughts")
    made = dataprep(folder, "init", str(project := folder / "thoughts"), project=folder)
    assert made.returncode == 0, made.stderr
    path = write_rows(project / "rows.jsonl", _rows())
    bundle = write_chat_tokenizer(project / "tokenizer")
    for name, (template, sft) in DATASETS.items():
        (defs := project / "thoughts" / "defs" / name).mkdir()
        (defs / "style.jinja").write_text(template)
        declared = {
            "dataset": name,
            "stage": "sft",
            "blend": {"datasets": [{"name": "chat", "path": str(path)}]},
            "tokenizer": {"path": str(project / "tokenizer"), "engine": "tokenizers"},
            "sft": {"pack_size": 512, "chat_template": "./style.jinja", **sft},
            "bad_records": {"policy": "drop", "budget": 1.0},
            "workers": 1,
        }
        text = yaml.safe_dump({"type": "dataprep_assets.components.TrainingBlend", "attributes": declared})
        (defs / "defs.yaml").write_text(text)
    ran = dataprep(folder, "run", *DATASETS, project=project)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return {name: Packed(folder / "artifacts", name, bundle) for name in DATASETS}


def test_every_thought_in_a_text_is_trained_after_the_prompt_that_opens_it(packed: dict[str, Packed]) -> None:
    """Includes half a thought, which the template writes without the tag at the end of its prompt."""
    made = packed["joined"]
    assert made.dropped == {}
    assert made.first == {f"{THOUGHT}\n</think>\n{FIRST}{END}": 6}
    assert made.second == sorted(
        [
            f"{TEXTS['plain']}{END}",
            f"an answer of parts\nwithout a thought{END}",
            f"why</think>an answer with its thought in the text{END}",
            f"why</think>an answer whose thought only ends{END}",
            f"why</think>an answer of one part{END}",
            f"why\n</think>an answer of two parts{END}",
        ]
    )


def test_like_nemotron_refuses_thoughts_in_the_text_and_text_parts_next_to_reasoning(
    packed: dict[str, Packed],
) -> None:
    """Upstream trains these five from the 15th character of the text."""
    made = packed["theirs"]
    assert made.dropped == {"template_mismatch": 5}
    assert made.first == {f"{THOUGHT}\n</think>\n{FIRST}{END}\n": 1}
    assert made.second == [f"{TEXTS['plain']}{END}\n"]


def test_like_nemotron_with_a_hermes_style_template_trains_each_answer_whole(packed: dict[str, Packed]) -> None:
    """The original's mask starts 15 characters late there; parts are printed as Python literals, like upstream."""
    made = packed["theirs_hermes"]
    assert made.dropped == {}
    assert made.first == {f"{FIRST}{END}\n": 6}
    printed = [str([{"type": "text", "text": text} for text in texts]) for texts in PARTS.values()]
    assert made.second == sorted(f"{text}{END}\n" for text in (*TEXTS.values(), *printed))


def test_like_nemotron_with_a_llama_style_template_trains_joined_parts_whole(packed: dict[str, Packed]) -> None:
    made = packed["theirs_headers"]
    assert made.dropped == {}
    assert made.first == {f"{FIRST}{END}": 6}
    joined = ["\n".join(texts) for texts in PARTS.values()]
    assert made.second == sorted(f"{text}{END}" for text in (*TEXTS.values(), *joined))
