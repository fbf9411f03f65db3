"""Bytes and claims that no check compared before: each single change with a matching receipt is now reported."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dataprep_assets.integrity.receipt import NAME
from dataprep_assets_tests.pipelines.notes.directories import leave_tfds_out
from dataprep_assets_tests.tools.drill.box import Box, Target, edit_json, edit_receipt, reseal, write
from dataprep_assets_tests.tools.drill.campaign import prepare
from dataprep_assets_tests.tools.drill.judge import failed_proofs

Change = Callable[[Path], Any]


def _facts(*path: str, value: Any) -> Change:
    """Return a change of a fact in a receipt."""

    def change(receipt: Any) -> None:
        facts = receipt["facts"]
        for key in path[:-1]:
            facts = facts[key]
        facts[path[-1]] = value

    return lambda file: edit_receipt(file.parent, change)


def _input(name: str) -> Change:
    return lambda file: edit_receipt(file.parent, lambda receipt: receipt["inputs"].update({name: "0" * 64}))


def _json(change: Callable[[Any], Any]) -> Change:
    return partial(edit_json, change=change)


def _extra_key(file: Path) -> None:
    """Add a key without changing the formatting of the rest of the file."""
    write(file, file.read_bytes().replace(b"{", b'{"more": 1, ', 1))


def _crlf(file: Path) -> None:
    write(file, file.read_bytes().replace(b"\n", b"\r\n"))


def _renamed_column(file: Path) -> None:
    table = pq.read_table(file)
    file.unlink()
    pq.write_table(table.rename_columns(["other", *table.column_names[1:]]), file)


def _bit(at: int) -> Change:
    def change(file: Path) -> None:
        data = bytearray(file.read_bytes())
        data[at] ^= 1
        write(file, bytes(data))

    return change


def _repeated(value: Any) -> None:
    next(iter(value["splits"].values()))[0]["repeat"] += 1


CLAIMS: dict[str, list[tuple[str, str, Change, str]]] = {
    "corpus": [
        ("drill_corpus/manifest", "manifest.jsonl", _crlf, "line 1 is not in canonical form"),
        (
            "drill_corpus/mds_bins",
            "train/index.json",
            _extra_key,
            "unexpected content: the index was not written by dataprep, or was edited",
        ),
        ("drill_corpus/hf_parquet_bins", "**/train-*.parquet", _renamed_column, ""),
        ("drill_corpus/hf_parquet_bins", "**/train-*.parquet", _bit(40), ""),
        (
            "drill_corpus/snapshot",
            NAME,
            _input("manifest"),
            "the inputs in the receipt differ from the files of the manifest",
        ),
    ],
    "notes": [
        ("drill_notes/packed_cohorts", "**/*origins.npy", _bit(0), ""),
        ("drill_notes/packed_cohorts", NAME, _facts("splits", "train", "fill", value=0.25), "but the receipt has 0.25"),
        ("drill_notes/tfds_directory", "**/features.json", _extra_key, ""),
        ("drill_notes/tfds_directory", "provenance.json", _json(_repeated), "provenance.json differs from a rebuild"),
        (
            "drill_notes/array_record_directory",
            "provenance.json",
            _json(_repeated),
            "provenance.json differs from a rebuild",
        ),
        ("drill_mixed/tfds_directory", "provenance.json", _json(_repeated), "provenance.json differs from a rebuild"),
    ],
    "blend": [
        ("drill_rl/rl_manifest", NAME, _facts("run_hash", value="0" * 16), "its receipt has the run 0000"),
        ("drill_sft/blend_preview", "preview.json", Path.unlink, "does not match the receipt of the preview"),
    ],
}
"""Pipeline → artifact, its file (the first match of a pattern), the change, and the message of a check about it."""


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", CLAIMS)
def test_changes_that_no_check_compared_before_are_reported(
    pipeline: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_tfds_out(monkeypatch)
    box, _ = prepare(pipeline, tmp_path, aside=False)
    for artifact, pattern, change, said in CLAIMS[pipeline]:
        target = next(one for one in box.targets() if str(one).startswith(artifact))
        _change(box, target, pattern, change)
        told = list(failed_proofs(target.spec, box.bench.store, [] if target.slot is None else [target.slot]))
        box.restore()
        assert any(said in summary for _, summary in told), (artifact, pattern, told)


def _change(box: Box, target: Target, pattern: str, change: Change) -> None:
    folder = box.folder(target)
    file = min(folder.glob(pattern))
    change(file)
    if file.name != NAME:
        reseal(folder)
