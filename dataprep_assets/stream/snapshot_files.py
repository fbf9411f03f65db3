"""The list of a snapshot's source files (`files.jsonl`: path, size, SHA-256), and its proofs: the files have these
digests, and the disk has room for what comes next.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dataprep_assets.bounds import json_of
from dataprep_assets.engine.checks.finding import Finding, judged, verdict
from dataprep_assets.errors import FormatError
from dataprep_assets.integrity.digest import canonical_json, sha256_file
from dataprep_assets.plural import count_of
from dataprep_assets.sources.digests import PLAIN, SourceDigests

FILES = "files.jsonl"


def files_bytes(lines: Iterable[Mapping[str, Any]]) -> bytes:
    """The file of a snapshot with these lines, of a corpus or a blend."""
    return b"".join(canonical_json(line) + b"\n" for line in lines)


def read_files(directory: Path) -> list[dict[str, Any]]:
    """The lines of a snapshot, of a corpus or a blend; raises FormatError, naming the line, if the file is invalid."""
    path = directory / FILES
    lines: list[dict[str, Any]] = []
    try:
        with open(path, "rb") as file:
            for text in file:
                line = json_of(text)
                lines.append({**line, "relpath": str(line["relpath"]), "sha256": str(line["sha256"])})
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        where = f"{path}: line {len(lines) + 1}"
        raise FormatError(f"{where}: not that of a snapshot: {error}. Materialize `snapshot` again") from error
    return lines


@judged
def digests_match(
    expected: Mapping[str, str],
    paths: Mapping[str, Path],
    others: Iterable[str] = (),
    digests: SourceDigests = PLAIN,
) -> Finding:
    """Every file has the expected SHA-256. Each is read once.

    Args:
        expected: Label → expected digest.
        paths: Label → file.
        others: Defects found elsewhere.
        digests: How digests are made: plain SHA-256 or keyed.
    """
    present = [path for label, path in paths.items() if label in expected and path.is_file()]
    return verdict(
        [*others, *_differing(expected, paths, digests)],
        f"{count_of(len(expected), 'file')}: SHA-256 as listed.",
        "Fetch these files again: materialize `snapshot` of their shard",
        facts={"files": len(expected), "bytes": sum(path.stat().st_size for path in present)},
    )


def _differing(expected: Mapping[str, str], paths: Mapping[str, Path], digests: SourceDigests) -> Iterator[str]:
    for label, wanted in expected.items():
        if label not in paths:
            yield f"{label}: expected, but it is not among the files given"
            continue
        try:
            actual = digests.digest_of(sha256_file(paths[label]))
        except OSError as error:
            yield f"{label}: {paths[label]}: {error.strerror or error}"
            continue
        if actual != wanted:
            yield f"{label}: sha256 {actual}, expected {wanted}"
    for label in sorted(paths.keys() - expected.keys()):
        yield f"{label}: present, but not expected"


@judged
def disk_headroom(path: Path, expected_more_bytes: int, headroom: float = 0.2) -> Finding:
    """The disk of `path` has room for `expected_more_bytes` and a fraction `headroom` of it on top.

    `path` need not exist yet; its nearest existing parent is asked.
    """
    place = path.absolute()
    while not place.exists():
        place = place.parent
    usage = shutil.disk_usage(place)
    needed = expected_more_bytes + int(expected_more_bytes * headroom)
    short = needed - usage.free
    return verdict(
        [f"{path}: {needed} bytes are needed ({headroom:.0%} headroom), {usage.free} are free"] if short > 0 else [],
        f"{usage.free} bytes are free, {needed} are needed.",
        f"Free {short} bytes, choose a larger disk, or materialize fewer shards",
        facts={
            "used_bytes": usage.used,
            "free_bytes": usage.free,
            "needed_bytes": needed,
            # a text, because it does not change: Dagster plots numbers
            "total_bytes": str(usage.total),
            "used_share": round(usage.used / usage.total, 4),
        },
    )
