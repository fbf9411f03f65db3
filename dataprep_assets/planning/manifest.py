"""Manifest and shard plan: each included source file once, in an order that is independent of the file system.

`manifest.jsonl` has one line per file, and `manifest_summary.json` has the totals per split
(docs/formats/manifest.md#lines). Both depend only on the content of the source. Paths are relative to the source, or
URLs pinned to a commit, in their natural order (`chunk2` before `chunk10`). Therefore the bytes are the same for every
listing order and on every machine.
"""

import gc
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import translate
from functools import partial
from itertools import islice
from pathlib import Path
from posixpath import splitext
from typing import Any, BinaryIO, NamedTuple
from unicodedata import normalize

import orjson

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.errors import ConfigError, FormatError, SourceError
from dataprep_assets.planning.inputs import INPUTS
from dataprep_assets.stores.files import cache_by_file, explain_invalid_name

_WILDCARD = re.compile(r"([*?[])")
# `.` and `..` are not hidden names here, because a path that contains them is reported as an error.
_HIDDEN = re.compile(r"(?:^|/)(?:\.(?!\.?(?:/|$))|_[^/=]*(?:/|$))")


def compile_glob(glob: str) -> re.Pattern[str]:
    """Compile a path glob: `*` and `?` stay inside one path component, `**/` spans any number of components.

    A character class also stays inside one component, unless it contains `/` itself.
    """
    pattern, i = [], 0
    while i < len(glob):
        if glob.startswith("**/", i):
            pattern.append("(?:[^/]+/)*")
            i += 3
        elif glob.startswith("**", i):
            pattern.append(".*")
            i += 2
        elif glob[i] == "*":
            pattern.append("[^/]*")
            i += 1
        elif glob[i] == "?":
            pattern.append("[^/]")
            i += 1
        elif glob[i] == "[" and (end := glob.find("]", i + (3 if glob.startswith("[!", i) else 2))) > 0:
            # A `]` at the beginning of a class, even after `!`, belongs to the class and does not end it.
            kind = glob[i : end + 1]
            if "/" not in kind or kind[1] == "!":
                pattern.append("(?!/)")
            # Remove both possible suffixes, because the suffix that `translate` adds depends on the version of Python.
            pattern.append(translate(kind).removeprefix("(?s:").removesuffix(r")\Z").removesuffix(r")\z"))
            i = end + 1
        else:
            pattern.append(re.escape(glob[i]))
            i += 1
    return re.compile("".join(pattern), re.DOTALL)


def build_glob_matcher(globs: Sequence[str]) -> Callable[[str], re.Match[str] | None]:
    """Return a function that returns a match for paths that match any of these globs, else None."""
    # Join the globs into one expression, because matching a million files against each glob would be slow. Without
    # globs, use `(?!)`, which matches nothing.
    patterns = [compile_glob(glob).pattern for glob in globs]
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns) or "(?!)", re.DOTALL).fullmatch


def is_hidden(path: str) -> bool:
    """Return whether a component of a path begins with `.` or `_`; by convention such files are not data.

    Spark, Hadoop and Delta name logs, checksums and unfinished files this way; `_key=value` is a folder of data.
    """
    return _HIDDEN.search(path) is not None


def build_include_predicate(include: Sequence[str], *, naming: Sequence[str] = ()) -> Callable[[str], bool]:
    """Return a predicate that is true for included paths.

    A hidden path is included only if a glob with a hidden component, in `include` or `naming`, also matches it.
    """
    matches, names = (
        build_glob_matcher(include),
        build_glob_matcher([glob for glob in (*include, *naming) if is_hidden(glob)]),
    )

    def is_included(path: str) -> bool:
        return matches(path) is not None and (not is_hidden(path) or names(path) is not None)

    return is_included


