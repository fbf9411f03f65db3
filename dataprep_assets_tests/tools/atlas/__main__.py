"""`python -m dataprep_assets_tests.tools.atlas TEMPLATES`: read every template of a folder, and write `docs/atlas.md`.

With `--renderers`, the package of this name, in an environment of its own, reads the families that it knows as well.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from dataprep_assets_tests.tools.atlas import renderers_child
from dataprep_assets_tests.tools.atlas.kinds import KINDS
from dataprep_assets_tests.tools.atlas.page import page_of
from dataprep_assets_tests.tools.atlas.readings import read_template
from dataprep_assets_tests.tools.atlas.template_folder import own_templates, templates_in, write_tokenizer_of

PAGE = Path(__file__).parents[3] / "docs" / "atlas.md"
_FAMILIES = {
    "qwen3_8": "qwen3.8",
    "qwen3_6": "qwen3.6",
    "qwen3_5": "qwen3.5",
    "qwen3_vl": "qwen3-vl",
    "qwen3": "qwen3",
    "glm4moe": "glm-4.5",
    "gptoss": "gpt-oss",
    "gemma4": "gemma4",
    "deepseekv3": "deepseek-v3",
    "deepseek_r1": "deepseek-r1",
    "llama3": "llama-3",
    "nemotron_3_5": "nemotron-3.5",
    "nemotron_3_ultra": "nemotron-3-ultra",
    "nemotron_3": "nemotron-3",
}
"""Beginning of a template's name → the renderer of its family, the longest first."""
_EXAMPLES = ("qwen3", "gptoss", "glm4moe", "gemma4_v5", "llama3_1", "deepseekv3")


def read_by_renderers(python: Path, tokenizers: Mapping[str, Path]) -> dict[str, dict[str, str]]:
    """Return the texts that the package `renderers` trains, by template and kind.

    Args:
        python: The Python of an environment with the package.
        tokenizers: Template → the folder of its tokenizer.
    """
    families = {name: _family_of(name) for name in tokenizers if _family_of(name)}
    rows = [kind.row for kind in KINDS]
    arguments = [{"tokenizer": str(tokenizers[n]), "family": family, "rows": rows} for n, family in families.items()]
    done = subprocess.run(
        [str(python), renderers_child.__file__],
        input=json.dumps(arguments),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return {
        name: {kind.name: text for kind, text in zip(KINDS, texts, strict=True) if text is not None}
        for name, texts in zip(families, json.loads(done.stdout), strict=True)
    }


def _family_of(name: str) -> str:
    return next((family for beginning, family in _FAMILIES.items() if name.startswith(beginning)), "")


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.atlas", description=__doc__)
    parser.add_argument("templates", type=Path, help="folder with chat templates (`*.jinja`)")
    parser.add_argument("--source", default="TRL 1.16", help="where they are from, in words")
    parser.add_argument("--renderers", type=Path, metavar="PYTHON", help="of an environment with the package")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="only these templates")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page to write")
    arguments = parser.parse_args(argv)
    readings, tokenizers = [], {}
    by_renderers: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory(prefix="dataprep-atlas-") as scratch:
        for name, text in templates_in(arguments.templates).items():
            if arguments.only and name not in arguments.only:
                continue
            tokenizers[name] = Path(scratch, name)
            readings.append(read_template(write_tokenizer_of(name, text, tokenizers[name])))
            print(name, file=sys.stderr, flush=True)
        own = [read_template(write_tokenizer_of(n, t, Path(scratch, "own", n))) for n, t in own_templates().items()]
        if arguments.renderers:
            by_renderers = read_by_renderers(arguments.renderers, tokenizers)
    arguments.page.write_text(page_of(readings, own, by_renderers, arguments.source, _EXAMPLES), encoding="utf-8")
    print(f"Wrote {arguments.page}: {len(readings)} templates")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
