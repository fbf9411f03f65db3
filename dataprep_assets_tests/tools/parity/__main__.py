"""Compare our output with that of upstream programs, in a table: `python -m dataprep_assets_tests.tools.parity`.

Each option names the clone of one program; the exit code is 1 if a record differs without a documented reason.
"""

import argparse
import importlib
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from dataprep_assets_tests.tools.parity.table import Row, render

MODULES = {
    "nemotron": ("nemotron_sft", "nemotron_rl", "nemotron_blends"),
    "bridge": ("bridge",),
    "open_instruct": ("open_instruct",),
    "verl": ("verl",),
    "nemo_rl": ("nemo_rl", "nemo_rl_pairs"),
    "skyrl": ("skyrl",),
    "axolotl": ("axolotl", "axolotl_pairs"),
    "llama_factory": ("llama_factory", "llama_factory_pairs"),
    "ms_swift": ("ms_swift",),
    "megatron_lm": ("megatron_lm",),
    "maxtext": ("maxtext", "maxtext_training", "maxtext_sft"),
    "templar": ("templar",),
}
"""For each option the modules in this folder whose `compare(folder)` runs."""
CLONES = {
    "nemotron": "NVIDIA-NeMo/Nemotron",
    "bridge": "NVIDIA-NeMo/Megatron-Bridge",
    "open_instruct": "allenai/open-instruct; requires torch",
    "verl": "volcengine/verl; requires torch",
    "nemo_rl": "NVIDIA-NeMo/RL; its pairs require torch",
    "skyrl": "NovaSky-AI/SkyRL; requires torch",
    "axolotl": "axolotl-ai-cloud/axolotl; requires torch",
    "llama_factory": "hiyouga/LLaMA-Factory; requires torch",
    "ms_swift": "modelscope/ms-swift; requires torch",
    "megatron_lm": "NVIDIA/Megatron-LM; requires torch",
    "maxtext": "AI-Hypercomputer/maxtext; all except maxtext_sft require jax and MaxText's packages",
    "templar": "tplr-ai/templar; requires torch",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparisons."""
    parser = argparse.ArgumentParser(prog="python -m dataprep_assets_tests.tools.parity", description=__doc__)
    for option, clone in CLONES.items():
        parser.add_argument(f"--{option.replace('_', '-')}", type=Path, metavar="DIR", help=f"a clone of {clone}")
    parser.add_argument("--only", metavar="MODULE", help="run only this module, such as nemotron_sft")
    given = parser.parse_args(argv)
    folders = {option: folder for option in MODULES if (folder := getattr(given, option)) is not None}
    if not folders:
        parser.error("give the folder of at least one original")
    os.environ["HF_HUB_OFFLINE"] = "1"
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    found: list[Row] = []
    for option, folder in folders.items():
        for name in MODULES[option]:
            if given.only in (None, name):
                found += importlib.import_module(f"{__package__}.{name}").compare(folder.resolve())
    sys.stdout.write(render(found))
    differ = sum(row.records - row.equal - row.explained for row in found)
    sys.stdout.write(f"\n{sum(row.records for row in found)} records, {differ} differ for no documented reason\n")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
