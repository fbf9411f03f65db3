"""Versions of a task's synthetic data: how their folder names order, and which one a declaration means.

A version is a folder `version_<major>[-<minor>]`. The order is (major, minor), a missing minor counting as 0, and not
the alphabetical order, in which `version_9-2` comes after `version_13-2`. A name of any other form
(`version_5-discard`, `fail_1`, `backup`) is reported with the reason, and is chosen only if it is named explicitly.

Entry points: `parse`, `latest`, `choose`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dataprep_assets.errors import ConfigError

BASE = "base"
"""Name for the files directly in the task's folder."""
# without leading zeros, which would give one version several names
_NUMBER = "(0|[1-9][0-9]*)"
_NAME = re.compile(f"version_{_NUMBER}(?:-{_NUMBER})?")


@dataclass(frozen=True, order=True)
class TaskVersion:
    """A version that has a place in the order; compares by (major, minor), then by name."""

    major: int
    minor: int
    name: str


@dataclass(frozen=True)
class Unordered:
    """A folder beside the versions whose name gives no place in their order, and why."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The resolved versions, in order, and the folders beside them that have no place in the order."""

    chosen: tuple[str, ...]
    unordered: tuple[Unordered, ...]


def parse(name: str) -> TaskVersion | Unordered:
    """A folder's place in the order, or why it has none."""
    if match := _NAME.fullmatch(name):
        return TaskVersion(int(match[1]), int(match[2] or 0), name)
    suffix = name.removeprefix("version_")
    if suffix == name:
        return Unordered(name, "is not named version_<major>[-<minor>]")
    if re.fullmatch(r"[0-9]+(-[0-9]+)?", suffix):
        return Unordered(name, "has a number with leading zeros")
    if match := re.fullmatch(rf"{_NUMBER}-(.+)", suffix):
        return Unordered(name, f"has {match[2]!r} instead of a minor number")
    return Unordered(name, f"has {suffix!r} instead of numbers")


def latest(names: Iterable[str]) -> str:
    """The version with the highest (major, minor).

    Raises ConfigError when no name has a place in the order, or two share the highest one.
    """
    folders = list(names)
    ordered = _sort_versions(folders)[0]
    if not ordered:
        raise ConfigError(f"version: latest: no version_<major>[-<minor>] found among {_format_versions(folders)}")
    # a missing minor number is 0, so two names can have the highest place
    best = [v.name for v in ordered if (v.major, v.minor) == (ordered[-1].major, ordered[-1].minor)]
    if len(best) > 1:
        raise ConfigError(f"version: latest: {' and '.join(best)} are the same version. Set one of them")
    return best[0]


def choose(names: Iterable[str], wanted: str) -> Choice:
    """The versions of `names` that `wanted` means: `base`, `latest`, `all` (in order), or one of `names`.

    Raises ConfigError for a name that is not there, and for `latest` or `all` of nothing.
    """
    folders = list(names)
    ordered, unordered = _sort_versions(folders)
    if wanted == BASE:
        return Choice(chosen=(BASE,), unordered=unordered)
    if wanted == "latest":
        return Choice(chosen=(latest(folders),), unordered=unordered)
    if wanted == "all":
        if not ordered:
            raise ConfigError(f"version: all: no version_<major>[-<minor>] found among {_format_versions(folders)}")
        return Choice(chosen=tuple(v.name for v in ordered), unordered=unordered)
    if wanted not in folders:
        raise ConfigError(
            f"version: {wanted}: unknown version. Available: {_format_versions(folders)}, base, latest, all"
        )
    return Choice(chosen=(wanted,), unordered=tuple(u for u in unordered if u.name != wanted))


def _sort_versions(names: Iterable[str]) -> tuple[list[TaskVersion], tuple[Unordered, ...]]:
    folders = [parse(name) for name in sorted(set(names))]
    return (
        sorted(p for p in folders if isinstance(p, TaskVersion)),
        tuple(p for p in folders if isinstance(p, Unordered)),
    )


def _format_versions(names: Iterable[str]) -> str:
    ordered, unordered = _sort_versions(names)
    return ", ".join([*(v.name for v in ordered), *(f"{u.name} ({u.reason})" for u in unordered)]) or "no folders"
