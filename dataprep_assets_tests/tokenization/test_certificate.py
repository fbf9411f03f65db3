"""A fast engine that is wrong for some text is refused for it, and the reference encodes that text."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zstandard
from numpy.typing import NDArray

from dataprep_assets.errors import CertificateError, TokenizerError
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import (
    CLASSES,
    LONG_DOCUMENT,
    Certificate,
    CertifiedEncoder,
    certify,
    classify_document,
    find_disagreements,
    generate_adversarial_documents,
    refuse_engine,
)
from dataprep_assets.tokenization.engines import (
    EncodedTexts,
    Engine,
    FastokensEngine,
    ReferenceEngine,
    SpecialTokens,
)
from dataprep_assets_tests.messages import assert_names, raises
from dataprep_assets_tests.pipelines.corpus.shards import SEPARATOR, bundle, certificate
from dataprep_assets_tests.sources.json_lines import read

Ids = NDArray[np.uint32]
Patch = Callable[[str, Ids], Ids]


class PatchedEngine(FastokensEngine):
    """The real engine with one fault: `patch` changes the ids of each document."""

    def __init__(self, patch: Patch, mode: SpecialTokens = "text") -> None:
        super().__init__(bundle(), mode)
        self._patch = patch

    def encode(self, texts: Sequence[str]) -> EncodedTexts:
        ids, offsets = super().encode(texts)
        parts = [
            self._patch(text, ids[int(a) : int(b)]) for text, a, b in zip(texts, offsets, offsets[1:], strict=False)
        ]
        bounds = np.zeros(len(parts) + 1, np.uint64)
        np.cumsum([len(part) for part in parts], out=bounds[1:])
        return np.concatenate([*parts, np.zeros(0, np.uint32)]).astype(np.uint32), bounds


def drops_the_first_token(text: str, ids: Ids) -> Ids:
    return ids[1:]


def adds_a_bos(text: str, ids: Ids) -> Ids:
    return np.insert(ids, 0, 1)


def make_difference(character: str) -> Patch:
    """Return a fault at a single code point, which changes the document's last id."""
    return lambda text, ids: np.append(ids[:-1], ids[-1] ^ 1) if character in text else ids


def raises_on(character: str) -> Patch:
    def patch(text: str, ids: Ids) -> Ids:
        if character in text:
            raise RuntimeError(f"cannot encode {text}")
        return ids

    return patch


@pytest.mark.parametrize("patch", [drops_the_first_token, adds_a_bos])
@pytest.mark.parametrize("mode", ["text", "match"])
def test_an_engine_that_drops_or_adds_a_first_token_is_refused_for_the_tokenizer(
    patch: Patch, mode: SpecialTokens
) -> None:
    found = certify(bundle(), mode, PatchedEngine(patch, mode), ["plain corpus text"])
    assert found.engine_is_refused
    assert found.refused == CLASSES
    assert found.reason is not None
    assert_names(found.reason, "ASCII")


CODE_POINTS = {
    "中": "east_asian",
    "\U0002070e": "east_asian",
    "ж": "other_script",
    "ſ": "other_script",
    "\u0345": "unnormalized",
}


@pytest.mark.parametrize(
    ("fault", "character", "kind"),
    [
        *((make_difference, c, k) for c, k in CODE_POINTS.items()),
        *((raises_on, c, CODE_POINTS[c]) for c in ("中", "ſ")),
    ],
)
def test_an_engine_that_is_wrong_on_one_code_point_is_refused_for_its_class(
    fault: Callable[[str], Patch], character: str, kind: str
) -> None:
    found = certify(bundle(), "text", PatchedEngine(fault(character)), [])
    assert kind in found.refused
    assert not found.engine_is_refused
    assert "ascii" not in found.refused
    assert found.reason is not None
    assert f"of class {kind}" in found.reason
    assert character not in found.reason


def test_a_fault_that_only_the_corpus_contains_is_found_in_the_corpus() -> None:
    engine = PatchedEngine(make_difference("⟁"))
    assert certify(bundle(), "text", engine, ["nothing of it"]).refused == ()
    found = certify(bundle(), "text", engine, ["a ⟁ b", "ascii"])
    assert found.refused == ("other_script",)
    assert found.compared["corpus:other_script"] == 1


