"""Sample task folders, laid out as an old project has them, generated from templates written for this project.

Nothing is copied from a benchmark: people and places are invented, and the sentences are too plain to measure anything
by. Rows have the keys, types and labels of the real tasks, so that contracts, loaders and checks treat them alike; only
the numbers of rows are small, which a declaration tells its contracts (`like: Copa` with other `rows`).

Invariants: each file is seeded by its own path; only ``Random.random()`` is drawn from, whose sequence Python promises
to keep; no text occurs in two splits; a version changes texts and never an id or a label.

Entry points: ``python -m dataprep_assets_tests.tools.sample.make_sample_tasks TARGET_DIR``, ``write_sample``,
``write_tree``.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from dataprep_assets.pipelines.tasks.contract import SPLITS, Split, load_shipped_contracts

SEED = "dataprep-assets sample tasks 1"
LAYOUT = "Data/rejection_sampling/0_data"
VERSIONS = ("version_1", "version_9-2", "version_10-1")
"""The versions of the sample's Copa. The last one is the latest, but the second in alphabetical order."""
DISCARDED = "version_9-discard"
COUNTS: Mapping[str, Mapping[Split, int]] = {
    "Copa": {"train": 24, "validation": 8, "test": 8},
    "ArcC_Cloze": {"train": 16, "validation": 6, "test": 6},
}
"""The numbers of rows of the shipped sample."""
NAMES = (
    "Averil",
    "Bexley",
    "Corva",
    "Dunmore",
    "Estrel",
    "Fennick",
    "Gorrel",
    "Hesper",
    "Ilvane",
    "Jorrit",
    "Kestel",
    "Lorimar",
)
PLACES = ("Ambleford", "Brackwater", "Cindermoor", "Dunhollow", "Eldermere", "Farrowick", "Greyfen", "Hollin")
HAPPENED = (
    # Each row has the premise, the right answer, the wrong answer, and whether the question asks for cause or effect.
    ("{} closed every window of the house in {}.", "Rain was blowing in.", "The carpet was green.", "cause"),
    ("{} slipped on the steps of the mill in {}.", "The steps were icy.", "The mill had a clock.", "cause"),
    ("{} lit a lantern on the quay of {}.", "It had grown dark.", "The boat was painted.", "cause"),
    ("{} borrowed a ladder from a neighbour in {}.", "The roof was leaking.", "The cat was asleep.", "cause"),
    ("{} left the bread in the oven at {}.", "The crust burned.", "The flour was weighed.", "effect"),
    ("{} watered the seedlings in {} every morning.", "They grew tall.", "The spade rusted away.", "effect"),
    ("{} missed the last ferry to {}.", "The night was spent at the inn.", "The ferry was mended.", "effect"),
    ("{} tuned the old piano in {}.", "It sounded clear again.", "The stool had three legs.", "effect"),
)
KEPT = ("goats", "bees", "geese", "ponies", "snails", "rabbits")
MEASURED = (
    ("the length of a plank", "a folding rule", ("a kettle", "a bell", "a sieve", "a candle")),
    ("the warmth of a bath", "a thermometer", ("a ladder", "a comb", "a spade", "a saddle")),
    ("the weight of a cheese", "a pair of scales", ("a lantern", "a whistle", "a broom", "a kite")),
    ("the time of a race", "a stopwatch", ("a barrel", "a pillow", "a needle", "a trowel")),
)
Row = dict[str, Any]


def _pick(random: Random, items: Sequence[Any]) -> Any:
    return items[int(random.random() * len(items))]


