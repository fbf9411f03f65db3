"""The grammar of filter rules: a parsed rule gives the same result in Arrow, and an invalid rule is refused with its
position.
"""

import pyarrow as pa
import pytest

from dataprep_assets.curation.rules import find_dropping_rules, match_rules, parse_rule
from dataprep_assets.curation.table import ColumnType
from dataprep_assets.errors import ConfigError
from dataprep_assets_tests.messages import assert_names, raises

COLUMNS: dict[str, ColumnType] = {
    "meta_score": "number",
    "words": "integer",
    "score": "number",
    "language": "string",
    "ok": "boolean",
}
TABLE = pa.table(
    {
        "words": pa.array([10, 50, None, 70], pa.int64()),
        "score": pa.array([0.1, 0.2, 0.3, None], pa.float64()),
        "language": ["en", "de", None, "fr"],
        "ok": [True, False, None, True],
    }
)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("words < 50", [0]),
        ("words <= 50 and not ok", [1]),
        ("words = 50 OR language == 'fr'", [1, 3]),
        ("0.1 < score <= 0.3", [1, 2]),
        ("language in ['en', 'de']", [0, 1]),
        ("language not in ['en']", [1, 3]),
        ("language is null", [2]),
        ("words is not null and language != 'en'", [1, 3]),
        ("words / 2 > 20", [1, 3]),
        ("-words + 5 < -50", [3]),
        ("words / 0 > 1", [0, 1, 3]),
        ("ok", [0, 3]),
        ("ok == false", [1]),
        ("not (words < 50)", [1, 3]),
        ("true", [0, 1, 2, 3]),
    ],
)
def test_a_rule_matches_the_rows_for_which_it_is_true_and_null_is_neither(text: str, rows: list[int]) -> None:
    found = match_rules(TABLE, {"r": parse_rule(text, COLUMNS, "drop.r")})["r"]
    assert found.nonzero()[0].tolist() == rows


def test_whole_numbers_beyond_a_float_are_compared_with_any_number() -> None:
    table = pa.table({"words": pa.array([1_700_000_001, 2**62 + 1, -(2**63), None]), "score": [1.7e9, 2.0, None, 0.5]})
    for text, rows in (
        ("words > 1.6e9", [0, 1]),
        ("words >= 0.5 and words / 1 > 1600000000", [0, 1]),
        ("words in [1700000001.0, 3]", [0]),
        ("score not in [2]", [0, 3]),
        ("words > score", [0, 1]),
    ):
        assert match_rules(table, {"r": parse_rule(text, COLUMNS, "drop.r")})["r"].nonzero()[0].tolist() == rows, text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("words <", "is not a valid expression"),
        ("wrds < 3", "did you mean 'words'"),
        ("words", "is an integer, not true or false"),
        ("words == 'a'", "cannot compare an integer with a string"),
        ("language < 3", "cannot compare a string with an integer"),
        ("ok < true", "have no order"),
        ("words == null", "Write `is null`"),
        ("words in [1, 'a']", "cannot compare an integer with a string"),
        ("words in []", "followed by a list"),
        ("words is 3", "followed by `null`"),
        ("__import__('os').system('true')", "not allowed in a rule"),
        ("words.real == 1", "not allowed in a rule"),
        ("(lambda: 1)() == 1", "not allowed in a rule"),
        ("[w for w in words] == 1", "not allowed in a rule"),
        ("f'{words}' == 'a'", "not allowed in a rule"),
        ("words ** 9 > 1", "not allowed in a rule"),
        ("words == 99999999999999999999", "not a value in a rule. Write a number, or a string in quotes"),
        ("words == b'a'", "not a value in a rule. Write a number, or a string in quotes"),
        ("not " * 80 + "ok", "the expression is nested too deeply (more than 60 levels)"),
        ("(" * 3000 + "ok" + ")" * 900, "is not a valid expression"),
        ("ok or " * 900 + "ok", "the expression is longer than 4,000 characters"),
        ("ok\x00", "is not a valid expression"),
        ("'unclosed", "is not a valid expression"),
        ("ok; ok", "is not a valid expression"),
        ("", "is empty"),
        ("meta.score > 3", "meta.score: columns have no prefix. Write meta_score"),
    ],
)
def test_an_invalid_rule_is_refused_in_a_sentence_that_names_it(text: str, said: str) -> None:
    with raises(ConfigError, "drop.r") as raised:
        parse_rule(text, COLUMNS, "drop.r")
    assert said in str(raised.value)


def test_the_first_rule_that_drops_a_row_is_its_reason_and_keep_rules_must_be_true() -> None:
    rules = {
        "known": (True, parse_rule("language is not null", COLUMNS, "keep.known")),
        "long": (True, parse_rule("words >= 50", COLUMNS, "keep.long")),
        "low": (False, parse_rule("score < 0.25", COLUMNS, "drop.low")),
    }
    assert find_dropping_rules(TABLE, rules).tolist() == [1, 2, 0, -1]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("words < 3 4", "at character 11"),
        ("words=3 and (ok wrds)", "at character 17"),
        ("language=='é' AND language=='日本' 4", "at character 34"),
        ("  words <", "at character 10"),
        ("words < 3 $", "at character 11"),
        ("words = 1 or\n  language = 'é' 'ü' or\n  ok ok\n", "at line 3, character 6"),
        ("words = 1\nand", "at line 2, character 4"),
        ("(words < 3", "at character 11"),
        ("words < 3) or (words > 5", "at character 10"),
    ],
)
def test_the_position_of_a_mistake_refers_to_the_written_text(text: str, place: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_rule(text, COLUMNS, "drop.r")
    assert_names(str(raised.value), place)


def test_a_rule_of_several_lines_is_one_expression() -> None:
    rule = parse_rule("words < 50\n  or (language\n = 'fr')\n", COLUMNS, "drop.r")
    assert match_rules(TABLE, {"r": rule})["r"].nonzero()[0].tolist() == [0, 3]


def test_the_thresholds_of_a_column_are_the_numbers_that_it_is_compared_with() -> None:
    rule = parse_rule("words < 50 or 1e3 <= words < 5000 or score > -0.5 or words > 2 * 10", COLUMNS, "drop.short")
    assert rule.thresholds == {"words": (50.0, 1000.0, 5000.0), "score": (-0.5,)}
    assert parse_rule("not (language = 'en') or words in [3] or words = words", COLUMNS, "drop.short").thresholds == {}
