"""Clean corpora of unusual shapes, for which nothing may be reported, to find false alarms of the drill.

Each shape is a few files of documents. It is built with every view, and then `verify`, all blocking checks and `status`
run.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

from dataprep_assets.engine.artifact.dataset import validate_declaration
from dataprep_assets.pipelines.corpus.component import TokenizedCorpus
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets_tests.engine.building import build_all
from dataprep_assets_tests.samples import SAMPLE
from dataprep_assets_tests.tools.bench.invented_text import sentence, vocabulary
from dataprep_assets_tests.tools.drill.datasets import Bench, corpus_attributes, write_texts
from dataprep_assets_tests.tools.drill.judge import alarms

Files = Mapping[str, Sequence[str]]
LANGUAGES = {
    "Greek": "αβγδεζηθικλμνξοπρστυφχψω",
    "Russian": "абвгдежзийклмнопрстуфхцчшщыьэюя",
    "Arabic": "ابتثجحخدذرزسشصضطظعغفقكلمنهوي",
    "Chinese": "的一是不了人我在有他这中大来上国",
    "Korean": "가나다라마바사아자차카타파하",
    "Hindi": "अआइईउऊकखगघचछजझटठडढणतथदधन",
    "emoji": "😀😁😂🤣😃😄😅😆😉😊",
}


def _words(random: Random, letters: str, count: int) -> str:
    return " ".join("".join(random.choice(letters) for _ in range(random.randrange(1, 9))) for _ in range(count))


def _english(random: Random, count: int) -> list[str]:
    words = vocabulary()
    return [sentence(random, words, 3 + random.randrange(20)) for _ in range(count)]


def _files(documents: Sequence[str], held_out: Sequence[str] = ("One document is held out.",)) -> Files:
    return {"train/part-0.jsonl": documents, "validation/part-0.jsonl": held_out}


def _numbers(random: Random) -> Files:
    return _files(
        [" ".join(str(random.randrange(10 ** random.randrange(1, 12))) for _ in range(30)) for _ in range(20)]
    )


def _parts(random: Random, count: int) -> Files:
    files = {f"train/part-{n:05d}.jsonl": [f"document {n}"] for n in range(count)}
    return {**files, "validation/part-0.jsonl": ["held out"]}


def _mixed(random: Random) -> Files:
    """Return every kind of document, in a random number of files, some of them empty."""
    files: dict[str, Sequence[str]] = {"validation/part-0.jsonl": _english(random, 1 + random.randrange(4))}
    for number in range(1 + random.randrange(5)):
        letters = random.choice([*LANGUAGES.values(), "0123456789", " \n\t", "<|endoftext|>"])
        documents = [_words(random, letters, random.randrange(12)) for _ in range(random.randrange(12))]
        files[f"train/part-{number}.jsonl"] = [*documents, *_english(random, random.randrange(3))]
    if not any(document for name, texts in files.items() if "train" in name for document in texts):
        files["train/part-0.jsonl"] = ["not empty"]
    return files


SHAPES: Mapping[str, Callable[[Random], Files]] = {
    "an empty document": lambda random: _files(["", "x"]),
    "only empty documents": lambda random: _files(["", "", ""]),
    "one document": lambda random: _files(["One."]),
    "one token": lambda random: _files(["a"], ["a"]),
    "a file without documents": lambda random: {**_files(["a b c"]), "train/part-1.jsonl": []},
    "only numbers": _numbers,
    "only spaces": lambda random: _files([" " * n for n in range(1, 30)]),
    "duplicates": lambda random: _files(["the same text again"] * 60, ["the same text again"]),
    "one letter": lambda random: _files(["a" * 5_000]),
    "literal separators": lambda random: _files(["<|endoftext|>", "a<|endoftext|>b", "<|im_end|>"] * 4),
    "a long document": lambda random: _files([" ".join(_english(random, 2_000)), "short"]),
    "lines and controls": lambda random: _files(["a\nb\r\nc\u2028d\x00e\x7f", "\ufeffmark", '\\n " {}']),
    "many tiny files": lambda random: _parts(random, 60),
    **{
        f"only {name}": lambda random, letters=letters: _files([_words(random, letters, 12) for _ in range(12)])
        for name, letters in LANGUAGES.items()
    },
}
"""Named shapes; all others are random."""


def shapes(count: int, seed: int) -> Iterator[tuple[str, Files]]:
    """Return this many shapes, the named ones first."""
    for number, (name, make) in enumerate(SHAPES.items()):
        if number < count:
            yield name, make(Random(f"{seed} {name}"))
    for number in range(len(SHAPES), count):
        yield f"drawn {number}", _mixed(Random(f"{seed} {number}"))


def false_alarms(name: str, files: Files, folder: Path, **changes: object) -> list[str]:
    """Return the reports about a clean corpus of these files, which is built in an empty folder.

    `changes` replace keys of the declaration.
    """
    shutil.copytree(SAMPLE / "tokenizer", folder / "tokenizer")
    # Use the reference engine, which needs no certificate; a certificate would take most of the time.
    tokenizer = {"path": str(folder / "tokenizer"), "name": "sample-bpe-4096", "engine": "tokenizers"}
    settings = {"tokenizer": tokenizer, "include": ["**/*.jsonl"], "olmo_sequence_length": 2, "mds_sequence_length": 2}
    attributes = corpus_attributes(folder, write_texts(folder / "source", files), **{**settings, **changes})
    component = TokenizedCorpus(validate_declaration(CorpusDeclaration, attributes, folder / "defs.yaml"))
    made = Bench("corpus", folder, (component,))
    build_all(component.specs, made.store)
    return alarms(component.specs, made.store)
