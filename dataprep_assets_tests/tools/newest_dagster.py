"""Print the newest version of Dagster for which the package index has all packages.

`python -m dataprep_assets_tests.tools.newest_dagster PACKAGE...` reads the newest version of each package. The packages
of a release require each other in exactly its version. While an index has only some packages of a release, pip tries
all combinations of versions, which takes longer than all tests.
"""

import re
import subprocess
import sys
from collections.abc import Sequence

from packaging.version import Version


def read_newest_version(package: str) -> Version:
    """Return the newest version of a package on the index; raise SystemExit if pip finds none."""
    command = [sys.executable, "-m", "pip", "index", "versions", "--disable-pip-version-check", package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.match(rf"{re.escape(package)} \(([^)]+)\)", done.stdout)
    if found is None:
        raise SystemExit(f"{package}: no version found: {done.stderr.strip() or done.stdout.strip()}")
    return Version(found[1])


def main(packages: Sequence[str]) -> int:
    """Print the lowest of the packages' newest versions."""
    print(min(map(read_newest_version, packages)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
