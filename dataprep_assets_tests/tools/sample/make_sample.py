"""The sample corpus and tokenizer that ship with the package, generated from grammars written for this project.

The package needs text that everyone may redistribute, that is small, and that a person can read in an eye test.
So nothing here is copied: every row grows from the templates and word lists below, with invented people and places,
reserved domains (``example.org``) and reserved telephone numbers.

Invariants:

- Each file is seeded by its own path, so adding or removing one file changes no other.
- Only ``Random.random()`` is drawn from. It is the one method whose sequence Python promises to keep.
- Every file holds each document of ``NASTY`` once: legal input that careless readers get wrong.
- One file (``ESCAPED``) is pure ASCII with ``\\uXXXX`` escapes and surrogate pairs; the others are raw UTF-8.
- The tokenizer learns from the train split alone, and its special tokens come last, so EOS is never id 0 and a
  zero-filled file cannot pass for a run of EOS.

Entry points: ``python -m dataprep_assets_tests.tools.sample.make_sample TARGET_DIR``, ``sample_files``,
``write_sample``.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import zstandard
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from dataprep_assets_tests.tools.sample.english import (
    ANSWERS,
    BIOGRAPHY,
    HEADINGS,
    HOWTO_INTROS,
    HOWTO_STEPS,
    PAPER,
    PYTHON_UNITS,
    QUESTIONS,
    SHELL_UNITS,
    SPECIES,
    SQL_UNITS,
    STORY,
    TOWN,
    WEB,
    WORDS,
)
from dataprep_assets_tests.tools.sample.languages import LANGUAGES, MODERN, SPACELESS
from dataprep_assets_tests.tools.sample.voice import Voice

SEED = "dataprep-assets sample corpus 1"
TRAIN_FILES: Mapping[str, int] = {
    "data/train/chunk1/example_train_0.jsonl.zst": 280,
    "data/train/chunk1/example_train_1.jsonl.zst": 240,
    "data/train/chunk1/example_train_2.jsonl.zst": 320,
    "data/train/chunk1/example_train_10.jsonl.zst": 260,
    "data/train/chunk2/example_train_0.jsonl.zst": 300,
    "data/train/chunk2/example_train_1.jsonl.zst": 210,
    "data/train/chunk10/example_train_0.jsonl.zst": 250,
}
HOLDOUT_FILES: Mapping[str, int] = {
    "data/validation/chunk1/example_holdout_0.jsonl.zst": 60,
    "data/test/chunk1/example_holdout_0.jsonl.zst": 60,
}
ESCAPED = "data/train/chunk2/example_train_1.jsonl.zst"
MIN_CHARS, MAX_CHARS = 50, 8000

VOCAB_SIZE = 4096
END_OF_TEXT, PAD = "<|endoftext|>", "<|pad|>"
# The published split pattern of the Qwen family: contractions, words, single digits, punctuation, white space.
SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


# Valid rows that are easy to misread, each once in every file. All rows that are not blank end with a place and a year,
# so that no text of one split appears in another.
NASTY: Mapping[str, str] = {
    "empty": "",
    "white space only": " \n\t\n   \r\n ",
    "literal special token": (
        f"Some tokenizers end a document with {END_OF_TEXT} and some with nothing. "
        f"This line quotes {END_OF_TEXT}{END_OF_TEXT} and {PAD} as plain text."
    ),
    "decomposed accents": (
        "Cafe\u0301, nai\u0308ve, A\u030angstro\u0308m, Sa\u0303o, Vie\u0323\u0302t, кр\u0438\u0306 and "
        "\u1112\u1161\u11ab\u1100\u1173\u11af: every accent here is a combining mark of its own."
    ),
    "composed accents": "Café, naïve, Ångström, São, Việt and 한글: the same words, composed, for comparison.",
    "stacked marks": "Z\u0351\u036b\u0343\u036aa\u0302\u0315l\u0336\u0321g\u0321\u0353\u0355o\u0321\u0322 and "
    "e\u0301\u0323 against e\u0323\u0301, with the marks in either order.",
    "joiners and flags": "👩‍👩‍👧‍👦 👩🏽‍💻 🏳️‍🌈 🇩🇪🇫🇷🇬🇷 1️⃣ a\u200bb\u200cc\u200dd \ufeffinside, "
    "soft\u00adhyphen, no\u00a0break.",
    "right to left": "שלום לכולם, and مرحبا بالعالم, and \u202bembedded\u202c; हिन्दी में नमस्ते; ไทยไม่มีช่องว่าง.",
    "line separators": "one\u2028two\u2029three\x0bfour\x0cfive\x85six\r\nseven\rnine: only \\n ends a JSON line.",
    "control characters": 'NUL \x00, escape \x1b[31mred\x1b[0m, delete \x7f, backslash \\, quote ", slash /, \\u0041.',
    "runs": "a" * 700 + " " * 300 + "!" * 200 + "\n" * 100 + "0123456789" * 40 + "é" * 150,
    "private and astral": "\ue000 \U0001d4d7\U0001d4ee\U0001d4f5\U0001d4f5\U0001d4f8 "
    "𠜎𠜱𠝹 𓀀𓂀 \U0010fffd ﬁ ﬀ Ⅷ ½ ㎏ \u212b \u2126 \u212a.",
}


def grow(first: str, pieces: Iterator[str], target: int) -> str:
    """Append pieces to ``first`` until it has ``target`` characters, never passing ``MAX_CHARS``."""
    text = first
    while len(text) < target:
        piece = next(pieces)
        if len(text) + len(piece) > MAX_CHARS:
            break
        text += piece
    return text


# ------------------------------------------------------------------------------------------------------- genres


def encyclopedia(voice: Voice, target: int) -> str:
    """Write a title sentence, then facts in paragraphs with an occasional heading."""
    facts = voice.pick((TOWN, SPECIES, BIOGRAPHY))
    voice.bind(place=voice.place(), other=voice.place())
    if facts is BIOGRAPHY:
        hero, family = voice.person().split()
        born, age = voice.between(1300, 1930), voice.between(30, 80)
        life = [str(year) for year in range(born + 14, born + age)]
        voice.bind(
            place=voice.place(),
            other=voice.place(),
            hero=hero,
            family=family,
            born=str(born),
            died=str(born + age),
            year=life,
        )
    subjects = voice.shuffled(HEADINGS)

    def pieces() -> Iterator[str]:
        for number, fact in enumerate(voice.deal(facts[1:]), start=1):
            heading = number % 7 == 0 and subjects
            yield f"\n\n{subjects.pop()}\n\n" if heading else "\n\n" if number % 4 == 0 else " "
            yield voice.say(fact)

    return grow(voice.say(facts[0]), pieces(), target).rstrip()


def story(voice: Voice, target: int) -> str:
    """Write about two characters in one town, in short paragraphs with dialogue."""
    hero, friend = (voice.person().split()[0] for _ in range(2))
    props = {slot: voice.pick(WORDS[slot]) for slot in ("thing", "animal", "job", "season")}
    voice.bind(hero=hero, friend=friend, place=voice.place(), **props)
    lines = voice.deal(STORY[1:])
    pieces = ((" " if voice.chance(0.6) else "\n\n") + voice.say(next(lines)) for _ in iter(int, 1))
    return grow(voice.say(STORY[0]), pieces, target)


def howto(voice: Voice, target: int) -> str:
    """Write a title, an introduction and numbered steps."""
    what = voice.say(voice.pick(("make {food}", "repair a {adjective} {thing}", "build a {material} {thing}")))
    first = f"How to {what}\n\n" + voice.say(voice.pick(HOWTO_INTROS)) + "\n"
    steps = voice.deal(HOWTO_STEPS)
    bullet = voice.pick(("{number}. ", "Step {number}: ", "- ", "{number}) "))
    pieces = ("\n" + bullet.replace("{number}", str(number)) + voice.say(next(steps)) for number in range(1, MAX_CHARS))
    return grow(first, pieces, target)


def question(voice: Voice, target: int) -> str:
    """Write a question with answers, some of which contain code."""
    voice.bind(tool=voice.say("{tool}"), language=voice.say("{language}"), field=voice.say("{field}"))
    answers = voice.deal(ANSWERS)

    def pieces() -> Iterator[str]:
        while True:
            yield "\n\nA: " + voice.say(next(answers))
            yield " " + voice.say(next(answers))
            if voice.chance(0.4):
                yield "\n\n```python\n" + _unit(voice, voice.pick(PYTHON_UNITS)) + "```"

    return grow("Q: " + voice.say(voice.pick(QUESTIONS)), pieces(), target)


def code(voice: Voice, target: int) -> str:
    """Write one source file: Python, SQL or shell."""
    comment, units = voice.pick((("#", PYTHON_UNITS), ("#", PYTHON_UNITS), ("--", SQL_UNITS), ("#", SHELL_UNITS)))
    dealt = voice.deal(units)
    pieces = ("\n" + _unit(voice, next(dealt)) for _ in iter(int, 1))
    return grow(_unit(voice, f"{comment} {{verb_id}} the {{noun_id}} of {{place}}, {{year}}\n"), pieces, target)


def _unit(voice: Voice, template: str) -> str:
    """Return one piece of code with consistent names."""
    names = {slot: voice.pick(WORDS[slot]) for slot in ("verb_id", "noun_id", "field", "table", "column")}
    voice.bind(year=MODERN, **names)
    return voice.say(template)


def table(voice: Voice, target: int) -> str:
    """Write a Markdown report: a heading, a table with a right total, a list; repeated as needed."""
    voice.bind(year=MODERN)
    return grow(
        f"# {voice.say('{table}').replace('_', ' ').title()}\n", (_section(voice) for _ in iter(int, 1)), target
    )


def _section(voice: Voice) -> str:
    amounts = [voice.between(1, 5000) for _ in range(voice.between(2, 7))]
    total = sum(amounts)
    kind = voice.pick(("{animal}", "{plant}", "{thing}"))
    rows = [voice.say(f"| {{place}} | {kind} | {amount} | {100 * amount / total:.1f} % |") for amount in amounts]
    return "\n".join(
        [
            voice.say("\n## {season_up} {year}\n"),
            voice.say("| Place | Kind | {unit} | Share |"),
            "|:---|---|---:|---:|",
            *rows,
            f"| **Total** | | **{total}** | 100 % |",
            voice.say(
                "\n* {adjective_up}: see `{table}.{column}`\n* [x] checked by {person}\n* [ ] *to do* – {weekday}\n"
            ),
        ]
    )


def foreign(voice: Voice, target: int) -> str:
    """Write sentences in one language, or in several if the draw decides so."""
    names = voice.shuffled(list(LANGUAGES))[: 1 if voice.chance(0.8) else 3]

    def sentences() -> Iterator[str]:
        decks = {name: voice.deal(LANGUAGES[name]["sentence"]) for name in names}
        for number, name in enumerate(voice.deal(names)):
            voice.bind(**LANGUAGES[name])
            space = "\n" if number % 5 == 4 else "" if name in SPACELESS else " "
            yield voice.say(next(decks[name])) + space

    return grow("", sentences(), target).rstrip()


def web(voice: Voice, target: int) -> str:
    """Write a page of notices, links, prices, hashtags and emoji, one per line."""
    voice.bind(year=MODERN)
    notices = voice.deal(WEB)
    return grow(voice.say(next(notices)), ("\n" + voice.say(next(notices)) for _ in iter(int, 1)), target)


def paper(voice: Voice, target: int) -> str:
    """Write an abstract and notes with LaTeX formulas."""
    voice.bind(topic=voice.say("{topic}"), year=MODERN)
    first = voice.say("\\section*{On the {property} of {topic}}\n\n") + voice.say(PAPER[0])
    claims = voice.deal(PAPER[1:])
    return grow(first, ((" " if voice.chance(0.7) else "\n\n") + voice.say(next(claims)) for _ in iter(int, 1)), target)


Genre = Callable[[Voice, int], str]

# Genres with their source names in SlimPajama. A genre that is listed twice is drawn twice as often as the others.
GENRES: Sequence[tuple[Genre, str]] = (
    (encyclopedia, "RedPajamaWikipedia"),
    (encyclopedia, "RedPajamaWikipedia"),
    (foreign, "RedPajamaWikipedia"),
    (foreign, "RedPajamaCommonCrawl"),
    (story, "RedPajamaBook"),
    (story, "RedPajamaBook"),
    (howto, "RedPajamaCommonCrawl"),
    (table, "RedPajamaCommonCrawl"),
    (web, "RedPajamaC4"),
    (question, "RedPajamaStackExchange"),
    (code, "RedPajamaGithub"),
    (paper, "RedPajamaArXiv"),
)


def documents(path: str, count: int) -> list[tuple[str, str]]:
    """Return the ``(text, set name)`` pairs of one file: ``count`` in total, including those of ``NASTY``."""
    voice = Voice(f"{SEED}/{path}")
    grown: list[tuple[str, str]] = []
    while len(grown) < count - len(NASTY):
        genre, source = voice.pick(GENRES)
        voice.bind()
        text = genre(voice, voice.log_between(MIN_CHARS, MAX_CHARS))
        if MIN_CHARS <= len(text) <= MAX_CHARS:
            grown.append((text, source))
    voice.bind()
    signed = [text + voice.say(" – {place}, {year}") if text.strip() else text for text in NASTY.values()]
    return voice.shuffled([*grown, *((text, "RedPajamaCommonCrawl") for text in signed)])


def jsonl(path: str, pairs: Sequence[tuple[str, str]]) -> bytes:
    """Return the rows of one file as UTF-8 JSON lines, each ended by ``\\n``."""
    rows = ({"text": text, "meta": {"redpajama_set_name": source}} for text, source in pairs)
    return "".join(json.dumps(row, ensure_ascii=path == ESCAPED) + "\n" for row in rows).encode()


def sample_files() -> dict[str, bytes]:
    """Yield every corpus file, by its path below the target directory, as decompressed bytes."""
    wanted = {**TRAIN_FILES, **HOLDOUT_FILES}
    return {path: jsonl(path, documents(path, count)) for path, count in wanted.items()}


def compress(data: bytes) -> bytes:
    """Return one zstd frame with its content size and a checksum."""
    return zstandard.ZstdCompressor(level=19, write_checksum=True, write_content_size=True).compress(data)


def train_tokenizer(texts: Sequence[str]) -> Tokenizer:
    """Train a byte-level BPE of ``VOCAB_SIZE`` ids, with the two special tokens last."""
    special = [AddedToken(token, special=True, normalized=False) for token in (END_OF_TEXT, PAD)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    tokenizer.add_special_tokens(special)
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise ValueError(f"the corpus gave {tokenizer.get_vocab_size()} ids, not {VOCAB_SIZE}: add words to it")
    return tokenizer


def tokenizer_files(files: Mapping[str, bytes]) -> dict[str, str]:
    """Train the tokenizer on the train files among ``files``; return its files by path below the target directory."""
    texts = [json.loads(line)["text"] for path in TRAIN_FILES for line in files[path].split(b"\n")[:-1]]
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": END_OF_TEXT,
        "model_max_length": 4096,
        "pad_token": PAD,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    return {
        "tokenizer/tokenizer.json": train_tokenizer(texts).to_str() + "\n",
        "tokenizer/tokenizer_config.json": json.dumps(config, indent=2) + "\n",
    }


def write_sample(target: Path) -> None:
    """Write the corpus to ``target/data`` and the tokenizer to ``target/tokenizer``."""
    files = sample_files()
    contents = {path: compress(data) for path, data in files.items()}
    contents |= {path: text.encode() for path, text in tokenizer_files(files).items()}
    for name, data in contents.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write the sample corpus and its tokenizer.")
    parser.add_argument("target", type=Path, metavar="TARGET_DIR", help="receives data/ and tokenizer/")
    write_sample(parser.parse_args(argv).target)


if __name__ == "__main__":
    main()
