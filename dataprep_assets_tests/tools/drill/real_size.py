"""Run the drill at real size: shards of at least a thousand documents, the default sample rate, both levels of checks.

At any level a shard of a few documents is compared completely, so its faults show nothing about a shard of a thousand.
Here a fault changes the ids of one document or of slightly more than 1 % of them. Lengths, counts and the receipt match
the changed ids (like a bug, not like a disk fault), so that only the expected documents reveal it.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.checks.check import EVERY_DOCUMENT, SAMPLE, Level
from dataprep_assets.execution import pool
from dataprep_assets.execution.jobs import SerialExecutor
from dataprep_assets.formats import document_ends
from dataprep_assets.formats.packed_rows import open_packed_file
from dataprep_assets.integrity.receipt import read_receipt
from dataprep_assets.pipelines.blend.component import TrainingBlend
from dataprep_assets.pipelines.corpus.component import TokenizedCorpus
from dataprep_assets.pipelines.notes.cohorts.packed_files import RowFacts
from dataprep_assets.pipelines.notes.component import PackedCohorts
from dataprep_assets_tests.pipelines.blend.pipeline import write_rows
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer
from dataprep_assets_tests.tools.drill.box import Box, Target, reseal, write
from dataprep_assets_tests.tools.drill.datasets import (
    SEPARATOR,
    DeclaredDataset,
    bench_of,
    corpus_attributes,
    documents,
    write_texts,
)
from dataprep_assets_tests.tools.drill.judge import failed_proofs
from dataprep_assets_tests.tools.sample.make_sample_blends import plain_chat
from dataprep_assets_tests.tools.sample.make_sample_notes import patient

Ids = NDArray[Any]
LEVELS: tuple[Level, ...] = (SAMPLE, EVERY_DOCUMENT)


@dataclass(frozen=True)
class Stream:
    """All ids of a shard, document by document, with the start and end of each."""

    ids: Ids
    starts: Ids
    stops: Ids

    def shown(self, at: int) -> slice:
        """Return the ids of a document except the last, which ends it."""
        return slice(int(self.starts[at]), int(self.stops[at]) - 1)


# --- the formats


def _read_bins(folder: Path) -> Stream:
    ends = np.asarray(document_ends.open_ends(folder / "document_ends.bin")).astype(np.int64)
    ids = np.fromfile(folder / "tokens.bin", "<u2")
    return Stream(ids, np.concatenate([[0], ends[:-1]]), ends)


def _write_bins(folder: Path, ids: Ids) -> None:
    write(folder / "tokens.bin", ids.astype("<u2").tobytes())


def _write_cohort(folder: Path, ids: Ids) -> None:
    """Write the rows, and the JSON lines next to them."""
    _write_packed(folder, ids)
    receipt, path = read_receipt(folder), next(folder.glob("*.parquet"))
    assert receipt is not None
    shape = RowFacts.from_receipt(receipt).shape
    lines = [line for block in open_packed_file(path, masked=False) for line in shape.encode_json_lines(block)]
    write(path.with_suffix(".jsonl"), b"".join(lines))


def _read_packed(folder: Path) -> Stream:
    table = _table(folder)
    ids = table["input_ids"].combine_chunks()
    rows = ids.offsets.to_numpy().astype(np.int64)
    heads = table["seq_start_id"].combine_chunks()
    starts = heads.flatten().to_numpy() + np.repeat(rows[:-1], heads.value_lengths().to_numpy())
    return Stream(ids.flatten().to_numpy().copy(), starts, np.append(starts[1:], rows[-1]))


def _write_packed(folder: Path, ids: Ids) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = _table(folder)
    held = table["input_ids"].combine_chunks()
    changed = pa.ListArray.from_arrays(held.offsets, pa.array(ids.astype(np.int32)), type=held.type)
    path = next(folder.glob("*.parquet"))
    path.unlink()
    made = pa.table([changed, *table.columns[1:]], schema=table.schema)
    pq.write_table(made, path, row_group_size=1000, write_page_checksum=True)


def _table(folder: Path) -> Any:
    import pyarrow.parquet as pq

    return pq.read_table(next(folder.glob("*.parquet")))


# --- the faults: each changes ids in place, without changing a length


def one_id(stream: Stream, random: Random) -> None:
    """Increase one id."""
    part = stream.ids[stream.shown(_document(stream, random))]
    at = random.randrange(len(part))
    part[at] += 1 if part[at] < stream.ids.max() - 2 else -1


def two_ids(stream: Stream, random: Random) -> None:
    """Swap two ids of a document."""
    part = stream.ids[stream.shown(_document(stream, random))]
    a, b = random.sample(range(len(part)), 2)
    part[a], part[b] = part[b], part[a] if part[a] != part[b] else part[b] - 1


def reversed_document(stream: Stream, random: Random) -> None:
    """Reverse a document."""
    _reverse(stream, _document(stream, random))


def replaced_document(stream: Stream, random: Random) -> None:
    """Replace a document by the ids of another, with its own length."""
    at, other = _document(stream, random), _document(stream, random)
    part, ids = stream.ids[stream.shown(at)], stream.ids[stream.shown(other)].copy()
    part[:] = np.resize(ids if at != other else ids[::-1], len(part))


def some_documents(stream: Stream, random: Random) -> None:
    """Reverse 1 % of the documents and one more, at random positions."""
    for at in random.sample(range(len(stream.starts)), _few(stream)):
        _reverse(stream, at)


def neighbors(stream: Stream, random: Random) -> None:
    """Reverse as many consecutive documents."""
    first = random.randrange(len(stream.starts) - _few(stream))
    for at in range(first, first + _few(stream)):
        _reverse(stream, at)


FAULTS: Mapping[str, Callable[[Stream, Random], None]] = {
    "one id + 1": one_id,
    "two ids of a document swapped": two_ids,
    "a document reversed": reversed_document,
    "a document replaced by one as long": replaced_document,
    "1 % of the documents reversed": some_documents,
    "1 % in a row reversed": neighbors,
}


def _few(stream: Stream) -> int:
    return len(stream.starts) // 100 + 1


def _document(stream: Stream, random: Random) -> int:
    """Return a document with more than a few ids, which changes when it is reversed."""
    while True:
        at = random.randrange(len(stream.starts))
        part = stream.ids[stream.shown(at)]
        if len(part) > 3 and not np.array_equal(part, part[::-1]):
            return at


def _reverse(stream: Stream, at: int) -> None:
    part = stream.ids[stream.shown(at)]
    part[:] = part[::-1].copy()


# --- the datasets


@dataclass(frozen=True)
class _Kept:
    """A dataset of one large shard, with the damaged artifact and its format."""

    declared: Callable[[Path, int], DeclaredDataset]
    artifact: str
    read: Callable[[Path], Stream]
    write: Callable[[Path, Ids], None]


def _corpus(folder: Path, count: int) -> DeclaredDataset:
    source = write_texts(folder / "source", {f"train/{n}.jsonl.zst": documents(f"{n}", count // 4) for n in range(4)})
    attributes = corpus_attributes(
        folder, source, splits={"train": ["train/**"]}, shards={"count": 1}, views=["nanogpt"]
    )
    for key in ("sample_rate", "olmo_sequence_length", "mds_sequence_length"):
        del attributes[key]
    return TokenizedCorpus, attributes


def _notes(folder: Path, count: int) -> DeclaredDataset:
    (folder / "source").mkdir()
    patients = [patient(Random(f"patient {n}"), "2010-11", n) for n in range(count // 3)]
    (folder / "source" / "2010-11.json").write_text(json.dumps(patients, indent=1) + "\n")
    return PackedCohorts, {
        "dataset": "drill_notes",
        "sensitive": False,
        "source": {"kind": "local", "path": str(folder / "source")},
        "tokenizer": {"path": str(folder / "tokenizer"), "name": "sample"},
        "document": {"separator": SEPARATOR},
        "pad": {"token": "<|pad|>"},
        "patient_key": {"public": "a key for fictional data, known to everyone"},
        "row_length": 1024,
        "rows_per_shard": 64,
        "months": {"first": "2010-11", "last": "2010-11"},
        "workers": 1,
    }


def _chats(folder: Path, count: int) -> DeclaredDataset:
    write_rows(folder / "source" / "chats.jsonl", [plain_chat(Random(f"chat {n}"), n) for n in range(count)])
    write_chat_tokenizer(folder / "chat_tokenizer")
    return TrainingBlend, {
        "dataset": "drill_sft",
        "stage": "sft",
        "blend": {"datasets": [{"name": "chats", "path": str(folder / "source" / "chats.jsonl")}]},
        "tokenizer": {"path": str(folder / "chat_tokenizer"), "engine": "tokenizers"},
        "sft": {"pack_size": 512, "chat_template": "chatml_reasoning"},
        "num_shards": 1,
        "workers": 1,
    }


KEPT: Mapping[str, _Kept] = {
    "token_bins": _Kept(_corpus, "token_bins", _read_bins, _write_bins),
    "packed_cohorts": _Kept(_notes, "packed_cohorts", _read_packed, _write_cohort),
    "packed_sft": _Kept(_chats, "packed_sft", _read_packed, _write_packed),
}


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The number of detected faults of a kind, in an artifact, at a level, and their total."""

    artifact: str
    fault: str
    level: Level
    named: int
    applied: int


