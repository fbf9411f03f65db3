"""The animals of a zoo: the hostile file and its dataset, by a seed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

from dataprep_assets_tests.tools.zoo.chats import TEMPLATES, chat, records
from dataprep_assets_tests.tools.zoo.lines import chat_line, cut, frames, lines, text_line
from dataprep_assets_tests.tools.zoo.lists import OF_ARTIFACTS, large
from dataprep_assets_tests.tools.zoo.tables import parquet

Pipeline = Literal["corpus", "pretrain", "sft", "rl"]
ENDINGS = ("", ".gz", ".zst")


@dataclass(frozen=True, kw_only=True)
class Animal:
    """A hostile file: its number and seed, the pipeline that reads it, and the generator that makes it."""

    number: int
    seed: int
    pipeline: Pipeline
    kind: str

    @property
    def random(self) -> Random:
        """Its own random numbers."""
        return Random(f"{self.seed} {self.number}")

    @property
    def dataset(self) -> str:
        """The dataset that reads it."""
        return f"zoo_{self.number:04d}"

    @property
    def file(self) -> str:
        """The name that a refusal must contain."""
        return f"{self.dataset}/{self.name.removesuffix('/receipt.json')}" if self.kind == "artifact" else self.name

    @property
    def name(self) -> str:
        """The name of its file."""
        random, stem = self.random, f"animal_{self.number:04d}"
        if self.kind == "parquet":
            return f"{stem}.parquet"
        if self.kind == "artifact":
            return random.choice(OF_ARTIFACTS)
        if self.kind in ("blend", "retractions"):
            return f"{stem}.json"
        if self.kind == "records":
            return f"{stem}{random.choice(('.json', '.jsonl', '.json.zst', '.jsonl.zst'))}"
        if self.kind == "frames":
            return f"{stem}.jsonl{random.choice(('.gz', '.zst', '.zst'))}"
        if self.kind in ("lines", "cut"):
            return f"{stem}.jsonl{random.choice(ENDINGS)}"
        return f"{stem}.jinja" if self.kind == "template" else f"{stem}.jsonl"

    @property
    def has_good(self) -> bool:
        """Whether there is a harmless source, `good.jsonl`, because the hostile file itself is not a source."""
        return self.kind in ("template", "artifact", "blend", "retractions")

    def good(self) -> bytes:
        """Return harmless lines of its pipeline."""
        line = chat_line if self.pipeline in ("sft", "rl") else text_line
        return b"".join(line(self.random, n) for n in range(50))

    def write(self, folder: Path) -> str:
        """Write its file into a folder, below an artifact's name if it belongs to one; return a description of the
        file.
        """
        random, path = self.random, folder / self.name
        good, key = (chat_line, b"messages") if self.pipeline in ("sft", "rl") else (text_line, b"text")
        if self.kind == "template":
            path.write_text(random.choice(TEMPLATES))
            return path.read_text()[:60]
        if self.kind in ("artifact", "blend", "retractions"):
            path.parent.mkdir(parents=True, exist_ok=True)
            return large(path, random)
        if self.kind == "parquet":
            return parquet(path, random, key.decode())
        if self.kind == "chat":
            return chat(path, random)
        if self.kind == "records":
            return records(path, random)
        return {"lines": lines, "cut": cut, "frames": frames}[self.kind](path, random, good, key)

    def attributes(self, project: Path, folder: Path) -> Mapping[str, Any]:
        """Return the declaration of a dataset that reads the file."""
        sample = project / project.name / "defs" / "sample_corpus" / "tokenizer"
        if self.pipeline == "corpus":
            listed = {"retractions": str(folder / self.name)} if self.kind == "retractions" else {}
            files = "good*" if self.has_good else "animal*"
            return {
                **listed,
                "dataset": self.dataset,
                "source": {"kind": "local", "path": str(folder)},
                "splits": {"train": [files]},
                "include": [files],
                "tokenizer": {"path": str(sample), "engine": "tokenizers"},
                "document": {"separator": "<|endoftext|>"},
                "bad_records": {"policy": "drop", "budget": 1},
                "views": ["nanogpt"],
                "workers": 1,
            }
        path = folder / ("good.jsonl" if self.has_good else self.name)
        blend = {"datasets": [{"name": "animals", "path": str(path)}]}
        common = {
            "dataset": self.dataset,
            "stage": self.pipeline,
            "blend": str(folder / self.name) if self.kind == "blend" else blend,
            "bad_records": {"policy": "drop", "budget": 1},
            "num_shards": 1,
            "workers": 1,
        }
        if self.pipeline == "rl":
            return {**common, "rl": {"compression": "zstd"}}
        if self.pipeline == "sft":
            template = str(folder / self.name) if self.kind == "template" else "chatml_reasoning"
            tokenizer = {"path": str(folder.parent / "chat_tokenizer"), "engine": "tokenizers"}
            return {**common, "tokenizer": tokenizer, "sft": {"pack_size": 512, "chat_template": template}}
        pretrain = {"separator": "<|endoftext|>", "sequence_length": 8}
        return {**common, "tokenizer": {"path": str(sample), "engine": "tokenizers"}, "pretrain": pretrain}


KINDS: Mapping[Pipeline, tuple[str, ...]] = {
    "corpus": ("lines", "lines", "cut", "frames", "parquet", "artifact", "retractions"),
    "pretrain": ("lines", "frames", "parquet", "blend"),
    "sft": ("chat", "chat", "lines", "parquet", "template", "template"),
    "rl": ("records", "lines", "parquet", "cut"),
}


def animals(seed: int, count: int) -> Iterator[Animal]:
    """Return the animals of a seed; a larger zoo starts with those of a smaller one."""
    for number in range(count):
        random = Random(f"{seed} kind {number}")
        pipeline: Pipeline = random.choice(("corpus", "corpus", "pretrain", "sft", "sft", "rl"))
        yield Animal(number=number, seed=seed, pipeline=pipeline, kind=random.choice(KINDS[pipeline]))