def _who_and_where(number: int) -> tuple[str, str]:
    """Return a person and a place; no two of the first 96 numbers give the same pair."""
    return NAMES[number % len(NAMES)], PLACES[number // len(NAMES) % len(PLACES)]


def _copa(number: int, idx: int, hidden: bool, random: Random) -> Row:
    premise, right, wrong, question = HAPPENED[number % len(HAPPENED)]
    label = int(random.random() * 2)
    choices = (right, wrong) if label == 0 else (wrong, right)
    return {
        "premise": premise.format(*_who_and_where(number)),
        "choice1": choices[0],
        "choice2": choices[1],
        "question": question,
        "idx": idx,
        "label": -1 if hidden else label,
    }


def _entailment(number: int, idx: int, hidden: bool, random: Random, classes: int) -> Row:
    name, place = _who_and_where(number)
    kept, label = _pick(random, KEPT), int(random.random() * classes)
    no = f"{name} keeps no animals."
    hypothesis = (f"{name} keeps {kept}.", no, f"{name} can whistle.")[label]
    return {
        "premise": f"In {place}, behind the chapel, {name} keeps {kept}.",
        "hypothesis": hypothesis,
        "idx": idx,
        "label": -1 if hidden else label,
    }


def _boolq(number: int, idx: int, hidden: bool, random: Random) -> Row:
    name, place = _who_and_where(number)
    kept, answer = _pick(random, KEPT), random.random() < 0.5
    asked = kept if answer else _pick(random, [k for k in KEPT if k != kept])
    return {
        "question": f"does {name.lower()} keep {asked} in {place.lower()}",
        "passage": f"{name} moved to {place} with a cart of hay, and has kept {kept} there ever since.",
        "answer": answer,
    }


def _arc(number: int, idx: int, hidden: bool, random: Random) -> Row:
    name, place = _who_and_where(number)
    thing, right, wrong = MEASURED[number % len(MEASURED)]
    count = 3 + int(random.random() * 3)
    labels = list("ABCDE"[:count]) if count != 4 or random.random() < 0.5 else list("1234")
    at = int(random.random() * count)
    texts = list(wrong[: count - 1])
    texts.insert(at, right)
    return {
        "id": f"Sample_{place}_{number:03d}",
        "question": f"What does {name} of {place} need to measure {thing}?",
        "choices": {"text": texts, "label": labels},
        "answerKey": labels[at],
    }


_ROWS: Mapping[str, Callable[[int, int, bool, Random], Row]] = {
    "Copa": _copa,
    "BOOLQ": _boolq,
    "CB": lambda *given: _entailment(*given, classes=3),
    "RTE": lambda *given: _entailment(*given, classes=2),
    "ArcC_Cloze": _arc,
    "ArcC_MC": _arc,
}
_FIRST: Mapping[Split, int] = {"train": 0, "validation": 60, "test": 78}
"""The number of the first row of each split; a file may have as many rows as there are numbers up to the next."""
MOST: Mapping[Split, int] = {"train": 60, "validation": 18, "test": 18}
_REWRITTEN = ("premise", "question", "passage")


def task_rows(task: str, split: Split, count: int) -> list[Row]:
    """Return the rows of one original file; test hides its labels if the real one does."""
    if count > MOST[split]:
        raise ValueError(f"{task} {split}: there are {MOST[split]} different rows, not {count}")
    random = Random(f"{SEED}/{task}/{split}")
    return [_ROWS[task](_FIRST[split] + i, i, split == "test", random) for i in range(count)]


def rewritten(task: str, version: str, rows: Sequence[Row]) -> list[Row]:
    """Return a synthetic version: about three rows of four in other words, with the ids and labels of the original."""
    random = Random(f"{SEED}/{task}/{version}")
    made = []
    for row in rows:
        opening = _pick(random, ("One day in spring", "Years ago", "As the story goes", "On a cold morning"))
        # Do not rewrite the question of a Copa row, because it must be one of two words.
        key = next(k for k in _REWRITTEN if k in row and (task, k) != ("Copa", "question"))
        changed = {key: f"{opening}: {row[key]}"} if random.random() < 0.75 else {}
        made.append({**row, **changed})
    return made


def jsonl(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the bytes of a task file."""
    return b"".join(json.dumps(r, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" for r in rows)


def write_tree(
    target: Path, counts: Mapping[str, Mapping[Split, int]], versions: Mapping[str, Sequence[str]] | None = None
) -> None:
    """Write ``target/old`` (an old project with these tasks, and versions of some) and ``target/original``."""
    for task, numbers in counts.items():
        contract = load_shipped_contracts()[task]
        folder = target / "old" / LAYOUT / task
        for split in SPLITS:
            if split not in numbers:
                continue
            rows, name = task_rows(task, split, numbers[split]), contract.files[split].name
            _write(target / "original" / task / name, rows)
            _write(folder / name, rewritten(task, "base", rows) if split == "train" else rows)
            if split == "train":
                for version in (versions or {}).get(task, ()):
                    _write(folder / "mezo_gpt" / version / name, rewritten(task, version, rows))


def _write(path: Path, rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(jsonl(rows))


def write_sample(target: Path) -> None:
    """Write the shipped sample: Copa with its versions, and ArcC_Cloze."""
    write_tree(target, COUNTS, {"Copa": (*VERSIONS, DISCARDED)})


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write the sample task folders.")
    parser.add_argument("target", type=Path, metavar="TARGET_DIR", help="receives old/ and original/")
    write_sample(parser.parse_args(argv).target)


if __name__ == "__main__":
    main()
