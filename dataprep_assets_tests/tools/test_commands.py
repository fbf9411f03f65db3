"""Every module of the tools can be imported, and every command shows its help."""

import subprocess
import sys

SHOW_HELP = """
import importlib, inspect, pkgutil
from dataprep_assets_tests import tools
shown = 0
for found in pkgutil.walk_packages(tools.__path__, f"{tools.__name__}."):
    if found.name.rpartition(".")[2].startswith("test_"):
        continue
    main = getattr(importlib.import_module(found.name), "main", None)
    if main is not None and "argv" in inspect.signature(main).parameters:
        try:
            main(["--help"])
        except SystemExit as end:
            assert not end.code, found.name
            shown += 1
assert shown > 20, shown
"""


def test_every_tool_can_be_imported_and_commands_show_their_help() -> None:
    # Use a separate process, because the libraries that benchmarks compare with are too heavy for this process.
    subprocess.run([sys.executable, "-c", SHOW_HELP], check=True, stdout=subprocess.DEVNULL)
