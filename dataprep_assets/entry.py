"""The entry point of the `dataprep` command.

It imports nothing before it is called, so that Ctrl-C during the second in which the command is imported ends it with a
sentence, as it does later.
"""

import gc
import sys


def main() -> int:
    """Run the command of `dataprep_assets.cli`; returns its exit code."""
    # imports create a million permanent objects: looking for garbage among them is a tenth of a short command
    gc.set_threshold(400_000, 20, 20)
    try:
        from dataprep_assets.cli import main as command
    except KeyboardInterrupt:
        print("\ndataprep: interrupted before it began", file=sys.stderr)
        return 130
    try:
        return command()
    finally:
        # at its end Python looks through all objects once more, for an eighth of a short command
        gc.freeze()
