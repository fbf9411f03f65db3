"""`python -m dataprep_assets_tests.tools.parity.recipes --data DIR`: the recipes next to the published filters.

Each recipe decides about the same documents as the published pipeline. Datatrove runs its filters as installed, with
the words of spaCy and of the other libraries. A clone of mlfoundations/dclm runs the heuristics of `dclm`, without its
steps that need an address or a model. English recipes get all documents, and `fineweb2` gets the
documents of each language. The programs' packages are installed into `build/parity/`, datatrove's with our versions of
the libraries.

If a decision differs, the program decides again with our definitions, one more at a time. The first one after which
both decide alike is the cause. The exit code is 1 if a document differs without a cause.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from py3langid.langid import MODEL_FILE, LanguageIdentifier  # type: ignore[import-untyped]
from pydantic import TypeAdapter

from dataprep_assets.curation.declaration import Tags, build_taggers
from dataprep_assets.curation.filter_recipes.recipe import load_recipe
from dataprep_assets.curation.rules import find_dropping_rules, parse_rule
from dataprep_assets.curation.table import ColumnType, build_schema
from dataprep_assets.curation.tagging import BuiltInTagger
from dataprep_assets_tests.tools.parity.datatrove import texts_of
from dataprep_assets_tests.tools.parity.pinned import installed, run_apart
from dataprep_assets_tests.tools.parity.table import Row, render

LIBRARIES = ("spacy", "jieba", "sudachipy", "sudachidict_core", "pythainlp", "kiwipiepy")
LANGUAGES = {
    "de": "deu_Latn",
    "el": "ell_Grek",
    "es": "spa_Latn",
    "fr": "fra_Latn",
    "it": "ita_Latn",
    "ja": "jpn_Jpan",
    "ko": "kor_Hang",
    "pt": "por_Latn",
    "ru": "rus_Cyrl",
    "zh": "cmn_Hani",
}
"""Language that py3langid detects → its name in FineWeb-2."""
CAUSES = {
    "normalized text": "the text is measured with normalized white space and Unicode form",
    "symbols": "every word without a letter or digit is a symbol, not only those of a list",
}
"""Our definition → why documents differ by it. Datatrove gets them in this order."""
DCLM_CAUSES = {
    "URLs": "URLs are not removed before the text is measured",
    "normalized text": CAUSES["normalized text"],
    "words": "n-grams have words of a pattern, not of Unicode's word boundaries",
}
"""The same for DCLM."""
DCLM_PACKAGES = ("fasttext-community==0.11.9", "nltk==3.10.4", "retrie==0.3.1", "uniseg==0.10.1")
Ask = Callable[[Sequence[Mapping[str, Any]]], tuple[str, list[list[str | None]]]]
"""Return the program's name, and for each job the reason for dropping each text."""
_ENGLISH = ("gopher", "c4", "fineweb")


def group_documents(folder: Path, most: int, longest: int) -> dict[str, list[str]]:
    """Return the texts below a folder by language, and those of source code: at most `most` each, none too long."""
    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    groups: dict[str, list[str]] = {name: [] for name in ("en", "code", *LANGUAGES)}
    for path in sorted(folder.rglob("*.jsonl.zst")):
        for text in texts_of(path):
            if len(text) > longest:
                continue
            language = "code" if _is_code(text) else str(identifier.classify(text[:1000])[0])
            if language in groups and len(groups[language]) < most:
                groups[language].append(text)
    return groups


def _is_code(text: str) -> bool:
    """Return whether a text is likely source code: lines often end with a bracket or a semicolon."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return sum(line.endswith(("{", "}", ";", ");", ")", ":")) for line in lines) > 0.5 * len(lines)


def decide(recipe: str, texts: Sequence[str]) -> list[str | None]:
    """Return the rule of a recipe that drops each text, or None. Rules about the user's own columns do not apply."""
    written = load_recipe(recipe)
    columns: dict[str, ColumnType] = {"characters": "integer"}
    values: dict[str, Any] = {"characters": [len(text) for text in texts]}
    for tagger in build_taggers(TypeAdapter(Tags).validate_python(list(written.tag)), Path()):
        assert isinstance(tagger, BuiltInTagger)
        columns |= tagger.columns
        values |= tagger.load().tag(texts)
    table = pa.table(values, schema=build_schema(columns))
    rules = {
        name: (False, parse_rule(text, columns, name))
        for name, text in written.drop.items()
        if not any(column in text for column in written.columns)
    }
    names = list(rules)
    return [names[at] if at >= 0 else None for at in find_dropping_rules(table, rules).tolist()]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A recipe with a group of documents and the published settings of their language."""

    recipe: str
    area: str
    texts: Sequence[str]
    settings: Mapping[str, Any]

    def build_job(self, documents: Sequence[int], ours: Sequence[str]) -> dict[str, Any]:
        """Return the job of datatrove's process for some of the documents, with some of our definitions."""
        texts = [self.texts[at] for at in documents]
        return {"recipe": self.recipe, "texts": texts, "settings": dict(self.settings), "ours": list(ours)}


