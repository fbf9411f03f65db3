"""The built-in taggers give the known values for known texts."""

import csv
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep_assets.curation.external_taggers.command_tagger import CommandTagger
from dataprep_assets.curation.function_tagger import FunctionTagger
from dataprep_assets.curation.table import build_schema
from dataprep_assets.curation.taggers import TAGGERS, personal
from dataprep_assets.curation.tagging import TaggingError, load_tagger, write_aligned_columns
from dataprep_assets.stores.files import digest_value


def tag_text(name: str, text: str) -> dict[str, Any]:
    """Return the columns of a tagger for one text."""
    return {column: values[0] for column, values in load_tagger(name).tag([text]).items()}


@pytest.mark.parametrize("name", list(TAGGERS))
def test_a_tagger_returns_a_value_of_the_column_type_or_null_for_each_text(name: str) -> None:
    import pyarrow as pa

    tagger = load_tagger(name)
    texts = [
        "",
        "\n\n",
        " ",
        "one",
        "The end of the line.\nThe end of the line.\n",
        "日本語のテキスト。",
        "\u0000\ufffe",
        "a" * 5000,
    ]
    for batch in (texts, []):
        found = tagger.tag(batch)
        assert list(found) == list(tagger.columns)
        table = pa.table(dict(found), schema=build_schema(tagger.columns))
        assert table.num_rows == len(batch)
    alone = [tagger.tag([text]) for text in texts]
    assert dict(tagger.tag(texts)) == {c: [one[c][0] for one in alone] for c in tagger.columns}


def test_gopher_counts_words_symbols_bullets_and_stop_words() -> None:
    found = tag_text("gopher", "- the cat, and the dog\n• 42 # ...\n— with … that\nplain")
    assert found["words"] == 9
    assert found["mean_word_length"] == pytest.approx((3 + 4 + 3 + 3 + 3 + 2 + 4 + 4 + 5) / 9)
    assert found["hashes_per_word"] == pytest.approx(1 / 15)
    assert found["ellipses_per_word"] == pytest.approx(2 / 15)
    assert found["bullet_lines"] == 0.5
    assert found["ellipsis_lines"] == 0.25
    assert found["alphabetic_words"] == pytest.approx(8 / 15)
    assert found["stop_words"] == 4


def test_repetition_is_a_share_of_characters_lines_and_paragraphs() -> None:
    text = "a b c d e\n\na b c d e\nx"
    found = tag_text("repetition", text)
    assert found["repeated_lines"] == pytest.approx(1 / 3)
    assert found["repeated_line_characters"] == pytest.approx(9 / len(text))
    assert found["repeated_paragraphs"] == 0
    assert found["top_2gram"] == pytest.approx(2 * 3 / len(text))
    assert found["repeated_5grams"] == pytest.approx(5 / len(text))
    assert found["repeated_6grams"] == 0


def test_c4_keeps_lines_that_end_a_sentence_and_counts_their_sentences() -> None:
    text = (
        "Home\nThis line is kept. It has two sentences.\nNo end here\nEnable JavaScript to read this page.\n"
        "See the privacy policy for more.\nA quote [12] ends here.[edit]\nTwo words.\n"
    )
    assert tag_text("c4", text) == {"c4_lines": 2, "c4_sentences": 3, "lorem_ipsum": False, "curly_bracket": False}
    assert tag_text("c4", "We say lorem ipsum here.")["lorem_ipsum"]
    assert tag_text("c4", "if (a) { b; } is code.")["curly_bracket"]


def test_fineweb_counts_by_line() -> None:
    found = tag_text("fineweb", "A long line that ends as a sentence does.\nshort\nshort\n\n")
    assert found["punctuated_lines"] == pytest.approx(1 / 3)
    assert found["short_lines"] == pytest.approx(2 / 3)
    assert found["duplicate_line_characters"] == pytest.approx(5 / 51)
    assert found["newlines_per_word"] == pytest.approx(2 / 11)


