"""The assertions on messages fail for a wrong class, a missing value and a wrong position."""

import pytest
from pydantic import TypeAdapter, ValidationError

from dataprep_assets.errors import ConfigError, CorruptSourceError, SourceError
from dataprep_assets_tests.messages import assert_names, raises


def test_values_are_found_as_a_whole() -> None:
    message = "/x-7/8/a.jsonl: row 4 of 1,200 has `views` (14.5%), not -3"
    assert_names(message, "a.jsonl", 4, 1200, "1,200", "`views`", "views", 14.5, "row", -3)
    for value in (1, 3, 5, 7, 8, 14, 200, "view", "ro", "b.jsonl"):
        with pytest.raises(AssertionError):
            assert_names(message, value)


@pytest.mark.parametrize(
    ("error", "values", "position"),
    [
        (SourceError, ("x", 3), {}),
        (CorruptSourceError, ("x", 4), {}),
        (CorruptSourceError, ("x", 3), {"row": 4}),
        (CorruptSourceError, ("x", 3), {"file": "x"}),
        (CorruptSourceError, ("x", 3), {"relpath": "y"}),
    ],
)
def test_another_class_value_or_position_fails(
    error: type[SourceError], values: tuple[object, ...], position: dict[str, object]
) -> None:
    with pytest.raises(AssertionError), raises(error, *values, **position):
        raise CorruptSourceError("x: row 3", relpath="x", row=3)


def test_the_expected_message_passes() -> None:
    with raises(CorruptSourceError, "x", 3, relpath="x", row=3) as caught:
        raise CorruptSourceError("x: row 3", relpath="x", row=3)
    assert caught.value.relpath == "x"


def test_the_input_of_a_validation_is_not_part_of_its_message() -> None:
    with raises(ValidationError, "integer"):
        TypeAdapter(int).validate_python("canary")
    with pytest.raises(AssertionError), raises(ValidationError, "canary"):
        TypeAdapter(int).validate_python("canary")


def test_no_error_and_an_error_of_an_unexpected_class_fail() -> None:
    with pytest.raises(pytest.fail.Exception), raises(ConfigError):
        pass
    with pytest.raises(KeyError), raises(ConfigError):
        raise KeyError("x")
