"""Entry point of the `dataprep` command.

It imports the command only when it is called. If Ctrl-C is pressed during this import, which takes about a second, the
command ends with a message, as it does later.
"""

import sys


def main() -> int:
    """Run the command of `dataprep_assets.cli`; return its exit code."""
    try:
        from dataprep_assets.cli import main as command
    except KeyboardInterrupt:
        print("\ndataprep: interrupted before the command started", file=sys.stderr)
        return 130
    return command()
