"""The entry point of the `dataprep` command.

It imports nothing before it is called, so that Ctrl-C during the second in which the command is imported ends it with a
sentence, as it does later.
"""

import sys


def main() -> int:
    """Run the command of `dataprep_assets.cli`; returns its exit code."""
    try:
        from dataprep_assets.cli import main as command
    except KeyboardInterrupt:
        print("\ndataprep: interrupted before the command started", file=sys.stderr)
        return 130
    return command()
