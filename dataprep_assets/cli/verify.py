"""`dataprep verify`: check artifacts against their receipts, offline."""

from typing import TYPE_CHECKING

from dataprep_assets.cli import project
from dataprep_assets.errors import ConfigError

if TYPE_CHECKING:
    from dataprep_assets.integrity.receipt import Verification

__all__ = ["declare"]


def declare(commands: project.Commands) -> None:
    """Add the command's arguments."""
    parser = commands.add_parser("verify", help="check artifacts against their receipts, offline")
    parser.add_argument(
        "path", nargs="?", help="artifact, dataset or storage root: a folder or a URL (default: the whole storage)"
    )
    parser.add_argument("--size-only", action="store_true", help="compare sizes, not digests")
    parser.set_defaults(execute=lambda options: _verify(options.path, "size" if options.size_only else "full"))


def _verify(path: str | None, verification: "Verification") -> int:
    from dataprep_assets.integrity.verify import verify, verify_store
    from dataprep_assets.stores.connect import LocalPlace

    found = project.place(path)
    if isinstance(found, LocalPlace):
        if not found.root.exists():
            raise ConfigError(f"{found.root}: nothing there to verify")
        verdicts = verify(found.root, verification)
    else:
        verdicts = verify_store(found(), verification)
    count = total = bad = 0
    for verdict in verdicts:
        count += 1
        total += verdict.bytes
        bad += bool(verdict.defects)
        for defect in verdict.defects:
            print(f"DAMAGED {verdict.name}: {defect}")
    print(f"{count} artifacts, {total:,} bytes: {'all match their receipts' if not bad else f'{bad} damaged'}")
    return 1 if bad or not count else 0
