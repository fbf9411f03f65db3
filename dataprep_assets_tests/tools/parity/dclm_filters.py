"""Return the decisions of DCLM's own filters, from a separate process: `python -m …parity.dclm_filters ANSWER`.

It reads a JSON object from standard input: the clone of mlfoundations/dclm, and a list of jobs. Each job has texts, and
the names of our definitions that the filters use. The answer has a list for each job: the step that drops each text, or
null.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import yaml

from dataprep_assets.curation.taggers.dclm import split_words
from dataprep_assets.curation.text_tagger import normalize_text
from dataprep_assets_tests.tools.parity.absent import bare_package, stand_in

CONFIG = "baselines/baselines_configs/dclm_baseline_refinedweb.yaml"
SKIPPED = ("move_url_modifier", "url_substring_filter", "detect_lang_whole_page_enricher", "language_filter")
"""Steps that need an address or a model."""
Step = tuple[str, Callable[[dict[str, Any]], list[Any]]]


def load_steps(clone: Path) -> list[Step]:
    """Return the steps of the published pipeline, in its order, with its settings."""
    # The modules import from both folders, and read lists relative to the clone.
    sys.path[:0] = [str(clone), str(clone / "baselines")]
    os.chdir(clone)
    for name in ("baselines/mappers", "baselines/mappers/filters", "baselines/mappers/enrichers", "baselines/core"):
        bare_package(name.replace("/", "."), clone / name)
    bare_package("core", clone / "baselines/core")
    stand_in("justext", "unidecode", "bs4", "transformers", "blingfire")
    names = ("filters.content_filters", "modifiers", "enrichers.enrichers")
    modules = [importlib.import_module(f"baselines.mappers.{name}") for name in names]
    (source,) = yaml.safe_load((clone / CONFIG).read_text(encoding="utf-8"))
    steps = []
    for settings in source["steps"]:
        name = settings.pop("func")
        if name not in SKIPPED:
            function = next(vars(module)[name] for module in modules if name in vars(module))
            steps.append((name, _prepare(function, settings)))
    return steps


def _prepare(function: Any, settings: dict[str, Any]) -> Callable[[dict[str, Any]], list[Any]]:
    if getattr(function, "_is_factory", False):
        prepared: Callable[[dict[str, Any]], list[Any]] = function(**settings)
        return prepared
    return lambda page: list(function(page, **settings))


def decide(steps: Sequence[Step], text: str, ours: Collection[str]) -> str | None:
    """Return the first step that drops a text; None if all keep it. A step may rewrite the text."""
    page = {"text": normalize_text(text) if "normalized text" in ours else text}
    for name, apply in steps:
        if name == "url_removal_modifier" and "URLs" in ours:
            continue
        pages = apply(page)
        if not pages:
            return name
        (page,) = pages
    return None


def main(answer: Path) -> None:
    """Filter the texts of each job, and write the answer."""
    given = json.load(sys.stdin)
    steps = load_steps(Path(given["clone"]))
    utilities = sys.modules["baselines.mappers.core_utils"]
    unicode_words = vars(utilities)["words"]
    decisions = []
    for job in given["jobs"]:
        vars(utilities)["words"] = split_words if "words" in job["ours"] else unicode_words
        decisions.append([decide(steps, text, job["ours"]) for text in job["texts"]])
    answer.write_text(json.dumps({"decisions": decisions}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