def test_dclm_counts_every_occurrence_and_the_words_that_it_removes() -> None:
    text = '* The cat and the dog ran.\nA LOUD LINE\n3 likes\nThe "cat" and the dog ran. . .\n12\n12'
    found = tag_text("dclm", text)
    words = len(text.split())
    assert found["dclm_words"] == words - len(["*", '"cat"', ".", "."])
    assert found["dclm_mean_word_length"] == pytest.approx(len("".join(text.split())) / words)
    assert found["dclm_symbols_per_word"] == pytest.approx(1 / words)
    assert (found["dclm_bullet_lines"], found["dclm_ellipsis_lines"]) == (1 / 6, 1 / 6)
    assert found["dclm_alphabetic_words"] == pytest.approx((words - len(["*", "3", ".", ".", "12", "12"])) / words)
    assert found["dclm_stop_words"] == len(["The", "and", "the", "The", "and", "the"])
    assert found["dclm_removed_words"] == pytest.approx(7 / (words - 4))
    assert found["dclm_repeated_lines"] == pytest.approx(2 / 6)
    assert found["dclm_repeated_paragraphs"] == 0
    gram_characters = 2 * len("Thecatandthedogran")
    assert found["dclm_repeated_6grams"] == pytest.approx(gram_characters / len(re.sub(r"[\W_]", "", text)))
    assert found["dclm_repeated_7grams"] == 0


@pytest.mark.parametrize(
    ("line", "is_removed"),
    [
        ("Sign-in here", False),
        ("items in cart", True),
        ("1,204 views", True),
        ("1.2K followers!", True),
        ("3 likes today", False),
        ("2024", True),
        ("2024 began", False),
        ("ABCd efgh", False),
        ("ABCDE fg", True),
    ],
)
def test_dclm_removes_lines_of_pages(line: str, *, is_removed: bool) -> None:
    sentence = "A sentence of seven words stays here."
    removed_words = tag_text("dclm", f"{sentence}\n{line}")["dclm_removed_words"]
    expected = len(line.split()) if is_removed else line.startswith("Sign-in")
    assert removed_words == pytest.approx(expected / (7 + len(line.split())))


@given(words=st.lists(st.sampled_from(["a", "be", "cat", "dogs"]), max_size=60))
def test_dclm_measures_repeated_sequences_of_words(words: list[str]) -> None:
    found = tag_text("dclm", " ".join(words))
    characters = sum(map(len, words))
    for n in range(2, 11):
        grams = [tuple(words[at : at + n]) for at in range(len(words) - n + 1)]
        repeated = {gram: times for gram, times in Counter(grams).items() if times > 1}
        if n < 5:
            most = max(repeated.values(), default=0)
            sizes = [len("".join(gram)) for gram, times in repeated.items() if times == most]
            expected = most * max(sizes, default=0)
        else:
            covered = {at + offset for at, gram in enumerate(grams) if gram in repeated for offset in range(n)}
            expected = sum(len(words[at]) for at in covered)
        column = f"dclm_top_{n}gram" if n < 5 else f"dclm_repeated_{n}grams"
        assert found[column] == (expected / characters if words else None)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "The harbour is closed today, and nobody knows when the ships will be allowed to leave it again."),
        ("de", "Der Hafen ist heute geschlossen, und niemand weiß, wann die Schiffe wieder auslaufen dürfen."),
        ("fr", "Le port est fermé aujourd'hui, et personne ne sait quand les navires pourront de nouveau partir."),
        ("ja", "港は本日閉鎖されており、船がいつ再び出港できるかは誰にも分かりません。"),
    ],
)
def test_the_language_of_a_text_is_found(language: str, text: str) -> None:
    found = tag_text("language", text)
    assert found["language"] == language
    assert 0.5 < found["language_score"] <= 1


MODULE = """
try:
    import json as fast
except ImportError:
    fast = None
if fast:
    def quality(table):
        def inner(row): ...
        local = 1
class Judge:
    def method(self, table): ...
def made():
    global later
    def later(table): ...
"""


def test_a_function_exists_only_if_the_module_defines_it_at_the_top_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "judges.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)

    def absent(name: str) -> str | None:
        return FunctionTagger(name="one", columns={"one": "number"}, function=f"judges:{name}").explain_missing()

    for name in ("quality", "Judge", "made", "later", "fast"):
        assert absent(name) is None
    for name in ("inner", "local", "method", "other"):
        assert f"no function {name!r}" in str(absent(name))


def test_the_order_of_columns_is_part_of_the_key() -> None:
    def key(*columns: str) -> list[Any]:
        named = FunctionTagger(name="one", columns=dict.fromkeys(columns, "number"), function="a:b", declared="7")
        return named.key_parts

    assert digest_value(key("b", "a")) != digest_value(key("a", "b"))


