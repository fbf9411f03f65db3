"""Tokenizers in other formats are found, read without running code, and encoded by libraries other than
`tokenizers`.
"""

from pathlib import Path
from typing import Any

import pytest

from dataprep_assets.errors import TokenizerError
from dataprep_assets.tokenization import conversion, originals
from dataprep_assets.tokenization.originals import find_original, open_encoder
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.tokenization.other_forms import (
    LLAMA,
    PATTERN,
    SENTENCES,
    rank_tokens,
    train_byte_pairs,
    write_merges,
    write_sentencepiece,
    write_tekken,
    write_tiktoken,
    write_words,
)

_FIRST, _LAST = PATTERN.rsplit("|", 1)
LITERALS = {
    "constant": f'raise SystemExit("run")\nPAT_STR = r"""{PATTERN}"""\n',
    "joined": f'class T:\n    pat_str = "|".join([r"""{_FIRST}""", r"""{_LAST}"""])\n',
}


@pytest.mark.parametrize("form", LITERALS)
def test_the_pattern_of_a_tiktoken_file_is_read_from_code_without_running_it(tmp_path: Path, form: str) -> None:
    original = find_original(write_tiktoken(tmp_path, code=LITERALS[form]))
    assert original is not None
    assert (original.form, original.pattern) == ("tiktoken", PATTERN)


@pytest.mark.parametrize("code", [None, "PAT_STR = make()\n", "PAT_STR = '|'.join(parts)\n", "def (:\n"])
def test_a_tiktoken_file_without_a_pattern_needs_a_declared_one(tmp_path: Path, code: str | None) -> None:
    write_tiktoken(tmp_path, "tokenizer.model", code)
    with raises(TokenizerError, "tokenizer.pattern"):
        find_original(tmp_path)
    original = find_original(tmp_path, PATTERN)
    assert original is not None
    assert original.pattern == PATTERN


def test_a_sentencepiece_model_is_distinguished_from_a_tiktoken_file_of_that_name(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    original = find_original(write_sentencepiece(tmp_path / "t", "bpe", **LLAMA))
    assert original is not None
    assert original.form == "sentencepiece"
    assert open_encoder(original)("") == []
    assert len(open_encoder(original)(SENTENCES[0])) > 10


def test_a_folder_without_a_tokenizer_gives_none(tmp_path: Path) -> None:
    assert find_original(tmp_path) is None
    assert conversion.convert_folder(tmp_path) is None


def test_the_encoders_of_byte_pairs_give_the_ids_of_one_tokenizer(tmp_path: Path) -> None:
    pytest.importorskip("tiktoken")
    tiktoken = find_original(write_tiktoken(tmp_path / "a", code=LITERALS["constant"]))
    tekken = find_original(write_tekken(tmp_path / "b"))
    merges = find_original(write_merges(tmp_path / "c"))
    assert tiktoken is not None
    assert tekken is not None
    assert merges is not None
    by_rank, by_tekken, by_merges = open_encoder(tiktoken), open_encoder(tekken), open_encoder(merges, PATTERN)
    tokens, letters = rank_tokens(), originals._map_letters_to_bytes()
    id_by_token = {
        bytes(letters[letter] for letter in content): number
        for content, number in train_byte_pairs().get_vocab().items()
    }
    for text in (*SENTENCES[:5], "", "  a\n\n b\t", "敏捷 🙂"):
        ranks = by_rank(text)
        assert b"".join(tokens[rank] for rank in ranks) == text.encode()
        assert by_tekken(text) == [rank + 20 for rank in ranks]
        expected = train_byte_pairs().encode(text).ids
        assert by_merges(text) == expected == [id_by_token[tokens[rank]] for rank in ranks]


def test_a_merges_file_without_a_pattern_has_no_encoder(tmp_path: Path) -> None:
    original = find_original(write_merges(tmp_path))
    assert original is not None
    with raises(TokenizerError):
        open_encoder(original)


@pytest.mark.parametrize(("write", "library"), [(write_tekken, "tiktoken"), (write_words, "transformers")])
def test_a_missing_extra_is_named_with_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any, library: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(originals, "_is_installed", lambda name: name != library)
    with raises(TokenizerError, library, "pip install 'dataprep-assets[transformers]'"):
        conversion.convert_folder(write(tmp_path / "t"))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.tiktoken").write_bytes(b"YQ== 0\nno line\n")
    original = find_original(tmp_path, PATTERN)
    assert original is not None
    with raises(TokenizerError, "x.tiktoken:2"):
        open_encoder(original)
