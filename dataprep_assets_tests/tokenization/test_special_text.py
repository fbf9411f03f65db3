"""No text becomes the id of a special token, whatever the tokenizer's model."""

import json
import random
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from dataprep_assets.errors import TokenizerError
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import find_disagreements
from dataprep_assets.tokenization.engines import FastokensEngine, ReferenceEngine
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.tokenization.families import FAMILIES, LITERALS, TEXTS, save
from dataprep_assets_tests.tools.bench.invented_text import train_tokenizer

_FULL_WIDTH = str.maketrans("<>/|[]", "＜＞／｜［］")


def _planted(seed: int, count: int = 200) -> list[str]:
    """Return random texts that contain special tokens: bare, in words, doubled, in other cases and other widths."""
    generator = random.Random(seed)
    words = " ".join(TEXTS[:3]).split(" ")
    texts = [*LITERALS, "".join(LITERALS), *(one.translate(_FULL_WIDTH) for one in LITERALS)]
    for _ in range(count):
        parts = []
        for _ in range(generator.randrange(1, 30)):
            literal = generator.choice(LITERALS)
            forms = (literal, literal * 2, literal.upper(), literal.translate(_FULL_WIDTH), literal[1:], literal[:-1])
            parts.append(generator.choice([*forms, *generator.sample(words, 4), " ", "\n", "x", "▁", ""]))
        texts.append(generator.choice(("", " ")).join(parts))
    # The last two texts are above the size at which an engine splits a document to match its parts in parallel.
    return [*texts, "ab</s>" * 5_000 + "</s>", "[SEP]" * 10_000]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_text_becomes_a_special_token(tmp_path: Path, family: str) -> None:
    bundle = TokenizerBundle.load(save(tmp_path, family))
    special = {token.id: token.content for token in bundle.special_tokens}
    assert {*LITERALS} <= {*special.values()}
    # Unknown text gets the id of the unknown token, and no other special id.
    banned = [number for number, content in special.items() if content != "<unk>"]
    reference, texts = ReferenceEngine(bundle, "text"), _planted(0)
    ids = reference.encode(texts)[0]
    assert [special[number] for number in np.unique(ids[np.isin(ids, banned)]).tolist()] == []
    matched = ReferenceEngine(bundle, "match").encode(texts)[0]
    assert np.isin(matched, banned).any()
    # Decoding still gives the original name of each renamed entry.
    library = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    decoded = [library.decode([number], skip_special_tokens=False) for number in banned]
    assert [bundle.decode([number]) for number in banned] == decoded


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_without_a_special_token_have_the_librarys_ids(tmp_path: Path, family: str) -> None:
    bundle = TokenizerBundle.load(save(tmp_path, family))
    library = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    library.encode_special_tokens = True
    texts = ["the quick fox <think> x", "Größe ☃ 敏捷的\u200b", "", "  a  b", "a/b < 1 > 0 ☃☃ </b>"]
    ids, offsets = ReferenceEngine(bundle, "text").encode(texts)
    found = [ids[int(a) : int(b)].tolist() for a, b in pairwise(offsets)]
    assert found == [library.encode(text, add_special_tokens=False).ids for text in texts]


@pytest.mark.parametrize("family", [name for name in FAMILIES if name.startswith("bytes")])
def test_the_fast_engine_agrees_on_texts_with_special_tokens(tmp_path: Path, family: str) -> None:
    bundle = TokenizerBundle.load(save(tmp_path, family))
    engine, texts = FastokensEngine(bundle, "text"), _planted(1)
    special = [token.id for token in bundle.special_tokens]
    assert not np.isin(engine.encode(texts)[0], special).any()
    assert len(find_disagreements(engine, ReferenceEngine(bundle, "text"), texts)) == 0


def test_the_name_of_a_byte_token_in_a_text_is_not_that_byte(tmp_path: Path) -> None:
    bundle = TokenizerBundle.load(save(tmp_path, "unigram_bytes"))
    reference = ReferenceEngine(bundle, "text")
    named = bundle.find_token("<0x0A>", key="separator").id
    assert named not in reference.encode(["a line <0x0A> of a table <0x0A>"])[0]
    # The bytes of characters without their own token are still found.
    assert bundle.find_token("<0xE2>", key="separator").id in reference.encode(["☃"])[0]


def test_a_tokenizer_whose_special_token_is_a_single_character_is_refused_by_name(tmp_path: Path) -> None:
    folder = train_tokenizer(tmp_path / "tokenizer", TEXTS, size=300)
    value = json.loads((folder / "tokenizer.json").read_bytes())
    number = value["model"]["vocab"]["!"]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    value["added_tokens"].append({"id": number, "content": "!", "special": True, **flags})
    (folder / "tokenizer.json").write_text(json.dumps(value))
    bundle = TokenizerBundle.load(folder)
    with raises(TokenizerError, "tokenizer.json", "'!'", "special_tokens: match"):
        ReferenceEngine(bundle, "text")
    assert ReferenceEngine(bundle, "match").encode(["!"])[0].tolist() == [number]


def test_a_separator_that_text_can_encode_to_is_refused(tmp_path: Path) -> None:
    bundle = TokenizerBundle.load(save(tmp_path, "unigram"))
    # These are an entry of the vocabulary, an added token that is not special, and the token for unknown text.
    for content, reading in (("a", "text"), ("<think>", "text"), ("<unk>", "text"), ("<unk>", "match")):
        for find in (bundle.choose_separator, bundle.choose_bos):
            with raises(
                TokenizerError, f"document.{'separator' if find == bundle.choose_separator else 'bos'}", f"'{content}'"
            ):
                find(content, reading)
    assert bundle.choose_separator("a", "match").content == "a"
    assert bundle.choose_separator("auto", "text").content == "</s>"
    # No merge creates `[SEP]`, so no text can get its id.
    folder = save(tmp_path / "bytes", "bytes")
    value = json.loads((folder / "tokenizer.json").read_bytes())
    value["added_tokens"] = [one for one in value["added_tokens"] if one["content"] != "[SEP]"]
    (folder / "tokenizer.json").write_text(json.dumps(value))
    assert TokenizerBundle.load(folder).choose_separator("[SEP]", "text").content == "[SEP]"


@pytest.mark.parametrize("name", ["qwen3", "llama3"])
def test_a_tokenizer_that_needs_no_change_is_unchanged(shared: Path, name: str) -> None:
    definition = TokenizerBundle.load(shared / "tokenizers" / name).definition
    assert definition.as_text is definition.text
    assert (definition.unknown_id, definition.may_drop, definition.refusal) == (None, False, None)
