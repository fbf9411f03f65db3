"""Small changes of a task folder, what the trainer's own loader does with each, and what our checks say.

Each mutation was run through the original loader and its prompts (`python -m dataprep_assets_tests.parity --mezo DIR`),
which proves the column `loader`; in CI, where the original is not there, the tests hold our checks and our model of the
loader against the same table. A mutation that trains the same may warn and may not block, and one that does not has to
block: of every exception `named` is the documented check or key of the contract, and `because` the reason.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dataprep_assets.pipelines.tasks.contract import Split, shipped_contracts
from dataprep_assets_tests.pipelines.tasks.trees import edit

Outcome = Literal["same", "other", "stops"]
"""A training on the changed folder: on the very prompts and answers of the unchanged one, on others, or none."""
Verdict = Literal["passes", "warns", "blocks"]
Change = Callable[[Path, str], str | None]
"""Changes a task's folder; returns `TASK` where that is another than the folder."""
Row = dict[str, Any]

ALL = ("Copa", "BOOLQ", "CB", "RTE", "ArcC_Cloze", "ArcC_MC")
SKIPPING = ("Copa", "BOOLQ", "CB", "RTE")
ARC = ("ArcC_Cloze", "ArcC_MC")
NUMBERED = ("Copa", "CB", "RTE")
WITH_ID = (*NUMBERED, *ARC)
LOST = "a line that cannot be read counts as a lost row: nobody can tell that it was none"
OTHER_DATA = "other data that trains as it stands, which may be what is wanted"
UNCLEAR = "nobody can tell what it means"


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One change, for tasks that treat it alike. `before` prepares both the folder and its original.

    Of an exception, `named` is the check that tells of it, or the key of the contract that leaves it free.
    """

    area: str
    name: str
    tasks: tuple[str, ...]
    change: Change
    loader: Outcome
    verdict: Verdict
    because: str = ""
    named: str = ""
    before: Change | None = None


def file(folder: Path, task: str, split: Split = "train") -> Path:
    return folder / shipped_contracts()[task].files[split].name


def raw(change: Callable[[bytes], bytes], split: Split = "train") -> Change:
    def apply(folder: Path, task: str) -> None:
        path = file(folder, task, split)
        path.write_bytes(change(path.read_bytes()))

    return apply


def line(change: Callable[[bytes], bytes], split: Split = "train") -> Change:
    """Change the third line, given without its end."""

    def third(data: bytes) -> bytes:
        lines = data.splitlines()
        return b"".join(one + b"\n" for one in [*lines[:2], change(lines[2]), *lines[3:]])

    return raw(third, split)


def rows(change: Callable[[list[Row], str], Any], split: Split = "train") -> Change:
    def apply(folder: Path, task: str) -> None:
        edit(file(folder, task, split), lambda found: change(found, task))

    return apply


def row(change: Callable[[Row, str], Any], split: Split = "train") -> Change:
    """Change the third row in place."""

    def third(found: list[Row], task: str) -> None:
        change(found[2], task)

    return rows(third, split)


def put(split: Split = "train", **values: Any) -> Change:
    return row(lambda value, task: value.update(values), split)


def identity(task: str) -> str:
    name = shipped_contracts()[task].id
    assert name is not None
    return name


def label(task: str) -> str:
    return shipped_contracts()[task].label


def text(task: str) -> str:
    """The text that a rewrite changes first."""
    return shipped_contracts()[task].text[0]


def identified(value: Any, split: Split = "train") -> Change:
    return row(lambda found, task: found.update({identity(task): value}), split)


def labelled(value: Any, split: Split = "train") -> Change:
    return row(lambda found, task: found.update({label(task): value}), split)


def told(value: Any, split: Split = "train") -> Change:
    return row(lambda found, task: found.update({text(task): value}), split)


def halved(folder: Path, task: str) -> None:
    """Half of a surrogate pair in a text, as JSON spells it."""

    def spelled(one: bytes) -> bytes:
        value = json.loads(one)
        return json.dumps({**value, text(task): value[text(task)] + "\ud800"}, ensure_ascii=True).encode()

    line(spelled)(folder, task)


def first(wanted: Callable[[Any], bool], change: Callable[[Row, str], Any]) -> Change:
    """Change the first train row whose label is wanted."""
    return rows(lambda found, task: change(next(r for r in found if wanted(r[label(task)])), task) and None)


def relabelled(make: Callable[[Any], Any], wanted: Callable[[Any], bool] = lambda value: True) -> Change:
    return first(wanted, lambda found, task: found.update({label(task): make(found[label(task)])}))


def doubled(task_key: Callable[[str], str], before: bool) -> Change:
    """Give a key twice: the same value, or another one before it."""

    def apply(folder: Path, task: str) -> None:
        def twice(one: bytes) -> bytes:
            value = json.loads(one)
            name = task_key(task)
            again = '"another value"' if before else json.dumps(value[name])
            return b"{" + f"{json.dumps(name)}: {again}, ".encode() + one[1:]

        line(twice)(folder, task)

    return apply


def flipped(found: Row, task: str) -> None:
    value = found[label(task)]
    if isinstance(value, bool):
        found[label(task)] = not value
    elif isinstance(value, int):
        found[label(task)] = (value + 1) % 2
    else:
        labels = found["choices"]["label"]
        found[label(task)] = labels[(labels.index(value) + 1) % len(labels)]


def exchanged_ids(found: list[Row], task: str) -> None:
    """The ids of two rows with different labels."""
    other = next(r for r in found if r[label(task)] != found[0][label(task)])
    name = identity(task)
    found[0][name], other[name] = other[name], found[0][name]


def numbered(found: Row, task: str) -> None:
    """A question with labels 1, 2, … as strings."""
    labels = found["choices"]["label"]
    place = labels.index(found["answerKey"])
    found["choices"]["label"] = [str(i + 1) for i in range(len(labels))]
    found["answerKey"] = str(place + 1)


def numbers(found: Row, task: str) -> None:
    found["choices"]["label"] = [int(one) for one in found["choices"]["label"]]
    found["answerKey"] = int(found["answerKey"])


def lower_labels(found: Row, task: str) -> None:
    found["choices"]["label"] = [one.lower() for one in found["choices"]["label"]]
    found["answerKey"] = found["answerKey"].lower()


def letters(found: Row, task: str) -> None:
    labels = found["choices"]["label"]
    place = labels.index(found["answerKey"])
    found["choices"]["label"] = list("ABCDE"[: len(labels)])
    found["answerKey"] = "ABCDE"[place]


def choices(change: Callable[[list[str], list[str]], Any], split: Split = "train") -> Change:
    return row(lambda found, task: change(found["choices"]["text"], found["choices"]["label"]), split)


def two_choices(found: Row, task: str) -> None:
    texts, labels = found["choices"]["text"], found["choices"]["label"]
    place = labels.index(found["answerKey"])
    kept = sorted({place, (place + 1) % len(labels)})
    found["choices"] = {"text": [texts[i] for i in kept], "label": [labels[i] for i in kept]}


def repeated_label(found: Row, task: str) -> None:
    """The label of a wrong choice, given to another wrong choice too."""
    labels = found["choices"]["label"]
    wrong = [i for i, one in enumerate(labels) if one != found["answerKey"]]
    labels[wrong[1]] = labels[wrong[0]]


def gone(split: Split = "train") -> Change:
    return lambda folder, task: file(folder, task, split).unlink()


def renamed(folder: Path, task: str) -> None:
    path = file(folder, task)
    path.rename(path.with_name(path.name.capitalize() if path.name.islower() else path.name.lower()))


def instead(make: Callable[[Path], object], split: Split = "train") -> Change:
    def apply(folder: Path, task: str) -> None:
        path = file(folder, task, split)
        path.unlink()
        make(path)

    return apply


def linked(folder: Path, task: str) -> None:
    path = file(folder, task)
    other = folder.parent / f"{task}.elsewhere"
    path.rename(other)
    path.symlink_to(os.path.relpath(other, folder))


def beside(name: Callable[[Path], str]) -> Change:
    def apply(folder: Path, task: str) -> None:
        path = file(folder, task)
        (folder / name(path)).write_bytes(path.read_bytes())

    return apply


def mode(bits: int) -> Change:
    return lambda folder, task: file(folder, task).chmod(bits)


def moved(name: Callable[[str], str]) -> Change:
    def apply(folder: Path, task: str) -> str:
        return str(folder.rename(folder.with_name(name(task))))

    return apply


def stolen(folder: Path, task: str) -> None:
    """The texts of a validation row, in train."""
    taken = json.loads(file(folder, task, "validation").read_bytes().splitlines()[0])
    edit(file(folder, task), lambda found: found[2].update({k: v for k, v in taken.items() if _is_text(k, task)}))


def _is_text(key: str, task: str) -> bool:
    return key in {path.partition(".")[0] for path in shipped_contracts()[task].text if "." not in path}


def _lines() -> Iterator[Mutation]:
    def made(name: str, change: Change, **rest: Any) -> Mutation:
        return Mutation(area="lines", name=name, change=change, **rest)

    blank: dict[str, Change] = {
        "a blank line in the middle": line(lambda one: one + b"\n"),
        "a blank last line": raw(lambda data: data + b"\n"),
        "a line of white space": raw(lambda data: b" \t\n" + data),
    }
    for name, change in blank.items():
        yield made(name, change, tasks=SKIPPING, loader="same", verdict="warns")
        yield made(name, change, tasks=ARC, loader="stops", verdict="blocks")
    taken: dict[str, Change] = {
        "CR LF": raw(lambda data: data.replace(b"\n", b"\r\n")),
        "one CR for LF": raw(lambda data: data.replace(b"\n", b"\r", 1)),
        "no last line end": raw(lambda data: data[:-1]),
        "a key given twice": doubled(label, before=False),
        "a key given twice, the wrong value first": doubled(label, before=True),
        "NaN in another key": put(score=float("nan")),
        "half a surrogate pair in another key": line(lambda one: b'{"note": "\\ud800", ' + one[1:]),
    }
    for name, change in taken.items():
        yield made(name, change, tasks=ALL, loader="same", verdict="warns")
    for name, change in {
        "spaces around a row": line(lambda one: b"  " + one + b"\t"),
        "spaces inside of a row": line(lambda one: json.dumps(json.loads(one), indent=None).encode()),
        "escapes for letters": line(lambda one: json.dumps(json.loads(one), ensure_ascii=True).encode()),
    }.items():
        yield made(name, change, tasks=ALL, loader="same", verdict="passes")
    lost: dict[str, Change] = {
        "a byte order mark": raw(lambda data: b"\xef\xbb\xbf" + data),
        "a last line cut short": raw(lambda data: data[:-20]),
        "a torn row": line(lambda one: one[:20]),
        "a row without its brace": line(lambda one: one[1:]),
        "two rows on one line": line(lambda one: one + b" " + one),
    }
    for name, change in lost.items():
        yield made(name, change, tasks=SKIPPING, loader="other", verdict="blocks")
        yield made(name, change, tasks=ARC, loader="stops", verdict="blocks")
    stray = line(lambda one: one + b"\n# made by a model")
    unread: dict[str, Any] = {"loader": "same", "verdict": "blocks", "named": "every_line_object"}
    yield made("a comment", stray, tasks=SKIPPING, because=LOST, **unread)
    yield made("a comment", stray, tasks=ARC, loader="stops", verdict="blocks")
    yield made("not UTF-8", line(lambda one: one + b"\xff"), tasks=ALL, loader="stops", verdict="blocks")
    array = line(lambda one: b"[1]")
    yield made("an array for a row", array, tasks=("Copa", "BOOLQ", "CB", *ARC), loader="stops", verdict="blocks")
    yield made("an array for a row", array, tasks=("RTE",), loader="other", verdict="blocks")
    deep = line(lambda one: b'{"note": ' + b"[" * 100 + b"]" * 100 + b", " + one[1:])
    why = "rows of more than 64 levels are not read"
    yield made("a hundred levels in another key", deep, tasks=ALL, because=why, **unread)


def _keys() -> Iterator[Mutation]:
    def made(name: str, change: Change, **rest: Any) -> Mutation:
        return Mutation(area="keys", name=name, change=change, **rest)

    def everywhere(found: list[Row], task: str) -> list[Row]:
        return [{**one, "source": "a model", "score": 0.5} for one in found]

    yield made("another key", put(note="x"), tasks=ALL, loader="same", verdict="warns")
    yield made("other keys in every row", rows(everywhere), tasks=ALL, loader="same", verdict="warns")
    extra = row(lambda found, task: found["choices"].update(source=["x"]))
    yield made("another key of the choices", extra, tasks=ARC, loader="same", verdict="warns")
    turned = rows(lambda found, task: [dict(reversed(one.items())) for one in found])
    yield made("keys in another order", turned, tasks=ALL, loader="same", verdict="passes")
    missing = row(lambda found, task: found.pop(identity(task)))
    yield made("no id", missing, tasks=("Copa", *ARC), loader="stops", verdict="blocks")
    yield made("no id", missing, tasks=("CB", "RTE"), loader="same", verdict="warns")
    for name, value in {"a text": "x7", "true": True, "null": None, "NaN": float("nan"), "a number": 7.5}.items():
        tasks = NUMBERED if name == "a text" else WITH_ID
        yield made(f"an id that is {name}", identified(value), tasks=tasks, loader="same", verdict="warns")
    yield made("an id that the original lacks", identified(999), tasks=NUMBERED, loader="same", verdict="warns")
    again = rows(lambda found, task: found[3].update({identity(task): found[0][identity(task)]}))
    yield made("an id of another row", again, tasks=WITH_ID, loader="same", verdict="warns")
    why = "rows are paired with the original's by their id"
    swapped = rows(exchanged_ids)
    told_by = {"named": "labels_equal_original", "because": why}
    yield made("exchanged ids", swapped, tasks=WITH_ID, loader="same", verdict="blocks", **told_by)
    no_text = row(lambda found, task: found.pop(text(task)))
    yield made("no text", no_text, tasks=ALL, loader="stops", verdict="blocks")
    no_choice = row(lambda found, task: found.pop("choice2"))
    yield made("no choice", no_choice, tasks=("Copa",), loader="stops", verdict="blocks")
    no_choices = row(lambda found, task: found.pop("choices"))
    yield made("no choices", no_choices, tasks=ARC, loader="stops", verdict="blocks")
    no_label = row(lambda found, task: found.pop(label(task)))
    yield made("no label", no_label, tasks=("Copa", *ARC), loader="stops", verdict="blocks")
    yield made("no label", no_label, tasks=("BOOLQ", "CB", "RTE"), loader="other", verdict="blocks")


def _labels() -> Iterator[Mutation]:
    def made(name: str, change: Change, **rest: Any) -> Mutation:
        return Mutation(area="labels", name=name, change=change, **rest)

    for name, value in {"hidden": -1, "no class": 7}.items():
        yield made(f"a label that is {name}", labelled(value), tasks=("Copa",), loader="stops", verdict="blocks")
        yield made(f"a label that is {name}", labelled(value), tasks=("CB", "RTE"), loader="other", verdict="blocks")
    as_bool = relabelled(bool, lambda value: value in (0, 1))
    yield made("a boolean for 0 or 1", as_bool, tasks=NUMBERED, loader="same", verdict="warns")
    as_float = relabelled(float)
    yield made("1.0 for 1", as_float, tasks=("Copa",), loader="stops", verdict="blocks")
    yield made("1.0 for 1", as_float, tasks=("CB",), loader="other", verdict="blocks")
    yield made("1.0 for 1", as_float, tasks=("RTE",), loader="same", verdict="warns")
    as_text = relabelled(str)
    yield made("a label as text", as_text, tasks=("Copa",), loader="stops", verdict="blocks")
    yield made("a label as text", as_text, tasks=("CB", "RTE"), loader="other", verdict="blocks")
    names = ("Entailment", "contradict", "NEUTRAL")
    yield made("a label by name", relabelled(lambda v: names[v]), tasks=("CB",), loader="same", verdict="warns")
    yield made("no label (null)", labelled(None), tasks=("Copa", *ARC), loader="stops", verdict="blocks")
    yield made("no label (null)", labelled(None), tasks=("CB", "RTE"), loader="other", verdict="blocks")
    for name, make, loader, verdict, because in (
        ("1 for true", lambda v: 1, "same", "warns", ""),
        ("yes for true", lambda v: "yes", "same", "warns", ""),
        ("True for true", lambda v: "True", "same", "warns", ""),
        ("null for true", lambda v: None, "other", "blocks", ""),
        ("another word for true", lambda v: "correct", "same", "blocks", UNCLEAR),
    ):
        change = relabelled(make, lambda value: value is True)
        named = "schema" if because else ""
        yield made(name, change, tasks=("BOOLQ",), loader=loader, verdict=verdict, because=because, named=named)
    for name, make, loader, verdict, because in (
        ("0 for false", lambda v: 0, "same", "warns", ""),
        ("no for false", lambda v: "no", "other", "blocks", ""),
        ("False for false", lambda v: "False", "other", "blocks", ""),
        ("null for false", lambda v: None, "same", "blocks", UNCLEAR),
        ("an empty text for false", lambda v: "", "same", "blocks", UNCLEAR),
    ):
        change = relabelled(make, lambda value: value is False)
        named = "schema" if because else ""
        yield made(name, change, tasks=("BOOLQ",), loader=loader, verdict=verdict, because=because, named=named)
    yield made("another label", first(lambda v: True, flipped), tasks=ALL, loader="other", verdict="blocks")
    as_number, prepared = row(numbers), row(numbered)
    yield made("numbers for labels", as_number, tasks=ARC, loader="same", verdict="warns", before=prepared)
    hidden = labelled(-1, "validation")
    yield made("a hidden label in validation", hidden, tasks=("Copa",), loader="stops", verdict="blocks")
    yield made("a hidden label in validation", hidden, tasks=("CB", "RTE"), loader="other", verdict="blocks")
    yield made("an answer that is no choice", labelled("9"), tasks=ARC, loader="stops", verdict="blocks")


def _choices() -> Iterator[Mutation]:
    def made(name: str, change: Change, **rest: Any) -> Mutation:
        return Mutation(area="choices", name=name, change=change, **rest)

    why = "a text or a label too many cannot be told from one that was lost"
    fewer = choices(lambda texts, labels: texts.clear())
    yield made("no choice texts", fewer, tasks=ARC, loader="stops", verdict="blocks")
    more = choices(lambda texts, labels: texts.append("one more"))
    yield made("a text too many", more, tasks=("ArcC_Cloze",), loader="other", verdict="blocks")
    blocked = {"loader": "same", "verdict": "blocks", "named": "choices_lengths", "because": why}
    yield made("a text too many", more, tasks=("ArcC_MC",), **blocked)
    longer = choices(lambda texts, labels: labels.append("E"))
    yield made("a label too many", longer, tasks=("ArcC_Cloze",), **blocked)
    yield made("a label too many", longer, tasks=("ArcC_MC",), loader="stops", verdict="blocks")
    fewest = {"named": "choices_lengths", "because": OTHER_DATA}
    yield made("two choices", row(two_choices), tasks=ARC, loader="other", verdict="warns", **fewest)
    twice = row(repeated_label)
    yield made("a wrong choice's label twice", twice, tasks=("ArcC_Cloze",), loader="same", verdict="warns")
    yield made("a wrong choice's label twice", twice, tasks=("ArcC_MC",), loader="other", verdict="blocks")
    lower, upper = row(lower_labels), row(letters)
    yield made("labels in small letters", lower, tasks=("ArcC_Cloze",), loader="same", verdict="warns", before=upper)
    yield made("labels in small letters", lower, tasks=("ArcC_MC",), loader="other", verdict="blocks", before=upper)
    yield made("an empty choice", choices(_emptied), tasks=ARC, loader="other", verdict="blocks")
    empty = row(lambda found, task: found.update(choice1=" "))
    yield made("an empty choice", empty, tasks=("Copa",), loader="other", verdict="blocks")


def _emptied(texts: list[str], labels: list[str]) -> None:
    texts[0] = ""


def _texts() -> Iterator[Mutation]:
    def made(name: str, change: Change, **rest: Any) -> Mutation:
        return Mutation(area="texts", name=name, change=change, **rest)

    yield made("an empty text", told(""), tasks=ALL, loader="other", verdict="blocks")
    yield made("a text of spaces", told("  "), tasks=ALL, loader="other", verdict="blocks")
    yield made("no text (null)", told(None), tasks=("Copa", "BOOLQ"), loader="stops", verdict="blocks")
    yield made("no text (null)", told(None), tasks=("CB", "RTE", *ARC), loader="other", verdict="blocks")
    nan = told(float("nan"))
    yield made("NaN for a text", nan, tasks=("Copa", "BOOLQ"), loader="stops", verdict="blocks")
    yield made("half a surrogate pair", halved, tasks=ALL, loader="stops", verdict="blocks")
    array = row(lambda found, task: found.update({text(task): [found[text(task)]]}))
    yield made("a list for a text", array, tasks=("Copa", "BOOLQ"), loader="stops", verdict="blocks")
    yield made("a list for a text", array, tasks=("CB", "RTE", *ARC), loader="other", verdict="blocks")
    digits = told("12")
    for tasks, loader, verdict in ((("Copa", "BOOLQ"), "stops", "blocks"), (("CB", "RTE", *ARC), "same", "warns")):
        yield made("12 for its digits", told(12), tasks=tasks, loader=loader, verdict=verdict, before=digits)
    passage, prepared = put(passage=12), put(passage="12")
    yield made("a passage of digits", passage, tasks=("BOOLQ",), loader="same", verdict="warns", before=prepared)
    reason = put(question="reason")
    yield made("another question", reason, tasks=("Copa",), loader="stops", verdict="blocks")
    why = "other texts are what synthetic data is"
    new = told("A rewritten text.")
    yield made("a rewritten text", new, tasks=ALL, loader="other", verdict="passes", named="text", because=why)


def _rows() -> Iterator[Mutation]:
    def made(name: str, change: Change, **rest: Any) -> Mutation:
        return Mutation(area="rows", name=name, change=change, loader="other", because=OTHER_DATA, **rest)

    counted = {"verdict": "warns", "named": "row_counts"}
    yield made("a lost row", rows(lambda found, task: found[:-1]), tasks=ALL, **counted)
    yield made("a repeated row", rows(lambda found, task: [*found, found[0]]), tasks=ALL, **counted)

    def added(found: list[Row], task: str) -> list[Row]:
        new = {**found[0], text(task): "A new text."}
        return [*found, {**new, **({identity(task): "new"} if task != "BOOLQ" else {})}]

    yield made("a new row", rows(added), tasks=("BOOLQ", *ARC), **counted)
    turned = rows(lambda found, task: found[::-1])
    yield made("another order", turned, tasks=WITH_ID, verdict="passes", named="id")
    leaked = {"verdict": "warns", "named": "no_train_text_in_validation"}
    yield made("validation's text in train", stolen, tasks=("Copa", "BOOLQ", "CB", "RTE"), **leaked)
    rewritten = told("A rewritten text.", "validation")
    yield made("a rewritten validation row", rewritten, tasks=ALL, verdict="warns", named="validation_untouched")
    extra = put("validation", note="x")
    yield Mutation(
        area="rows", name="another key in validation", tasks=ALL, change=extra, loader="same", verdict="warns"
    )


def _files() -> Iterator[Mutation]:
    def made(name: str, change: Change, **rest: Any) -> Mutation:
        return Mutation(area="files", name=name, change=change, **rest)

    for name, change in {
        "no train file": gone(),
        "no validation file": gone("validation"),
        "another case": renamed,
        "a broken link": instead(lambda path: path.symlink_to("nowhere.jsonl")),
    }.items():
        yield made(name, change, tasks=SKIPPING, loader="stops", verdict="blocks")
        yield made(name, change, tasks=ARC, loader="other", verdict="blocks")
    yield made("a folder for a file", instead(Path.mkdir), tasks=ALL, loader="stops", verdict="blocks")
    empty = raw(lambda data: b"")
    yield made("an empty train file", empty, tasks=("Copa", "BOOLQ", "RTE", *ARC), loader="other", verdict="blocks")
    yield made("an empty train file", empty, tasks=("CB",), loader="stops", verdict="blocks")
    yield made("a link to a file", linked, tasks=ALL, loader="same", verdict="passes")
    alike = beside(lambda path: path.name.replace("_", "-"))
    yield made("a name alike beside it", alike, tasks=ALL, loader="same", verdict="warns")
    yield made("another file", beside(lambda path: "notes.txt"), tasks=ALL, loader="same", verdict="passes")
    yield made("permissions 0600", mode(0o600), tasks=ALL, loader="same", verdict="warns")
    yield made("permissions 0664", mode(0o664), tasks=ALL, loader="same", verdict="warns")
    yield made("a folder in small letters", moved(str.lower), tasks=ALL, loader="same", verdict="passes")
    yield made("a folder of the version's name", moved(lambda t: f"{t}_1"), tasks=ALL, loader="stops", verdict="blocks")
    yield made("a slash at the end of TASK", lambda f, t: f"{f}/", tasks=ALL, loader="stops", verdict="blocks")


def _test_file() -> Iterator[Mutation]:
    for name, change in {
        "a torn row": line(lambda one: one[:20], "test"),
        "not UTF-8": line(lambda one: one + b"\xff", "test"),
        "a byte order mark": raw(lambda data: b"\xef\xbb\xbf" + data, "test"),
        "CR LF": raw(lambda data: data.replace(b"\n", b"\r\n"), "test"),
        "a blank line": raw(lambda data: data + b"\n", "test"),
        "no bytes": raw(lambda data: b"", "test"),
        "another key": put("test", note="x"),
        "no label": row(lambda found, task: found.pop(label(task)), "test"),
        "an empty text": told("", "test"),
        "an id twice": rows(lambda found, task: found[1].update({identity(task): found[0][identity(task)]}), "test"),
        "a lost row": rows(lambda found, task: found[:-1], "test"),
        "a broken link": instead(lambda path: path.symlink_to("nowhere.jsonl"), "test"),
        "a folder for the file": instead(Path.mkdir, "test"),
    }.items():
        yield Mutation(area="test file", name=name, tasks=WITH_ID, change=change, loader="same", verdict="warns")
    yield Mutation(
        area="test file", name="no file", tasks=WITH_ID, change=gone("test"), loader="same", verdict="passes"
    )
    hidden = rows(lambda found, task: [one.update({label(task): -1}) for one in found] and None, "test")
    yield Mutation(
        area="test file", name="hidden labels", tasks=NUMBERED, change=hidden, loader="same", verdict="passes"
    )
    yield Mutation(
        area="test file", name="a label of no class", tasks=NUMBERED, change=labelled(7, "test"), loader="same",
        verdict="warns",
    )  # fmt: skip


MUTATIONS: tuple[Mutation, ...] = tuple(
    mutation for made in (_lines, _keys, _labels, _choices, _texts, _rows, _files, _test_file) for mutation in made()
)
