"""The file of a lock (`dataset.lock`): JSON in a stable order, with a line for each artifact and each source file.

So its diff can be read in a review. Settings and library versions that many artifacts share are written once
(`shared`), and so are the source files of a shard (`files`), which both its snapshot and its token bins have.

Entry points: `lock_bytes`, `parse_lock`, `read_lock`.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired

from pydantic import ValidationError
from typing_extensions import TypedDict  # pydantic takes no other below Python 3.12

from dataprep_assets.bounds import json_of
from dataprep_assets.errors import FormatError
from dataprep_assets.graph.lock import Counts, Lock, Locked, SourceLine
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.receipt import Content
from dataprep_assets.state_file import validated
from dataprep_assets.stores.keys import why_not_a_name

LOCK = "dataset.lock"
SCHEMA = 1


def lock_bytes(lock: Lock) -> bytes:
    """Serialize a lock; equal locks give equal bytes."""
    shared: dict[str, Mapping[str, Any]] = {}
    blocks = {name: one.files for name, one in lock.artifacts.items() if one.files}
    # partition → the artifact that counts its source files: the others refer to the lines of that one
    of_partition = {name.partition("/")[2]: name for name in blocks}
    lines = []
    for name, one in lock.artifacts.items():
        block = of_partition.get(name.partition("/")[2])
        lines.append(f"{_spelt(name)}: {_spelt(_entry(one, block, blocks.get(block or '', ()), shared))}")
    parts = [
        ("dataprep_lock", str(SCHEMA)),
        ("dataset", _spelt(lock.dataset)),
        ("hidden_names", _spelt(lock.is_hidden)),
        ("commits", _spelt(lock.commits)),
        ("tokenizers", _spelt(lock.tokenizers)),
        ("shared", _block("{}", [f"{_spelt(key)}: {_spelt(shared[key])}" for key in sorted(shared)])),
        ("artifacts", _block("{}", lines)),
        ("files", _block("{}", [f"{_spelt(name)}: {_file_lines(files)}" for name, files in blocks.items()])),
    ]
    return ("{\n" + ",\n".join(f'"{key}": {value}' for key, value in parts) + "\n}\n").encode()


def _entry(
    one: Locked, block: str | None, files: Sequence[SourceLine], shared: dict[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The JSON of an artifact.

    Args:
        one: The artifact.
        block: The artifact whose source files are those of its partition.
        files: The source files of that partition.
        shared: Shared blocks by name; those that the JSON refers to are added.
    """
    value: dict[str, Any] = {"bytes": one.bytes, "content": one.content, "key": one.key}
    if one.is_placed:
        value = {"placed": True}
    value["version"] = one.version
    if one.is_derived:
        value["derived"] = True
    for part, found in (("settings", one.settings), ("libraries", one.libraries)):
        if found:
            value[part] = digest_value(found)[:12]
            shared[value[part]] = found
    own, of_files = one.sources, {line.name: line.sha256 for line in files}
    if of_files and of_files.items() <= own.items():
        value["sources_of"] = block
        own = {key: digest for key, digest in own.items() if key not in of_files}
    if own:
        value["sources"] = own
    if one.upstream:
        value["upstream"] = one.upstream
    if one.counts is not None:
        value["counts"] = _counts_json(one.counts)
    return value


def _spelt(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)


def _block(brackets: str, lines: Sequence[str]) -> str:
    return brackets[0] + "".join(f"\n {line}," for line in lines).removesuffix(",") + "\n" + brackets[1]


def _counts_json(counts: Counts) -> list[int]:
    return [counts.rows, counts.documents, counts.tokens]


def _file_lines(files: Sequence[SourceLine]) -> str:
    return _block("[]", [_spelt([line.name, line.sha256, *_counts_json(line.counts)]) for line in files])


def read_lock(path: Path) -> Lock:
    """Read a lock; raises FormatError, with a message of one line, if the file is not a lock."""
    try:
        return parse_lock(path.read_bytes(), str(path))
    except OSError as error:
        raise FormatError(f"{path}: no lock can be read there: {error.strerror or error}") from error


