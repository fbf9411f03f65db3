"""Versions of a task's synthetic data: their order by folder name, and the versions that a declaration selects.

A version is a folder `version_<major>[-<minor>]`. Versions are ordered by (major, minor), with 0 for a missing minor
number, because alphabetical order would put `version_9-2` after `version_13-2`. A folder with a different name
(`version_5-discard`, `fail_1`, `backup`) is reported with the reason, and is chosen only if it is named explicitly.

Entry points: `parse_version`, `find_latest_version`, `choose_versions`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dataprep_assets.errors import ConfigError

BASE = "base"
"""Name for the files directly in the task's folder."""
# Leading zeros are not allowed, because one version could then have several names.
_NUMBER = "(0|[1-9][0-9]*)"
_NAME = re.compile(f"version_{_NUMBER}(?:-{_NUMBER})?")


@dataclass(frozen=True, order=True)
class TaskVersion:
    """A version of a task's data, ordered by (major, minor), then by name."""

    major: int
    minor: int
    name: str


@dataclass(frozen=True)
class UnorderedFolder:
    """A folder whose name cannot be ordered among the versions, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class VersionChoice:
    """Chosen versions, in order, and the folders that cannot be ordered."""

    chosen: tuple[str, ...]
    unordered: tuple[UnorderedFolder, ...]


def parse_version(name: str) -> TaskVersion | UnorderedFolder:
    """Parse a folder's name as a version; return an `UnorderedFolder` with the reason if that fails."""
    if match := _NAME.fullmatch(name):
        return TaskVersion(int(match[1]), int(match[2] or 0), name)
    suffix = name.removeprefix("version_")
    if suffix == name:
        return UnorderedFolder(name, "is not named version_<major>[-<minor>]")
    if re.fullmatch(r"[0-9]+(-[0-9]+)?", suffix):
        return UnorderedFolder(name, "has a number with leading zeros")
    if match := re.fullmatch(rf"{_NUMBER}-(.+)", suffix):
        return UnorderedFolder(name, f"has {match[2]!r} instead of a minor number")
    return UnorderedFolder(name, f"has {suffix!r} instead of numbers")


def find_latest_version(names: Iterable[str]) -> str:
    """Return the version with the highest (major, minor).

    Raises ConfigError if no name can be ordered, or if two share the highest version.
    """
    folders = list(names)
    ordered = _sort_versions(folders)[0]
    if not ordered:
        raise ConfigError(
            f"version: latest: no version_<major>[-<minor>] found among {_format_versions(folders)}. Set one of "
            "the names, or base"
        )
    # Two names can be the highest version, because a missing minor number counts as 0.
    best = [v.name for v in ordered if (v.major, v.minor) == (ordered[-1].major, ordered[-1].minor)]
    if len(best) > 1:
        raise ConfigError(f"version: latest: {' and '.join(best)} are the same version. Set one of them")
    return best[0]


def choose_versions(names: Iterable[str], version: str) -> VersionChoice:
    """Return the versions of `names` selected by `version`: `base`, `latest`, `all` (in order), or one of `names`.

    Raises ConfigError for an unknown name, and for `latest` or `all` without any version.
    """
    folders = list(names)
    ordered, unordered = _sort_versions(folders)
    if version == BASE:
        return VersionChoice(chosen=(BASE,), unordered=unordered)
    if version == "latest":
        return VersionChoice(chosen=(find_latest_version(folders),), unordered=unordered)
    if version == "all":
        if not ordered:
            raise ConfigError(
                f"version: all: no version_<major>[-<minor>] found among {_format_versions(folders)}. Set one of "
                "the names, or base"
            )
        return VersionChoice(chosen=tuple(v.name for v in ordered), unordered=unordered)
    if version not in folders:
        raise ConfigError(
            f"version: {version}: unknown version. Available: {_format_versions(folders)}, base, latest, all"
        )
    return VersionChoice(chosen=(version,), unordered=tuple(u for u in unordered if u.name != version))


def _sort_versions(names: Iterable[str]) -> tuple[list[TaskVersion], tuple[UnorderedFolder, ...]]:
    folders = [parse_version(name) for name in sorted(set(names))]
    return (
        sorted(p for p in folders if isinstance(p, TaskVersion)),
        tuple(p for p in folders if isinstance(p, UnorderedFolder)),
    )


def _format_versions(names: Iterable[str]) -> str:
    ordered, unordered = _sort_versions(names)
    return ", ".join([*(v.name for v in ordered), *(f"{u.name} ({u.reason})" for u in unordered)]) or "no folders"
