"""The `dataprep` command: run a dataset, tell its cost or status, prune, trace, retract, lock, verify, sync.

`run` materializes through Dagster into the instance of DAGSTER_HOME, so that everything it did is visible in the UI;
the other commands write to no instance. One module a command; each declares its arguments and does its work.
"""

import argparse
import os
import sys

from dataprep_assets.cli import diff, lock, plan, preflight, prune, retract, run, status, sync, trace, verify
from dataprep_assets.errors import DataprepError

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run one command; errors of this project are printed, not traced."""
    parser = argparse.ArgumentParser(prog="dataprep", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for command in (run, plan, status, trace, retract, prune, verify, lock, diff, preflight, sync):
        command.declare(commands)
    options = parser.parse_args(arguments)
    try:
        code = int(options.execute(options))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever reads it has seen enough: `dataprep status NAME | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except DataprepError as error:
        print(f"dataprep: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndataprep: interrupted; what was finished is kept, run the same command again", file=sys.stderr)
        return 130
