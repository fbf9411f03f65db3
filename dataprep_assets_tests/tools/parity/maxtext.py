"""MaxText's own input pipelines on the rows that we make: which labels they train on, beside an independent count.

Theirs run as they are: the settings that we print go through MaxText's `pyconfig`, and `create_data_iterator` gives the
batches that a training would get. A record is a label that the notes have, as a pair of input and target; it is equal
where MaxText trains on it as often as it is there. A pair that is not of the notes, because it leads onto padding or
into another note, is a difference without a reason. The pairs are counted in notes that transformers alone tokenizes
(`tokenized_notes`); of rows that are a stream of notes, where each stands in the stream is read from the JSON lines.
Where there are two splits, those of MaxText's iterator for training and of that for evaluation are counted together.

It wants the interpreter to have jax, flax, grain, tensorflow-datasets and whatever else MaxText imports.
"""

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.packing.stock_maxtext import Pipeline
from dataprep_assets.pipelines.notes.cohorts.packed_files import list_packed_paths
from dataprep_assets.pipelines.notes.declaration import FileFormat, NotesDeclaration
from dataprep_assets.pipelines.notes.replay.replay import build_replay
from dataprep_assets.pipelines.notes.replay.replay_declaration import MixtureDeclaration
from dataprep_assets.pipelines.notes.tfds.linked_directory import DirectoryFacts
from dataprep_assets.pipelines.notes.tfds.maxtext import build_maxtext_settings, format_combined_line
from dataprep_assets.serving.sampler import maxtext as loader
from dataprep_assets_tests.pipelines.notes.pipeline import SAMPLE, SAMPLES, declaration, run_notes
from dataprep_assets_tests.tools.parity.table import Row
from dataprep_assets_tests.tools.parity.tokenized_notes import labels, tokenized

