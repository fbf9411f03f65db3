"""The finished datasets that the drill damages: a few tiny ones per pipeline, built by the same specs as users'
datasets.

`bench(pipeline, folder)` writes invented sources into a folder and builds everything below it. By default every check
reads its whole sample again (`sample_rate: 1`), because the drill measures what checks can detect, not what their
samples hit.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import dataprep_assets
from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.engine.artifact.spec import ArtifactSpec
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.orchestration.component import DatasetComponent
from dataprep_assets.pipelines.blend.component import TrainingBlend
from dataprep_assets.pipelines.corpus.component import TokenizedCorpus
from dataprep_assets.pipelines.corpus.views import VIEWS
from dataprep_assets.pipelines.notes.component import CombinedCohorts, PackedCohorts
from dataprep_assets.pipelines.release.component import ShardRelease
from dataprep_assets.pipelines.schedule.component import TrainingSchedule
from dataprep_assets.pipelines.tasks.component import TaskMigration
from dataprep_assets_tests.engine.building import build_all
from dataprep_assets_tests.pipelines.blend.pipeline import write_rows
from dataprep_assets_tests.pipelines.tasks.trees import small
from dataprep_assets_tests.samples import SAMPLE
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer
from dataprep_assets_tests.tools.bench.invented_text import sentence, vocabulary
from dataprep_assets_tests.tools.drill.curated import curated_corpus, curated_schedules
from dataprep_assets_tests.tools.sample.make_sample_blends import plain_chat, task
from dataprep_assets_tests.tools.sample.make_sample_notes import sample_cohorts
from dataprep_assets_tests.tools.sample.make_sample_tasks import VERSIONS, write_tree

SEPARATOR = "<|endoftext|>"
TEMPLATES = Path(dataprep_assets.__file__).parent / "tokenization" / "chat" / "templates"
DeclaredDataset = tuple[type[DatasetComponent], Mapping[str, Any]]


@dataclass(frozen=True)
class Bench:
    """Finished datasets of one pipeline below a folder: sources, tokenizer, artifacts and publications."""

    pipeline: str
    folder: Path
    components: tuple[DatasetComponent, ...]

    @property
    def root(self) -> Path:
        """The folder of the artifacts."""
        return self.folder / "artifacts"

    @property
    def store(self) -> LocalArtifacts:
        """The store of the artifacts."""
        return LocalArtifacts(self.root)

    @property
    def specs(self) -> list[ArtifactSpec]:
        """Every artifact of every dataset, inputs first."""
        return [spec for component in self.components for spec in component.specs]

    def spec(self, name: str, dataset: str | None = None, split: str | None = None) -> ArtifactSpec:
        """Return the spec of an artifact's name, from the first dataset that has one."""
        for one in self.specs:
            if one.name == name and dataset in (None, one.declaration.dataset) and split in (None, one.split):
                return one
        raise KeyError(name)


def write_texts(folder: Path, documents: Mapping[str, Sequence[str]]) -> Path:
    """Write a source of JSON lines: the name of each file, and its documents."""
    for name, texts in documents.items():
        write_rows(folder / name, [{"text": text, "meta": {"n": n}} for n, text in enumerate(texts)])
    return folder


def documents(seed: str, count: int) -> list[str]:
    """Return invented texts, none of which is similar to another."""
    random, words = Random(seed), vocabulary()
    return [
        f"{seed} {number}. " + " ".join(sentence(random, words, 6 + number % 9) for _ in range(1 + number % 4))
        for number in range(count)
    ]


def corpus_attributes(folder: Path, source: Path, **changes: Any) -> dict[str, Any]:
    """Return the attributes of a corpus over a source, with all views; `changes` replace top-level keys."""
    return {
        "dataset": "drill_corpus",
        "source": {"kind": "local", "path": str(source)},
        "splits": {"train": ["train/**"], "val": ["validation/**"]},
        "tokenizer": {"path": str(folder / "tokenizer"), "name": "sample-bpe-4096"},
        "document": {"separator": SEPARATOR},
        "shards": {"count": 2},
        "views": list(VIEWS),
        "olmo_sequence_length": 64,
        "mds_sequence_length": 64,
        "sample_rate": 1.0,
        "workers": 1,
        **changes,
    }


def _corpus_source(folder: Path, edition: str) -> Path:
    return write_texts(
        folder / "source",
        {
            **{f"train/part-{n}.jsonl.zst": documents(f"{edition}train {n}", 5 + n) for n in range(4)},
            "validation/part-0.jsonl.zst": documents(f"{edition}validation", 8),
        },
    )


