"""A bundle's knowledge of its tokens, read without loading a library, equals that of the library."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from dataprep_assets.errors import TokenizerError
from dataprep_assets.stores.files import digest_value, sha256_file
from dataprep_assets.tokenization.bundle import TokenizerBundle, load_reference_tokenizer
from dataprep_assets.tokenization.engines import ReferenceEngine
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.readers.transformers import encoded, tokenizer_facts
from dataprep_assets_tests.tools.bench.invented_text import SEPARATORS, train_tokenizer

_TEXTS = ["the cat sat on the mat", "a dog and a cat"] * 20


def _declared_elsewhere(definition: dict[str, Any]) -> None:
    """Add a token whose declared id differs from the library's."""
    definition["added_tokens"].append(_token("<|far|>", 900))


def _in_vocabulary(definition: dict[str, Any]) -> None:
    """Add a token that the model already has under another id."""
    definition["added_tokens"].append(_token("a", 700))


def _appended(definition: dict[str, Any]) -> None:
    """Add tokens after the model's ids."""
    following = len(definition["model"]["vocab"])
    definition["added_tokens"] += [_token("<|one|>", following), _token("<|two|>", following + 1)]


def _twice(definition: dict[str, Any]) -> None:
    following = len(definition["model"]["vocab"])
    definition["added_tokens"] += [_token("<|one|>", following), _token("<|one|>", following + 1)]