def rates(home: Path, *, documents: int, faults: int, seed: int, only: Sequence[str] = tuple(KEPT)) -> Iterator[Rate]:
    """Build the datasets, and apply every kind of fault this many times, one at a time, to the large shard of each.

    Args:
        home: An empty folder.
        documents: The size of the shard, a multiple of 4.
        faults: The number per kind.
        seed: The seed of their places.
        only: The artifacts to use.
    """
    for name in only:
        kept = KEPT[name]
        box = Box(bench_of(name, home / name, lambda folder, kept=kept: [kept.declared(folder, documents)]))
        (target,) = (one for one in box.targets() if one.spec.name == kept.artifact)
        if said := [list(said_at(box, target, level)) for level in LEVELS if any(said_at(box, target, level))]:
            raise AssertionError(f"{name} is not clean: {said}")
        for fault, change in FAULTS.items():
            named: Counter[Level] = Counter()
            for number in range(faults):
                folder = box.folder(target)
                stream = kept.read(folder)
                change(stream, Random(f"{seed} {name} {fault} {number}"))
                kept.write(folder, stream.ids)
                reseal(folder)
                named.update(level for level in LEVELS if any(said_at(box, target, level)))
                box.restore()
            yield from (
                Rate(artifact=name, fault=fault, level=level, named=named[level], applied=faults) for level in LEVELS
            )
        if not box.unharmed:
            raise AssertionError("a fault reached the originals")


