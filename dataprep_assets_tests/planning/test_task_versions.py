"""Versions order by their numbers, and nothing is chosen that has no place in the order unless it is named."""

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
"""In version order."""
SIBLINGS = ["version_5-discard", "fail_1", "backup", "claude", "lora", "main_exp", "unknown"]


def shuffled(names: list[str], seed: int) -> list[str]:
    random = Random(seed)
    return sorted(names, key=lambda _: random.random())


@pytest.mark.parametrize("seed", range(5))
def test_all_are_in_order_of_their_numbers_whatever_the_listing(seed: int) -> None:
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


def test_two_names_of_the_latest_version_are_not_guessed_between() -> None:
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
def test_what_does_not_parse_is_reported_with_the_reason(name: str, reason: str) -> None:
    assert parse_version(name) == UnorderedFolder(name, reason)
    choice = choose_versions(["version_1", name], "latest")
    assert choice.chosen == ("version_1",)
    assert choice.unordered == (UnorderedFolder(name, reason),)


def test_what_does_not_parse_is_chosen_by_its_very_name_alone() -> None:
    assert choose_versions(PUBLISHED + SIBLINGS, "version_5-discard").chosen == ("version_5-discard",)
    with raises(ConfigError, "version", "version_5-disc", "version_1", "backup"):
        choose_versions(PUBLISHED + SIBLINGS, "version_5-disc")


@pytest.mark.parametrize("wanted", ["latest", "all"])
def test_no_ordered_version_is_an_error_that_lists_what_is_there(wanted: str) -> None:
    with raises(ConfigError, "version", wanted, "version_5-discard"):
        choose_versions(["version_5-discard"], wanted)
    with raises(ConfigError, "version"):
        choose_versions([], wanted)


def test_base_needs_no_versions() -> None:
    assert choose_versions([], "base").chosen == ("base",)
