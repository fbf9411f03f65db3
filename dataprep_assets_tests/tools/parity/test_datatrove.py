"""The parts of the comparison with datatrove that do not need it: its rules equal the page's, and its texts are near
them.
"""

from dataprep_assets_tests.tools.parity.datatrove import REASONS, decided, hard, page_rules, tagged


def test_the_rules_of_the_page_equal_the_single_thresholds_and_each_drops_something() -> None:
    texts = hard(400, 3)
    page, used = page_rules(), set[str]()
    for name, rules in REASONS.items():
        table, columns = tagged(name, texts)
        one_by_one = decided(table, columns, rules)
        on_page = {rule: text for rule, text in page.items() if any(column in text for column in columns)}
        assert on_page
        used |= on_page.keys()
        assert [one is None for one in decided(table, columns, on_page)] == [one is None for one in one_by_one]
        assert len(set(one_by_one)) > 2
    assert used == page.keys()


def test_the_invented_texts_are_reproducible() -> None:
    assert hard(30, 1) == hard(30, 1) != hard(30, 2)
