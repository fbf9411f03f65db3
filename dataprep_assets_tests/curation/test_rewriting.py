"""Rewriters change exactly what they are for, the number of changed characters is right, and errors name the row."""

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dataprep_assets.curation import project_function
from dataprep_assets.curation.documents import FileDocuments
from dataprep_assets.curation.module_code import ModuleCode
from dataprep_assets.curation.planted import plant
from dataprep_assets.curation.planted.personal import yield_cases
from dataprep_assets.curation.rewriters import declaration
from dataprep_assets.curation.rewriters.changes import count_changed_characters
from dataprep_assets.curation.rewriters.declaration import DeclaredRewriter, build_rewriting
from dataprep_assets.curation.rewriters.personal_data import PersonalDataRewriter
from dataprep_assets.curation.rewriters.recall import count_replaced
from dataprep_assets.curation.rewriters.rewriting import Rewriting, RewritingError
from dataprep_assets.curation.taggers.personal import KINDS, TAGGER
from dataprep_assets.curation.text_tagger import normalize_text
from dataprep_assets.errors import ConfigError
from dataprep_assets.integrity import receipt
from dataprep_assets.sources.readers.records import Block
from dataprep_assets.tokenization.document_ids import DocumentIds
from dataprep_assets_tests.messages import raises

MARK = "\ue000"
PLACEHOLDERS = {kind: f"<{kind.upper()}>" for kind in KINDS}
CASES = [case for case in yield_cases() if case.positive]
CARRIERS = ["", "One line.", "Two lines \r\nwith\u00a0blanks  \n\n\n\nand (brackets)\t", "日本語。\n\u200b\n"]
PIECES = st.sampled_from(
    [
        *("a@b.com", "020 7946 0123", "+49 152 28817123", "4111 1111 1111 1111", "8.8.8.8", "2001:4860:4860::8888"),
        *("DE89 3704 0044 0532 0130 00", "(415) 555-2671", "@", "+", "1", "-", ".", "(", ")", "x", "日本"),
        *("é", "e\u0301", "\u0301", "\u212a", "\u0660"),
        *(" ", "  ", "\t", "\u00a0", "\n", "\r\n", "\u2028", "\u200b", "\u00ad", "\ufeff"),
    ]
)


def count_personal_data(text: str) -> int:
    """Return the number of findings of the tagger."""
    return sum(column[0] for column in TAGGER.tag([text]).values())


def replacer(placeholder: str | None = None) -> PersonalDataRewriter:
    """Return a rewriter of every kind of personal data, with its own placeholder or with the same for each."""
    placeholders = tuple((kind, placeholder or PLACEHOLDERS[kind]) for kind in KINDS)
    return PersonalDataRewriter(name="personal", placeholders=placeholders)


def rewriting(*items: Any, folder: Path = Path(), sensitive: bool = False) -> Rewriting:
    declared = tuple(item if isinstance(item, str) else DeclaredRewriter(**item) for item in items)
    return build_rewriting(declared, folder, sensitive=sensitive)


def test_every_kind_that_the_tagger_finds_can_be_declared() -> None:
    assert set(get_args(declaration.Kind)) == KINDS.keys()


@pytest.mark.parametrize("form", sorted({case.kind for case in CASES}))
def test_planted_personal_data_of_each_form_is_replaced_and_nothing_around_it(form: str) -> None:
    rewriter = replacer()
    for case in (case for case in CASES if case.kind == form):
        kind = form.partition(",")[0]
        for carrier in CARRIERS:
            rewritten = rewriter.rewrite(plant(carrier, case.text))
            assert rewritten == plant(carrier, case.text.replace(case.datum, PLACEHOLDERS[kind]))
            assert count_personal_data(rewritten) == 0


