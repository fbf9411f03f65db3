"""`python -m dataprep_assets_tests.tools.parity.datatrove`: the rules of the recipe `fineweb` next to datatrove's.

The same documents go through datatrove's filters with their defaults, and a table says for how many the decision and
the reason are the same. Datatrove and spaCy are installed apart, into `build/parity/`. Datatrove defines words and
sentences differently (docs/components/tokenized-corpus.md#built-in-taggers). A document with a different decision
counts as explained if datatrove's filter, given our words, our sentences and the normalized text, decides as ours. The
exit code is 1 if one is not.
"""

import argparse
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dataprep_assets.curation.filter_recipes.recipe import load_recipe
from dataprep_assets.curation.rules import find_dropping_rules, parse_rule
from dataprep_assets.curation.table import ColumnType, build_schema
from dataprep_assets.curation.tagging import load_tagger
from dataprep_assets.sources.readers.records import RecordFields, read_records
from dataprep_assets_tests.samples import SAMPLE
from dataprep_assets_tests.tools.parity.pinned import installed, run_apart
from dataprep_assets_tests.tools.parity.table import Row, render

REQUIRED = ("datatrove==0.10.1", "spacy==3.8.18")
_TOP = {2: 0.2, 3: 0.18, 4: 0.16}
_REPEATED = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.1}
REASONS: Mapping[str, Mapping[str, str]] = {
    "gopher": {
        "gopher_short_doc": "words < 50",
        "gopher_long_doc": "words > 100000",
        "gopher_below_avg_threshold": "mean_word_length < 3",
        "gopher_above_avg_threshold": "mean_word_length > 10",
        "gopher_too_many_hashes": "hashes_per_word > 0.1",
        "gopher_too_many_ellipsis": "ellipses_per_word > 0.1",
        "gopher_too_many_bullets": "bullet_lines > 0.9",
        "gopher_too_many_end_ellipsis": "ellipsis_lines > 0.3",
        "gopher_below_alpha_threshold": "alphabetic_words < 0.8",
        "gopher_enough_stop_words": "stop_words < 2",
    },
    "repetition": {
        "empty": "repeated_lines is null",
        "dup_para_frac": "repeated_paragraphs > 0.3",
        "dup_para_char_frac": "repeated_paragraph_characters > 0.2",
        "dup_line_frac": "repeated_lines > 0.3",
        "dup_line_char_frac": "repeated_line_characters > 0.2",
        **{f"top_{n}_gram": f"top_{n}gram > {most}" for n, most in _TOP.items()},
        **{f"duplicated_{n}_n_grams": f"repeated_{n}grams > {most}" for n, most in _REPEATED.items()},
    },
    "c4": {
        "lorem_ipsum": "lorem_ipsum",
        "curly_bracket": "curly_bracket",
        "too_few_sentences": "c4_sentences < 5",
    },
    "fineweb": {
        "empty": "punctuated_lines is null",
        "line_punct_ratio": "punctuated_lines < 0.12",
        "short_line_ratio": "short_lines > 0.67",
        "char_dup_ratio": "duplicate_line_characters > 0.01",
        "list_ratio": "newlines_per_word > 0.3",
    },
}
"""Filter → its reasons in its order, as rules over our columns: the published thresholds one by one."""
EITHER = ({"lorem_ipsum", "curly_bracket"},)
"""Reasons of which datatrove reports the one found first in the text, if both apply."""


def recipe_rules() -> dict[str, str]:
    """Return the rules of the recipe `fineweb`."""
    return dict(load_recipe("fineweb").drop)


def tagged(name: str, texts: Sequence[str]) -> tuple[pa.Table, Mapping[str, ColumnType]]:
    """Return the columns of a tagger."""
    tagger = load_tagger(name)
    return pa.table(dict(tagger.tag(texts)), schema=build_schema(tagger.columns)), tagger.columns


def decided(table: pa.Table, columns: Mapping[str, ColumnType], rules: Mapping[str, str]) -> list[str | None]:
    """Return the rule that drops each row, or None."""
    parsed = {rule: (False, parse_rule(text, columns, rule)) for rule, text in rules.items()}
    names = list(rules)
    return [names[at] if at >= 0 else None for at in find_dropping_rules(table, parsed).tolist()]


