"""A small sample of pages with what others call duplicates and leaks: copies, edited versions, items of a quiz.

Pages, items and edits grow from the grammars of the sample corpus (`make_sample`), so everyone may redistribute them.
Of each document its field `kind` says what it is, which nothing reads but a person and the tests: `page`, `copy`,
`version`, `framed` (boilerplate around a page), `held` (a validation page that is a version of one of train), `leak`
(an item of the quiz inside), `template` (a form with other values, which is no duplicate).

Invariants: each file is seeded by its own path; only ``Random.random()`` is drawn from, whose sequence Python promises
to keep.

Entry points: ``python -m dataprep_assets_tests.tools.sample.make_sample_duplicates TARGET_DIR``, ``write_sample``.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from dataprep_assets_tests.tools.sample.make_sample import encyclopedia, story
from dataprep_assets_tests.tools.sample.voice import Voice

SEED = "dataprep-assets sample duplicates 1"
PAGES, COPIES, VERSIONS, FRAMED, LEAKS, HELD, TEMPLATES, ITEMS = 48, 6, 14, 4, 3, 12, 4, 24
_TOP = "Home | Towns | Animals | People | About these pages\n\n"
_FOOT = "\n\nThese pages are kept by volunteers. Write to editor@example.org if something is wrong."
_FORM = (
    "Certificate of origin no. {large}. The {job} {person} of {place} declares that {medium} {unit} of {food} were "
    "made in the {building} of {other} in {month} {year}, from {plant} and {material}, and were looked at by {person} "
    "on a {weekday}. Sealed with the {color} {animal} of the town, and entered in book {small} on page {medium}."
)


def page(voice: Voice) -> str:
    """Return a text of 600 to 1,400 characters."""
    return voice.pick((encyclopedia, story))(voice, voice.between(600, 1400))


def edited(text: str, voice: Voice) -> str:
    """Return the text with one to three of its words replaced."""
    words = text.split(" ")
    for _ in range(voice.between(1, 3)):
        words[voice.between(0, len(words) - 1)] = voice.say(voice.pick(("{adjective}", "{thing}", "{animal}")))
    return " ".join(words)


def shouted(text: str, voice: Voice) -> str:
    """Return the text in another case, with other white space: the same words."""
    return text.upper() if voice.chance(0.5) else text.replace(" ", "\u00a0\u00a0").replace(".", " .")


def items() -> list[dict[str, object]]:
    """Return the items of a quiz: a question, four choices and a short answer each."""
    voice, found = Voice(f"{SEED} quiz"), list[dict[str, object]]()
    for number in range(ITEMS):
        building, answer, year = voice.say("{building}"), voice.place(), voice.say("{year}")
        others = [voice.place() for _ in range(3)]
        job, person, thing, animal = (voice.say(one) for one in ("{job}", "{person}", "{thing}", "{animal}"))
        asked = (
            f"In the {building} of which town did the {job} {person} hide a {voice.say('{material}')} {thing} and a "
            f"tame {animal} from the council in {year}, after {voice.say('{medium}')} days on {voice.say('{terrain}')}?"
        )
        found.append({"id": number, "question": asked, "choices": voice.shuffled([answer, *others]), "answer": answer})
    return found


def train() -> dict[str, list[dict[str, str]]]:
    """Return the files of the train split: name → rows."""
    voice = Voice(f"{SEED} train")
    texts = [page(voice) for _ in range(PAGES)]
    rows = [_row("page", number, text) for number, text in enumerate(texts)]
    rows += [_row("template", number, voice.say(_FORM)) for number in range(TEMPLATES)]
    mirror = [_row("copy", at, shouted(texts[at], voice)) for at in range(COPIES)]
    mirror += [_row("version", at, edited(texts[at], voice)) for at in range(COPIES, COPIES + VERSIONS)]
    mirror += [_row("framed", at, f"{_TOP}{texts[at]}{_FOOT}") for at in range(PAGES - FRAMED, PAGES)]
    questions = [str(one["question"]) for one in items()[:LEAKS]]
    for number, question in enumerate(questions):
        first, _, rest = page(voice).partition(". ")
        mirror.append(_row("leak", number, f"{first}. {question.lower()} {rest}"))
    return {"pages.jsonl": voice.shuffled(rows), "mirror.jsonl": voice.shuffled(mirror)}


def validation() -> list[dict[str, str]]:
    """Return the rows of the validation split: its own pages, and two versions of pages of train."""
    voice = Voice(f"{SEED} validation")
    pages = {row["url"]: row for row in train()["pages.jsonl"]}
    rows = [_row("page", 100 + number, page(voice)) for number in range(HELD)]
    originals = [(at, pages[_row("page", at, "")["url"]]["text"]) for at in (24, 25)]
    rows += [_row("held", at, edited(text, voice)) for at, text in originals]
    return rows


def _row(kind: str, number: int, text: str) -> dict[str, str]:
    return {"url": f"https://{number}.example.org/{kind}", "kind": kind, "text": text}


def write_sample(target: Path) -> None:
    """Write the shipped sample: `data/train`, `data/val` and `quiz.jsonl`."""
    for name, rows in train().items():
        _write(target / "data" / "train" / name, rows)
    _write(target / "data" / "val" / "pages.jsonl", validation())
    _write(target / "quiz.jsonl", items())


def _write(path: Path, rows: Sequence[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(json.dumps(one, ensure_ascii=False).encode() + b"\n" for one in rows))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write the sample of duplicates.")
    parser.add_argument("target", type=Path, metavar="TARGET_DIR", help="receives data/ and quiz.jsonl")
    write_sample(parser.parse_args(argv).target)


if __name__ == "__main__":
    main()
