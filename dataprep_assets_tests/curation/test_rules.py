"""The grammar of filter rules: a parsed rule gives the same result in Arrow, and an invalid rule is refused with its
position.
"""

import pyarrow as pa
import pytest

from dataprep_assets.curation.declaration import find_unknown_sources, parse_rules
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
        ("startswith(language, 'e')", [0]),
        ("not startswith(language, 'e')", [1, 3]),
        ("endswith(language, 'r') or contains(language, 'd')", [1, 3]),
        ("matches(language, '^[a-e]{2}$')", [1]),
        ("matches(language, r'\\w') and contains(language, '')", [0, 1, 3]),
        ("contains(language, '.')", []),
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
        ("starts(language, 'e')", "unknown function 'starts'. Available: startswith, endswith, contains, matches"),
        ("startswith(language)", "write a column and a string in quotes"),
        ("startswith(language, language)", "write a column and a string in quotes"),
        ("startswith(language, pattern='e')", "write a column and a string in quotes"),
        ("contains(words, '5')", "words: an integer, but a string is required"),
        ("contains(lang, 'e')", "unknown column 'lang'"),
        ("matches(language, '(e')", "not a regular expression of RE2: missing ): (e"),
        ("matches(language, '(?=e)')", "not a regular expression of RE2"),
        ("matches(language, 'e') < 3", "cannot compare a boolean with an integer"),
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
        ("startswith(language, 'é') or ok ok", "at character 33"),
        ("startswith(language 'e')", "at character 21"),
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


SOURCES: dict[str, ColumnType] = {**COLUMNS, "source": "string"}
BY_SOURCE = {"forums": "words < 20 or score is null", "bücher's": "words < 60"}


def find_dropped_by_source(texts: dict[str, str], *, keeps: bool = False) -> list[int]:
    """Return the rows that a rule by source drops, in a rule of its own and in its text."""
    table = TABLE.append_column("source", [["forums", "bücher's", "web", "forums"]])
    rules = {"keep": {}, "drop": {}} | {"keep" if keeps else "drop": {"short": texts}}
    parsed = parse_rules(columns=SOURCES, **rules)
    _, rule = parsed["short"]
    again = {"short": (keeps, parse_rule(rule.text, SOURCES, "--where"))}
    dropped = find_dropping_rules(table, parsed)
    assert dropped.tolist() == find_dropping_rules(table, again).tolist()
    assert {"source"} < rule.columns <= set(SOURCES)
    return (dropped >= 0).nonzero()[0].tolist()


def test_a_rule_by_source_applies_its_own_expression_to_each_source() -> None:
    assert find_dropped_by_source(BY_SOURCE) == [0, 1, 3]
    assert find_dropped_by_source({**BY_SOURCE, "default": "words is null"}) == [0, 1, 2, 3]
    assert find_dropped_by_source({"default": "words = 10", "forums": "words > 60"}) == [3]


def test_other_sources_are_kept_without_a_default() -> None:
    assert find_dropped_by_source({"forums": "words > 60"}, keeps=True) == [0]
    assert find_dropped_by_source({"forums": "words > 60", "default": "words > 60"}, keeps=True) == [0, 1, 2]
    (_, rule) = parse_rules({}, {"short": {"forums": "words < 20"}}, SOURCES)["short"]
    assert rule.text.startswith("source == 'forums'")
    assert "not in" not in rule.text
    (_, rule) = parse_rules({"long": {"forums": "words > 20"}}, {}, SOURCES)["long"]
    assert rule.text.endswith("(source not in ['forums'])")


def test_a_rule_by_source_has_the_thresholds_of_all_its_expressions() -> None:
    (_, rule) = parse_rules({}, {"short": {**BY_SOURCE, "default": "words < 50"}}, SOURCES)["short"]
    assert rule.thresholds == {"words": (20.0, 60.0, 50.0)}


def test_a_mistake_in_a_rule_by_source_is_located_in_its_expression() -> None:
    with raises(ConfigError, "drop.short.forums", "character 11"):
        parse_rules({}, {"short": {"default": "words < 50", "forums": "words < 3 4"}}, SOURCES)


def test_a_rule_may_list_hundreds_of_sources() -> None:
    texts = {f"source {number}": "words < 50" for number in range(500)}
    rules = parse_rules({}, {"short": {**texts, "default": "ok"}}, SOURCES)
    table = TABLE.append_column("source", [["source 0", "source 499", "web", "web"]])
    assert find_dropping_rules(table, rules).tolist() == [0, -1, -1, 0]


def test_a_source_that_does_not_exist_is_named_with_the_nearest_one() -> None:
    rules = {"short": {"default": "words < 50", "forum": "words < 3"}, "low": "score < 1"}
    ((keys, sentence),) = find_unknown_sources({}, rules, {"forums", "web"}, sensitive=False)
    assert keys == ("drop", "short", "forum")
    assert_names(sentence, "drop.short", "'forum'", "'forums'", "forums, web")
    ((_, sentence),) = find_unknown_sources({"a": {"defualt": "ok"}}, {}, {".", "train"}, sensitive=False)
    assert_names(sentence, "keep.a", "'defualt'", "'default'", "'.'", "top folder", "train")
    ((_, sentence),) = find_unknown_sources(rules, {}, {"forums"}, sensitive=True)
    assert "forums" not in sentence
    assert list(find_unknown_sources(rules, rules, {"forum"}, sensitive=False)) == []
