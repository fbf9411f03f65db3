"""MaxText's `train.main` on the rows that we make, stopped and resumed: which labels its steps read.

A tiny model on the CPU trains by the settings that we print, in three runs: one that nothing stops, one that stops at a
step, and one that goes on from what that stored. A record is a label of a step before or after the stop; it is equal
where the run that nothing stopped read the same batch at the same step. Labels that are not those of the notes, as
transformers tokenizes them, are differences without a reason.

It wants the interpreter to have jax and what MaxText imports; MaxText at e591f30 wants Python 3.12.
"""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from dataprep_assets.pipelines.notes.tfds.maxtext import build_maxtext_settings
from dataprep_assets_tests.tools.parity.maxtext import (
    BOTH,
    LENGTH,
    TOKENIZERS,
    Case,
    labels_of,
    made_notes,
    tokenizer_of,
)
from dataprep_assets_tests.tools.parity.pinned import run_apart
from dataprep_assets_tests.tools.parity.table import Row

STEPS, STOP, PERIOD = 8, 5, 2
"""Steps of a run, the step at which one stops, and MaxText's interval of checkpoints: after the steps 0, 2 and 4."""
CASES = [
    Case(declared={"formats": BOTH}, format="array_record", besides={"grain_worker_count": "0"}),
    Case(declared={"formats": BOTH}),
]
MACHINE = {
    "hardware": "cpu",
    "skip_jax_distributed_system": "True",
    "per_device_batch_size": "1",
    "steps": str(STEPS),
    "checkpoint_period": str(PERIOD),
    "async_checkpointing": "False",
    "enable_goodput_recording": "False",
    "enable_tensorboard": "False",
    "log_config": "False",
    "attention": "dot_product",
    "scan_layers": "False",
    "base_emb_dim": "16",
    "base_num_query_heads": "2",
    "base_num_kv_heads": "2",
    "base_mlp_dim": "32",
    "base_num_decoder_layers": "1",
    "head_dim": "8",
    "vocab_size": "4096",
}
Batch = dict[str, np.ndarray[Any, Any]]


def compare(folder: Path) -> list[Row]:
    """Return a row for each pipeline; `folder` is a clone of MaxText."""
    with TemporaryDirectory() as name:
        home = Path(name)
        tokenizer = tokenizer_of(home / "tokenizer", TOKENIZERS["a pad token"])
        runs, wanted = [], []
        for number, case in enumerate(CASES):
            notes, store = made_notes(home, tokenizer, case)
            wanted.append(labels_of(notes, store, tokenizer)[0])
            options = build_maxtext_settings(notes, store, case.format) | dict(case.besides) | MACHINE
            for kind, stop in (("whole", None), ("stopped", STOP), ("resumed", None)):
                place = "whole" if kind == "whole" else "stopped"
                named = options | {"run_name": f"{place}-{number}", "base_output_directory": str(home / "out")}
                line = [str(folder / "src/maxtext/configs/base.yml"), *(f"{k}={v}" for k, v in named.items())]
                runs.append({"line": line, "out": str(home / f"{kind}-{number}"), "stop": stop})
        read = run_apart("their_training", runs, [folder / "src"])
        return [_row(home, case, number, read[3 * number :][:3], wanted[number]) for number, case in enumerate(CASES)]


def _row(home: Path, case: Case, number: int, read: list[int], wanted: Counter[tuple[int, int]]) -> Row:
    assert read == [STEPS, STOP, STEPS - STOP], read
    whole, stopped, resumed = (_batches(home / f"{kind}-{number}") for kind in ("whole", "stopped", "resumed"))
    there = [*stopped, *resumed]
    stray = sum((_labels(there) - wanted).values()) if case.format == "array_record" else 0
    records = sum(_labels([batch]).total() for batch in there)
    equal = sum(_labels([a]).total() for a, b in zip(there, whole, strict=True) if _same(a, b))
    assert whole[0]["inputs"].shape[1] == LENGTH
    note = f"{STEPS} steps, stopped at {STOP}, resumed from what step {STOP - 1} stored"
    explained = 0
    if case.format == "tfrecord" and all(_same(a, b) for a, b in zip(resumed, whole, strict=False)):
        explained = sum(_labels([a]).total() for a, b in zip(resumed, whole[STOP:], strict=True) if not _same(a, b))
        note += "; MaxText stores no place in the data of tfds: what is resumed begins with the first batch again"
    return Row("MaxText, train.main", case.name, records + stray, equal, explained, note)


def _batches(folder: Path) -> list[Batch]:
    return [dict(np.load(path)) for path in sorted(folder.glob("*.npz"))]


def _labels(batches: list[Batch]) -> Counter[tuple[int, int]]:
    found: Counter[tuple[int, int]] = Counter()
    for batch in batches:
        counted = batch["targets_segmentation"] != 0
        found.update(zip(batch["inputs"][counted].tolist(), batch["targets"][counted].tolist(), strict=True))
    return found


def _same(a: Batch, b: Batch) -> bool:
    return all(np.array_equal(a[name], b[name]) for name in a)