def _corpora(folder: Path, edition: str) -> Iterator[DeclaredDataset]:
    yield TokenizedCorpus, corpus_attributes(folder, _corpus_source(folder, edition))


def curated(folder: Path, edition: str, documents: int = 48) -> Iterator[DeclaredDataset]:
    """Return a corpus with every feature, and two schedules over it."""
    yield TokenizedCorpus, curated_corpus(folder, edition, documents)
    for attributes in curated_schedules(folder, documents):
        yield TrainingSchedule, attributes


def _releases(folder: Path, edition: str) -> Iterator[DeclaredDataset]:
    attributes = corpus_attributes(folder, _corpus_source(folder, edition), dataset="drill_release")
    for key in ("views", "olmo_sequence_length", "mds_sequence_length"):
        del attributes[key]
    release = {
        "sequence_length": 32,
        "tokens_per_shard": 16 * 32,
        "shuffle_seed": 7,
        "expected_repeats": 1.0,
        "publish": str(folder / "published"),
    }
    yield ShardRelease, {**attributes, "release": release}


def _notes(folder: Path, edition: str) -> Iterator[DeclaredDataset]:
    source = folder / "source"
    source.mkdir(parents=True)
    for name, data in sample_cohorts().items():
        (source / name).write_bytes(data.replace(b"made-up", f"{edition}made-up".encode()))
    base = {
        "sensitive": False,
        "source": {"kind": "local", "path": str(source)},
        "tokenizer": {"path": str(folder / "tokenizer"), "name": "sample"},
        "document": {"separator": SEPARATOR},
        "pad": {"token": "<|pad|>"},
        "patient_key": {"public": "a key for fictional data, known to everyone"},
        "splits": {"train": 0.8, "val": 0.2},
        "row_length": 128,
        "rows_per_shard": 8,
        "sample_rate": 1.0,
        "workers": 1,
    }
    cohorts = {
        "fields": {
            "birth_date": "birth_date",
            "patient": {"colour": "favourite_colour"},
            "note": {"kind": "type", "author": "author", "when": "date"},
        }
    }
    template = {"header": "{kind}, {when}, {author}, likes {colour}\n", "defaults": {"colour": "none"}}
    yield (
        PackedCohorts,
        {
            **base,
            "dataset": "drill_notes",
            "months": {"first": "2010-11", "last": "2010-12"},
            "cohorts": cohorts,
            "template": template,
            "formats": ["tfrecord", "array_record"],
        },
    )
    yield PackedCohorts, {**base, "dataset": "drill_replay", "months": {"first": "2011-01", "last": "2011-02"}}
    yield (
        CombinedCohorts,
        {
            "dataset": "drill_mixed",
            "sensitive": False,
            "sources": [{"dataset": "drill_notes"}, {"dataset": "drill_replay"}],
            "splits": ["train", "val"],
        },
    )


def _blends(folder: Path, edition: str) -> Iterator[DeclaredDataset]:
    source = folder / "source"
    write_rows(source / "code" / "part-0.jsonl.zst", [{"text": text} for text in documents(f"{edition}code", 30)])
    write_rows(source / "code" / "part-1.jsonl.gz", [{"text": text} for text in documents(f"{edition}more code", 30)])
    write_rows(source / "web" / "part-0.parquet", [{"text": text} for text in documents(f"{edition}web", 40)])
    for name in ("first", "second"):
        write_rows(source / f"{name}.jsonl", [plain_chat(Random(f"{edition}{name} {n}"), n) for n in range(24)])
    for split, count in (("train", 20), ("validation", 6)):
        write_rows(
            source / "knots" / f"{split}.jsonl", [task(Random(f"{edition}{split} {n}"), n) for n in range(count)]
        )
    write_chat_tokenizer(folder / "chat_tokenizer")
    template = (TEMPLATES / "chatml_reasoning.jinja").read_text()
    (folder / "other_template.jinja").write_text(
        template.replace("system\\n' ~ opening", "system\\nBe brief. ' ~ opening")
    )
    datasets = [{"name": name, "path": str(source / name), "weight": w} for name, w in (("code", 3.0), ("web", 1.0))]
    common = {"workers": 1}
    yield (
        TrainingBlend,
        {
            **common,
            "dataset": "drill_pretrain",
            "stage": "pretrain",
            "blend": {"datasets": datasets},
            "tokenizer": {"path": str(folder / "tokenizer"), "name": "sample-bpe-4096"},
            "pretrain": {"separator": SEPARATOR, "sequence_length": 32, "sample_rate": 1.0},
            "num_shards": 3,
            "held_out": {"valid": 1},
        },
    )
    yield (
        TrainingBlend,
        {
            **common,
            "dataset": "drill_sft",
            "stage": "sft",
            "blend": {"datasets": [{"name": n, "path": str(source / f"{n}.jsonl")} for n in ("first", "second")]},
            "tokenizer": {"path": str(folder / "chat_tokenizer"), "engine": "tokenizers"},
            "sft": {"pack_size": 256, "chat_template": "chatml_reasoning", "sample_rate": 1.0},
            "num_shards": 3,
            "held_out": {"valid": 1},
            "tolerance": 0.2,
        },
    )
    yield (
        TrainingBlend,
        {
            **common,
            "dataset": "drill_rl",
            "stage": "rl",
            "blend": {"datasets": [{"name": "knots", "path": str(source / "knots")}]},
            "rl": {"transforms": ["nemotron_rl"], "compression": "zstd"},
            "num_shards": 2,
        },
    )