PERSONAL = {
    "emails": [
        "jane.doe@example.org",
        "write to (a_b+c@mail.example.co.uk).",
        "<x-1@sub-domain.example.museum>",
        "anna@firma.info(privat)",
        "j@x.com",
        "ab@cd.info",
    ],
    "phones": [
        "call +49 (30) 1234-5678 today",
        "tel. 030 / 123 45 67 89",
        "06 12 34 56 78",
        "020 7946 0958",
        "(415) 555-2671",
        "415.555.2671",
        "+33612345678",
        "011 44 20 7946 0958",
        "800-908-8387x371",
        "+1.8005551212",
    ],
    "ibans": [
        "DE89 3704 0044 0532 0130 00 BIC",
        "GB29NWBK60161331926819",
        "BE68 5390 0754 7034 THE",
        "FR1420041010050500013M02606.",
    ],
    "cards": ["4111 1111 1111 1111", "5555555555554444", "3782 822463 10005", "6011-1111-1111-1117"],
    "ip_addresses": ["from 8.8.8.8:", "CIDR 1.2.3.0/30", "2001:4860:4860::8888", "192.0.0.9", "2001:20::1"],
}
OTHER = {
    "emails": [
        "icon@2x.png",
        "git@github.com:a/b",
        "a@b.service",
        "@handle",
        "foo@bar",
        "x@y..z",
        "a..b@example.org",
        "user@",
        "5 @ 3.50",
        "y = W@x.view(2)",
        "W@x.view",
        "D@L.conjugate().T",
        "A@sps.diags(4)",
    ],
    "phones": [
        "01.02.2023",
        "01/02/2023 10:00",
        "0.123456789",
        "ISBN 0-306-40615-2",
        "2023-01-02 10",
        "1234567890",
        "0532013000",
        "59 Temple Place, Suite 330, Boston, MA 02111-1307 USA",
        "DFARS 252.227-7013",
        "14:24:04 2013 -0700",
        "+0.0211 11 11 11",
        "<Buffer 01 02 03 04 05>",
        "0016 0004 06 00 00 00",
        "02392879 00 a 01 tasteful 2 007",
        "the functions of 03.05.16.0001.01",
        "0069 0307 0300; LATIN SMALL LETTER I",
        "Phys. Rev. E 64, 016132 (2001)",
        "J. Sci. Comput., 5(2), 300-304 (1984).",
        "an actress of television (1913-2000)",
        "016.016.016",
        "[ 0 0 11 0 0 0 0 0 0 0]",
        "+1.0 0.0 0.0 0.5",
        "+1.23456789012345",
        "+922337203685477,5807",
        "+2147483647 int32",
        "(-33554432, +33554432)",
        "37.83405768 +63.25138759j",
        "+10011010010",
        "01 24/7 0 001",
    ],
    "ibans": ["DE89 3704 0044 0532 0130 01", "AB12 3456 7890 1234", "GB29NWBK60161331926819X", "DE89 3704"],
    "cards": [
        "a4111111111111111",
        "4111111111111111b",
        "4111 1111 1111 1112",
        "1234567812345670",
        "0000000000000000",
        "4111 1111 1111 1111 1",
        "2542F 25430 4100 7944 7945 7946",
        "random.default_rng(348932549825235)",
        "[8196659375, 4111111111111111]",
        "[4111111111111111, -53]",
    ],
    "ip_addresses": [
        "192.168.0.1",
        "127.0.0.1",
        "1.2.3.4.5",
        "version 8.8.8.8.1",
        "999.8.8.8",
        "12:34:56",
        "::1",
        "fe80::1",
        "100.64.0.1",
        "192.0.0.8",
        "64:ff9b:1::1",
        "2002:0::1",
        "224.0.0.251",
        "2:4:6:8:10:12:14:16",
        "V8 from 4.2.77.18",
        "Section 25.1.5.1",
        "Requires-Dist: one>=3.10.0.2",
        "43.6.5.4. WHILE",
        "the class template array [26.2.2.5]",
        "the sections of SP800-56A: .IP 5.5.1.1",
        "C11 7.21.6.2/10",
        "a plugin from 4.4.1 to 4.4.2.2",
    ],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in PERSONAL.items() for text in texts])
def test_each_kind_of_personal_data_is_found_once(kind: str, text: str) -> None:
    assert {name: count for name, count in tag_text("personal", text).items() if count} == {kind: 1}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in OTHER.items() for text in texts])