def test_one_wrong_ascii_document_refuses_the_engine() -> None:
    assert certify(bundle(), "text", PatchedEngine(make_difference("~")), ["a ~ b"]).engine_is_refused


def test_the_adversarial_set_exceeds_the_lengths_at_which_engines_change_algorithms() -> None:
    texts = list(generate_adversarial_documents())
    assert max(map(len, texts)) > LONG_DOCUMENT
    repeated = {text[0]: text for text in texts if len(text) > 1 << 16 and len(set(text)) == 1}
    assert repeated.keys() == {"a", " ", "\n", "中"}
    assert min(len(repeated["a"]), len(repeated[" "]), len(repeated["中"].encode())) > 1 << 18
    mixed = [text for text in texts if len(text) == 40_000]
    assert len(mixed) == 4
    for text in mixed:
        assert len(set(text)) > 200
        assert text[:2_000] != text[2_000:4_000]


@pytest.mark.parametrize("mode", ["text", "match"])
def test_the_real_engine_gets_a_certificate_with_the_compared_counts(mode: SpecialTokens) -> None:
    found = certificate(mode)
    assert (found.refused, found.reason, found.special_tokens) == ((), None, mode)
    assert found.tokenizer_digest == bundle().digest
    assert {f"adversarial:{kind}" for kind in CLASSES if kind != "long"} <= found.compared.keys()
    assert Certificate.from_json(found.to_json()) == found


def test_an_engine_certified_for_text_cannot_be_used_for_match() -> None:
    texts = [f"a{SEPARATOR}b"]
    assert find_disagreements(FastokensEngine(bundle(), "text"), ReferenceEngine(bundle(), "match"), texts) == [0]


# --- changes that make a certificate invalid

CHANGES = {
    "tokenizer": {"tokenizer_digest": "0" * 64},
    "special-token mode": {"special_tokens": "match"},
    "version of fastokens": {"engine_version": "0.0.1"},
    "version of tokenizers": {"reference_version": "0.0.1"},
    "Unicode tables of tokenizers": {"reference_tables": {"normalization": "Unicode 1.1"}},
    "Unicode version": {"unicode_version": "1.1.0"},
}


@pytest.mark.parametrize(("what", "change"), CHANGES.items())
def test_a_change_of_any_input_invalidates_it(what: str, change: dict[str, str]) -> None:
    with raises(CertificateError, what):
        CertifiedEncoder(bundle(), "text", replace(certificate(), **change))


def test_an_upgraded_engine_invalidates_it() -> None:
    class Upgraded(FastokensEngine):
        def __init__(self, folder: TokenizerBundle, mode: SpecialTokens) -> None:
            super().__init__(folder, mode)
            self.version = "99.0"

    def load(folder: TokenizerBundle, mode: SpecialTokens) -> Engine:
        return Upgraded(folder, mode)

    with raises(CertificateError, "fastokens", "99.0"):
        CertifiedEncoder(bundle(), "text", certificate(), load)