def require_named_file(key: str, glob: str, paths: Collection[str]) -> None:
    """Raise ConfigError if a glob without wildcards matches no file, or equals a file's path but does not match it."""
    if glob in paths:
        if compile_glob(glob).fullmatch(glob) is None:
            escaped = _WILDCARD.sub(r"[\1]", glob)
            raise ConfigError(f"{key}: {glob} does not match the file with exactly this name. Write it as {escaped}")
    elif _WILDCARD.search(glob) is None:
        form = normalize("NFC", glob)
        is_normalized = any(normalize("NFC", path) == form for path in paths)
        reason = (
            ". The file exists, but its name has a different Unicode form, as on macOS. Rename it"
            if is_normalized
            else ". Correct the pattern"
        )
        raise ConfigError(f"{key}: {glob}: the source has no such file{reason}")


MANIFEST = "manifest.jsonl"
SUMMARY = "manifest_summary.json"

COMPRESSION = {".zst": "zstd", ".zstd": "zstd", ".gz": "gzip", ".xz": "xz", ".bz2": "bzip2"}
"""Extension of compressed files → compression."""
_JSON = {"json": "jsonl", "ndjson": "jsonl"}
"""Other extensions of JSON Lines files."""
_DIGITS = re.compile(r"(\d+)")
_TO_LAST_DIGIT = re.compile(r".*\d", re.DOTALL)
_VALUES_PER_CHUNK = 4096
# Limit the length of a line, so that a file without line endings is not read into memory as one line.
_MAX_LINE_BYTES = 1 << 20


class SourceFile(NamedTuple):
    """A file in a source's listing.

    `sha256` is set if the source provides it; `etag` is the source's own version identifier of the file.
    """

    relpath: str
    size_bytes: int
    sha256: str | None = None
    etag: str | None = None


class ManifestEntry(NamedTuple):
    """A line of `manifest.jsonl`; docs/formats/manifest.md#lines describes the fields.

    `ordinal` counts across the whole manifest, `file_index` within the split (it is not the number in the name);
    `path` is `relpath` for local sources and a URL pinned to `commit` for remote ones.
    Entries are tuples, because there may be a million of them.
    """

    chunk: str
    commit: str | None
    compression: str | None
    etag: str | None
    file_index: int
    format: str
    ordinal: int
    path: str
    relpath: str
    sha256: str | None
    size_bytes: int
    split: str

    @property
    def line(self) -> bytes:
        """The entry's canonical JSON (`stores.files`)."""
        # List the names explicitly, because `_asdict` takes twice as long.
        return orjson.dumps(
            {
                "chunk": self.chunk,
                "commit": self.commit,
                "compression": self.compression,
                "etag": self.etag,
                "file_index": self.file_index,
                "format": self.format,
                "ordinal": self.ordinal,
                "path": self.path,
                "relpath": self.relpath,
                "sha256": self.sha256,
                "size_bytes": self.size_bytes,
                "split": self.split,
            }
        )


def natural_key(text: str) -> str:
    """Return a sort key that compares runs of digits as numbers: `a2` before `a10`. The order is total.

    The key is one string, because a tuple of parts takes five times the memory. Text before a number ends with a
    character that sorts before all others, and a number is preceded by its number of digits. The text itself comes
    last, to break ties.
    """
    return f"{_number_sort_key(text)}\x03{text}"


def _number_sort_key(text: str) -> str:
    parts = _DIGITS.split(text)  # text and numbers alternate, and the first part is text
    parts[::2] = [f"\x01{part}\x00" if part else "" for part in parts[::2]]
    for index in range(1, len(parts), 2):
        digits = parts[index].lstrip("0")
        # Sort ASCII digits as numbers, but the digits of other scripts, which `\d` also matches, as text.
        parts[index] = f"\x02{chr(len(digits))}{digits}" if digits.isascii() else f"\x01{parts[index]}\x00"
    return "".join(parts)


