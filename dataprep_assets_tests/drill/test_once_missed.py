"""Claims of receipts and sidecars that no check compared: each, changed alone and sealed again, is told."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataprep_assets_tests.drill.box import Box, Target, edit_json, edit_receipt, reseal
from dataprep_assets_tests.drill.campaign import prepare
from dataprep_assets_tests.drill.judge import failed_proofs
from dataprep_assets_tests.pipelines.notes.directories import leave_tfds_out

Change = Callable[[Any], Any]


def _repeat(value: Any) -> None:
    next(iter(value["splits"].values()))[0]["repeat"] += 1


def _facts(*path: str) -> Change:
    def change(value: Any) -> None:
        *inner, last = path
        facts = value["facts"]
        for key in inner:
            facts = facts[key]
        facts[last] = facts[last] + (1 if isinstance(facts[last], int) else 0.25)

    return change


def _input(name: str) -> Change:
    return lambda value: value["inputs"].update({name: "0" * 64})


CLAIMS: dict[str, list[tuple[str, str, Change, str]]] = {
    "corpus": [("drill_corpus/snapshot", "receipt.json", _input("manifest"), "names other inputs")],
    "notes": [
        ("drill_notes/packed_cohorts", "receipt.json", _facts("splits", "train", "fill"), "padding and fill"),
        ("drill_notes/packed_cohorts", "receipt.json", _facts("splits", "train", "padding"), "padding and fill"),
        ("drill_notes/tfds_directory", "provenance.json", _repeat, "1 times before"),
        ("drill_notes/array_record_directory", "provenance.json", _repeat, "1 times before"),
        ("drill_mixed/tfds_directory", "provenance.json", _repeat, "another file or dataset"),
    ],
    "blend": [
        (
            "drill_rl/rl_manifest",
            "receipt.json",
            lambda value: value["facts"].update(run_hash="0" * 16),
            "its receipt says the run 0000",
        ),
        ("drill_sft/blend_preview", "preview.json", None, "is not what the receipt"),
    ],
}
"""Pipeline → artifact, its file, what is changed (None: the file is not there), and what a check says."""


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", CLAIMS)
def test_a_claim_that_nothing_compared_is_told(pipeline: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_tfds_out(monkeypatch)
    box, _ = prepare(pipeline, tmp_path, aside=False)
    for artifact, file, change, said in CLAIMS[pipeline]:
        target = next(one for one in box.targets() if str(one).startswith(artifact))
        _changed(box, target, file, change)
        told = list(failed_proofs(target.spec, box.bench.store, [] if target.slot is None else [target.slot]))
        box.restore()
        assert any(said in summary for _, summary in told), (artifact, file, told)


def _changed(box: Box, target: Target, file: str, change: Change | None) -> None:
    folder = box.folder(target)
    if change is None:
        (folder / file).unlink()
    elif file == "receipt.json":
        edit_receipt(folder, change)
        return
    else:
        edit_json(folder / file, change)
    reseal(folder)
