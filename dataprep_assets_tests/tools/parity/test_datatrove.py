"""The parts of the comparison with datatrove that do not need it: its rules equal the recipe's, and its texts are near
them.
"""

from dataprep_assets_tests.tools.parity.datatrove import REASONS, decided, hard, recipe_rules, tagged


def test_the_rules_of_the_recipe_equal_the_single_thresholds_and_each_drops_something() -> None:
    texts = hard(400, 3)
    combined, used = recipe_rules(), set[str]()
    for name, rules in REASONS.items():
        table, columns = tagged(name, texts)
        one_by_one = decided(table, columns, rules)
        by_recipe = {rule: text for rule, text in combined.items() if any(column in text for column in columns)}
        assert by_recipe
        used |= by_recipe.keys()
        assert [one is None for one in decided(table, columns, by_recipe)] == [one is None for one in one_by_one]
        assert len(set(one_by_one)) > 2
    assert used == combined.keys()


def test_the_invented_texts_are_reproducible() -> None:
    assert hard(30, 1) == hard(30, 1) != hard(30, 2)
