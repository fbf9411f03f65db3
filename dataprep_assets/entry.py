"""Entry point of the `dataprep` command.

It imports the command only when it is called. If Ctrl-C is pressed during this import, which takes about a second, the
command ends with a message, as it does later.
"""

import sys

from dataprep_assets.screen import is_waited_for, list_named_datasets, show_waiting, stop_waiting


def main() -> int:
    """Run the command of `dataprep_assets.cli`; return its exit code."""
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
