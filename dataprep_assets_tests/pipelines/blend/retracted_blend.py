"""A blend of two datasets for each stage, from which rows are removed; every row contains a unique word."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dataprep_assets.engine.checks.check import NO_RETRACTED, Finding
from dataprep_assets.engine.staleness.status import prune_retracted
from dataprep_assets.engine.trace.retraction import RetractionResult
from dataprep_assets.formats.conversations.preference_rows import read_preferences
from dataprep_assets.formats.packed_rows import open_packed_file
from dataprep_assets.integrity.artifacts import Artifact, LocalArtifacts
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.dataset import Blend
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.stage_shards import SHARDS
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets_tests.engine.building import build_all
from dataprep_assets_tests.pipelines.blend.pipeline import write_rows
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer

STAGES = ("sft", "pairs", "rl", "pretrain")
VIEWS = {"sft": "messages", "pairs": "pairs_sharegpt", "rl": "nemo_gym"}
"""Stage → a view with the texts of its rows."""
OPTIONS: dict[str, dict[str, Any]] = {
    "sft": {"pack_size": 128, "chat_template": "chatml_reasoning"},
    "pairs": {"chat_template": "chatml_reasoning", "max_length": 512},
    "rl": {"transforms": ["nemotron_rl"]},
    "pretrain": {"separator": "<|im_end|>", "sequence_length": 32},
}
ROWS = 24
"""The number of rows of each dataset, in two files and two shards."""


def make_word(dataset: str, number: int) -> str:
    """Return the word that only this row contains."""
    return f"canary{dataset}{number:03d}bird"


def make_row(stage: str, dataset: str, number: int) -> dict[str, Any]:
    """Return a row of a stage, with an id."""
    text = make_word(dataset, number)
    question = [{"role": "user", "content": f"Who sings {text}?"}]
    answer = [{"role": "assistant", "content": f"The {text} sings."}]
    row: dict[str, Any]
    if stage == "sft":
        row = {"messages": [*question, *answer]}
    elif stage == "pairs":
        row = {"prompt": question, "chosen": answer, "rejected": [{"role": "assistant", "content": f"No {text}."}]}
    elif stage == "pretrain":
        row = {"text": f"Who sings {text}? The {text} sings."}
    else:
        row = {"responses_create_params": {"input": question}, "expected_answer": text}
    return {"id": f"{dataset}-{number}", **row}


class RetractedBlend:
    """A blend with its sources, its retraction list and its artifacts in a folder."""

    def __init__(self, folder: Path, stage: str, **changes: Any) -> None:
        self.folder, self.stage, self.changes = folder, stage, changes
        self.list = folder / "retracted.jsonl"
        self.store = LocalArtifacts(folder / "artifacts")
        for dataset in ("first", "second"):
            for part in range(2):
                numbers = range(part * ROWS // 2, (part + 1) * ROWS // 2)
                self.write(dataset, part, [make_row(stage, dataset, number) for number in numbers])
        if not (folder / "tokenizer").exists():
            write_chat_tokenizer(folder / "tokenizer")

    def write(self, dataset: str, part: int, rows: Sequence[Any]) -> None:
        """Write a source file."""
        write_rows(self.folder / "sources" / dataset / f"{dataset[0]}{part}.jsonl", rows)

    @property
    def declaration(self) -> BlendDeclaration:
        stage = self.stage
        sources = self.folder / "sources"
        value = {
            "dataset": f"small_{stage}",
            "stage": stage,
            "blend": {"datasets": [{"name": n, "path": str(sources / n)} for n in ("first", "second")]},
            "tokenizer": None if stage == "rl" else {"path": self.folder / "tokenizer", "engine": "tokenizers"},
            stage: OPTIONS[stage],
            "num_shards": 2,
            "tolerance": 0.5,
            "retractions": self.list,
        }
        return BlendDeclaration.model_validate(value | self.changes)

    @property
    def dataset(self) -> Blend:
        return Blend(self.declaration)

    def run(self) -> list[str]:
        """Build everything that is out of date; return the names of the rebuilt artifacts of rows, without the card."""
        specs = self.dataset.specs
        built = build_all(specs, self.store)
        list(prune_retracted(specs, self.store))
        return sorted(name for name in built if not name.startswith(("data_card", "blend_p", "engine")))

    def retract(self, *lines: str, strict: bool = False) -> RetractionResult:
        ids = self.folder / "ids"
        ids.write_text("".join(line + "\n" for line in lines))
        return self.dataset.retract(self.store, ids, strict=strict)

    def listed(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.list.read_text().splitlines()] if self.list.exists() else []

    @property
    def views(self) -> list[str]:
        return list(self.declaration.views)

    def partition(self, dataset: str, part: int) -> str:
        """Return the shard of a dataset's file."""
        # The first shard has the largest file: the file of part 1, whose rows have longer ids.
        return f"{dataset}{'__train' * (self.stage == 'rl')}-{1 - part:05d}"

    def shard(self, partition: str) -> Artifact:
        return self.declaration.artifact(SHARDS[self.declaration.stage].name, partition)

    def receipt(self, partition: str) -> Receipt:
        return self.store.require(self.shard(partition))

    def findings(self, partition: str) -> dict[str, Finding]:
        """Return the findings of a shard's checks."""
        spec = self.dataset.spec(SHARDS[self.declaration.stage].name)
        return dict(spec.examine(self.store, [partition]))

    def no_retracted(self, partition: str) -> Finding:
        return self.findings(partition)[NO_RETRACTED]

    def texts(self, partition: str) -> str:
        """Return the text of all rows of a shard."""
        directory = self.store.directory(self.shard(partition))
        if self.stage == "rl":
            return (directory / "records.jsonl").read_text()
        bundle = TokenizerBundle.load(self.folder / "tokenizer")
        if self.stage == "pairs":
            pairs = [row for rows in read_preferences(directory / "pairs.parquet") for row in rows]
            return "\n".join(bundle.decode(ids) for row in pairs for ids in (row.prompt_ids, row.answers[0].ids))
        if self.stage == "pretrain":
            return bundle.decode(np.fromfile(directory / "tokens.bin", "<u2"))
        return "\n".join(bundle.decode(block.tokens) for block in open_packed_file(directory / "packed.parquet"))

    def files_with(self, text: str) -> set[str]:
        """Return the artifact and staging files that contain a text."""
        root = self.store.root
        found = (path for path in root.rglob("*") if path.is_file() and text.encode() in path.read_bytes())
        return {path.relative_to(root).as_posix() for path in found}