MONTHS = {"first": "2010-11", "last": "2010-12"}
LENGTH = 256
TOKENIZERS: dict[str, dict[str, Any]] = {
    "a pad token": {"pad_token": "<|pad|>"},
    "no pad token": {"pad_token": None},
}
"""Changes of tokenizer_config.json in the sample's tokenizer."""
Pairs = Counter[tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One dataset, its format, and further settings in addition to the printed options."""

    declared: Mapping[str, Any]
    format: FileFormat = "tfrecord"
    besides: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the case in the table."""
        shown = {"prepacked": "prepacked"}.get(self.declared.get("layout", "prepacked"), "unpacked")
        rows = "" if shown == "prepacked" else f", {self.declared.get('rows', 'notes')}"
        pipeline = self.declared.get("pipeline", "grain" if self.format == "array_record" else "tfds")
        workers = self.besides.get("grain_worker_count")
        evaluated = ", and evaluation" if self.evaluates else ""
        files = f" {self.format}" if pipeline == "grain" else ""
        return f"{shown}{rows}: {pipeline}{files}" + (f", {workers} workers" if workers else "") + evaluated

    @property
    def evaluates(self) -> bool:
        """Whether there is a second split, on which MaxText evaluates."""
        return "splits" in self.declared


BOTH = ["tfrecord", "array_record"]
HALVES = {"train": 0.5, "val": 0.5}
NO_WORKERS = {"grain_worker_count": "0", "grain_worker_count_eval": "0"}
CASES = [
    Case(declared={"formats": BOTH}),
    Case(declared={"formats": BOTH}, format="array_record", besides={"grain_worker_count": "0"}),
    Case(declared={"formats": BOTH}, format="array_record", besides={"grain_worker_count": "2"}),
    *(
        case
        for rows in ("notes", "stream")
        for case in (
            Case(declared={"layout": "unpacked", "rows": rows}),
            Case(
                declared={"layout": "unpacked", "rows": rows, "pipeline": "grain", "formats": BOTH},
                format="array_record",
                besides={"grain_worker_count": "0"},
            ),
            Case(
                declared={"layout": "unpacked", "rows": rows, "pipeline": "grain", "formats": BOTH},
                format="array_record",
                besides={"grain_worker_count": "2"},
            ),
            Case(
                declared={"layout": "unpacked", "rows": rows, "pipeline": "grain", "formats": BOTH},
                besides={"grain_worker_count": "1"},
            ),
            Case(declared={"layout": "unpacked", "rows": rows, "pipeline": "hf"}),
        )
    ),
    Case(declared={"formats": BOTH, "splits": HALVES}),
    *(
        Case(declared={"formats": BOTH, "splits": HALVES, **declared}, format="array_record", besides=NO_WORKERS)
        for declared in ({}, {"layout": "unpacked", "pipeline": "grain"})
    ),
    *(Case(declared={"layout": "unpacked", "splits": HALVES, "pipeline": pipeline}) for pipeline in ("tfds", "hf")),
]


EVALUATION = {"eval_interval": "1000", "eval_steps": "10"}
MIXTURES: tuple[tuple[Pipeline, Mapping[str, Any], bool], ...] = (
    ("tfds", {}, False),
    ("grain", {"format": "array_record"}, False),
    ("hf", {"mode": "virtual"}, False),
    ("tfds", {}, True),
    ("grain", {"format": "array_record"}, True),
)
"""Pipeline, how two datasets of a month each are combined for it, and whether their rows are prepacked."""


def compare(folder: Path) -> list[Row]:
    """Return a row for each dataset, pipeline and tokenizer; `folder` is a clone of MaxText."""
    from absl import flags

    os.environ["JAX_PLATFORMS"] = "cpu"
    sys.path.insert(0, str(folder / "src"))
    flags.FLAGS([__name__])  # grain's workers require these flags, which MaxText parses at its start
    found = []
    with TemporaryDirectory() as name:
        home = Path(name)
        for number, (kind, change) in enumerate(TOKENIZERS.items()):
            tokenizer = tokenizer_of(home / f"tokenizer-{number}", change)
            for case in CASES:
                found.append(_row(folder, home / f"{number}", tokenizer, kind, case))
                sys.stderr.write(f"{found[-1]}\n")
            found += [_mixture(folder, home / f"{number}", tokenizer, kind, *mix) for mix in MIXTURES]
        found.append(_without_the_loader(folder, home / "0", home / "tokenizer-0"))
    return found


def tokenizer_of(folder: Path, change: Mapping[str, Any]) -> Path:
    """Write the sample's tokenizer with a changed `tokenizer_config.json` to a new folder, and return the folder."""
    shutil.copytree(SAMPLES / "sample_corpus" / "tokenizer", folder)
    config = folder / "tokenizer_config.json"
    config.chmod(0o644)
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    return folder


def _row(folder: Path, home: Path, tokenizer: Path, kind: str, case: Case) -> Row:
    notes, store = made_notes(home, tokenizer, case)
    wanted, across = labels_of(notes, store, tokenizer)
    options = build_maxtext_settings(notes, store, case.format) | dict(case.besides)
    prepacked = notes.layout == "prepacked"
    ignored = set[int]() if prepacked else _ignored(options["dataset_type"], kind, tokenizer)
    trained = _trained(folder, home, options, with_loader=prepacked)
    said = [f"{across} of them across notes, as `rows: stream` asks for"] if across else []
    if case.evaluates:
        evaluated = _trained(folder, home, options | EVALUATION, with_loader=prepacked, evaluates=True)
        assert evaluated
        trained += evaluated
        said.append(f"{evaluated.total()} of them in batches for evaluation")
    return _compared(kind, case.name, wanted, trained, ignored, said)


def _compared(kind: str, name: str, wanted: Pairs, trained: Pairs, ignored: set[int], said: Sequence[str] = ()) -> Row:
    """Return the row for the labels that MaxText trained on, where `wanted` exist and labels of the `ignored` ids are
    omitted.
    """
    expected = Counter({pair: n for pair, n in wanted.items() if pair[1] not in ignored})
    equal = (trained & expected).total()
    masked = wanted.total() - expected.total()
    stray = (trained - expected).total()
    told = [*said, *([f"{masked}: MaxText masks labels of id {sorted(ignored)}"] if masked else [])]
    told += [f"{stray} labels that the notes do not have"] if stray else []
    return Row(f"MaxText, {kind}", name, wanted.total() + stray, equal, masked, "; ".join(told))


def _mixture(
    folder: Path,
    home: Path,
    tokenizer: Path,
    kind: str,
    pipeline: Pipeline,
    declared: Mapping[str, Any],
    prepacked: bool,
) -> Row:
    """Return a row for a combination of two datasets, with the settings that it shows."""
    wanted: Pairs = Counter()
    layout = "prepacked" if prepacked else "unpacked"
    root, names = home / f"mixture_{layout}_{pipeline}", ("first_notes", "second_notes")
    for dataset, month in zip(names, MONTHS.values(), strict=True):
        notes = declaration(
            dataset=dataset,
            layout=layout,
            **({} if prepacked else {"pipeline": pipeline}),
            formats=BOTH,
            months={"first": month, "last": month},
            row_length=LENGTH,
            tokenizer={"path": tokenizer, "name": "sample"},
        )
        outcome = run_notes(notes, root)
        assert not outcome.failed, outcome.failed
        wanted += labels_of(notes, LocalArtifacts(root), tokenizer)[0]
    mix = MixtureDeclaration.model_validate(
        {"dataset": "mixture", "sources": [{"dataset": name} for name in names], **declared}
    )
    store = LocalArtifacts(root)
    receipt, _ = build_replay(mix, store)
    line = format_combined_line(mix, store, DirectoryFacts.from_receipt(receipt), str(tokenizer)).rpartition(": ")[2]
    options = dict(setting.split("=", 1) for setting in line.split(" "))
    trained = _trained(folder, home, options, with_loader=prepacked)
    ignored = set[int]() if prepacked else _ignored(options["dataset_type"], kind, tokenizer)
    return _compared(kind, f"mixture, {'prepacked' if prepacked else 'notes'}: {pipeline}", wanted, trained, ignored)


def made_notes(home: Path, tokenizer: Path, case: Case) -> tuple[NotesDeclaration, LocalArtifacts]:
    """Build the dataset of a case below `home`, and return it with the folder of its artifacts."""
    notes = declaration(
        months=MONTHS, row_length=LENGTH, tokenizer={"path": tokenizer, "name": "sample"}, **dict(case.declared)
    )
    # Cases with the same declaration share a folder, so that its artifacts are built only once.
    root = home / "".join(letter for letter in str(case.declared) if letter.isalnum())
    outcome = run_notes(notes, root)
    assert not outcome.failed, outcome.failed
    return notes, LocalArtifacts(root)


def _lines(notes: NotesDeclaration, store: LocalArtifacts) -> Iterator[dict[str, list[int]]]:
    for month in notes.months.expected_keys:
        path = store.directory(notes.artifact("packed_cohorts", month)) / list_packed_paths(notes, month)["train"].jsonl
        yield from (json.loads(line) for line in path.read_bytes().splitlines())


def labels_of(notes: NotesDeclaration, store: LocalArtifacts, tokenizer: Path) -> tuple[Pairs, int]:
    """Return every label of the notes with its input, and the number of labels that lead into another note."""
    stream = notes.layout == "unpacked" and notes.rows == "stream"
    # Rows that tfds shifts by one are stored with one more token; a stream has no truncated notes.
    longest = sys.maxsize if stream else LENGTH + (notes.layout == "unpacked" and notes.pipeline == "tfds")
    found = tokenized((SAMPLE / f"{month}.json" for month in notes.months.expected_keys), tokenizer, longest)
    if not stream:
        return labels(found), 0
    rows = [row["tokens"] for row in _lines(notes, store)]
    separator = rows[-1][-1]  # the separator ends every note, and is inside none
    parts: Counter[tuple[int, ...]] = Counter()
    note: list[int] = []
    for number in chain.from_iterable(rows):
        note.append(number)
        if number == separator:
            parts[tuple(note)] += 1
            note = []
    assert parts == found, "the stream is not made of the notes"
    pairs = Counter(pair for row in rows for pair in pairwise(row))
    return pairs, sum(times for (before, _), times in pairs.items() if before == separator)


def _ignored(pipeline: str, kind: str, tokenizer: Path) -> set[int]:
    """Return the ids whose labels the pipeline omits: the tokenizer's pad token, or its replacement."""
    from transformers import AutoTokenizer

    pad: int | None = AutoTokenizer.from_pretrained(str(tokenizer)).pad_token_id
    assert (pad is None) == (kind == "no pad token")
    return {pad} if pad is not None else {0 if pipeline == "grain" else -1}


def _trained(
    folder: Path, home: Path, options: Mapping[str, str], *, with_loader: bool, evaluates: bool = False
) -> Pairs:
    """Return the pairs that MaxText's loss counts: of every batch of its iterator, where the target's segment
    is not 0.
    """
    found: Pairs = Counter()
    for batch in _batches(folder, home, options, with_loader=with_loader, evaluates=evaluates):
        counted = batch["targets_segmentation"] != 0
        found.update(zip(batch["inputs"][counted].tolist(), batch["targets"][counted].tolist(), strict=True))
    return found


def _batches(
    folder: Path, home: Path, options: Mapping[str, str], *, with_loader: bool, evaluates: bool
) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    from jax.sharding import Mesh
    from maxtext.configs import pyconfig
    from maxtext.input_pipeline import input_pipeline_interface as interface
    from maxtext.input_pipeline import tfds_data_processing
    from maxtext.utils import maxtext_utils

    stock = (
        (interface, "make_grain_train_iterator", interface.make_grain_train_iterator),
        (interface, "make_grain_eval_iterator", interface.make_grain_eval_iterator),
        (tfds_data_processing, "make_tfds_train_iterator", tfds_data_processing.make_tfds_train_iterator),
        (tfds_data_processing, "make_tfds_eval_iterator", tfds_data_processing.make_tfds_eval_iterator),
    )
    machine = {
        "run_name": "parity",
        "hardware": "cpu",
        "enable_checkpointing": "False",
        "skip_jax_distributed_system": "True",
        "per_device_batch_size": "1",
        "base_output_directory": str(home / "out"),
    }
    given = [f"{name}={value}" for name, value in (machine | dict(options)).items()]
    config = pyconfig.initialize(["train", str(folder / "src/maxtext/configs/base.yml"), *given])
    mesh = Mesh(maxtext_utils.create_device_mesh(config), config.mesh_axes)
    try:
        if with_loader:
            loader.install()
        iterator = interface.create_data_iterator(config, mesh)[evaluates]
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                return
            yield {name: np.asarray(values) for name, values in batch.items()}
    finally:
        for module, name, function in stock:
            setattr(module, name, function)


def _without_the_loader(folder: Path, home: Path, tokenizer: Path) -> Row:
    """Train a stock pipeline on prepacked rows, to show that these counts can differ from 0."""
    notes, store = made_notes(home, tokenizer, CASES[0])
    wanted, _ = labels_of(notes, store, tokenizer)
    options = build_maxtext_settings(notes, store) | {
        "train_data_columns": "['inputs']",
        "tokenize_train_data": "False",
        "packing": "False",
        "tokenizer_type": "huggingface",
        "tokenizer_path": str(tokenizer),
    }
    stray = (_trained(folder, home, options, with_loader=False) - wanted).total()
    assert stray, "a stock pipeline keeps segments by now"
    note = f"{stray} labels lead from note to note: why the loader is needed"
    return Row("MaxText, a pad token", "prepacked by the stock tfds pipeline", stray, 0, stray, note)
