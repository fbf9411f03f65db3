"""`dataprep preflight`: test all operations that a store must support."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from dataprep_assets.cli.support import project
from dataprep_assets.cli.support.arguments import Profile
from dataprep_assets.errors import count_of

if TYPE_CHECKING:
    from dataprep_assets.stores.preflight import PreflightStep


def command(
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="URL",
            help="Location to test: s3://…, gs://… or a folder. [default: the storage configured in the environment]",
        ),
    ] = None,
    profile: Profile = None,
    read_only: Annotated[
        bool,
        typer.Option(
            "--read-only",
            help="Test only read access, e.g., with read-only keys. With this option, URL can also be https://….",
        ),
    ] = False,
) -> int:
    """Test whether a storage location supports everything that dataprep needs."""
    from dataprep_assets.stores.preflight import run_preflight

    if read_only:
        return _test_reading(url, profile)
    store = project.open_store(url, profile)
    print(f"{store.url}:")
    return _print_steps(run_preflight(store()))


def _test_reading(url: str | None, profile: str | None) -> int:
    from dataprep_assets.serving.window.release import MANIFEST, ReleaseLocation, locate_release
    from dataprep_assets.stores.preflight import run_reading_preflight

    is_url = url is not None and profile is None
    location = (
        locate_release(url) if is_url and url is not None else ReleaseLocation(project.open_store(url, profile)())
    )
    print(f"{location} (read-only):")
    return _print_steps(run_reading_preflight(location.store, [location.key(MANIFEST)]))


def _print_steps(steps: "Iterable[PreflightStep]") -> int:
    failed = 0
    for step in steps:
        failed += not step.ok
        print(f"  {'ok     ' if step.ok else 'FAILED ' if step.tried else 'skipped'} {step.name}", flush=True)
        if step.error:
            print(f"          {step.error}")
    print("ready" if not failed else f"not ready: {count_of(failed, 'step was', 'steps were')} skipped or failed")
    return 1 if failed else 0
