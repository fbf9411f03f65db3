"""`python -m dataprep_assets_tests.tools.bench.curated_run`: cost of curation in `dataprep run`, and of the site.

Each variant is a new project whose corpus is built once per round, and the variants take turns. Baselines are the same
run without curation, in CPU-seconds of all processes. The variant `table` carries one field and has no tagger.
`everything` has the six built-in taggers, a rule, near-duplicates, 1,000 benchmark items and the removal of e-mail
addresses. `filters` has three taggers, two rules and near-duplicates.

After each build, `dataprep site` writes all pages, then none. Both runs also start, load the declarations and compare
the state, so the pages cost the difference.

The pages show samples of a fixed size, so their share falls with the size of the corpus. `--documents` invents the
texts of a larger corpus, and `--variants` builds only some variants.
"""

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataprep_assets.errors import count_of
from dataprep_assets_tests.tools.bench.invented_text import sentence, vocabulary
from dataprep_assets_tests.tools.bench.languages import write_languages
from dataprep_assets_tests.tools.bench.runner import measure
from dataprep_assets_tests.tools.bench.whole_run import (
    DATASET,
    add_corpus_arguments,
    build_command,
    declare_corpus,
    find_tokenizer,
    list_corpora,
    make_project,
)

TARGETS = {"table": 1.08, "everything": 3.0}
"""Variant → its maximum CPU time, as a multiple of the plain build's."""
SITE_TARGET = 0.05
"""Maximum CPU time of the pages, as a share of the build's."""
_ITEMS, _ITEM_WORDS = 1_000, 20


def _declare_nothing(_: Path) -> Mapping[str, Any]:
    return {}


def _declare_table(_: Path) -> Mapping[str, Any]:
    return {"document": {"keep_fields": {"set": "string"}}}


def _declare_everything(scratch: Path) -> Mapping[str, Any]:
    draw, words = random.Random(0), vocabulary()
    items = scratch / "items.jsonl"
    items.write_text(
        "".join(json.dumps({"question": sentence(draw, words, _ITEM_WORDS)}) + "\n" for _ in range(_ITEMS))
    )
    return {
        "tag": ["gopher", "c4", "fineweb", "language", "repetition", "personal"],
        "drop": {"short": "words < 20"},
        "duplicates": {"kind": "near", "across_splits": "drop"},
        "decontaminate": {"sets": {"items": {"path": str(items), "fields": ["question"]}}},
        "rewrite": [{"personal": {"emails": "<EMAIL>"}}],
        **_declare_table(scratch),
    }


def _declare_filters(_: Path) -> Mapping[str, Any]:
    return {
        "tag": ["gopher", "language", "repetition"],
        "drop": {"short": "words < 20", "few_stops": "stop_words < 2"},
        "duplicates": {"kind": "near", "across_splits": "drop"},
    }


_VARIANTS: Mapping[str, Callable[[Path], Mapping[str, Any]]] = {
    "plain": _declare_nothing,
    "table": _declare_table,
    "filters": _declare_filters,
    "everything": _declare_everything,
}


@dataclass(frozen=True, kw_only=True)
class VariantCost:
    """CPU-seconds of a build, of `dataprep site` after it, and of `dataprep site` without a changed page."""

    build: float
    site: float
    unchanged_site: float


def _build_variant(name: str, attributes: Mapping[str, Any], scratch: Path) -> VariantCost:
    home, root = scratch / "home", scratch / "project"
    home.mkdir(parents=True)
    curation = _VARIANTS[name](scratch)
    document = {**attributes["document"], **curation.get("document", {})}
    make_project(home, root, {**attributes, **curation, "document": document})
    commands = (("run", DATASET), ("site",), ("site",))
    build, site, unchanged_site = (measure(build_command(home, root, *command)).cpu for command in commands)
    shutil.rmtree(scratch)
    return VariantCost(build=build, site=site, unchanged_site=unchanged_site)


def render(corpus: str, results: Mapping[str, Sequence[VariantCost]]) -> str:
    """Return the measurements of a corpus as text."""
    seconds = {name: statistics.median(cost.build for cost in costs) for name, costs in results.items()}
    rounds = len(next(iter(results.values())))
    lines = [f"{corpus}: CPU-seconds of `dataprep run`, medians of {count_of(rounds, 'round')}"]
    for name, value in seconds.items():
        if "plain" not in seconds:
            lines.append(f"  {name:<12}{value:>8.1f}")
            continue
        ratio, target = value / seconds["plain"], TARGETS.get(name)
        goal = "" if target is None else f"at most {target}: {'met' if ratio <= target else 'NOT MET'}"
        lines.append(f"  {name:<12}{value:>8.1f}  {ratio:>6.2f} times plain  {goal}".rstrip())
    lines.append(f"{corpus}: CPU-seconds of `dataprep site`: all pages, no page, difference as a share of the build")
    for name, costs in results.items():
        site, unchanged_site = (
            statistics.median(getattr(cost, what) for cost in costs) for what in ("site", "unchanged_site")
        )
        share = (site - unchanged_site) / seconds[name]
        goal = f"at most {SITE_TARGET:.0%}: {'met' if share <= SITE_TARGET else 'NOT MET'}"
        lines.append(f"  {name:<12}{site:>8.1f}{unchanged_site:>8.1f}  {share:>6.1%}  {goal}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m dataprep_assets_tests.tools.bench.curated_run", description=(__doc__ or "").splitlines()[0]
    )
    add_corpus_arguments(parser)
    parser.add_argument("--documents", type=int, help="invent a corpus of 8 training files with this many documents")
    parser.add_argument("--variants", nargs="+", choices=list(_VARIANTS), default=list(_VARIANTS))
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="dataprep-bench-", dir=arguments.scratch) as folder:
        if arguments.documents is not None:
            arguments.data = Path(folder) / "invented texts"
            write_languages(arguments.data, files=8, documents_a_file=arguments.documents)
        for corpus, data in list_corpora(arguments.data, Path(folder)):
            attributes = declare_corpus(data, find_tokenizer(arguments.tokenizer), arguments.separator)
            results: dict[str, list[VariantCost]] = {name: [] for name in arguments.variants}
            for turn in range(arguments.runs):
                for name, runs in results.items():
                    print(f"run {turn + 1} of {arguments.runs}: {corpus}, {name}", file=sys.stderr, flush=True)
                    runs.append(_build_variant(name, attributes, Path(folder) / name))
            print(render(corpus, results), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
