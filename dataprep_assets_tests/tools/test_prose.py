"""The language lint finds each kind of habit, and its budgets may only fall."""

import json
from collections import Counter
from pathlib import Path

import pytest

from dataprep_assets_tests.tools import prose


def kinds_of_page(folder: Path, text: str, name: str = "page.md") -> Counter[str]:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return Counter(finding.kind for finding in prose.of_page(path, name))


def kinds_of_module(source: str) -> Counter[str]:
    return Counter(finding.kind for finding in prose.of_module(source, "module.py"))


def test_long_sentences_and_paragraphs_of_a_page_are_found(tmp_path: Path) -> None:
    long, short = "word " * 41 + "end. ", "Four words are here. "
    found = kinds_of_page(tmp_path, f"# {long}\n\n{long}\n\n{short * 26}\n\n- {short * 20}\n- {short * 20}\n")
    assert found == {"docs: sentences over 40 words": 1, "docs: paragraphs over 100 words": 1}


def test_code_and_table_rows_are_not_sentences(tmp_path: Path) -> None:
    words = "word " * 120
    page = f"```\n{words} told\n```\n\n| a | b |\n|---|---|\n| {words} | x |\n\nIt is `told`. <!-- {words} -->\n"
    assert kinds_of_page(tmp_path, page) == {}


def test_a_guide_needs_code_blocks(tmp_path: Path) -> None:
    words, kind = "Some words. " * 90, "docs: guides with over 170 words per code block"
    assert kinds_of_page(tmp_path, "\n\n".join([words[:400]] * 3), "how-to/a.md")[kind] == 1
    assert kinds_of_page(tmp_path, "\n\n".join([words[:400], "```bash\nls\n```"] * 3), "how-to/a.md")[kind] == 0
    assert kinds_of_page(tmp_path, words, "guide.md")[kind] == 0


def test_each_habit_is_found_in_docs_comments_docstrings_and_messages(tmp_path: Path) -> None:
    examples = {
        "tell, told": "an error is told",
        "'what is' as a noun": "it lists what is dropped",
        "that of, those of": "the size is that of the shard",
        "of which, of whom": "a file of which",
        "goes on, gone": "the run goes on",
        "anew, made again": "it is made again",
        "alone": "numbers alone",
        ", too": "this one, too",
        "beside": "beside the file",
        "lies, stands": "the file lies there",
        "nobody, whoever": "nobody reads it",
        "prove, proof": "the proofs",
        "has to be": "it has to be set",
        "is another": "the key is another",
        "'a line' for 'per line'": "one object a line",
    }
    assert examples.keys() == prose.HABITS.keys()
    for habit, text in examples.items():
        assert kinds_of_page(tmp_path, f"{text}\n") == {f"docs: {habit}": 1}
        module = f'"""Be. {text}."""\n\n# {text}\nraise ValueError("{text}")\n'
        wanted = {f"{kind}: {habit}": 1 for kind in ("docstrings", "comments", "messages")}
        assert kinds_of_module(module) == wanted
    assert kinds_of_page(tmp_path, "What is a shard?\n") == {}


def test_names_docstrings_and_missing_remedies_of_a_module_are_found() -> None:
    found = kinds_of_module(
        'class Told:\n    """What it is called."""\n\ndef kept(of, rows):\n    found = _ = rows\n'
        '    raise ConfigError(f"{rows} are wrong here")\n    raise ConfigError(f"{rows} is missing. Set it.")\n'
        '    raise ConfigError(f"rows must be 3, not {rows}")\n    raise FormatError("bad bytes")\n'
    )
    assert found.pop("docstrings: 'what is' as a noun") == 1
    assert found == {
        "names: bare classes": 1,
        "names: bare functions": 1,
        "names: bare parameters": 1,
        "names: bare variables": 1,
        "docstrings: begin with What, Of, As": 1,
        "messages: without a remedy": 1,
    }


def test_sentences_that_tests_expect_are_found() -> None:
    sentence = "the file was not found, so 3 rows are left"
    found = Counter(
        finding.kind
        for finding in prose.of_test(
            f'with pytest.raises(ConfigError, match="{sentence}"), raises(ConfigError, 3, "{sentence}"):\n    pass\n'
            f'assert_names(text, "{sentence}")\nassert "{sentence}" in text\nassert text == f"{sentence} {{x}}"\n'
            f'assert re.search("{sentence}", text)\nexpected = "{sentence}"\n'
            'with raises(ConfigError, "not found", "`the key of the file`", "a/path to/a.file of"):\n    pass\n'
            'assert "3 rows are left" in text\n',
            "test.py",
        )
    )
    assert found == {"tests: messages by over 3 words of prose": 3, "tests: texts by over 3 words of prose": 3}


def test_only_long_changelog_entries_of_the_unreleased_version_are_found(tmp_path: Path) -> None:
    long = "word " * 26
    (tmp_path / "CHANGELOG.md").write_text(f"# C\n\n## Unreleased\n\n- {long}\n- short\n\n## 0.1.0\n\n- {long}\n")
    assert [finding.kind for finding in prose.of_changelog(tmp_path / "CHANGELOG.md")] == [
        "changelog: entries over 25 words"
    ]


def test_budgets_fall_and_never_rise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = tmp_path / "budget.json"
    budget.write_text(json.dumps({"a: one": 1, "b: two": 3, "c: none": 0}))
    places = [prose.Finding(kind, "file:1", "text") for kind in ("a: one", "a: one", "b: two", "d: new")]
    monkeypatch.setattr(prose, "BUDGET", budget)
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    monkeypatch.setattr(prose, "findings", lambda: places)
    assert prose.main([]) == 1
    output = capsys.readouterr().out
    assert "a: one: 2, budget 1" in output
    assert "d: new: 1, budget 0" in output
    assert "b: two (3 to 1)" in output
    assert prose.main(["--write"]) == 1
    assert json.loads(budget.read_text()) == {"a: one": 1, "b: two": 1, "c: none": 0, "d: new": 1}
    monkeypatch.setattr(prose, "findings", lambda: places[1:])
    assert prose.main([]) == 0
