"""Entry point of the `dataprep` command.

It imports the command only when it is called. If Ctrl-C is pressed during this import, which takes about a second, the
command ends with a message, as it does later.
"""

import atexit
import gc
import os
import sys
from contextlib import suppress

from dataprep_assets.screen import is_waited_for, list_named_datasets, show_waiting, stop_waiting


def main() -> int:
    """Run the command of `dataprep_assets.cli`; return its exit code."""
    # Collect garbage rarely, because imports create about a million permanent objects, whose collection would take a
    # tenth of a short command's time.
    gc.set_threshold(400_000, 20, 20)
    # Register before the imports register anything, because the first registered function is called last.
    codes: list[int] = []
    atexit.register(_end_process, codes)
    # A process that was started without an output has None in its place, which cannot be written to.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (used until the process ends)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    words = sys.argv[1:]
    if is_waited_for(words):
        show_waiting(f"{list_named_datasets(words) or 'dataprep'}: loading…")
    try:
        from dataprep_assets.cli import main as command
    except KeyboardInterrupt:
        stop_waiting()
        print("\ndataprep: interrupted before the command started", file=sys.stderr)
        return 130
    codes.append(command())
    return codes[0]


def _end_process(codes: list[int]) -> None:
    """End the process without freeing its objects one by one, if the command has returned an exit code."""
    # If the output cannot be written, end as usual, because Python then reports the error.
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        if codes:
            os._exit(codes[0])
