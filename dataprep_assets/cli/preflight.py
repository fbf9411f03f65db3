"""`dataprep preflight`: try everything that a store must be able to do."""

from typing import Annotated

import typer

from dataprep_assets.cli import project
from dataprep_assets.cli.arguments import Profile

__all__ = ["command"]


def command(
    url: Annotated[
        str | None,
        typer.Argument(metavar="URL", help="s3://…, gs://… or a folder; default: the storage of the environment."),
    ] = None,
    profile: Profile = None,
) -> int:
    """Try everything that a store must be able to do, before anything depends on it."""
    from dataprep_assets.stores.preflight import preflight

    found = project.place(url, profile)
    print(f"{found.url}:")
    failed = 0
    for step in preflight(found()):
        failed += not step.ok
        print(f"  {'ok     ' if step.ok else 'FAILED ' if step.tried else 'skipped'} {step.name}", flush=True)
        if step.error:
            print(f"          {step.error}")
    print("ready" if not failed else f"not ready: {failed} of these failed or could not be tried")
    return 1 if failed else 0