def test_text_that_only_resembles_personal_data_is_not_counted(kind: str, text: str) -> None:
    assert tag_text("personal", text)[kind] == 0


@pytest.mark.timeout(60)
@pytest.mark.parametrize("piece", ["+1", "0 1 ", "1 ", "a@", "1.1.", "a:", "DE12", "(", "+1((((", "1-", "4111 "])
def test_the_search_for_personal_data_takes_linear_time(piece: str) -> None:
    text = piece * 100_000
    for find in (
        personal.find_emails,
        personal.find_phones,
        personal.find_ibans,
        personal.find_cards,
        personal.find_addresses,
    ):
        assert sum(1 for _ in find(text)) <= len(text)


NO_UTF8 = pa.array([b"CANARY\xff"]).view(pa.string())


def find_error(table: pa.Table, folder: Path, *, sensitive: bool = False) -> TaggingError:
    """Return the error about a command's output."""
    tagger = CommandTagger(name="theirs", columns={"q": "number"}, command=("x",), declared="1", folder=folder)
    pq.write_table(table, made := folder / "made.parquet")
    with pytest.raises(TaggingError) as raised:
        write_aligned_columns(tagger, made, folder / "rows", folder / "target", "train-00000", sensitive=sensitive)
    return raised.value


@pytest.mark.parametrize("sensitive", [False, True])
@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (
            {"file": [["a"]], "row": [1], "q": [1.0]},
            "column `file` must contain strings and `row` integers, in every row",
        ),
        (
            {"file": ["a"], "row": [{"n": 1}], "q": [1.0]},
            "column `file` must contain strings and `row` integers, in every row",
        ),
        ({"file": ["a"], "row": [1], "q": ["CANARY"]}, "q is "),
        ({"file": NO_UTF8, "row": [1], "q": [1.0]}, "'file' has text that is no"),
        (
            {"file": ["a"], "row": [1], "q": NO_UTF8},
            "'q' has text that is not UTF-8, or an invalid date",
        ),
        ({"file": ["a"], "row": [1], "q": pa.array([2**31 - 1], pa.int32()).view(pa.date32())}, "'q' has text"),
    ],
)
def test_invalid_columns_from_another_program_are_reported(
    columns: dict[str, Any], told: str, sensitive: bool, tmp_path: Path
) -> None:
    error = find_error(pa.table(columns), tmp_path, sensitive=sensitive)
    assert told in str(error)
    assert "CANARY" not in str(error)
    assert error.__cause__ is None


def test_two_columns_with_one_name_are_reported(tmp_path: Path) -> None:
    columns = [pa.array(["a"]), pa.array([1]), pa.array([1.0]), pa.array([2.0])]
    assert "column 'q' twice" in str(find_error(pa.Table.from_arrays(columns, ["file", "row", "q", "q"]), tmp_path))


@pytest.mark.parametrize("hyphen", ["-", "\u2010", "\u2011", "\u2012"])
def test_phone_numbers_may_have_hyphens_of_typesetters(hyphen: str) -> None:
    texts = [text.replace("-", hyphen) for text in ("+49\u00a030-1234567", "(415) 555-2671", "Tel. 030-1234567")]
    assert load_tagger("personal").tag([*texts, "\n".join(texts)])["phones"] == [1, 1, 1, 3]


def read_forms() -> list[dict[str, str]]:
    """Return 464 forms of personal data of 20 countries, whose numbers are invented or reserved for examples.

    Phone numbers have the forms of libphonenumber (national, international, E.164, RFC 3966), and customs of
    each country. IBANs have the structure of SWIFT's registry, cards the issuers of ISO/IEC 7812, addresses the forms
    of RFC 6531 and RFC 4291.
    """
    with open(Path(__file__).with_name("personal_forms.tsv"), encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_personal_data_of_twenty_countries_is_found_once_and_as_its_kind() -> None:
    forms = read_forms()
    assert (len(forms), len({form["country"] for form in forms})) == (464, 20)
    columns = load_tagger("personal").tag([form["text"] for form in forms])
    found_counts = Counter[str]()
    for number, form in enumerate(forms):
        counts = {kind: values[number] for kind, values in columns.items() if values[number]}
        found_counts[form["kind"]] += counts == {form["kind"]: 1}
    recall = {kind: found_counts[kind] / count for kind, count in Counter(form["kind"] for form in forms).items()}
    assert recall.keys() == columns.keys()
    assert min(recall.values()) >= 0.99, recall