class _LockedJson(TypedDict):
    """An artifact: all of it is read as it stands in the file, so a wrong type must not pass."""

    version: int
    placed: NotRequired[bool]
    key: NotRequired[str]
    content: NotRequired[Content]
    bytes: NotRequired[int]
    derived: NotRequired[bool]
    settings: NotRequired[str]
    libraries: NotRequired[str]
    sources: NotRequired[dict[str, str]]
    sources_of: NotRequired[str]
    upstream: NotRequired[dict[str, Content]]
    counts: NotRequired[tuple[int, int, int]]


class _LockJson(TypedDict):
    """The file; `tokenizers` follows from the artifacts, and is there for people."""

    dataprep_lock: int
    dataset: str
    hidden_names: bool
    commits: dict[str, str]
    shared: dict[str, dict[str, Any]]
    artifacts: dict[str, _LockedJson]
    files: dict[str, list[tuple[str, str, int, int, int]]]


def parse_lock(data: bytes, where: str) -> Lock:
    """Parse the bytes of a lock file.

    Raises FormatError, naming `where`, if they are not a lock, or one of another schema version.
    """
    try:
        schema = json_of(data)["dataprep_lock"]
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"{where}: not a lock of a dataset ({type(error).__name__}: {str(error)[:80]}). `dataprep lock` writes one"
        ) from None
    if schema != SCHEMA:
        raise FormatError(f"{where}: a lock of schema {schema!r}, this version reads {SCHEMA}. Lock the dataset again")
    try:
        value = validated(data, _LockJson)
        blocks = {_name(name): tuple(_line(line) for line in lines) for name, lines in value["files"].items()}
        found = {_name(name): _locked(one, value["shared"], blocks, name) for name, one in value["artifacts"].items()}
    except (KeyError, ValueError) as error:
        raise FormatError(
            f"{where}: a damaged lock ({_reason(error)}). Restore it from version control, or lock the dataset again"
        ) from None
    return Lock(
        dataset=value["dataset"],
        artifacts={name: found[name] for name in sorted(found)},
        commits=value["commits"],
        is_hidden=value["hidden_names"],
    )


def _reason(error: KeyError | ValueError) -> str:
    """What is wrong, in a line: of pydantic's error the place and the message of the first fault."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return f"{type(error).__name__}: {str(error)[:80]}"


def _line(line: tuple[str, str, int, int, int]) -> SourceLine:
    name, sha256, *counts = line
    return SourceLine(name=_name(name), sha256=sha256, counts=_counts(counts))


def _counts(value: Sequence[int]) -> Counts:
    rows, documents, tokens = value
    return Counts(rows=rows, documents=documents, tokens=tokens)


def _name(value: str) -> str:
    """A checked name of an artifact or a source file: both are printed, and looked up on disk."""
    if why := why_not_a_name(value):
        raise ValueError(f"{value!r} names no file: {why}")
    return value


def _locked(
    value: _LockedJson,
    shared: Mapping[str, Mapping[str, Any]],
    blocks: Mapping[str, tuple[SourceLine, ...]],
    name: str,
) -> Locked:
    is_placed = value.get("placed", False)
    of_files = blocks[value["sources_of"]] if "sources_of" in value else ()
    return Locked(
        key=None if is_placed else value["key"],
        content=None if is_placed else value["content"],
        bytes=0 if is_placed else value["bytes"],
        version=value["version"],
        settings=shared[value["settings"]] if "settings" in value else {},
        sources={**value.get("sources", {}), **{line.name: line.sha256 for line in of_files}},
        upstream=value.get("upstream", {}),
        is_derived=value.get("derived", False),
        libraries=shared[value["libraries"]] if "libraries" in value else {},
        counts=_counts(value["counts"]) if "counts" in value else None,
        files=blocks.get(name, ()),
    )
