"""Run `python -m dataprep_assets_tests.tools.drill`: apply faults to copies of every pipeline's artifacts.

The exit code is 1 if fewer than 99 % of the faults were detected, or if anything was reported for a clean corpus.
"""

import argparse
import json
import logging
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

from dataprep_assets.engine.checks.check import EVERY_DOCUMENT
from dataprep_assets_tests.pipelines.notes.directories import leave_tfds_out
from dataprep_assets_tests.tools.drill.by_artifact import named
from dataprep_assets_tests.tools.drill.by_artifact import table as rates_by_artifact
from dataprep_assets_tests.tools.drill.campaign import Result, prepare, run
from dataprep_assets_tests.tools.drill.clean import false_alarms, shapes
from dataprep_assets_tests.tools.drill.datasets import PIPELINES
from dataprep_assets_tests.tools.drill.faults import chosen
from dataprep_assets_tests.tools.drill.real_size import rates, table
from dataprep_assets_tests.tools.drill.table import render, share
from dataprep_assets_tests.tools.drill.walk import walk

ENOUGH = 0.99
PLACES = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the drill."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.drill", description=__doc__)
    parser.add_argument("--only", choices=sorted(PIPELINES), help="test one pipeline, and no undamaged corpora")
    parser.add_argument("--faults", type=int, metavar="N", help="maximum number of faults per pipeline [default: all]")
    parser.add_argument("--kind", metavar="TEXT", help="apply only kinds of faults whose name contains this text")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random positions [default: 1]")
    parser.add_argument("--clean", type=int, default=50, metavar="N", help="number of undamaged corpora [default: 50]")
    parser.add_argument("--status", action="store_true", help="also run `dataprep status`, which doubles the time")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every result to this file, one JSON object per line"
    )
    parser.add_argument(
        "--real-size",
        type=int,
        metavar="N",
        help="test shards of N documents instead, at both check levels; --faults applies per kind",
    )
    parser.add_argument(
        "--by-artifact",
        type=int,
        metavar="N",
        help="change values of each artifact of N documents instead; --faults applies per artifact",
    )
    parser.add_argument("--walk", action="store_true", help="change three bytes of every file instead")
    given = parser.parse_args(argv)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    if given.real_size is not None:
        return _at_real_size(given)
    if given.by_artifact is not None:
        return _by_artifact(given)
    if given.walk:
        return _walked([given.only] if given.only else list(PIPELINES))
    results: list[Result] = []
    with pytest.MonkeyPatch.context() as patch:
        leave_tfds_out(patch)
        for pipeline in [given.only] if given.only else PIPELINES:
            results += _drilled(pipeline, given)
        alarms = [] if given.only else _clean(given)
    if given.json is not None:
        given.json.write_text("".join(json.dumps(result.to_json()) + "\n" for result in results))
    print(render(results))
    print(f"{share(results):.2%} of {len(results):,} faults were noticed; {len(alarms)} false alarms")
    return 0 if share(results) >= ENOUGH and not alarms else 1


def _at_real_size(given: argparse.Namespace) -> int:
    home = Path(tempfile.mkdtemp(prefix="dataprep-drill-"))
    try:
        found = list(rates(home, documents=given.real_size, faults=given.faults or 20, seed=given.seed))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print(table(found))
    every = [rate for rate in found if rate.level == EVERY_DOCUMENT]
    return 0 if all(rate.named == rate.applied for rate in every) else 1


def _by_artifact(given: argparse.Namespace) -> int:
    home, found = Path(tempfile.mkdtemp(prefix="dataprep-drill-")), []
    try:
        with pytest.MonkeyPatch.context() as patch:
            leave_tfds_out(patch)
            for one in named(
                given.only or "curated", home, documents=given.by_artifact, faults=given.faults or 6, seed=given.seed
            ):
                found.append(one)
                if not one.every_document:
                    print(f"missed: {one.artifact}: {one.fault}: {one.where}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print(rates_by_artifact(found))
    return int(not all(one.damage and one.every_document for one in found))


def _walked(pipelines: Sequence[str]) -> int:
    unnamed = 0
    for pipeline in pipelines:
        home = Path(tempfile.mkdtemp(prefix="dataprep-drill-"))
        try:
            with pytest.MonkeyPatch.context() as patch:
                leave_tfds_out(patch)
                box, _ = prepare(pipeline, home, aside=False)
                steps = list(walk(box))
        finally:
            shutil.rmtree(home, ignore_errors=True)
        left = [step for step in steps if step.crash or not step.verify or not (step.proof or step.excepted)]
        for step in left:
            print(f"missed: {step.file}, byte {step.at} {step.crash}", file=sys.stderr, flush=True)
        print(f"{pipeline}: {len(steps):,} bytes of {len({step.file for step in steps}):,} files, {len(left)} missed")
        unnamed += len(left)
    return int(unnamed > 0)


def _drilled(pipeline: str, given: argparse.Namespace) -> list[Result]:
    home = Path(tempfile.mkdtemp(prefix="dataprep-drill-"))
    began = time.monotonic()
    try:
        box, table = prepare(pipeline, home)
        faults = chosen((f for f in table(PLACES) if (given.kind or "") in f.kind), given.faults, given.seed)
        found = list(run(box, faults, given.seed, status=given.status, told=_told))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    print(f"{pipeline}: {len(found):,} faults in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return found


def _told(result: Result) -> None:
    crash = result.notice.crash
    if crash or not result.by:
        what = f"a check broke ({crash})" if crash else "missed"
        more = "; ".join(result.notice.others[:2])
        print(
            f"{what}: {result.kind}: {result.name}: {result.target}: {result.where} {more}", file=sys.stderr, flush=True
        )


def _clean(given: argparse.Namespace) -> list[str]:
    alarms = []
    for name, files in shapes(given.clean, given.seed):
        folder = Path(tempfile.mkdtemp(prefix="dataprep-drill-"))
        try:
            alarms += [f"{name}: {said}" for said in false_alarms(name, files, folder)]
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    for said in alarms:
        print(f"false alarm: {said}", file=sys.stderr, flush=True)
    return alarms


if __name__ == "__main__":
    sys.exit(main())