def said_at(box: Box, target: Target, level: Level) -> Iterator[tuple[str, str]]:
    """Return the reports of an artifact's blocking checks at a check level."""

    def at_level(declaration: Any) -> Any:
        return declaration.model_copy(update={"prove": declaration.prove.model_copy(update={"level": level})})

    box.redeclare(target.spec.declaration.dataset, at_level)
    now = box.now(target)
    # Run in this process, because starting another process for each fault takes longer than the checks.
    with mock.patch.object(pool, "open_pool", return_value=SerialExecutor()):
        yield from failed_proofs(now.spec, box.bench.store, [] if now.slot is None else [now.slot])


def table(found: Sequence[Rate]) -> str:
    """Return the rates in Markdown: a row per fault, a column per artifact and level."""
    artifacts = list(dict.fromkeys(rate.artifact for rate in found))
    by = {(rate.fault, rate.artifact, rate.level): rate for rate in found}
    columns = [f"`{artifact}`, `{level}`" for artifact in artifacts for level in LEVELS]
    lines = [f"| fault | {' | '.join(columns)} |", f"|---|{'--:|' * len(columns)}"]
    for fault in dict.fromkeys(rate.fault for rate in found):
        cells = [by[fault, artifact, level] for artifact in artifacts for level in LEVELS]
        lines.append(f"| {fault} | {' | '.join(f'{one.named} of {one.applied}' for one in cells)} |")
    return "\n".join(lines) + "\n"
