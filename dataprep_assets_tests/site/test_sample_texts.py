"""Texts on sample pages: hostile characters are visible, differences are complete, and tokens add up to the text."""

import random
from pathlib import Path

import pytest

from dataprep_assets.engine.trace.sample import draw_by_shard, draw_numbers
from dataprep_assets.site.samples.differences import mark_differences, mark_shared
from dataprep_assets.site.samples.facts import Run
from dataprep_assets.site.samples.texts import cut_text, show_text, show_tokens
from dataprep_assets.tokenization.token_texts import TokenTexts
from dataprep_assets_tests.pipelines.corpus.shards import bundle
from dataprep_assets_tests.tokenization.chat.tokenizers import write_chat_tokenizer


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", "</span></div>", '"><img src=x onerror=alert(1)>', "&lt;b&gt;"]
)
def test_html_is_shown_as_text(text: str) -> None:
    assert "<" not in show_text(text)
    assert show_text(text).unescape() == text
    assert show_tokens([(text, False)]).unescape() == f"<span>{text}</span>"


@pytest.mark.parametrize(
    ("character", "name"),
    [
        ("\u202e", "U+202E"),
        ("\u2066", "U+2066"),
        ("\u200b", "U+200B"),
        ("\u200d", "U+200D"),
        ("\ufeff", "U+FEFF"),
        ("\u00ad", "U+00AD"),
        ("\u2028", "U+2028"),
        ("\ud800", "U+D800"),
        ("\U000e0041", "U+E0041"),
        ("\x00", "NUL"),
        ("\x1b", "ESC"),
        ("\r", "CR"),
        ("\x85", "U+0085"),
    ],
)
def test_hidden_characters_are_replaced_by_their_names(character: str, name: str) -> None:
    shown = show_text(f"a{character}b")
    assert shown.startswith("a<span ")
    assert shown.endswith(f">{name}</span>b")
    assert character not in shown


def test_tabs_line_feeds_and_letters_of_all_scripts_are_unchanged() -> None:
    text = "a\tb\nc é 夜 שלום नमस्ते 🙂"
    assert show_text(text) == text


def test_only_tokens_in_the_loss_are_marked() -> None:
    assert show_tokens([("a", False)]) == "<span>a</span>"
    assert show_tokens([("<b", True), ("", False)]) == "<mark>&lt;b</mark><span></span>"


def test_a_cut_text_has_the_number_of_omitted_characters() -> None:
    assert cut_text("abc", 3) == ("abc", "")
    assert cut_text("abcd", 3) == ("abc", "1 more character")
    assert cut_text("a" * 2_000, 3) == ("aaa", "1,997 more characters")


def join(runs: list[Run]) -> str:
    return "".join(run.text for run in runs)


def test_differences_are_complete_and_mark_only_words_that_differ() -> None:
    first, second = "the old cat sat on a mat.", "the cat sat  on\nthe mat. Twice"
    runs, other_runs = mark_differences(first, second)
    assert (join(runs), join(other_runs)) == (first, second)
    assert [run.text for run in runs if run.kind == "removed"] == ["old ", "a "]
    assert [run.text for run in other_runs if run.kind == "added"] == ["the ", "Twice"]


@pytest.mark.parametrize(("first", "second"), [("", ""), ("", "a"), ("a b", "a b"), ("a", "b"), (" a", "a ")])
def test_differences_of_short_texts_are_complete(first: str, second: str) -> None:
    runs, other_runs = mark_differences(first, second)
    assert (join(runs), join(other_runs)) == (first, second)
    if first.split() == second.split():
        assert {run.kind for run in [*runs, *other_runs]} <= {"same"}


def test_differences_of_random_texts_are_complete() -> None:
    draw = random.Random(0)
    for _ in range(50):
        first, second = ("".join(draw.choices("ab.\n <_", k=draw.randrange(40))) for _ in range(2))
        runs, other_runs = mark_differences(first, second)
        assert (join(runs), join(other_runs)) == (first, second)


def test_the_part_around_shared_words_is_shown_with_the_number_of_other_characters() -> None:
    before, after = "before " * 500, " after" * 500
    text = before + "Which LAMP, on the pier is lit?" + after
    runs, omitted = mark_shared(text, "which lamp on the pier is lit at night", 400)
    assert [run.text for run in runs if run.kind == "shared"] == ["Which LAMP, on the pier is lit"]
    assert omitted.split()[0] == f"{len(text) - len(join(runs)):,}"
    assert join(runs) in text


def test_a_text_without_shared_words_is_shown_from_its_beginning() -> None:
    assert mark_shared("a b c", "x y z", 400) == ([Run("a b c")], "")
    assert mark_shared("a b c", "", 400) == ([Run("a b c")], "")
    assert mark_shared("yes", "yes", 400) == ([Run("yes", "shared")], "")


TEXTS = ["", "plain words", "é夜🙂 ﬁ", "Περιεχόμενα\n\n夜夜", "🙂🏽‍🚀", " leading and trailing ", "\ufffd \x00"]


@pytest.mark.parametrize("name", ["corpus", "chat"])
def test_texts_of_tokens_add_up_to_the_decoded_text(name: str, tmp_path: Path) -> None:
    loaded = bundle() if name == "corpus" else write_chat_tokenizer(tmp_path)
    token_texts = TokenTexts(loaded.decode)
    draw = random.Random(1)
    sequences = [list(ids) for ids in map(list, (loaded._reference.encode(TEXTS)))]
    sequences += [[draw.randrange(loaded.vocab_size) for _ in range(60)] for _ in range(20)]
    for ids in sequences:
        texts = token_texts.split(ids)
        assert len(texts) == len(ids)
        assert "".join(texts) == loaded.decode(ids)


def test_a_tokenizer_that_removes_the_first_space_keeps_the_spaces_between_words() -> None:
    words = {1: "▁the", 2: "▁cat", 3: "s"}

    def decode(ids: list[int]) -> str:
        return "".join(words[token] for token in ids).replace("▁", " ").removeprefix(" ")

    assert TokenTexts(decode).split([1, 2, 3, 2]) == ["the", " cat", "s", " cat"]  # type: ignore[arg-type]


def test_draws_are_the_same_for_the_same_seed_and_different_for_others() -> None:
    assert draw_numbers(1_000, 5, "a") == draw_numbers(1_000, 5, "a") != draw_numbers(1_000, 5, "b")
    assert draw_numbers(3, 5, "a") == [0, 1, 2]


def test_rows_are_drawn_from_few_shards_and_from_more_only_if_these_are_small() -> None:
    drawn = dict(draw_by_shard({f"s{number}": 1_000 for number in range(100)}, 200, "0"))
    assert len(drawn) == 8
    assert sum(map(len, drawn.values())) == 200
    assert all(0 <= number < 1_000 for numbers in drawn.values() for number in numbers)
    drawn = dict(draw_by_shard({f"s{number}": number % 3 for number in range(100)}, 50, "0"))
    assert sum(map(len, drawn.values())) == 50
    assert [int(name[1:]) for name in drawn] == sorted(int(name[1:]) for name in drawn)
    assert dict(draw_by_shard({"a": 0, "b": 2}, 50, "0")) == {"b": [0, 1]}
    assert dict(draw_by_shard({}, 50, "0")) == {}
