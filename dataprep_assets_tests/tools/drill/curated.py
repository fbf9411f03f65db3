"""The drill's dataset with every feature: a corpus with taggers, rules, deduplication, benchmarks and removals, and two
schedules over it, of windows with Megatron's indices and of packed documents.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from dataprep_assets.tokenization.document_ids import hash_id
from dataprep_assets_tests.pipelines.blend.pipeline import write_rows
from dataprep_assets_tests.tools.bench.invented_text import sentence, vocabulary

_COMMAND = """
import sys
import pyarrow as pa, pyarrow.compute as pc, pyarrow.parquet as pq
given = pq.read_table(sys.argv[1])
lines = pc.add(pc.count_substring(given["text"], "."), 0).cast(pa.int64())
pq.write_table(given.select(["file", "row"]).append_column("stops", lines), sys.argv[2])
"""
"""A command that is a tagger and counts the full stops of each text."""
_PROVE = {"level": "every_document"}


def curated_corpus(folder: Path, edition: str, documents: int) -> dict[str, Any]:
    """Write the sources of the corpus and return its attributes: this many `documents` in train, and a fourth of them
    in val.
    """
    quiz = _texts(Random(f"{edition}quiz"), 4, sentences=2)
    write_rows(folder / "quiz.jsonl", [{"question": text} for text in quiz])
    (folder / "stops.py").write_text(_COMMAND)
    train, val = _rows(f"{edition}train", documents, quiz), _rows(f"{edition}val", documents // 4, ())
    for split, rows in (("train", train), ("val", val)):
        half = len(rows) // 2
        for number, part in enumerate((rows[:half], rows[half:])):
            write_rows(folder / "source" / split / f"part-{number}.jsonl.zst", part)
    removed = [row["url"] for row in train[4 :: max(documents // 4, 1)]]
    lines = [{"hash": f"{hash_id(url):016x}", "id": url, "of": "field url"} for url in removed]
    write_rows(folder / "retracted.jsonl", lines)
    return _corpus(folder)


def curated_schedules(folder: Path, documents: int) -> Iterator[dict[str, Any]]:
    """Return the attributes of two schedules over the corpus: of windows, with Megatron's indices, and of whole
    documents.
    """
    sources = [
        {"dataset": "drill_curated", "weight": 9},
        {"dataset": "drill_curated", "split": "val", "name": "held", "weight": 1},
    ]
    windows = {"dataset": "drill_windows", "sequence_length": 64, "megatron": {"tokenizer": {"class": "sample"}}}
    packed = {"dataset": "drill_packed", "sequence_length": 256, "samples": "documents"}
    common = {"sources": sources, "batch": 4, "steps": max(documents // 4, 4), "prove": _PROVE}
    for one in (windows, packed):
        yield {**common, **one, "revisions": str(folder / f"{one['dataset']}.json")}


def _corpus(folder: Path) -> dict[str, Any]:
    function = "dataprep_assets.defs.samples.sample_documents.taggers:variety"
    command = [sys.executable, str(folder / "stops.py"), "{input}", "{output}"]
    return {
        "dataset": "drill_curated",
        "source": {"kind": "local", "path": str(folder / "source")},
        "splits": {"train": ["train/**"], "val": ["val/**"]},
        "tokenizer": {"path": str(folder / "tokenizer"), "name": "sample-bpe-4096"},
        "document": {
            "separator": "<|endoftext|>",
            "id_field": "url",
            "url_field": "url",
            "source_field": "set",
            "keep_fields": {"stars": "integer", "score": "number", "fresh": "boolean"},
        },
        "bad_records": {"policy": "drop", "budget": 0.5},
        "tag": [
            "gopher",
            "personal",
            {"function": function, "columns": {"variety": "number"}},
            {"command": command, "name": "stops", "version": "1", "columns": {"stops": "integer"}},
        ],
        "keep": {"starred": "stars > 0"},
        "drop": {"short": "words < 12", "contacts": "emails > 1", "stopless": "stops < 1"},
        "duplicates": {"threshold": 0.7, "across_splits": "drop", "recall": 0.5},
        "decontaminate": {"sets": {"quiz": {"path": str(folder / "quiz.jsonl"), "fields": ["question"]}}},
        "budget": {"per_source": 0.95, "per_rule": {"duplicate": 0.5}},
        "floors": {"personal": {"recall": 0.1, "precision": 0.1}},
        "retractions": str(folder / "retracted.jsonl"),
        "shards": {"count": 2},
        "views": ["megatron"],
        "workers": 1,
        # Check every document, because the drill measures which faults the checks can detect.
        "prove": _PROVE,
    }


def _rows(seed: str, count: int, leaked: Sequence[str]) -> list[Any]:
    """Return rows of a split: of every eight one is a near-duplicate, one short and one without a star; one contains a
    benchmark item, and one has no text.
    """
    random = Random(seed)
    texts = _texts(random, count, sentences=4)
    rows: list[Any] = []
    for number, text in enumerate(texts):
        kind = number % 8
        if kind == 5:
            words = texts[number - 4].split()
            words[len(words) // 2] = "otherwise"
            text = " ".join(words)
        elif kind == 6:
            text = "Too short."
        elif kind == 7 and number // 8 < len(leaked):
            text = f"{text} {leaked[number // 8]}"
        rows.append(
            {
                "text": text,
                "url": f"https://{seed.replace(' ', '-')}.example/{number}",
                "set": ("web", "books")[number % 2],
                "stars": 0 if kind == 3 else number % 5 + 1,
                "score": None if kind == 2 else random.random(),
                "fresh": random.random() < 0.5,
            }
        )
    rows.insert(count // 3, {"url": "https://example.org/none", "set": "web"})
    return rows


def _texts(random: Random, count: int, *, sentences: int) -> list[str]:
    words = vocabulary()
    return [" ".join(sentence(random, words, 9 + number % 7) for _ in range(sentences)) for number in range(count)]