def _build_path_key() -> Callable[[SourceFile], str]:
    """Return a function that computes the `natural_key` of a file's path; keys of folders are computed only once."""
    folder_keys: dict[str, tuple[int, str]] = {}

    def key(file: SourceFile) -> str:
        path = file.relpath
        folder = path[: path.rfind("/") + 1]
        if (folder_key := folder_keys.get(folder)) is None:
            # Cache only the key of the part up to the folder's last digit, because the text after that digit forms one
            # part of the key with the beginning of the file's name.
            numbered = _TO_LAST_DIGIT.match(folder)
            length = numbered.end() if numbered else 0
            folder_key = folder_keys[folder] = length, _number_sort_key(folder[:length])
        length, head = folder_key
        return f"{head}{_number_sort_key(path[length:])}\x03{path}"

    return key


@contextmanager
def disable_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector, which would repeatedly scan a million tuples of strings without cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


NARROW = ". Narrow `include` to the data files"
"""Remedy for an unknown extension; errors about files that `include` does not select need a different remedy."""


def file_format(relpath: str) -> tuple[str, str | None]:
    """Return `(format, compression)` of a path from its suffixes; raise SourceError for an unknown suffix."""
    stem, ending = splitext(relpath.lower())
    if (compression := COMPRESSION.get(ending)) is not None:
        ending = splitext(stem)[1]
    format_name = _JSON.get(ending[1:], ending[1:])
    if format_name not in INPUTS or (format_name == "parquet" and compression):
        extensions = ", ".join(f".{name}" for name in sorted({*INPUTS, *_JSON}))
        raise SourceError(
            f"{relpath}: unknown extension. Available: {extensions}, all except .parquet also with "
            f"{', '.join(COMPRESSION)}{NARROW}"
        )
    return format_name, compression