def ask_datatrove(jobs: Sequence[Mapping[str, Any]]) -> tuple[str, list[list[str | None]]]:
    """Return datatrove with its version, and for each job the reason for dropping each text."""
    packages = [f"{name}=={version(name)}" for name in LIBRARIES]
    answer = run_apart("datatrove_recipes", jobs, [installed("datatrove==0.10.1", *packages)])
    return f"datatrove {answer['version']}", answer["decisions"]


def ask_dclm(clone: Path, jobs: Sequence[Mapping[str, Any]]) -> tuple[str, list[list[str | None]]]:
    """Return DCLM's name, and for each job the step that drops each text."""
    job = {"clone": str(clone.resolve()), "jobs": jobs}
    return "DCLM", run_apart("dclm_filters", job, [installed(*DCLM_PACKAGES)])["decisions"]


def compare(comparisons: Sequence[Comparison], ask: Ask, definitions: Mapping[str, str]) -> tuple[list[Row], list[str]]:
    """Return a row for each comparison, and a line for each document that differs without a cause."""
    rows, unexplained = [], []
    program, theirs = ask([one.build_job(range(len(one.texts)), []) for one in comparisons])
    ours = [decide(one.recipe, one.texts) for one in comparisons]
    different = [_find_different(mine, their, range(len(mine))) for mine, their in zip(ours, theirs, strict=True)]
    remaining, causes = different, [Counter[str]() for _ in comparisons]
    for number, cause in enumerate(definitions, 1):
        jobs = [one.build_job(at, [*definitions][:number]) for one, at in zip(comparisons, remaining, strict=True)]
        left = []
        for mine, again, before, counts in zip(ours, ask(jobs)[1], remaining, causes, strict=True):
            left.append(_find_different([mine[at] for at in before], again, before))
            counts[cause] = len(before) - len(left[-1])
        remaining = left
    for one, mine, their, before, after, counts in zip(
        comparisons, ours, theirs, different, remaining, causes, strict=True
    ):
        notes = [f"{program} keeps {their.count(None):,}, ours {mine.count(None):,}"]
        notes += [f"{count:,}: {definitions[cause]}" for cause, count in counts.items() if count]
        explained, equal = len(before) - len(after), len(mine) - len(before)
        rows.append(Row(one.recipe, one.area, len(mine), equal, explained, "; ".join(notes)))
        unexplained += [
            f"{one.recipe}, {one.area}: ours {mine[at]}, {program} {their[at]}: {one.texts[at][:80]!r}" for at in after
        ]
    return rows, unexplained


def _find_different(ours: Sequence[str | None], theirs: Sequence[str | None], documents: Sequence[int]) -> list[int]:
    """Return the documents that only one side keeps."""
    pairs = zip(documents, ours, theirs, strict=True)
    return [document for document, mine, their in pairs if (mine is None) != (their is None)]


def yield_comparisons(groups: Mapping[str, Sequence[str]], configs: Path) -> Iterator[Comparison]:
    """Yield the English recipes with each group of documents, and `fineweb2` with those of its language."""
    for recipe in _ENGLISH:
        for name, texts in groups.items():
            yield Comparison(recipe=recipe, area=name, texts=texts, settings={})
    for name, language in LANGUAGES.items():
        settings = yaml.safe_load((configs / f"{language}.yml").read_text(encoding="utf-8"))
        yield Comparison(recipe=f"fineweb2/{language}", area=name, texts=groups[name], settings=settings)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.parity.recipes", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="a folder of .jsonl.zst files with texts")
    parser.add_argument("--configs", type=Path, help="the folder configs of a clone of fineweb-2")
    parser.add_argument("--dclm", type=Path, metavar="DIR", help="a clone of mlfoundations/dclm")
    parser.add_argument("--most", type=int, default=2500, metavar="N", help="most documents of a language, and of code")
    parser.add_argument("--longest", type=int, default=20_000, metavar="N", help="most characters of a document")
    given = parser.parse_args(argv)
    if given.configs is None and given.dclm is None:
        parser.error("give --configs, --dclm or both")
    groups = group_documents(given.data, given.most, given.longest)
    rows: list[Row] = []
    unexplained: list[str] = []
    if given.configs is not None:
        rows, unexplained = compare([*yield_comparisons(groups, given.configs)], ask_datatrove, CAUSES)
    if given.dclm is not None:
        comparisons = [Comparison(recipe="dclm", area=name, texts=texts, settings={}) for name, texts in groups.items()]
        more_rows, more_lines = compare(comparisons, partial(ask_dclm, given.dclm), DCLM_CAUSES)
        rows, unexplained = rows + more_rows, unexplained + more_lines
    sys.stdout.write(render(rows))
    for line in unexplained[:20]:
        print(line, file=sys.stderr)
    records = sum(row.records for row in rows)
    documents = sum(map(len, groups.values()))
    sys.stdout.write(
        f"\n{documents:,} documents, {records:,} decisions, {len(unexplained)} differ for no documented reason\n"
    )
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