def _tasks(folder: Path, edition: str) -> Iterator[DeclaredDataset]:
    counts = {"train": 12, "validation": 6, "test": 5}
    rows = {"Copa": counts, "RTE": counts, "ArcC_Cloze": counts}
    write_tree(folder, rows, {"Copa": VERSIONS})
    for path in (folder / "old").rglob("*_train.jsonl") if edition else ():
        path.write_bytes(path.read_bytes().replace(b" in ", f" in {edition}".encode()))
    yield (
        TaskMigration,
        {
            "dataset": "drill_tasks",
            "old_root": str(folder / "old"),
            "original": str(folder / "original"),
            "new_root": str(folder / "new"),
            "tasks": {"Copa": {"version": "all"}, "RTE": {}, "ArcC_Cloze": {"mode": "symlink"}},
            "contracts": {name: small(name) for name in rows},
        },
    )


PIPELINES: Mapping[str, Callable[[Path, str], Iterator[DeclaredDataset]]] = {
    "corpus": _corpora,
    "curated": curated,
    "notes": _notes,
    "release": _releases,
    "tasks": _tasks,
    "blend": _blends,
}
Change = Callable[[dict[str, Any]], dict[str, Any] | None]
"""A function from the attributes of a dataset to others, or to None to leave it out."""


def _swap_letters(folder: Path, target: Path) -> None:
    """Swap the ids of two letters in a folder's tokenizer, which keeps its size and stays valid."""
    shutil.copytree(folder, target)
    definition = json.loads((target / "tokenizer.json").read_bytes())
    vocabulary = definition["model"]["vocab"]
    vocabulary["a"], vocabulary["e"] = vocabulary["e"], vocabulary["a"]
    (target / "tokenizer.json").write_text(json.dumps(definition, ensure_ascii=False))


def bench(pipeline: str, folder: Path, *, edition: str = "", change: Change = dict) -> Bench:
    """Write the sources of a pipeline's datasets into a folder, and build all of them there.

    Args:
        pipeline: One of `PIPELINES`.
        folder: A new folder, which receipts name if something was published.
        edition: Each edition has other documents.
        change: Applied to the attributes of each dataset.
    """

    def declare(folder: Path) -> Iterator[DeclaredDataset]:
        for kind, attributes in PIPELINES[pipeline](folder, edition):
            if (changed := change(dict(attributes))) is not None:
                yield kind, changed

    return bench_of(pipeline, folder, declare)


def bench_of(pipeline: str, folder: Path, declare: Callable[[Path], Iterable[DeclaredDataset]]) -> Bench:
    """Build the datasets whose sources `declare` writes to a new folder that already contains the sample's
    tokenizer.
    """
    folder.mkdir(parents=True)
    shutil.copytree(SAMPLE / "tokenizer", folder / "tokenizer")
    _swap_letters(folder / "tokenizer", folder / "other_tokenizer")
    components = tuple(
        kind(validate_declaration(kind.model, json.loads(json.dumps(attributes)), folder / "defs.yaml"))
        for kind, attributes in declare(folder)
    )
    made = Bench(pipeline, folder, components)
    for component in components:
        build_all(component.specs, made.store)
    return made
