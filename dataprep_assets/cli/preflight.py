"""`dataprep preflight`: try everything that a store must be able to do."""

from dataprep_assets.cli import project

__all__ = ["declare"]


def declare(commands: project.Commands) -> None:
    """Add the command's arguments."""
    parser = commands.add_parser("preflight", help="try everything that a store must be able to do")
    parser.add_argument(
        "url", nargs="?", help="s3://bucket/prefix, gs://bucket/prefix or a folder (default: as for run)"
    )
    parser.add_argument("--profile", help="a profile of boto3's configuration, with credentials and endpoint")
    parser.set_defaults(execute=lambda options: _preflight(options.url, options.profile))


def _preflight(url: str | None, profile: str | None) -> int:
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