def find_files_in_other_case(
    files: Iterable[SourceFile], *, include: Sequence[str], splits: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return the paths that `include` would match without regard to case, such as `a.JSONL`, in natural order."""
    naming = [glob.lower() for globs in splits.values() for glob in globs]
    matches_in_any_case = build_include_predicate([glob.lower() for glob in include], naming=naming)
    matches = build_glob_matcher(include)
    paths = (file.relpath for file in files)
    return sorted((path for path in paths if not matches(path) and matches_in_any_case(path.lower())), key=natural_key)


@disable_garbage_collection()
def find_unassigned_files(
    files: Iterable[SourceFile], *, include: Sequence[str], splits: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return the included source files that match no split, in natural order; arguments as in `build_manifest`."""
    claimed_globs = [glob for globs in splits.values() for glob in globs]
    is_included, matches_split = (
        build_include_predicate(include, naming=claimed_globs),
        build_glob_matcher(claimed_globs),
    )
    paths = [file.relpath for file in files if is_included(file.relpath) and not matches_split(file.relpath)]
    return sorted(paths, key=natural_key)


def find_hidden_files(
    files: Iterable[SourceFile], *, include: Sequence[str], splits: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return the paths that match `include` but are skipped as hidden, in natural order."""
    is_included = build_include_predicate(include, naming=[glob for globs in splits.values() for glob in globs])
    return [path for path in select_included_paths((file.relpath for file in files), include) if not is_included(path)]


def build_manifest(
    files: Iterable[SourceFile],
    *,
    include: Sequence[str],
    splits: Mapping[str, Sequence[str]],
    commit: str | None = None,
    url_prefix: str = "",
) -> list[ManifestEntry]:
    """Return the entries of all included files, splits in declared order and paths in natural order within each.

    `files` are the files listed by the source, in any order. `include` and the values of `splits` (a split's name →
    globs) are globs over the path inside the source. Files that match no split are omitted. Hidden files (`is_hidden`)
    are also omitted, unless a matching glob itself has a hidden component. `commit` is the pinned commit of the source,
    and `url_prefix` comes before the path of a remote file.

    Raises ConfigError if `include` or a split matches nothing or a file matches two splits, SourceError if a path is
    listed twice or is not a relative path.
    """
    is_included, included_count = (
        build_include_predicate(include, naming=[glob for globs in splits.values() for glob in globs]),
        0,
    )
    patterns = [(name, build_glob_matcher(globs)) for name, globs in splits.items()]
    by_split: dict[str, list[SourceFile]] = {name: [] for name in splits}
    paths: set[str] = set()
    for file in files:
        if file.relpath in paths:
            raise SourceError(f"{file.relpath}: the source lists this file twice. Remove one of the two")
        paths.add(file.relpath)
        if not is_included(file.relpath):
            continue
        included_count += 1
        matching_splits = [name for name, belongs in patterns if belongs(file.relpath)]
        if len(matching_splits) > 1:
            raise ConfigError(
                f"splits: {file.relpath} is in {' and '.join(matching_splits)}, but must be in one split. "
                "Narrow the globs"
            )
        if matching_splits:
            # Check only files that are in a split, because other files in the source may have any name.
            if reason := explain_invalid_name(file.relpath):
                raise SourceError(
                    f"{file.relpath!r}: this file name is not allowed in a manifest: {reason}. Rename the file, or "
                    "exclude it with `include`"
                )
            by_split[matching_splits[0]].append(file)
    if not included_count and (hidden := select_included_paths(paths, include)):
        raise ConfigError(
            f"include: {', '.join(include)} matches only names that begin with `.` or `_`, such as {hidden[0]}, which "
            "are skipped by default. To read them, name them explicitly, as in `**/_*/*`"
        )
    if not included_count:
        raise ConfigError(
            f"include: {', '.join(include)} matches none of the source's files"
            + (f", for example {', '.join(sorted(paths, key=natural_key)[:3])}. Correct the pattern" if paths else "")
        )
    for key, globs in {"include": include, **{f"splits.{name}": globs for name, globs in splits.items()}}.items():
        for glob in globs:
            require_named_file(key, glob, paths)
    for name, members in by_split.items():
        if not members:
            raise ConfigError(
                f"splits.{name}: {', '.join(splits[name])} matches none of the files that `include` selects, for "
                f"example {', '.join(sorted(filter(is_included, paths), key=natural_key)[:3])}. Correct the pattern"
            )
    entries: list[ManifestEntry] = []
    for name, members in by_split.items():
        members.sort(key=_build_path_key())
        for index, file in enumerate(members):
            kind, compression = file_format(file.relpath)
            entries.append(
                ManifestEntry(
                    ordinal=len(entries),
                    split=name,
                    chunk=file.relpath.rpartition("/")[0].rpartition("/")[2],
                    file_index=index,
                    path=url_prefix + file.relpath,
                    relpath=file.relpath,
                    size_bytes=file.size_bytes,
                    compression=compression,
                    format=kind,
                    sha256=file.sha256,
                    etag=file.etag,
                    commit=commit,
                )
            )
    return entries


def select_included_paths(paths: Iterable[str], include: Sequence[str]) -> list[str]:
    """Return the paths that `include` matches, in natural order."""
    return sorted(filter(build_glob_matcher(include), paths), key=natural_key)


def digest_listing(entries: Iterable[ManifestEntry]) -> str:
    """Return the `digest_value` of a source's listing: split, path, size, SHA-256 and etag of each file, in order."""
    return _digest_values(orjson.dumps([e.split, e.path, e.size_bytes, e.sha256, e.etag]) for e in entries)


def _digest_values(values: Iterable[bytes]) -> str:
    """Return the SHA-256 (hex) of a list of canonical JSON values.

    The values are hashed in chunks, because all of them may take a gigabyte of memory.
    """
    digest, delimiter, remaining_values = hashlib.sha256(b"["), b"", iter(values)
    while chunk := list(islice(remaining_values, _VALUES_PER_CHUNK)):
        digest.update(delimiter)
        digest.update(b",".join(chunk))
        delimiter = b","
    digest.update(b"]")
    return digest.hexdigest()


def summarize_manifest(entries: Sequence[ManifestEntry], shards: Mapping[str, int]) -> dict[str, Any]:
    """Return the content of `manifest_summary.json`: files, bytes and shards per split, commit, manifest digest."""
    return _build_summary(entries, shards, _digest_values(entry.line for entry in entries))


def _build_summary(entries: Sequence[ManifestEntry], shards: Mapping[str, int], sha256: str) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for entry in entries:
        split = summary.setdefault(entry.split, {"files": 0, "bytes": 0, "shards": shards[entry.split]})
        split["files"] += 1
        split["bytes"] += entry.size_bytes
    return {
        **summary,
        "_manifest": {
            "commit": entries[0].commit if entries else None,
            "sha256": sha256,
        },
    }


def write_manifest(directory: Path, entries: Sequence[ManifestEntry], shards: Mapping[str, int]) -> None:
    """Write `manifest.jsonl` and `manifest_summary.json` into `directory`.

    `entries` are the lines in order; `shards` maps a split to its number of shards.
    """

    def write_lines(file: BinaryIO) -> Iterator[bytes]:
        """Yield each line after writing it, so that it is built only once for the file and the digest."""
        for entry in entries:
            line = entry.line
            file.write(line + b"\n")
            yield line

    with open(directory / MANIFEST, "wb") as file:
        summary = _build_summary(entries, shards, _digest_values(write_lines(file)))
    (directory / SUMMARY).write_text(json.dumps(summary, indent=1, sort_keys=True) + "\n")


def describe_other_bytes(directory: Path, entries: Sequence[ManifestEntry]) -> str:
    """Describe where `manifest.jsonl` is not the canonical form of these entries; return "" if all bytes match."""
    with open(directory / MANIFEST, "rb") as file:
        for number, entry in enumerate(entries, 1):
            if file.readline() != entry.line + b"\n":
                return f"line {number} is not in canonical form"
        return "extra bytes after the last line" if file.read(1) else ""


def read_summary(directory: Path) -> Any:
    """Return the content of `manifest_summary.json`; raise FormatError if the file is missing or not JSON."""
    path = directory / SUMMARY
    try:
        return load_untrusted_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: invalid summary: {error}. Rebuild `manifest`") from error


def read_manifest(directory: Path) -> list[ManifestEntry]:
    """Return the entries of `manifest.jsonl`; raise FormatError with the line number if a line is not an entry."""
    path = directory / MANIFEST
    try:
        # Copy the list, because the cached `_read_entries` returns the same list to the next caller.
        return list(_read_entries(str(path)))
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror or error}. Rebuild `manifest`") from error


@cache_by_file
@disable_garbage_collection()
def _read_entries(path: str) -> list[ManifestEntry]:
    entries = []
    with open(path, "rb") as file:
        for number, line in enumerate(iter(partial(file.readline, _MAX_LINE_BYTES), b""), 1):
            try:
                if len(line) == _MAX_LINE_BYTES:
                    raise ValueError(f"has more than {_MAX_LINE_BYTES:,} bytes")
                entry = ManifestEntry(**orjson.loads(line))
                for name in (entry.relpath, *([] if entry.commit is None else [entry.commit])):
                    if reason := explain_invalid_name(name):
                        raise ValueError(f"{name!r} is not a valid path in a source: {reason}")
                entries.append(entry)
            except (ValueError, TypeError, RecursionError) as error:
                raise FormatError(f"{path}: line {number}: invalid entry: {error}. Rebuild `manifest`") from error
    return entries


# A shard plan lists the consecutive files of the manifest that make up each shard. One partition materializes one
# shard. Files stay whole and in manifest order, so the concatenation of the shards is the concatenation of the files,
# regardless of the number of shards or workers.
#
# The plan is stored next to the manifest (`shard_plan.json`). Partitions contain the same files until the manifest is
# materialized again, and even then a shard keeps its files (docs/how-to/add-files.md). New files form new shards after
# the existing shards of their split. A removed file leaves its shard, and a shard without remaining files leaves the
# plan. Shards are never renamed. If a split's last shards were removed, a later plan reuses their names for shards of
# new files, which have different cache keys.

SHARD_PLAN = "shard_plan.json"
DEFAULT_TARGET_BYTES = 1 << 30
"""Compressed bytes per shard: minutes of work, compared with at most 0.8 s that Dagster spends per partition."""
MAX_SHARDS = 4000
"""Maximum number of shards by default, because more partitions per asset slow down the UI; shards grow instead."""


@dataclass(frozen=True, kw_only=True)
class ShardSizing:
    """Sizing of a split's shards: either their `count`, or about `target_bytes` of source per shard."""

    target_bytes: int | None = None
    count: int | None = None

    def __post_init__(self) -> None:
        if self.target_bytes is not None and self.count is not None:
            raise ConfigError("shards: `target_bytes` cannot be combined with `count`. Remove one of them")
        for key in ("target_bytes", "count"):
            if (value := getattr(self, key)) is not None and value < 1:
                raise ConfigError(f"shards.{key} must be at least 1, not {value}")


def format_shard_key(split: str, index: int) -> str:
    """Return the partition key of a shard, such as `train-00017`; keys sort by index up to 99,999."""
    return f"{split}-{index:05d}"


def shard_index(partition: str) -> int:
    """Return the index in a shard's partition key: 17 for `train-00017`."""
    return int(partition.rpartition("-")[2])


@disable_garbage_collection()
def plan_shards(
    entries: Sequence[ManifestEntry],
    sizing: ShardSizing,
    kept_files: Mapping[str, Collection[str]] | None = None,
) -> tuple[list[ManifestEntry], dict[str, list[int]]]:
    """Plan the shards of every split: partition key → manifest ordinals, in order.

    Boundaries are placed where the running size crosses the next multiple of the total divided by the number of
    shards, so shards are even and not empty. A split has at most as many shards as files.

    Args:
        entries: All files, split by split, each split in natural order.
        sizing: The number of shards, or their size.
        kept_files: Partition key → paths of the files of that shard in an earlier plan. Files that still exist stay
            together. Only other files form new shards, of the earlier shards' size if `sizing` gives a count.

    Returns:
        The entries in the plan's order, renumbered (an appended file comes after the earlier shards), and the plan.
    """
    by_split: dict[str, list[ManifestEntry]] = {}
    for entry in entries:
        by_split.setdefault(entry.split, []).append(entry)
    ordered: list[ManifestEntry] = []
    plan: dict[str, list[int]] = {}
    for split, members in by_split.items():
        earlier = {key: paths for key, paths in (kept_files or {}).items() if split_name(key) == split}
        shards = _find_kept_shards(members, earlier)
        kept_paths = {e.relpath for shard in shards.values() for e in shard}
        added = [e for e in members if e.relpath not in kept_paths]
        # Number new shards after all earlier shards, even after empty ones, so that a name is not reused immediately.
        first_index = max((shard_index(key) + 1 for key in earlier), default=0)
        for index, group in enumerate(_cut_groups(added, _count_new_shards(added, sizing, list(shards.values())))):
            shards[format_shard_key(split, first_index + index)] = group
        position = 0
        for key, group in shards.items():
            plan[key] = list(range(len(ordered), len(ordered) + len(group)))
            for entry in group:
                # Replace only entries that moved, because there may be a million entries.
                is_in_place = (entry.ordinal, entry.file_index) == (len(ordered), position)
                ordered.append(entry if is_in_place else entry._replace(ordinal=len(ordered), file_index=position))
                position += 1
    return ordered, plan


def _find_kept_shards(
    members: Sequence[ManifestEntry], earlier: Mapping[str, Collection[str]]
) -> dict[str, list[ManifestEntry]]:
    """Return the shards of an earlier plan, by number, with their remaining files; omit shards without files."""
    shard_by_path = {path: key for key, paths in earlier.items() for path in paths}
    shards: dict[str, list[ManifestEntry]] = {key: [] for key in sorted(earlier, key=shard_index)}
    for entry in members:
        if (key := shard_by_path.get(entry.relpath)) is not None:
            shards[key].append(entry)
    return {key: group for key, group in shards.items() if group}


def _count_new_shards(
    added: Sequence[ManifestEntry], sizing: ShardSizing, entry_groups: Sequence[Sequence[ManifestEntry]]
) -> int:
    """Return the number of new shards for the files `added`, given the existing shards `entry_groups`."""
    if not added:
        return 0
    total = sum(e.size_bytes for e in added)
    if sizing.target_bytes is not None:
        count = -(-total // sizing.target_bytes)
    elif sizing.count is None:
        count = min(-(-total // DEFAULT_TARGET_BYTES), MAX_SHARDS - len(entry_groups))
    elif entry_groups:
        mean_bytes = sum(e.size_bytes for shard in entry_groups for e in shard) / len(entry_groups)
        count = round(total / mean_bytes) if mean_bytes else 1
    else:
        count = sizing.count
    # Plan at least one shard, because `count` is 0 if the new files are empty or much smaller than the existing shards,
    # and is 0 or less if the split already has at least `MAX_SHARDS` shards.
    return max(1, min(count, len(added)))


def _cut_groups(members: Sequence[ManifestEntry], count: int) -> list[list[ManifestEntry]]:
    if not members:
        return []
    total = sum(e.size_bytes for e in members)
    groups: list[list[ManifestEntry]] = [[]]
    grouped_bytes = 0
    for position, entry in enumerate(members):
        remaining_files = len(members) - position
        # Each remaining file must start a shard if there are only as many files as shards to start.
        must_start = remaining_files == count - len(groups)
        # Start a shard at the first file whose middle is at or past the ideal boundary, because this cut is the closest
        # to that boundary.
        is_full = (
            groups[-1] and len(groups) < count and (grouped_bytes + entry.size_bytes / 2) * count >= total * len(groups)
        )
        if groups[-1] and (must_start or is_full):
            groups.append([])
        groups[-1].append(entry)
        grouped_bytes += entry.size_bytes
    return groups


def split_name(partition: str) -> str:
    """Return the split of a shard's partition key."""
    return partition.rpartition("-")[0]


def count_shards(plan: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the number of shards per split."""
    counts: dict[str, int] = {}
    for key in plan:
        counts[split_name(key)] = counts.get(split_name(key), 0) + 1
    return counts


def write_plan(directory: Path, plan: Mapping[str, Sequence[int]]) -> None:
    """Write `shard_plan.json`: partition key → `[first ordinal, last ordinal + 1]`."""
    (directory / SHARD_PLAN).write_bytes(format_plan(plan))


def format_plan(plan: Mapping[str, Sequence[int]]) -> bytes:
    """Return the bytes of `shard_plan.json`."""
    ranges = {key: [ordinals[0], ordinals[-1] + 1] for key, ordinals in plan.items()}
    lines = ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in ranges.items())
    return ("{\n" + lines + "\n}\n").encode()


def read_plan(directory: Path) -> dict[str, range]:
    """Read `shard_plan.json`: partition key → range of manifest ordinals, in manifest order.

    Raises FormatError if the file is missing or not a shard plan, or if a shard has no files.
    """
    path = directory / SHARD_PLAN
    try:
        plan = {key: range(start, stop) for key, (start, stop) in load_untrusted_json(path.read_bytes()).items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{path}: invalid shard plan: {error}. Rebuild `manifest`") from error
    for key, ordinals in plan.items():
        if not ordinals:
            raise FormatError(f"{path}: invalid shard plan: shard {key} has no files. Rebuild `manifest`")
    return plan
