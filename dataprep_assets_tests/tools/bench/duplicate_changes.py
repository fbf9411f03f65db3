"""Seeded changes of a corpus with duplicates.

Run `python -m dataprep_assets_tests.tools.bench.duplicate_changes --rounds 200`.

Each round changes something (files appended, removed, edited, their rows in another order; documents retracted; a rule;
the threshold; the duplicates lost; of a third corpus the other dataset that it is compared with) and builds what is not
current. Before that, a build may be killed while it writes
one of the artifacts, each in its turn. Then everything is made from nothing in another folder, sometimes by two worker
processes, given the same plan and the same ages of files, and has to have the same bytes. The kept texts are compared,
too, with those of the same files cut into other shards or, where a column decides, of the same rows in other files.
Printed: how often each change came, and each kill, and every round that differed, with its seed.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from signal import SIGKILL
from typing import Any

from dataprep_assets.curation.retractions import Retraction, add_retractions
from dataprep_assets.tokenization.document_ids import DocumentIds, hash_id
from dataprep_assets_tests import forked
from dataprep_assets_tests.faults.armed import make_armed_environment
from dataprep_assets_tests.pipelines.corpus.selected import Selected

CHANGES = ("append", "remove", "edit", "reorder", "retract", "rule", "threshold", "lose", "nothing")
OTHERS = (*CHANGES, "others", "others")
"""Changes of a corpus that is compared with another dataset, which also changes."""
NAMES = ("duplicates", "selection", "signatures")
STAGES = ("manifest", "snapshot", "tags", "signatures", "duplicates", "selection")
"""Artifacts during whose writing a build is killed."""
_POINTS = {"manifest": 12, "snapshot": 4, "tags": 14, "signatures": 30, "duplicates": 30, "selection": 14}
"""The number of write points of each, or of its first shards; a kill happens at one of them."""
_SECONDS = 120
CORPORA: dict[str, dict[str, Any]] = {
    "oldest": {},
    "column": {"priority": {"column": "score", "order": "lowest"}},
    "against": {"against": ["books"]},
}
"""The deduplication settings except the threshold."""


class Changed:
    """A corpus that changes by a seed."""

    def __init__(self, folder: Path, name: str, draw: random.Random) -> None:
        self.folder, self.draw, self.name = folder, draw, name
        self.others: dict[str, list[dict[str, Any]]] = {}
        self.changes = OTHERS if name == "against" else CHANGES
        self.vocabulary = [f"w{number}" for number in range(500)]
        self.files: dict[str, list[dict[str, Any]]] = {}
        self.pages: list[list[str]] = []
        self.declared: dict[str, Any] = {"threshold": 0.8}
        self.rule: str | None = None
        self.named = 0
        self.before: dict[str, str] = {}
        for _ in range(3):
            self.append()
        if name == "against":
            self.change_others()

    def selected(self, folder: Path | None = None, **declared: Any) -> Selected:
        """Return the corpus as currently declared."""
        return Selected(
            folder or self.folder,
            document={"separator": "<|endoftext|>", "keep_fields": {"score": "number"}},
            duplicates=self.duplicates,
            drop={} if self.rule is None else {"low": self.rule},
            retractions=self.folder / "retracted.jsonl",
            **declared,
        )

    @property
    def duplicates(self) -> dict[str, Any]:
        """The current deduplication settings."""
        return {**self.declared, **CORPORA[self.name]}

    def build_others(self) -> None:
        """Build the other dataset, whose texts are compared with the same settings."""
        books = Selected(
            self.folder / "books", dataset="books", duplicates=self.declared, retractions=self.folder / "books.jsonl"
        )
        books.store = self.selected().store
        shutil.rmtree(self.folder / "books" / "data", ignore_errors=True)
        books.write(self.others)
        books.build()

    def change_others(self) -> None:
        """Add and remove files of the other dataset, or retract one of its documents."""
        draw = self.draw
        if len(self.others) > 1 and draw.random() < 0.6:
            name = draw.choice(sorted(self.others))
            if draw.random() < 0.5:
                del self.others[name]
                return
            text = draw.choice(self.others[name])["text"]
            add_retractions(self.folder / "books.jsonl", DocumentIds(), [Retraction(hash=f"{hash_id(text):016x}")])
            return
        self.named += 1
        self.others[f"train/{self.named}.jsonl"] = [self.row() for _ in range(draw.randint(1, 25))]

    def row(self) -> dict[str, Any]:
        """Return a new row: a page, a version of one, or a copy."""
        draw = self.draw
        if self.pages and draw.random() < 0.6:
            words = list(draw.choice(self.pages))
            for _ in range(draw.choice((0, 1, 1, 2, 8))):
                words[draw.randrange(len(words))] = draw.choice(self.vocabulary)
        else:
            words = draw.choices(self.vocabulary, k=draw.randint(4, 120))
            self.pages.append(words)
        return {"text": " ".join(words), "score": draw.random()}

    def append(self) -> None:
        self.named += 1
        name = f"train/{self.draw.randrange(100)}-{self.named}.jsonl"
        self.files[name] = [self.row() for _ in range(self.draw.randint(1, 25))]

    def remove(self) -> None:
        if len(self.files) > 2:
            del self.files[self.draw.choice(sorted(self.files))]

    def edit(self) -> None:
        rows = self.files[self.draw.choice(sorted(self.files))]
        rows[self.draw.randrange(len(rows))] = self.row()

    def reorder(self) -> None:
        self.draw.shuffle(self.files[self.draw.choice(sorted(self.files))])

    def retract(self) -> None:
        text = self.draw.choice([row["text"] for rows in self.files.values() for row in rows])
        add_retractions(self.folder / "retracted.jsonl", DocumentIds(), [Retraction(hash=f"{hash_id(text):016x}")])

    def turn_rule(self) -> None:
        self.rule = self.draw.choice([None, "score > 0.9", "characters < 100"])

    def turn_threshold(self) -> None:
        self.declared = {"threshold": self.draw.choice([0.7, 0.8, 0.9])}

    def lose(self) -> None:
        shutil.rmtree(self.folder / "artifacts" / "pages" / "duplicates", ignore_errors=True)

    def change(self, name: str) -> None:
        """Apply a change, and write the files."""
        # Remember the bytes if they must not change: `nothing` changes no file, and lost artifacts are rebuilt with the
        # same bytes.
        self.before = self.selected().bytes(NAMES) if name in ("lose", "nothing") else {}
        known = {
            "rule": self.turn_rule,
            "threshold": self.turn_threshold,
            "others": self.change_others,
            "nothing": lambda: None,
        }
        known.get(name, getattr(self, name, None))()  # type: ignore[misc]
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        self.selected().write(self.files)
        if self.others:
            self.build_others()


def from_nothing(changed: Changed, folder: Path, workers: int | None) -> dict[str, str]:
    """Return the bytes of a build in an empty folder that gets only the plan and the ages of the files."""
    made = changed.folder / "artifacts" / "pages"
    shutil.copytree(changed.folder / "data", folder / "data", copy_function=shutil.copy2)
    shutil.copytree(made / "manifest", folder / "artifacts/pages/manifest")
    _copy_others(changed, folder)
    (folder / "artifacts/pages/duplicates").mkdir(parents=True)
    for name in ("ages.json", "receipt.json"):
        shutil.copy(made / "duplicates" / name, folder / "artifacts/pages/duplicates" / name)
    selected = changed.selected(folder)
    selected.build(workers)
    return selected.bytes(NAMES)


def _copy_others(changed: Changed, folder: Path) -> None:
    """Copy the other dataset's artifacts, which are built before this one's."""
    if changed.others:
        shutil.copytree(changed.folder / "artifacts/books", folder / "artifacts/books")


def kept_in_other_shards(changed: Changed, folder: Path) -> list[str]:
    """Return the texts that are kept for the same files with the same ages, in other shards."""
    made = folder / "artifacts/pages/duplicates"
    shutil.copytree(changed.folder / "data", folder / "data", copy_function=shutil.copy2)
    _copy_others(changed, folder)
    made.mkdir(parents=True)
    for name in ("ages.json", "receipt.json"):
        shutil.copy(changed.folder / "artifacts/pages/duplicates" / name, made / name)
    selected = changed.selected(folder, shards={"count": 1 + len(changed.files) % 3})
    selected.build()
    return sorted(set(selected.kept()))


def kept_elsewhere(changed: Changed, folder: Path) -> list[str]:
    """Return the texts that are kept for the same rows in other files and shards."""
    rows = [row for name in sorted(changed.files) for row in changed.files[name]]
    random.Random(len(rows)).shuffle(rows)
    count = 1 + len(rows) % 4
    selected = changed.selected(folder, shards={"count": count})
    selected.write({f"train/{number}.jsonl": rows[number::count] for number in range(count)})
    selected.build()
    return sorted(set(selected.kept()))


def killed(changed: Changed, folder: Path, stage: str) -> bool:
    """Kill a build while it writes an artifact, and return whether it got so far."""
    retractions = changed.folder / "retracted.jsonl"
    code = (
        "import sys, json; from pathlib import Path; "
        "from dataprep_assets_tests.pipelines.corpus.selected import Selected; "
        "given = json.loads(sys.argv[1]); Selected(Path(sys.argv[2]), **given).build()"
    )
    given = {
        "document": {"separator": "<|endoftext|>", "keep_fields": {"score": "number"}},
        "duplicates": changed.duplicates,
        "drop": {} if changed.rule is None else {"low": changed.rule},
        "retractions": str(retractions),
    }
    at = changed.draw.randint(1, _POINTS[stage])
    # An artifact without partitions is staged next to its folder. A partition is staged inside the folder of its
    # artifact.
    staged = f".staging/{stage}" if stage in ("manifest", "duplicates") else stage
    environment = make_armed_environment(folder, changed.folder / "artifacts/pages" / staged, at=at)
    process = forked.start(["-c", code, json.dumps(given), changed.folder], env=environment)
    ended = process.wait(_SECONDS)
    assert ended in (0, -SIGKILL), f"a build that was to be killed in {stage} ended with {ended}"
    return ended != 0


def one_round(changed: Changed, scratch: Path, counted: Counter[str], *, stage: str | None) -> str | None:
    """Build after a change and compare; return the difference, or None.

    Args:
        changed: The corpus, already changed.
        scratch: An empty folder.
        counted: Counts the kills that happened.
        stage: The artifact during whose writing a first build is killed; None for no kill.
    """
    if stage is not None and killed(changed, scratch / "killed", stage):
        counted[f"killed in {stage}"] += 1
    selected = changed.selected()
    selected.build()
    if selected.build():
        return f"a build with nothing to do made {selected.built[0]}"
    wrong = [name for name, one in selected.findings().items() if not one.passed and name != "recall_sufficient"]
    if wrong:
        return f"the check {wrong[0]} failed"
    if changed.before and changed.before != selected.bytes(NAMES):
        return "other bytes are there, and nothing has changed"
    workers = changed.draw.choice((None, None, None, 2))
    counted["two workers"] += workers is not None
    there, anew = selected.bytes(NAMES), from_nothing(changed, scratch / "anew", workers)
    # Compare only the artifacts that were built from scratch, because the other folder may also contain obsolete
    # shards.
    if other := [name for name in anew if there.get(name) != anew[name]]:
        return f"{other[0]} has other bytes when it is made from nothing"
    kept = sorted(set(_kept(changed, selected)))
    others = {"shards": kept_in_other_shards}
    if changed.name == "column":
        others["files"] = kept_elsewhere
    for name, other in others.items():
        if kept != (elsewhere := other(changed, scratch / name)):
            return f"{len(set(kept) ^ set(elsewhere))} other texts are kept of the same rows in other {name}"
    return None


def _kept(changed: Changed, selected: Selected) -> Sequence[str]:
    """Return the kept texts of the current files, because an obsolete shard may still exist."""
    gone = {(one["file"], one["row"]) for one in selected.dropped(planned=True)}
    return [
        row["text"]
        for name, rows in changed.files.items()
        for number, row in enumerate(rows, 1)
        if (name, number) not in gone
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--killed-in", choices=STAGES, action="append", help="where builds are killed; default: in all")
    parser.add_argument("--kills", type=float, default=0.4, help="share of rounds whose first build is killed")
    asked = parser.parse_args(arguments)
    counted: Counter[str] = Counter()
    failed, started = 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-changes-") as folder:
        draw = random.Random(asked.seed)
        corpora = []
        for name in CORPORA:
            (Path(folder) / name).mkdir()
            corpora.append(Changed(Path(folder) / name, name, draw))
        for number in range(asked.rounds):
            changed = corpora[number % len(corpora)]
            name = draw.choice(changed.changes)
            stage = draw.choice(asked.killed_in or STAGES) if draw.random() < asked.kills else None
            changed.change(name)
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                told = one_round(changed, Path(scratch), counted, stage=stage)
            counted[name] += 1
            if told is not None:
                failed += 1
                print(f"round {number + 1} (seed {asked.seed}), {changed.name}, {name}: {told}", flush=True)
    print(", ".join(f"{name} {count}" for name, count in sorted(counted.items())))
    print(f"all {asked.rounds} rounds, {failed} differ, {time.monotonic() - started:,.0f} s")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
