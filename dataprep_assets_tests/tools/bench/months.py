"""Notes of many tiny months from the command line: `python -m dataprep_assets_tests.tools.bench.months`.

A project of 24 birth years is run with one bad record in it, once more when that is mended, and once with nothing to
do; then a month that was built fails, and is mended; then every proof of every month is run as if nobody had run it
before. Each command is a process of its own.

With `--kills SECONDS` the same months are made twice instead: undisturbed, and by commands that are killed (SIGKILL,
with all their processes) at random moments until so many seconds are over, and then finished, to the same bytes.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.notes.dataset import notes_specs
from dataprep_assets.pipelines.notes.declaration import NotesDeclaration
from dataprep_assets.sources.cohorts import list_expected_months
from dataprep_assets_tests.pipelines.corpus.pipeline import debris, products, receipts
from dataprep_assets_tests.pipelines.notes.pipeline import KEY, SAMPLES
from dataprep_assets_tests.tools.bench.invented_text import sentence, vocabulary
from dataprep_assets_tests.tools.bench.runner import Measurement, measure

FIRST, LAST = "1998-01", "2021-12"
MENDED_SECONDS, PROOFS_SECONDS = 30, 60
_COMMAND = (sys.executable, "-m", "dataprep_assets.cli")
_DATASET = "wards"
_FAILS = ("sh", "-c", '"$@"; test $? -eq 1', "sh")
"""Prefix of a command whose exit code must be 1."""


def write_months(folder: Path, months: Sequence[str], notes: int) -> None:
    """Write a file for each month: one patient per four notes, with invented text."""
    folder.mkdir(parents=True)
    words = vocabulary()
    for month in months:
        rng = random.Random(month)
        patients = [
            {
                "patient_id": f"{month} {patient}",
                "notes": [
                    {"text": sentence(rng, words, rng.randint(20, 60)), "date": "2022-01-01"}
                    for _ in range(patient, notes, 4)
                ],
            }
            for patient in range(min(4, notes))
        ]
        (folder / f"{month}.json").write_text(json.dumps(patients))


def attributes(source: Path, months: Sequence[str], workers: int) -> dict[str, object]:
    """Return the YAML attributes of the dataset."""
    return {
        "dataset": _DATASET,
        "sensitive": False,
        "source": {"kind": "local", "path": str(source)},
        "months": {"first": months[0], "last": months[-1]},
        "tokenizer": {"path": str(SAMPLES / "sample_corpus" / "tokenizer"), "name": "sample"},
        "document": {"separator": "<|endoftext|>"},
        "pad": {"token": "<|pad|>"},
        "patient_key": {"public": KEY},
        "row_length": 128,
        "workers": workers,
    }


def project(folder: Path, declaration: dict[str, object]) -> dict[str, str]:
    """Create a project with the dataset in a folder, and return the environment of its commands."""
    measure([*_COMMAND, "init", str(folder)])
    package = next(path.parent for path in folder.glob("*/defs"))
    yaml = package / "defs" / _DATASET / "defs.yaml"
    yaml.parent.mkdir()
    component = "dataprep_assets.components.PackedCohorts"
    yaml.write_text(json.dumps({"type": component, "attributes": declaration}))
    return {"DATAPREP_PROJECT": str(folder)}


def artifacts_of(folder: Path) -> Path:
    """Return the folder of a project's artifacts."""
    return next(path.parent.parent for path in folder.rglob("packed_cohorts") if path.parent.name == _DATASET)


def prove_anew(folder: Path, declaration: dict[str, object]) -> int:
    """Run all checks of all months in this process and its workers, without the stored verdicts."""
    notes = validate_declaration(NotesDeclaration, declaration, folder / "defs.yaml")
    store = LocalArtifacts(artifacts_of(folder))
    shutil.rmtree(store.root / _DATASET / ".findings")
    failed = 0
    for spec in notes_specs(notes):
        if spec.partitions is not None and spec.checks:
            found = list(spec.examine(store, notes.months.expected_keys))
            assert len(found) == len(spec.checks)
            failed += sum(not finding.passed and not finding.warning for _, finding in found)
    return failed


