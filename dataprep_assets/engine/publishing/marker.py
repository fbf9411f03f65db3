"""The marker of a publication, `publication.json` in its repository.

It names the dataset and the project that own the repository, and lists the published files. A later publication
therefore recognizes its own files, and changes no others.

Entry points: `Marker`, `read_marker`, `find_marked_defects`.
"""

import hashlib
from collections.abc import Iterator

from typing_extensions import TypedDict  # pydantic requires this `TypedDict` before Python 3.12

from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.integrity.receipt import Verification
from dataprep_assets.project import validate_json
from dataprep_assets.sources.hub_store import HubStore

MARKER = "publication.json"
SCHEMA = 1


class MarkedFile(TypedDict):
    """A published file in a marker."""

    bytes: int
    sha256: str


class Marker(TypedDict):
    """The content of `publication.json`: the owner of a repository, and path → published file."""

    dataprep_publication: int
    dataset: str
    project: str
    lock: str
    files: dict[str, MarkedFile]


def read_marker(store: HubStore) -> Marker | None:
    """Return the marker in a repository; None if there is none. Raises FormatError if the file is not a marker."""
    if MARKER not in store.files:
        return None
    location = f"{store.url}/{MARKER}"
    try:
        marker = validate_json(b"".join(store.read(MARKER)), Marker)
    except ValueError as error:
        raise FormatError(
            f"{location}: not a marker of a publication. Restore its last published version on the Hub"
        ) from error
    if marker["dataprep_publication"] != SCHEMA:
        raise FormatError(
            f"{location}: unsupported schema {marker['dataprep_publication']}; this version reads {SCHEMA}. Use the "
            "version of dataprep-assets that published it"
        )
    return marker


def find_marked_defects(store: HubStore, marker: Marker, verification: Verification) -> Iterator[str]:
    """Yield a sentence for each defect of the published files.

    With the verification `full`, the files at the top are read. The receipts of the artifacts cover all other files, so
    here only the presence and the size of these are compared.
    """
    for path, record in marker["files"].items():
        location, file = f"{store.url}/{path}", store.files.get(path)
        if file is None:
            yield f"{location}: missing"
        elif file.size != record["bytes"]:
            yield f"{location}: has {count_of(file.size, 'byte')}, but {MARKER} lists {record['bytes']:,}"
        elif verification == "full" and "/" not in path:
            digest = hashlib.sha256(b"".join(store.read(path))).hexdigest()
            if digest != record["sha256"]:
                yield f"{location}: has sha256 {digest}, but {MARKER} lists {record['sha256']}"