def test_text_that_only_resembles_personal_data_stays_the_same() -> None:
    for case in (case for case in yield_cases() if not case.positive):
        assert replacer().rewrite(plant(CARRIERS[2], case.text)) == plant(CARRIERS[2], case.text)


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        ("(020 7946 0123), a.b@c.de.", "(<PHONES>), <EMAILS>."),
        ("(020) 7946 0123)", "<PHONES>)"),
        ("jo\u00ad@b\u200b.com\u200b\r\n", "<EMAILS>\u200b\r\n"),
        ("  +49\u00a0152  28817\t123 \n", "  <PHONES> \n"),
        ("4111 1111  1111\t1111\x85x", "<CARDS>\x85x"),
        ("a@b.com@c.com", "<EMAILS>"),
        ("+1 (212) 555-0123;(212) 555-0123", "<PHONES>;<PHONES>"),
        ("cafe\u0301@b.com, see o@b.come\u0301", "<EMAILS>, see <EMAILS>"),
        ("联系o@b.com。", "联系<EMAILS>。"),
    ],
)
def test_spans_are_exact_in_text_that_is_not_normalized(text: str, rewritten: str) -> None:
    assert replacer().rewrite(text) == rewritten


def test_only_the_declared_kinds_are_replaced() -> None:
    (rewriter,) = rewriting({"personal": {"emails": ""}}).rewriters
    with rewriter.open() as rewrite:
        assert rewrite("a@b.com 8.8.8.8") == " 8.8.8.8"


@settings(max_examples=1000, deadline=None)
@given(st.lists(PIECES, max_size=14).map("".join))
def test_rewritten_text_has_no_personal_data_and_equals_the_source_outside_of_it(text: str) -> None:
    rewritten = replacer(MARK).rewrite(text)
    assert count_personal_data(rewritten) == 0
    assert (rewritten == text) == (count_personal_data(text) == 0)
    kept = "(.+?)".join(map(re.escape, rewritten.split(MARK)))
    found = re.fullmatch(kept, text, re.DOTALL)
    assert found is not None
    assert all("\n" not in removed for removed in found.groups())


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=14).map("".join))
def test_a_rewriter_of_one_kind_finds_all_of_its_kind(text: str) -> None:
    for kind, find in KINDS.items():
        (rewriter,) = rewriting({"personal": {kind: MARK}}).rewriters
        with rewriter.open() as rewrite:
            assert list(find(normalize_text(rewrite(text)))) == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", ["+1", "0 1 ", "a@", "a@b.co ", "1.1.", "8.8.8.8 ", "4111 "])
def test_replacing_personal_data_takes_linear_time(piece: str) -> None:
    started = time.process_time()
    replacer().rewrite(piece * 50_000)
    assert time.process_time() - started < 30


@pytest.mark.parametrize(
    ("source", "rewritten", "count"),
    [
        ("", "", 0),
        ("same", "same", 0),
        ("gone", "", 4),
        ("", "new", 3),
        ("call 020 7946 0123 now", "call <P> now", 13),
        ("a\nb\nc\n", "a\nc\n", 2),
        ("a\na\nb\n", "a\na\nb\nb\n", 2),
        ("one two three", "one 2 three", 3),
        ("x@y.com and z@y.com", "<E> and <E>", 14),
        ("so that the sea was calm, " * 4, "so little, " * 4, 4 * 21),
        ("mail: a@b.com\n" * 9 + "end", "mail: <E>\n" * 9 + "end", 9 * 7),
        ("It\u00e2\u20ac\u2122s late. The end.", "It\u2019s late. The end.", 3),
    ],
)
def test_changed_characters_are_counted_where_they_are(source: str, rewritten: str, count: int) -> None:
    assert count_changed_characters(source, rewritten) == count


@given(st.text("ab \n.", max_size=30), st.text("ab \n.", max_size=30))
def test_the_count_is_zero_only_for_equal_texts_and_never_more_than_both(source: str, rewritten: str) -> None:
    count = count_changed_characters(source, rewritten)
    assert (count == 0) == (source == rewritten)
    assert abs(len(source) - len(rewritten)) <= count <= len(source) + len(rewritten)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", ["\n", "a ", "a b\n", "word"])
