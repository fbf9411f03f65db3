"""A `dataprep init` project with a schedule of a corpus in which each line of a document contains the document's
number.

So the documents that a step read can be identified from its tokens, without the ledger.
"""

import json
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from tokenizers import Tokenizer

from dataprep_assets.serving.sampler.training_data import Batch, TrainingData
from dataprep_assets_tests.cli.commands import dataprep

NAME, RUN, CORPUS = "tales_of_all", "first_model", "tales"
HOSTS = ("fables.example", "sagas.example", "myths.example")
SCHEDULE: dict[str, Any] = {
    "dataset": RUN,
    "sources": [
        {"dataset": CORPUS, "split": "train", "name": "long", "weight": 3},
        {"dataset": CORPUS, "split": "val", "name": "short", "weight": 1},
    ],
    "sequence_length": 64,
    "batch": 6,
    "steps": 400,
}


@dataclass(frozen=True)
class TrainingProject:
    """The project in its own folder."""

    folder: Path

    @property
    def root(self) -> Path:
        """The folder of the project."""
        return self.folder / NAME.replace("_", "-")

    @property
    def defs(self) -> Path:
        """The folder of the declarations."""
        return self.root / NAME / "defs"

    @property
    def artifacts(self) -> Path:
        """The folder of the artifacts."""
        return self.folder / "artifacts"

    def __call__(self, *arguments: str, code: int = 0) -> CompletedProcess[str]:
        """Run a command of the project, and assert its exit code."""
        done = dataprep(self.folder, *arguments, **{"DATAPREP_PROJECT": str(self.root)})
        assert done.returncode == code, done.stdout + done.stderr
        return done

    def write_texts(self, name: str, numbers: Sequence[int]) -> None:
        """Write a source file of these documents, of 10 to 90 lines."""
        lines = [
            json.dumps(
                {
                    "text": "\n".join([f"tale {number:06d} goes on"] * (10 + number * 37 % 80)),
                    "url": f"https://{HOSTS[number % 3]}/{number}",
                }
            )
            for number in numbers
        ]
        path = self.defs / CORPUS / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")

    def declare(self, **changes: Any) -> None:
        """Write the declaration of the schedule with some keys changed."""
        folder = self.defs / RUN
        folder.mkdir(exist_ok=True)
        value = {"type": "dataprep_assets.components.TrainingSchedule", "attributes": SCHEDULE | changes}
        (folder / "defs.yaml").write_text(json.dumps(value))  # JSON is valid YAML

    def data(self, **options: Any) -> TrainingData:
        """Return the dataset that a trainer opens."""
        return TrainingData(self.artifacts, RUN, **options)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer of the corpus."""
        return _load_tokenizer(self.defs / "sample_corpus" / "tokenizer" / "tokenizer.json")

    def told(self, batch: Batch) -> dict[int, Counter[int]]:
        """Return the records of a hook in the loop: position → number of each document in its text → how often.

        Each document's part of a sample is decoded separately, because a number could be truncated at its end.
        """
        decode, found = self.tokenizer().decode, {}
        assert batch.document_ids is not None
        for position, row, documents in zip(batch.positions, batch.tokens, batch.document_ids, strict=True):
            parts = [decode(row[documents == at].tolist()) for at in range(documents.max() + 1)]
            found[int(position)] = Counter(int(n) for part in parts for n in re.findall(r"tale (\d{6}) goes", part))
        return found


@cache
def _load_tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(path))


def make(folder: Path) -> TrainingProject:
    """Return the project with its built corpus and schedule."""
    made = TrainingProject(folder)
    dataprep(folder, "init", str(made.root)).check_returncode()
    made.write_texts("train_0.jsonl", range(120))
    made.write_texts("train_1.jsonl", range(120, 200))
    made.write_texts("val_0.jsonl", range(900, 940))
    declared = {
        "dataset": CORPUS,
        "source": {"kind": "local", "path": "./texts"},
        "include": ["*.jsonl"],
        "splits": {"train": ["train*"], "val": ["val*"]},
        "tokenizer": {"path": "../sample_corpus/tokenizer"},
        "document": {"separator": "<|endoftext|>", "url_field": "url", "keep_fields": {}},
        "shards": {"count": 2},
        "views": ["megatron"],
    }
    value = {"type": "dataprep_assets.components.TokenizedCorpus", "attributes": declared}
    (made.defs / CORPUS / "defs.yaml").write_text(json.dumps(value))
    made.declare()
    made("run", CORPUS)
    made("run", RUN)
    return made


def copy(of: TrainingProject, folder: Path) -> TrainingProject:
    """Return a copy of the project that a test may change."""
    shutil.copytree(of.folder, folder, dirs_exist_ok=True)
    return TrainingProject(folder)