def test_if_the_engine_cannot_load_the_tokenizer_the_reference_encodes_everything(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(
        '{"version": "1.0", "added_tokens": [{"id": 2, "content": "<e>", "special": true, "single_word": false,'
        ' "lstrip": false, "rstrip": false, "normalized": false}], "pre_tokenizer": {"type": "Whitespace"},'
        ' "model": {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}}'
    )
    words = TokenizerBundle.load(tmp_path)
    with raises(TokenizerError, "fastokens"):
        FastokensEngine(words, "text")
    encoder = CertifiedEncoder(words, "text", refuse_engine(words, "text", "fastokens", "it cannot load it"))
    ids, offsets = encoder.encode(["a b", "a"])
    assert (ids.tolist(), offsets.tolist(), encoder.reference_documents) == ([0, 1, 0], [0, 2, 3], 2)


# --- text that the encoder routes to the reference

MIXED = [
    "plain ascii",
    "",
    "中文 text",
    f"a literal {SEPARATOR} inside",
    "e\u0301 unnormalized",
    "кириллица",
    "ascii again",
    "日本語",
    "x" * 1_000_000,
    "한국어",
    " ",
    "naïve",
]


@pytest.mark.parametrize(
    "refused",
    [(), ("east_asian",), ("special_literal", "other_script"), CLASSES[:-1], CLASSES],
    ids=str,
)
def test_the_reference_encodes_refused_classes_with_its_own_ids(refused: tuple[str, ...]) -> None:
    literals = bundle().special_literals
    assert {classify_document(text, literals) for text in MIXED} == set(CLASSES)
    wrong = PatchedEngine(lambda text, ids: ids + 1 if classify_document(text, literals) in refused else ids)
    encoder = CertifiedEncoder(bundle(), "text", replace(certificate(), refused=refused), lambda *_: wrong)
    expected = ReferenceEngine(bundle(), "text").encode(MIXED)
    ids, offsets = encoder.encode(MIXED)
    assert np.array_equal(ids, expected[0])
    assert np.array_equal(offsets, expected[1])
    assert encoder.reference_documents == sum(classify_document(text, literals) in refused for text in MIXED)


def test_batches_of_only_refused_documents_and_empty_batches_are_encoded() -> None:
    encoder = CertifiedEncoder(bundle(), "text", replace(certificate(), refused=("east_asian",)))
    assert encoder.encode(["中", "文"])[1].size == 3
    assert encoder.encode([])[1].tolist() == [0]


# --- checks that the encoder repeats

SECRET = "Ms Example lives at 7 Elm Street"


@pytest.mark.parametrize("tail", ["", "x" * 200_000], ids=["short", "longer than is compared"])
def test_a_recheck_that_disagrees_reports_position_and_remedy_but_no_text(tail: str) -> None:
    wrong = PatchedEngine(drops_the_first_token)
    encoder = CertifiedEncoder(bundle(), "text", certificate(), lambda *_: wrong)
    text = f"{SECRET} {tail}"
    with raises(CertificateError, "train/f.jsonl", 3, "ascii", "refuse: [ascii]") as caught:
        encoder.recheck(text, encoder.encode([text])[0], "train/f.jsonl: row 3")
    assert not any(word in str(caught.value) for word in SECRET.split() if len(word) > 2)


def test_a_recheck_that_agrees_is_counted() -> None:
    encoder = CertifiedEncoder(bundle(), "text", certificate())
    for text in ("a", SECRET, "x" * 200_000):
        encoder.recheck(text, encoder.encode([text])[0], "row")
    assert encoder.sampled_documents == 3


# --- real tokenizers on the shared adversarial documents


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("name", ["qwen3", "llama3"])
def test_difficult_documents_get_the_references_ids_from_the_certified_encoder(shared: Path, name: str) -> None:
    folder = TokenizerBundle.load(shared / "tokenizers" / name)
    raw = zstandard.ZstdDecompressor().decompressobj().decompress((shared / "data/corpus/nasty.jsonl.zst").read_bytes())
    block = read(shared / "data/corpus/nasty.jsonl.zst")
    assert (len(block.texts), block.bad) == (raw.count(b"\n"), [])
    # Use only every fourth of the shorter documents, because the reference is slow.
    texts = [t for at, t in enumerate(block.texts) if len(t) < 100_000 and at % 4 == 0]
    reference, engine = ReferenceEngine(folder, "text"), FastokensEngine(folder, "text")
    earned = certify(folder, "text", engine, texts[::5], reference=reference)
    assert earned.refused == ()
    encoder = CertifiedEncoder(folder, "text", earned)
    expected, actual = reference.encode(texts), encoder.encode(texts)
    assert np.array_equal(actual[1], expected[1])
    assert np.array_equal(actual[0], expected[0])
    long = [t[:50_000] for t in block.texts if len(t) >= 100_000]
    assert np.array_equal(encoder.encode(long)[0], reference.encode(long)[0])