def test_counting_changes_takes_nearly_linear_time(piece: str) -> None:
    assert count_changed_characters("x" + piece * 200_000, piece * 200_000 + "y") > 0
    assert count_changed_characters((piece + "x") * 100_000, (piece + "y") * 100_000) > 0
    numbers = " ".join(map(str, range(100_000)))
    assert count_changed_characters(numbers, numbers.replace("7", "x")) > 0


CLEANING = """
import os
from pathlib import Path

def shout(text):
    return text.upper()

def fails(text):
    os.write(1, text.encode())
    return text if "CANARY" not in text else text[10 ** 9]

def exits(text):
    raise SystemExit("CANARY")

def none(text):
    return None

def lone(text):
    return text + "\\ud800"

def reads(text):
    return Path(__file__).with_name("words" + ".txt").read_text()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cleaning_rules.py").write_text(CLEANING)
    (tmp_path / "words.txt").write_text("x")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "cleaning_rules", raising=False)
    return tmp_path


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"function": f"cleaning_rules:{name}", **more}


def block(*texts: str) -> Block:
    return Block([*texts], 5, rows=[5 + 2 * number for number in range(len(texts))])


def test_rewriters_run_in_order_and_the_block_has_the_texts_before_each(folder: Path) -> None:
    found = rewriting(function("shout"), {"personal": {"emails": "<e>"}}).rewrite_block(block("a@b.com", "x"), "f")
    assert found.texts == ["<e>", "X"]
    assert found.list_rewritten_texts() == [
        ("shout", ["a@b.com", "x"], ["A@B.COM", "X"]),
        ("personal", ["A@B.COM", "X"], ["<e>", "X"]),
    ]
    assert (found.source_texts, found.rows) == (["a@b.com", "x"], [5, 7])


def test_the_id_of_a_document_is_that_of_its_source_text(folder: Path) -> None:
    source = block("a", "b", "c")
    found = rewriting(function("shout")).rewrite_block(source, "f")
    documents, scheme = FileDocuments.from_block(found, DocumentIds()), DocumentIds()
    expected = scheme.hash_texts(["a", "b", "c"], None)
    assert documents.ids is not None
    assert np.array_equal(documents.ids, expected)
    selected = FileDocuments.from_block(found, scheme).select([2])
    assert selected.texts == ["C"]
    assert selected.ids is not None
    assert np.array_equal(selected.ids, expected[2:])


@pytest.mark.parametrize("sensitive", [False, True])
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("fails", ("IndexError", "cleaning_rules.py:10 in fails", 7)),
        ("exits", ("SystemExit", "cleaning_rules.py:13 in exits", 5)),
        ("none", ("NoneType", 5)),
        ("lone", ("surrogate", 5)),
    ],
)
def test_an_error_names_the_file_the_row_and_the_line_of_the_function(
    folder: Path, name: str, values: Sequence[object], sensitive: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    texts = block("x", "CANARY y")
    with raises(RewritingError, "f.jsonl", f"'{name}'", *values) as caught:
        rewriting(function(name), sensitive=sensitive).rewrite_block(texts, "f.jsonl")
    if sensitive:
        assert "CANARY" not in str(caught.value)
        assert (caught.value.__cause__, caught.value.__context__) == (None, None)
        assert capfd.readouterr().out == ""


def test_a_function_may_read_only_files_that_are_part_of_its_version(folder: Path) -> None:
    with raises(ConfigError, "rewrite", "cleaning_rules:reads", "words.txt"):
        rewriting(function("reads")).rewrite_texts(["a"])
    assert rewriting(function("reads", files=["words.txt"]), folder=folder).rewrite_texts(["a"]) == ["x"]


def test_the_code_of_a_function_is_not_read_again_for_each_row(folder: Path) -> None:
    rewriters = rewriting(function("shout"))
    with patch.object(project_function, "ModuleCode", wraps=ModuleCode) as module_code:
        for _ in range(50):
            assert rewriters.rewrite_texts(["a"]) == ["A"]
    assert module_code.call_count <= 2


def test_the_version_names_every_rewriter_in_order_and_changes_with_code_and_placeholders(folder: Path) -> None:
    both = [function("shout"), {"personal": {"emails": "<E>"}}]
    version = rewriting(*both).version
    assert version == rewriting(*both).version
    assert re.fullmatch(r"shout [0-9a-f]{64}, personal [0-9a-f]{16}", version)
    others = [
        rewriting(*both[::-1]).version,
        rewriting(both[0], {"personal": {"emails": "<F>"}}).version,
        rewriting(both[0], {"personal": {"phones": "<E>"}}).version,
        rewriting(function("shout", version=1), both[1]).version,
    ]
    (folder / "cleaning_rules.py").write_text(CLEANING.replace("upper", "lower"))
    others.append(rewriting(*both).version)
    assert len({version, *others}) == 6
    assert (
        rewriting({"personal": {"emails": "<E>", "phones": "<P>"}}).version
        == rewriting({"personal": {"phones": "<P>", "emails": "<E>"}}).version
    )


def test_ftfy_repairs_text_that_was_decoded_with_a_wrong_encoding() -> None:
    pytest.importorskip("ftfy")
    found = rewriting("ftfy")
    assert found.rewrite_texts(["It\u00e2\u20ac\u2122s", "plain"]) == ["It's", "plain"]
    assert re.fullmatch(r"ftfy [\d.]+, Unicode [\d.]+", found.version)


def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipt, "find_installed_version", lambda _: None)
    monkeypatch.setitem(sys.modules, "ftfy", None)
    for use in (lambda: rewriting("ftfy").version, lambda: rewriting("ftfy").rewrite_texts(["a"])):
        with raises(ConfigError, "rewrite", "ftfy", "pip install 'dataprep-assets[rewrite]'"):
            use()


@pytest.mark.parametrize(
    ("items", "values"),
    [
        (["ftfi"], ("rewrite", "'ftfi'", "`ftfy`")),
        (["ftfy", "ftfy"], ("rewrite", "'ftfy'", "`name`")),
        ([{"personal": {"emails": "<E>"}}, {"function": "m:personal"}], ("rewrite", "'personal'", "`name`")),
    ],
)
def test_an_unknown_or_repeated_rewriter_is_refused(items: list[Any], values: Sequence[object]) -> None:
    with raises(ConfigError, *values):
        rewriting(*items)


@pytest.mark.parametrize(
    ("value", "values"),
    [
        ({}, ("`personal`", "`function`")),
        ({"personal": {"emails": "<E>"}, "function": "m:f"}, ("`personal`", "`function`")),
        ({"personal": {"emails": "<E>"}, "version": "1"}, ("`version`", "`function`")),
        ({"personal": {"emails": "<E>"}, "files": ["a"]}, ("`files`", "`function`")),
        ({"personal": {"emails": "a@b"}}, ("emails", "'a@b'", "`<EMAIL>`")),
        ({"personal": {"phones": "no. 1"}}, ("phones", "'no. 1'")),
        ({"personal": {"ip_addresses": "IP:"}}, ("ip_addresses", "'IP:'")),
        ({"personal": {"emails": "\n\n"}}, ("emails", "line ends", "`<EMAIL>`")),
        ({"personal": {"emails": "a\u2028b"}}, ("emails", "line ends")),
    ],
)
def test_a_declaration_without_a_clear_meaning_is_refused(value: dict[str, Any], values: Sequence[object]) -> None:
    with raises(ValidationError, *values):
        DeclaredRewriter(**value)


def test_recall_counts_a_datum_that_stays_in_the_text_and_a_changed_neighbor(folder: Path) -> None:
    """The datum is looked for in the text of all rewriters, and the text around it in that of the rewriter itself."""
    rewriter = replacer()
    perfect = count_replaced(rewriter, Rewriting(rewriters=(rewriter,)).rewrite_texts, ["A text.\nOf two lines."])
    assert {one.recall for one in perfect.values()} == {1.0}
    assert {one.precision for one in perfect.values()} == {1.0}
    # Without a rewriter of personal data in the dataset's rewriting, every datum is still in the text.
    blind = count_replaced(rewriter, Rewriting(rewriters=()).rewrite_texts, [])
    assert {one.found for one in blind.values() if one.planted} == {0}
