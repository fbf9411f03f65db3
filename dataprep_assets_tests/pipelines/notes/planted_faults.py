"""A planted fault for every check of notes and of combinations. Holds no test.

A fault changes a finished `NotesProject` on disk as a bug, a damaged disk or another hand would.
"""

import importlib.util
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from dataprep_assets.formats.packed_rows import PackedRowBlock
from dataprep_assets.formats.tensorflow import array_record, example, tfrecord
from dataprep_assets.formats.tensorflow.example import FeatureColumn
from dataprep_assets.integrity.receipt import _compute_digest
from dataprep_assets.pipelines.notes.component import PackedCohorts
from dataprep_assets.pipelines.notes.retractions import add_retractions
from dataprep_assets_tests.pipelines.notes.directories import leave_tfds_out
from dataprep_assets_tests.pipelines.notes.notes_project import NotesProject
from dataprep_assets_tests.pipelines.notes.packed_months import rewrite_rows

HAS_TFDS = importlib.util.find_spec("tensorflow_datasets") is not None
MONTH = "2010-12"
Fault = Callable[[NotesProject, pytest.MonkeyPatch], None]


def edit_json(path: Path, change: Callable[[Any], None]) -> None:
    value = json.loads(path.read_bytes())
    change(value)
    path.write_text(json.dumps(value))


