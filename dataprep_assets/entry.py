"""Entry point of the `dataprep` command.

It imports the command only when it is called. If Ctrl-C is pressed during this import, which takes about a second, the
command ends with a message, as it does later.
"""

import atexit
import gc
import os
import sys

from dataprep_assets.screen import is_waited_for, list_named_datasets, show_waiting, stop_waiting


def main() -> int:
    """Run the command of `dataprep_assets.cli`; return its exit code."""
    # Collect garbage rarely, because imports create about a million permanent objects, whose collection would take a
    # tenth of a short command's time.
    gc.set_threshold(400_000, 20, 20)
    words = sys.argv[1:]
    if is_waited_for(words):
        show_waiting(f"{list_named_datasets(words) or 'dataprep'}: loading…")
    try:
        from dataprep_assets.cli import main as command
    except KeyboardInterrupt:
        stop_waiting()
        print("\ndataprep: interrupted before the command started", file=sys.stderr)
        return 130
    # Register before the command registers anything, because the last function to be registered is called first.
    codes: list[int] = []
    atexit.register(_end_process, codes)
    codes.append(command())
    return codes[0]


def _end_process(codes: list[int]) -> None:
    """End the process without freeing its objects one by one, if the command has returned an exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    if codes:
        os._exit(codes[0])
