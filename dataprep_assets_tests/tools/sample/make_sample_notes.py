"""The sample cohorts that ship with the package: notes of invented children in an invented clinic, one file a month.

The package needs cohorts that everyone may redistribute, that are small, and that nobody can take for a real patient's.
So every name is a creature or a thing, every complaint is of a toy-box kind, the clinic is in no country, and each note
says in its first words that it is fiction.

Each file is seeded by its own name, and only ``Random.random()`` is drawn from: the one method whose sequence Python
promises to keep.

Entry points: ``python -m dataprep_assets_tests.tools.sample.make_sample_notes TARGET_DIR``, ``sample_cohorts``.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from dataprep_assets_tests.tools.sample.english import listed

SEED = "dataprep-assets sample notes 1"
MONTHS = ("2010-11", "2010-12", "2011-01", "2011-02")
PATIENTS = {"2010-11": 7, "2010-12": 5, "2011-01": 6, "2011-02": 4}

FIRST = listed("Pebble Bramble Thimble Acorn Marble Button Sprocket Biscuit Lantern Puddle Clover Nutmeg Ripple")
LAST = listed("Otterby Foxglove Teapotson Mossbank Kettlewright Snailsworth Hedgerow Moonwick Cloudberry Puffinsen")
KINDS = ("nursery visit", "balloon clinic", "night watch", "story round")
WHO = ("Dr. Wobble", "Nurse Marigold", "Dr. Humbug", "Sister Parsnip")
COMPLAINTS = (
    "has misplaced the left giggle and finds only the right one",
    "hums in the key of teapot since breakfast",
    "reports an itch of curiosity behind both knees",
    "sneezes glitter whenever a kite goes by",
    "walks in circles, which are getting rounder",
    "cannot stop counting ducks, of which there are none",
)
FINDINGS = (
    "Bounce: normal. Rattle: faint. Squeak: absent.",
    "Temperature of the socks 21 degrees, of the nose 19.",
    "The shadow was of the right length for the hour.",
    "Reflexes lively, in particular towards cake.",
    "Two freckles have changed places since the last visit; both are content.",
    "Buttons complete (7 of 7), laces uneven.",
)
PLANS = (
    "Three spoons of moonlight before bed, for two nights.",
    "To hop once on each stair and come back on Tuesday.",
    "A bandage of warm porridge; do not eat the bandage.",
    "Reading aloud to the goldfish, twice a day.",
    "Nothing needs to be done, and that thoroughly.",
)
T = TypeVar("T")


def pick(random: Random, choices: Sequence[T]) -> T:
    """Return one of the choices."""
    return choices[int(random.random() * len(choices))]


def between(random: Random, low: int, high: int) -> int:
    """Return an integer from low to high, both included."""
    return low + int(random.random() * (high - low + 1))


def note(random: Random, year: int) -> dict[str, Any]:
    """Return one note."""
    when = f"{year + between(random, 0, 9)}-{between(random, 1, 12):02d}-{between(random, 1, 28):02d}"
    lines = [f"FICTION, a made-up note. This child {pick(random, COMPLAINTS)}.", ""]
    for _ in range(between(random, 1, 9)):
        lines += [f"- {pick(random, FINDINGS)}", f"- {pick(random, FINDINGS)}", f"Plan: {pick(random, PLANS)}", ""]
    return {"date": when, "type": pick(random, KINDS), "author": pick(random, WHO), "text": "\n".join(lines)}


def patient(random: Random, month: str, number: int) -> dict[str, Any]:
    """Return one patient with one to six notes."""
    return {
        "patient_id": f"FICTION-{month}-{number:03d}",
        "name": f"{pick(random, FIRST)} {pick(random, LAST)}",
        "birth_date": f"{month}-{between(random, 1, 28):02d}",
        "favourite_colour": pick(random, ("teal", "ochre", "plaid", None)),
        "notes": [note(random, int(month[:4])) for _ in range(between(random, 1, 6))],
    }


def sample_cohorts() -> dict[str, bytes]:
    """Return file name → its bytes."""
    files = {}
    for month in MONTHS:
        random = Random(f"{SEED} {month}")
        patients = [patient(random, month, number) for number in range(PATIENTS[month])]
        files[f"{month}.json"] = json.dumps(patients, indent=1, ensure_ascii=False).encode() + b"\n"
    return files


def main() -> None:
    """Write the sample into the folder named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("target", type=Path)
    target = parser.parse_args().target
    target.mkdir(parents=True, exist_ok=True)
    for name, content in sample_cohorts().items():
        (target / name).write_bytes(content)


if __name__ == "__main__":
    main()