def edit_receipt(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Alter a receipt and sign it again, as a bug would: the lie is in the numbers, not in the file."""

    def signed(value: dict[str, Any]) -> None:
        change(value)
        value["digest"] = _compute_digest(value)

    edit_json(directory / "receipt.json", signed)


def flip_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def packed(made: NotesProject, name: str = "") -> Path:
    return made.directory("packed_cohorts", MONTH) / name


def edit_rows(made: NotesProject, change: Callable[[PackedRowBlock], PackedRowBlock]) -> None:
    rewrite_rows(packed(made, f"train/{MONTH}.parquet"), change)


def with_token(at: int, token: int) -> Fault:
    def change(block: PackedRowBlock) -> PackedRowBlock:
        tokens = block.tokens.copy()
        tokens[at] = token
        return replace(block, tokens=tokens)

    return lambda made, _: edit_rows(made, change)


def separator_within(made: NotesProject, monkeypatch: pytest.MonkeyPatch) -> None:
    receipt = json.loads(packed(made, "receipt.json").read_bytes())
    with_token(3, receipt["facts"]["separator_id"])(made, monkeypatch)


def one_row_as_two(made: NotesProject, _: pytest.MonkeyPatch) -> None:
    def change(block: PackedRowBlock) -> PackedRowBlock:
        row = int(np.argmax(np.diff(block.heads) > 1))
        return PackedRowBlock.from_segments(
            block.tokens, block.lengths, np.insert(block.heads, row + 1, block.heads[row] + 1)
        )

    edit_rows(made, change)


def edit_line(change: Callable[[dict[str, Any]], None]) -> Fault:
    def edit(made: NotesProject, _: pytest.MonkeyPatch) -> None:
        path = packed(made, f"train/{MONTH}.jsonl")
        first, *others = path.read_bytes().splitlines(keepends=True)
        row = orjson.loads(first)
        change(row)
        path.write_bytes(orjson.dumps(row) + b"\n" + b"".join(others))

    return edit


def receipt_of(artifact: str, month: str | None, change: Callable[[dict[str, Any]], None]) -> Fault:
    return lambda made, _: edit_receipt(made.directory(artifact, month), change)


def other_patient(made: NotesProject, _: pytest.MonkeyPatch) -> None:
    """A patient of train is in val's list, with every count right."""
    train, val = (packed(made, f"{split}/patients.bin") for split in ("train", "val"))
    digests = sorted([val.read_bytes()[i : i + 16] for i in range(16, len(val.read_bytes()), 16)])
    val.write_bytes(b"".join(sorted([*digests, train.read_bytes()[:16]])))


def listed_patient(made: NotesProject, _: pytest.MonkeyPatch) -> None:
    """A patient of the rows is put on the retraction list, and nothing is built."""
    key = made.notes.patient_key.load()
    assert made.notes.retractions is not None
    add_retractions(made.notes.retractions, key, [packed(made, "train/patients.bin").read_bytes()[:16]])


def edit_source(made: NotesProject, _: pytest.MonkeyPatch) -> None:
    path = made.root.parent / "source" / f"{MONTH}.json"
    edit_json(path, lambda patients: patients[0]["notes"].pop())


def other_words(made: NotesProject, _: pytest.MonkeyPatch) -> None:
    path = made.root.parent / "source" / f"{MONTH}.json"
    path.write_bytes(path.read_bytes().replace(b"made-up", b"up-made"))


def shards(made: NotesProject, format: str) -> Path:
    return made.directory(f"{format}_shards", MONTH) / "train"


def rewrite(made: NotesProject, format: str, change: Callable[[list[bytes]], list[bytes]], at: int = 0) -> None:
    """Write one shard of train again with other records, every checksum right."""
    path = sorted(shards(made, format).iterdir())[at]
    if format == "tfrecord":
        payloads = change([record.payload for record in tfrecord.read_records(path)])
        path.unlink()
        tfrecord.write(path, payloads)
    else:
        payloads = change(list(array_record.read_records(path)))
        path.unlink()
        array_record.write(path, payloads)


def edited(name: str, change: Callable[[np.ndarray], None]) -> Callable[[list[bytes]], list[bytes]]:
    def edit(payloads: list[bytes]) -> list[bytes]:
        columns = [
            FeatureColumn(name=n, length=128)
            for n in ("inputs", "inputs_segmentation", "inputs_position", "targets_segmentation", "targets_position")
        ]
        decoded = example.decode_rows(payloads, columns)
        change(decoded[name])
        return list(example.encode_rows(decoded))

    return edit


def shard_fault(format: str, change: Callable[[list[bytes]], list[bytes]], at: int = 0) -> Fault:
    return lambda made, _: rewrite(made, format, change, at)


def flip_shard(format: str) -> Fault:
    return lambda made, _: flip_byte(min(shards(made, format).iterdir()))


def where(made: NotesProject, name: str, dataset: str = "notes") -> Path:
    """The directory of shards in an artifact of a dataset."""
    return made.root / dataset / name / dataset / "1.0.0"


def longer_columns(name: str, dataset: str = "notes") -> Fault:
    def change(value: dict[str, Any]) -> None:
        value["featuresDict"]["features"]["inputs"]["tensor"]["shape"]["dimensions"] = ["129"]

    return lambda made, _: edit_json(where(made, name, dataset) / "features.json", change)


def flip_directory(name: str, dataset: str = "notes") -> Fault:
    return lambda made, _: flip_byte(min(p for p in where(made, name, dataset).iterdir() if "train" in p.name))


def one_month_more(value: dict[str, Any]) -> None:
    value["facts"]["months"] += 1


def same_patient(made: NotesProject, _: pytest.MonkeyPatch) -> None:
    """A patient of one month is also in another."""
    other = made.directory("packed_cohorts", "2010-11") / "train" / "patients.bin"
    other.write_bytes(other.read_bytes() + packed(made, "train/patients.bin").read_bytes()[:16])


def leaked_patient(made: NotesProject, _: pytest.MonkeyPatch) -> None:
    """A patient of val in one source is in train of the other."""
    train = made.root / "replay" / "packed_cohorts" / "2011-01" / "train" / "patients.bin"
    train.write_bytes(train.read_bytes() + packed(made, "val/patients.bin").read_bytes()[:16])


def other_share(value: dict[str, Any]) -> None:
    value["facts"]["shares"]["train"]["notes"]["share"] = 0.0


def other_engine_version(made: NotesProject, _: pytest.MonkeyPatch) -> None:
    edit_json(made.directory("engine_certificate") / "certificate.json", lambda c: c.update(engine_version="0.0.1"))


def refused_class(made: NotesProject, _: pytest.MonkeyPatch) -> None:
    edit_json(
        made.directory("engine_certificate") / "certificate.json", lambda c: c.update(refused=["long"], reason="seen")
    )


def chat_turn_separator(made: NotesProject, _: pytest.MonkeyPatch) -> None:
    from dataprep_assets.stream.tokenizer import load_declared_tokenizer

    path = made.root.parent / "tokenizer" / "tokenizer.json"
    path.write_text(path.read_text().replace("<|endoftext|>", "<|im_end|>"))
    document = made.notes.document.model_copy(update={"separator": "<|im_end|>"})
    changed = PackedCohorts(made.notes.model_copy(update={"document": document}))
    made.components = (changed, *made.components[1:])
    load_declared_tokenizer.cache_clear()


def unbalanced(value: dict[str, Any]) -> None:
    value["ledger"]["rows_in"] += 1


def forgotten_drop(value: dict[str, Any]) -> None:
    """A ledger that balances, and is wrong: a note more came in, and was dropped as empty."""
    value["ledger"]["rows_in"] += 1
    value["ledger"]["dropped"] = {"empty_note": value["ledger"]["dropped"].get("empty_note", 0) + 1}


def fewer_truncated(value: dict[str, Any]) -> None:
    value["facts"]["splits"]["train"]["tokens"]["overlap"] += 1


def foreign_certificate(value: dict[str, Any]) -> None:
    value["facts"]["certificate"]["tokenizer_digest"] = "0" * 64


def no_tfds(_: NotesProject, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_tfds_out(monkeypatch)


def of_directory(artifact: str, dataset: str = "notes") -> dict[tuple[str, str], Fault]:
    key = f"{dataset}/{artifact}"
    return {
        (key, "files_intact"): flip_directory(artifact, dataset),
        (key, "readable_by_tfds"): longer_columns(artifact, dataset) if HAS_TFDS else no_tfds,
    }


def of_shards(format: str) -> dict[tuple[str, str], Fault]:
    key = f"notes/{format}_shards"

    def token(column: np.ndarray) -> None:
        column[0, 0] += 1

    return {
        (key, "files_intact"): flip_shard(format),
        (key, "records_intact"): shard_fault(format, lambda payloads: payloads[:-1]),
        (key, "matches_packed_rows"): shard_fault(format, edited("inputs", token)),
    }


def of_dataset(artifact: str) -> dict[tuple[str, str], Fault]:
    key = f"notes/{artifact}"
    return {
        (key, "matches_cohort_shards"): receipt_of(artifact, None, one_month_more),
        (key, "patients_disjoint"): same_patient,
    }


def segmented_twice(row: dict[str, Any]) -> None:
    row["inputs_segmentation"][3] = 7


def trained_everywhere(row: dict[str, Any]) -> None:
    row["targets_segmentation"] = [1] * len(row["inputs"])


def another_token(row: dict[str, Any]) -> None:
    row["inputs"][0] += 1


PACKED = "notes/packed_cohorts"


def of_card(dataset: str) -> dict[tuple[str, str], Fault]:
    """Faults of a dataset's data card."""

    def edited(change: Callable[[Any], None]) -> Fault:
        return lambda made, _: edit_json(made.root / dataset / "data_card" / "croissant.json", change)

    return {
        (f"{dataset}/data_card", "card_matches_receipts"): edited(lambda card: card.update(description="others")),
    }


FAULTS: dict[tuple[str, str], Fault] = {
    **of_card("notes"),
    **of_card("combined"),
    ("notes/engine_certificate", "engine_unchanged"): other_engine_version,
    ("notes/engine_certificate", "fast_engine_accepted"): refused_class,
    ("notes/engine_certificate", "separator_ends_documents"): chat_turn_separator,
    (PACKED, "files_intact"): lambda made, _: flip_byte(packed(made, f"train/{MONTH}.jsonl")),
    (PACKED, "ledger_balances"): receipt_of("packed_cohorts", MONTH, unbalanced),
    (PACKED, "rows_valid"): edit_line(segmented_twice),
    (PACKED, "labels_within_notes"): edit_line(trained_everywhere),
    (PACKED, "ids_in_vocabulary"): with_token(3, 4096),
    (PACKED, "tokens_conserved"): receipt_of("packed_cohorts", MONTH, fewer_truncated),
    (PACKED, "separators_match_notes"): separator_within,
    (PACKED, "jsonl_matches_rows"): edit_line(another_token),
    (PACKED, "engine_certified"): receipt_of("packed_cohorts", MONTH, foreign_certificate),
    (PACKED, "note_counts_match"): receipt_of("packed_cohorts", MONTH, forgotten_drop),
    (PACKED, "round_trip"): other_words,
    (PACKED, "patients_in_their_split"): other_patient,
    (PACKED, "no_retracted_document"): listed_patient,
    (PACKED, "packing_efficient"): one_row_as_two,
    (PACKED, "losses_within_limit"): receipt_of(
        "packed_cohorts", MONTH, lambda receipt: receipt["ledger"].update(unknown_tokens=9_999)
    ),
    **of_shards("tfrecord"),
    **of_shards("array_record"),
    **of_directory("tfds_directory"),
    **of_dataset("tfds_directory"),
    **of_directory("array_record_directory"),
    **of_dataset("array_record_directory"),
    **of_directory("tfds_directory", "combined"),
    ("combined/tfds_directory", "provenance_complete"): lambda made, _: edit_receipt(
        made.root / "combined" / "tfds_directory", lambda value: value["facts"].update(columns=["inputs"])
    ),
    ("combined/tfds_directory", "mixture_matches_weights"): lambda made, _: edit_receipt(
        made.root / "combined" / "tfds_directory", other_share
    ),
    ("combined/tfds_directory", "splits_disjoint"): leaked_patient,
}
