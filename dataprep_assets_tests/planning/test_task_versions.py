"""Versions are ordered by number, and a version without a number is selected only by its name."""

from random import Random

import pytest

from dataprep_assets.errors import ConfigError
from dataprep_assets.planning.task_versions import (
    TaskVersion,
    UnorderedFolder,
    choose_versions,
    find_latest_version,
    parse_version,
)
from dataprep_assets_tests.messages import raises

PUBLISHED = [
    *(f"version_{n}" for n in (1, 2, 3)),
    *(f"version_4-{n}" for n in (1, 2, 3)),
    *(f"version_{major}-{minor}" for major in range(5, 14) for minor in (1, 2)),
]
"""Versions in their order."""
SIBLINGS = ["version_5-discard", "fail_1", "backup", "claude", "lora", "main_exp", "unknown"]


def shuffled(names: list[str], seed: int) -> list[str]:
    random = Random(seed)
    return sorted(names, key=lambda _: random.random())


@pytest.mark.parametrize("seed", range(5))
def test_all_versions_are_ordered_by_number_for_any_listing(seed: int) -> None:
    choice = choose_versions(shuffled(PUBLISHED + SIBLINGS, seed), "all")
    assert list(choice.chosen) == PUBLISHED
    assert sorted(u.name for u in choice.unordered) == sorted(SIBLINGS)


def test_latest_is_the_highest_number_and_not_the_last_name() -> None:
    assert max(PUBLISHED) == "version_9-2"
    assert choose_versions(PUBLISHED + SIBLINGS, "latest").chosen == ("version_13-2",)
    assert find_latest_version(["version_2", "version_10"]) == "version_10"


def test_a_missing_minor_number_is_zero() -> None:
    assert find_latest_version(["version_3", "version_3-1"]) == "version_3-1"
    assert parse_version("version_3") == TaskVersion(3, 0, "version_3")


def test_two_names_for_the_latest_version_are_an_error() -> None:
    with raises(ConfigError, "version_3", "version_3-0"):
        find_latest_version(["version_3", "version_3-0", "version_1"])
    assert choose_versions(["version_3", "version_3-0"], "all").chosen == ("version_3", "version_3-0")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("version_5-discard", "has 'discard' instead of a minor number"),
        ("version_5-1-2", "has '1-2' instead of a minor number"),
        ("version_new", "has 'new' instead of numbers"),
        ("version_", "has '' instead of numbers"),
        ("version_07", "has a number with leading zeros"),
        ("version_1-00", "has a number with leading zeros"),
        ("version_٣", "has '٣' instead of numbers"),
        ("Version_3", "is not named version_<major>[-<minor>]"),
        ("version_3 ", "has '3 ' instead of numbers"),
        ("version_3\n", "has '3\\n' instead of numbers"),
        ("fail_1", "is not named version_<major>[-<minor>]"),
        ("backup", "is not named version_<major>[-<minor>]"),
    ],
)
def test_an_unparsable_name_is_reported_with_the_reason(name: str, reason: str) -> None:
    assert parse_version(name) == UnorderedFolder(name, reason)
    choice = choose_versions(["version_1", name], "latest")
    assert choice.chosen == ("version_1",)
    assert choice.unordered == (UnorderedFolder(name, reason),)


def test_an_unparsable_name_is_selected_only_by_its_exact_name() -> None:
    assert choose_versions(PUBLISHED + SIBLINGS, "version_5-discard").chosen == ("version_5-discard",)
    with raises(ConfigError, "version", "version_5-disc", "version_1", "backup"):
        choose_versions(PUBLISHED + SIBLINGS, "version_5-disc")


@pytest.mark.parametrize("wanted", ["latest", "all"])
def test_without_an_ordered_version_the_error_lists_the_available_ones(wanted: str) -> None:
    with raises(ConfigError, "version", wanted, "version_5-discard"):
        choose_versions(["version_5-discard"], wanted)
    with raises(ConfigError, "version"):
        choose_versions([], wanted)


def test_base_needs_no_versions() -> None:
    assert choose_versions([], "base").chosen == ("base",)