def _line(name: str, found: Measurement) -> None:
    print(f"{name:<36}{found.wall:>10.1f}{found.cpu:>10.1f}", flush=True)


def measured(folder: Path, declaration: dict[str, object], source: Path) -> int:
    """Print the table; return 1 if a target is missed."""
    environment = project(folder / "project", declaration)
    run = [*_COMMAND, "run", _DATASET]
    victim = sorted(source.glob("*.json"))[150 % len(list(source.glob("*.json")))]
    good = victim.read_bytes()
    victim.write_bytes(good.replace(b'"patient_id"', b'"nobody"', 1))
    print(f"{'':<36}{'wall s':>10}{'CPU s':>10}")
    _line("first run, one month fails", measure([*_FAILS, *run], environment))
    victim.write_bytes(good)
    mended = measure(run, environment)
    _line("the month is mended", mended)
    _line("nothing to do", measure(run, environment))
    victim.write_bytes(good.replace(b'"patient_id"', b'"nobody"', 1))
    _line("a built month fails", measure([*_FAILS, *run], environment))
    victim.write_bytes(good.replace(b'"text": "', b'"text": "again, ', 1))
    again = measure(run, environment)
    _line("and is mended, with another text", again)
    victim.write_bytes(good)
    _line("and has its first text again", measure(run, environment))
    prove = [sys.executable, "-m", __spec__.name, "--prove", str(folder / "project")]
    (folder / "project" / "declared.json").write_text(json.dumps(declaration))
    proofs = measure(prove, environment)
    _line("every proof of every month anew", proofs)
    met = max(mended.wall, again.wall) < MENDED_SECONDS and proofs.cpu <= PROOFS_SECONDS
    print(f"targets: mended in {MENDED_SECONDS} s, proofs in {PROOFS_SECONDS} s of CPU: {'met' if met else 'MISSED'}")
    return int(not met)


def killed(folder: Path, declaration: dict[str, object], seconds: float) -> int:
    """Build the dataset undisturbed and with kills; return 1 if the bytes differ."""
    run = [*_COMMAND, "run", _DATASET]
    measure(run, project(folder / "undisturbed", declaration))
    environment = os.environ | project(folder / "disturbed", declaration)
    rng, kills, end = random.Random(0), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        process = subprocess.Popen(
            run, env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        # Wait for at least 3 s, because the interpreter needs the first seconds to start.
        with suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(3, 40))
        if process.poll() is not None:
            if process.returncode:
                print(f"exit code {process.returncode} after {kills} kills")
                return 1
            # Start over after a finished build, as long as time remains.
            shutil.rmtree(artifacts_of(folder / "disturbed"))
            continue
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kills += 1
    measure(run, dict(environment))
    one, other = (artifacts_of(folder / name) for name in ("undisturbed", "disturbed"))
    files = products(one)
    same = files == products(other) and receipts(one) == receipts(other)
    left = debris(other, after_a_kill=True)
    print(
        f"{kills} kills, {len(files):,} files: {'the same bytes' if same else 'OTHER BYTES'}, left: {left or 'nothing'}"
    )
    return int(not same or bool(left))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a target is missed, or if the bytes differ."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.bench.months", description=__doc__)
    parser.add_argument("--first", default=FIRST, help="month")
    parser.add_argument("--last", default=LAST, help="month")
    parser.add_argument("--notes", type=int, default=12, help="of a month")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kills", type=float, metavar="SECONDS", help="kill for so long, and compare the bytes")
    parser.add_argument("--prove", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.prove is not None:
        return prove_anew(given.prove, json.loads((given.prove / "declared.json").read_text()))
    months = list_expected_months(given.first, given.last)
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-") as name:
        folder = Path(name)
        write_months(folder / "source", months, given.notes)
        declaration = attributes(folder / "source", months, given.workers)
        print(f"{len(months)} months of {given.notes} notes, {given.workers} workers")
        if given.kills is not None:
            return killed(folder, declaration, given.kills)
        return measured(folder, declaration, folder / "source")


if __name__ == "__main__":
    sys.exit(main())