def _token(content: str, number: int) -> dict[str, Any]:
    return {
        "id": number,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


@pytest.mark.parametrize(
    "change", [lambda definition: None, _appended, _declared_elsewhere, _in_vocabulary, _twice], ids=range(5)
)
def test_ids_and_vocabulary_size_equal_the_librarys(tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    folder = train_tokenizer(tmp_path / "tokenizer", _TEXTS, size=262)
    definition = json.loads((folder / "tokenizer.json").read_bytes())
    change(definition)
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    bundle, library = TokenizerBundle.load(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
    vocabulary = library.get_vocab(with_added_tokens=True)
    assert bundle.vocab_size == max(len(vocabulary), max(vocabulary.values()) + 1)
    for content, number in vocabulary.items():
        assert bundle.find_token(content, key="separator").id == number
    with raises(TokenizerError, "<|absent|>", "separator"):
        bundle.find_token("<|absent|>", key="separator")


def test_tokenizers_of_equal_files_are_loaded_once_per_treatment_of_literals(tmp_path: Path) -> None:
    folder = train_tokenizer(tmp_path / "tokenizer", _TEXTS, size=262)
    one, other = TokenizerBundle.load(folder), TokenizerBundle.load(folder, name="other")
    assert load_reference_tokenizer(one, "text") is load_reference_tokenizer(other, "text")
    literal = SEPARATORS[0]
    text, match = ReferenceEngine(one, "text"), ReferenceEngine(one, "match")
    assert len(match.encode([literal])[0]) == 1
    assert len(text.encode([literal])[0]) > 1
    assert one.decode(match.encode([literal])[0]) == literal


def _merges(bundle: TokenizerBundle) -> list[Any]:
    merges: list[Any] = json.loads(bundle.tokenizer_json)["model"]["merges"]
    return merges


def test_an_invalid_configuration_is_refused_and_an_invalid_token_in_it_ignored(tmp_path: Path) -> None:
    folder = train_tokenizer(tmp_path / "tokenizer", _TEXTS, size=262)
    config = folder / "tokenizer_config.json"
    config.write_text("[]")
    with raises(TokenizerError, "tokenizer_config.json"):
        TokenizerBundle.load(folder)
    config.write_text('{"eos_token": ["x"], "pad_token": {"content": 5}, "unk_token": {"content": "u"}}')
    bundle = TokenizerBundle.load(folder)
    assert [bundle.find_configured(f"{name}_token") for name in ("eos", "pad", "unk", "bos")] == [None, None, "u", None]


def test_merges_are_passed_to_engines_as_texts_and_give_the_same_tokenizer(tmp_path: Path) -> None:
    folder = train_tokenizer(tmp_path / "tokenizer", _TEXTS, size=270)
    definition = json.loads((folder / "tokenizer.json").read_bytes())
    assert all(type(pair) is list for pair in definition["model"]["merges"])
    bundle = TokenizerBundle.load(folder)
    assert _merges(bundle) == [" ".join(pair) for pair in definition["model"]["merges"]]
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert Tokenizer.from_str(bundle.tokenizer_json).to_str() == library.to_str()


@pytest.mark.parametrize("merge", [["a b", "c"], ["#version", "1"], ["a", "b", "c"], ["a", 1]], ids=str)
def test_merges_that_text_form_would_change_are_kept(tmp_path: Path, merge: list[Any]) -> None:
    folder = train_tokenizer(tmp_path / "tokenizer", _TEXTS, size=262)
    definition = json.loads((folder / "tokenizer.json").read_bytes())
    definition["model"]["merges"].append(merge)
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    assert _merges(TokenizerBundle.load(folder)) == definition["model"]["merges"]


@pytest.mark.parametrize("kind", ["WordLevel", "WordPiece"])
def test_ids_of_words_equal_those_of_the_library_without_loading_it(tmp_path: Path, kind: str) -> None:
    model: dict[str, Any] = {"type": kind, "unk_token": "[UNK]", "vocab": {"a": 0, "[UNK]": 1, "b": 2}}
    if kind == "WordPiece":
        model |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": 3, "content": "<e>", "special": True, **flags},
        {"id": 1, "content": "[UNK]", "special": True, **flags},
    ]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": added, "model": model}))
    bundle, library = TokenizerBundle.load(tmp_path), Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert bundle.definition.ids == library.get_vocab(with_added_tokens=True)
    assert bundle.vocab_size == 4


def test_a_chat_token_name_ends_documents_if_it_is_the_only_special_token(tmp_path: Path) -> None:
    folder = train_tokenizer(tmp_path / "tokenizer", _TEXTS, size=262)
    definition = json.loads((folder / "tokenizer.json").read_bytes())
    following = max(definition["model"]["vocab"].values()) + 1
    definition["added_tokens"] = [_token("<|end|>", following)]
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    (folder / "tokenizer_config.json").unlink(missing_ok=True)
    bundle = TokenizerBundle.load(folder)
    with raises(TokenizerError, "`document.separator`", "<|end|>"):
        bundle.choose_separator("auto", "text")
    assert not bundle.ends_chat_turn("<|end|>")
    definition["added_tokens"].append(_token("<|user|>", following + 1))
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    assert TokenizerBundle.load(folder).ends_chat_turn("<|end|>")


def test_auto_never_selects_an_ordinary_word_as_the_separator(tmp_path: Path) -> None:
    folder = train_tokenizer(tmp_path / "tokenizer", _TEXTS, size=262)
    definition = json.loads((folder / "tokenizer.json").read_bytes())
    _appended(definition)
    following = len(definition["model"]["vocab"])
    definition["model"]["vocab"]["</s>"] = following + 2
    definition["added_tokens"].append(_token("<|im_end|>", following + 3))
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    with raises(TokenizerError, "<|im_end|>") as caught:
        TokenizerBundle.load(folder).choose_separator("auto", "text")
    assert "</s>" not in str(caught.value)
    definition["added_tokens"].append(_token("</s>", following + 2))
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    with raises(TokenizerError, "</s>"):
        TokenizerBundle.load(folder).choose_separator("auto", "text")


def _configured(folder: Path, decoder: Any) -> TokenizerBundle:
    """Return the tokenizer of a folder with one added token and this `added_tokens_decoder` in its configuration."""
    train_tokenizer(folder, _TEXTS, size=262)
    definition = json.loads((folder / "tokenizer.json").read_bytes())
    definition["added_tokens"] = [_token("<|one|>", len(definition["model"]["vocab"]))]
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": decoder}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return TokenizerBundle.load(folder)


@pytest.mark.parametrize(
    ("changes", "is_completed"),
    [
        ({}, False),
        ({0: {"content": "<|one|>"}}, False),
        ({0: {"content": "<|one|>", "lstrip": True}}, True),
        ({0: {"content": "<|one|>", "special": False}}, True),
        ({1: {"content": "<|two|>", "special": False}, 2: {"content": "cat"}}, True),
        # If tokenizer.json has the token, the configuration's id is ignored.
        ({5: {"content": "<|one|>"}}, False),
    ],
)
def test_added_tokens_of_the_configuration_equal_those_of_transformers(
    tmp_path: Path, changes: dict[int, dict[str, Any]], is_completed: bool
) -> None:
    first = _configured(tmp_path / "first", {}).vocab_size - 1
    decoder = {
        str(first + at): {key: value for key, value in (_token("", 0) | change).items() if key != "id"}
        for at, change in changes.items()
    }
    bundle = _configured(tmp_path / "tokenizer", decoder)
    texts = ["the <|one|> cat", "a<|two|> dog and a cat"]
    ids = [ReferenceEngine(bundle, "match").encode([text])[0].tolist() for text in texts]
    assert ids == encoded(bundle.directory, texts)
    assert bundle.vocab_size == tokenizer_facts(bundle.directory)["length"]
    assert bundle.definition.is_completed == is_completed
    flagged = {change["content"] for change in changes.values() if change.get("special", True)} | {"<|one|>"}
    flagged -= {change["content"] for change in changes.values() if not change.get("special", True)}
    assert {token.content for token in bundle.special_tokens} == flagged


def test_tokens_of_the_configuration_are_in_the_digest_if_they_change_the_tokenizer(tmp_path: Path) -> None:
    """Earlier ids may differ because these tokens were not read; equal files without such tokens keep their digest."""
    bundle = _configured(tmp_path / "tokenizer", {})
    size = bundle.vocab_size
    files = {name: sha256_file(bundle.directory / name) for name in ("tokenizer.json", "tokenizer_config.json")}
    assert bundle.digest == digest_value(list(files.items()))
    bundle = _configured(tmp_path / "more", {str(size): _token("<|two|>", size)})
    files = {name: sha256_file(bundle.directory / name) for name in files}
    assert bundle.digest != digest_value(list(files.items()))


@pytest.mark.parametrize("decoder", [{"900": {"content": "<|far|>"}}, {"x": {"content": "a"}}, {"1": "a"}, [1]])
def test_a_configuration_with_another_id_for_a_token_that_the_file_lacks_is_refused(
    tmp_path: Path, decoder: Any
) -> None:
    bundle = _configured(tmp_path / "tokenizer", decoder)
    with raises(TokenizerError, "tokenizer_config.json", "`added_tokens_decoder`"):
        _ = bundle.definition
