"""Entry point of the `dataprep` command.

It imports the command only when it is called. If Ctrl-C is pressed during this import, which takes about a second, the
command ends with a message, as it does later.
"""

import atexit
import gc
import sys

from dataprep_assets.screen import is_waited_for, list_named_datasets, show_waiting, stop_waiting


def main() -> int:
    """Run the command of `dataprep_assets.cli`; return its exit code."""
    # Collect garbage rarely, and not at exit, because imports create about a million permanent objects. By default,
    # their collection would take a tenth of a short command's time, plus a seventh at exit.
    gc.set_threshold(400_000, 20, 20)
    atexit.register(gc.freeze)
    words = sys.argv[1:]
    if is_waited_for(words):
        show_waiting(f"{list_named_datasets(words) or 'dataprep'}: loading…")
    try:
        from dataprep_assets.cli import main as command
    except KeyboardInterrupt:
        stop_waiting()
        print("\ndataprep: interrupted before the command started", file=sys.stderr)
        return 130
    return command()
