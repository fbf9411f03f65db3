"""JSON Lines for the rows of views: one JSON value per line, with a line ending after the last line.

Entry points: `write_lines`, `read_lines`.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.errors import FormatError
from dataprep_assets.stores.files import create_durably


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write JSON texts to the new file `path`, which gets its name only when it is complete."""
    with create_durably(path) as file:
        file.writelines(f"{line}\n".encode() for line in lines)


def read_lines(path: Path) -> Iterator[Any]:
    """Yield the values of a file; raise FormatError for a line that is not JSON or has no line ending."""
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                raise FormatError(
                    f"{path}: the last line has no line end, so the file is truncated. Rebuild the artifact"
                )
            try:
                yield load_untrusted_json(line)
            except ValueError as error:
                raise FormatError(f"{path}: line {number}: invalid JSON: {error}. Rebuild the artifact") from error