def compare(areas: Mapping[str, Sequence[str]]) -> tuple[list[Row], list[str]]:
    """Return a row for each filter and shape of documents, and a line for each unexplained document."""
    rows, unexplained = [], []
    for area, texts in areas.items():
        theirs: dict[str, list[list[str | None]]] = run_apart("datatrove_filters", list(texts), [installed(*REQUIRED)])
        for name, rules in REASONS.items():
            table, columns = tagged(name, texts)
            ours = decided(table, columns, rules)
            combined = {rule: text for rule, text in recipe_rules().items() if _is_of(text, columns)}
            by_recipe = decided(table, columns, combined)
            as_installed, with_ours = theirs[name]
            equal = explained = alike = 0
            for at, (mine, first, second) in enumerate(zip(ours, as_installed, with_ours, strict=True)):
                alike += (mine is None) == (first is None)
                if (mine is None) != (by_recipe[at] is None):
                    unexplained.append(f"{area}, document {at}: the recipe says {by_recipe[at]}, one by one {mine}")
                elif _same(mine, first):
                    equal += 1
                elif _same(mine, second):
                    explained += 1
                else:
                    unexplained.append(f"{area}, document {at}, {name}: ours {mine}, datatrove {first}, {second}")
            dropped = sum(one is not None for one in ours)
            note = f"{dropped} dropped; as installed it keeps and drops {alike} alike"
            rows.append(Row(name, area, len(texts), equal, explained, note))
    return rows, unexplained


def _is_of(rule: str, columns: Mapping[str, Any]) -> bool:
    return bool(set(re.findall(r"[a-z_0-9]+", rule)) & columns.keys())


def _same(mine: str | None, theirs: str | None) -> bool:
    return mine == theirs or any({mine, theirs} <= pair for pair in EITHER)


def read_sample() -> list[str]:
    """Return the texts of the sample corpus."""
    return [text for path in sorted((SAMPLE / "data").rglob("*.jsonl.zst")) for text in texts_of(path)]


def texts_of(path: Path) -> Iterator[str]:
    """Return the texts of a file of JSON lines."""
    compression = "zstd" if path.suffix == ".zst" else None
    reader = read_records(path, fields=RecordFields("text"), format="jsonl", compression=compression, label=path.name)
    for block in reader:
        yield from block.texts


_WORDS = (
    "the be to of and that have with harbour lantern otter seven 42 1,000 # ... … - • { [12] don't e.g. naïve 港 ∑ → 🙂"
)
_ENDS = (". ", "? ", "! ", "\n", "\n\n", "...\n", "…\n", '."\n', ".[3]\n", " ", "\r\n", "\u2028", "。\n")
_PIECES = (
    "Lorem ipsum dolor sit amet is written here.\n",
    "Enable JavaScript to go on reading.\n",
    "By reading you accept our privacy policy and the use of cookies.\n",
    "• an item of a list\n",
    "- another one\n",
    "x" * 1200 + " is a long word.\n",
    "A line that is there again and again, with ten words in it.\n",
    "\n\n\n",
    "   \n",
)


def hard(count: int, seed: int) -> list[str]:
    """Return invented texts near the thresholds: repeated lines and words, symbols, unusual ends of lines, almost empty
    ones.
    """
    rng = random.Random(seed)
    words = _WORDS.split()
    texts = ["", " ", "\n", "\n\n", "a", "…", "# # #", "{", "lorem ipsum"]
    while len(texts) < count:
        some = rng.sample(words, rng.randint(2, len(words)))
        parts = []
        for _ in range(rng.choice([1, 5, 20, 60, 200])):
            if rng.random() < 0.08:
                parts.append(rng.choice(_PIECES))
            else:
                parts.append(" ".join(rng.choices(some, k=rng.randint(1, 14))) + rng.choice(_ENDS))
            if rng.random() < 0.05:
                parts += [parts[-1]] * rng.randint(1, 5)
        texts.append("".join(parts))
    return texts[:count]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.parity.datatrove", description=__doc__)
    parser.add_argument("--data", type=Path, help="a folder of .jsonl or .jsonl.zst files, besides the sample corpus")
    parser.add_argument("--hard", type=int, default=4000, metavar="N", help="invented texts near the thresholds")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(argv)
    areas = {"the sample corpus": read_sample(), "invented texts near the thresholds": hard(given.hard, given.seed)}
    if given.data is not None:
        paths = sorted(path for ending in ("*.jsonl", "*.jsonl.zst") for path in given.data.rglob(ending))
        areas[given.data.name] = [text for path in paths for text in texts_of(path)]
    rows, unexplained = compare(areas)
    sys.stdout.write(render(rows))
    for line in unexplained[:20]:
        print(line, file=sys.stderr)
    records = sum(row.records for row in rows)
    sys.stdout.write(f"\n{records:,} decisions, {len(unexplained)} differ for no documented reason\n")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
