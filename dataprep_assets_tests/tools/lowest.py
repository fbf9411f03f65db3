"""Print constraints that pin each direct requirement to its lower bound: `python -m
dataprep_assets_tests.tools.lowest`.

Like `--resolution lowest-direct` of other installers, it leaves indirect requirements to pip. It imports only the
standard library, because it runs before any installation.

Entry point: `lowest`.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

_BOUND = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?>=([0-9][^,;\s]*)")


def lowest(requirements: Iterable[str]) -> Iterator[str]:
    """Return a line `name==version` for each requirement with a lower bound; exact versions need none."""
    for requirement in requirements:
        if (found := _BOUND.match(requirement)) is not None:
            yield f"{found[1]}=={found[2]}"


def _declared() -> list[str]:
    path = Path(__file__).parents[2] / "pyproject.toml"
    return list(tomllib.loads(path.read_text(encoding="utf-8"))["project"]["dependencies"])


if __name__ == "__main__":
    print("\n".join(lowest(_declared())))
