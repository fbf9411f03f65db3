"""Engines behind one interface: which one `auto` takes, and what of it enters a key."""

import json
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep_assets.errors import TokenizerError
from dataprep_assets.graph.recipe import Ingredients
from dataprep_assets.pipelines.notes.notes_plan import notes_plan
from dataprep_assets.stream.declaration import TokenizerDeclaration
from dataprep_assets.stream.engine_certificate import CertificateFacts, certified
from dataprep_assets.tokenization import engines
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import NEW_UNICODE, Certificate, CertifiedEncoder, decisive, disagreements
from dataprep_assets.tokenization.engines import (
    Encoded,
    FastokensEngine,
    GigatokenEngine,
    ReferenceEngine,
    SpecialTokens,
    fast_engine,
    installed,
)
from dataprep_assets.tokenization.reference import TABLES_BEFORE, installed_tables, reference_tables
from dataprep_assets.tokenization.unicode_versions import has_new_characters, with_new_characters
from dataprep_assets_tests.pipelines.blend.sft import conversations
from dataprep_assets_tests.pipelines.corpus.shards import SEPARATOR, bundle, certificate, stream_plan
from dataprep_assets_tests.pipelines.notes.pipeline import declaration as notes_declaration
from dataprep_assets_tests.samples import SAMPLE
from dataprep_assets_tests.tokenization import candidate

gigatoken = pytest.mark.skipif(installed("gigatoken") is None, reason="gigatoken is not installed (the extra)")
TEXTS = [
    "plain ascii",
    "",
    f"a literal {SEPARATOR} inside",
    "naïve 中文",
    "a mark \u0897\u0316 of Unicode 16",
    " ",
    "end",
]


def declared(**changes: Any) -> TokenizerDeclaration:
    return TokenizerDeclaration(path=SAMPLE / "tokenizer", **changes)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@gigatoken
@pytest.mark.parametrize("mode", ["text", "match"])
def test_gigatoken_is_refused_for_newer_characters_alone_and_the_ids_are_the_references(mode: SpecialTokens) -> None:
    earned = certified(bundle(), declared(engine="gigatoken"), mode, lambda: TEXTS[:4])
    assert (earned.engine, earned.refused, earned.refused_in_use) == ("gigatoken", (NEW_UNICODE,), ())
    assert earned.reason is not None
    assert f"of class {NEW_UNICODE}" in earned.reason
    encoder = CertifiedEncoder(bundle(), mode, earned)
    ids, offsets = encoder.encode(TEXTS)
    expected = ReferenceEngine(bundle(), mode).encode(TEXTS)
    assert np.array_equal(ids, expected[0])
    assert np.array_equal(offsets, expected[1])
    assert encoder.reference_documents == 1
    encoder.recheck(TEXTS[4] * 40_000, np.zeros(0, np.uint32), "row")  # of which a prefix is compared
    assert encoder.reference_documents == 1


@gigatoken
def test_of_all_marks_and_composed_letters_gigatoken_reads_only_newer_ones_in_another_way() -> None:
    points = [chr(point) for point in range(0x80, 0x1E950) if not 0xAC00 <= point <= 0xD7A3]
    marks = [one for one in points if unicodedata.combining(one)]
    texts = [f"{before}{one}{behind}" for one in marks for before, behind in (("a", "\u0334"), ("e\u0301", ""))]
    texts += [text for one in marks for text in (f"{one}\u05b0{one}\u0316", f"x {one}\u0301{one}")]
    texts += [f"x{unicodedata.normalize('NFD', one)}y" for one in points if unicodedata.decomposition(one)]
    found = disagreements(GigatokenEngine(bundle(), "text"), ReferenceEngine(bundle(), "text"), texts)
    assert len(found) > 100
    assert {*found} <= {*with_new_characters(texts)}


@gigatoken
def test_gigatoken_begins_anew_when_its_memory_has_grown_and_gives_the_same_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = GigatokenEngine(bundle(), "text")
    before, first = engine._kept[engine._key], engine.encode(TEXTS)
    monkeypatch.setattr(GigatokenEngine, "_MOST", -(1 << 62))
    again = engine.encode(TEXTS)
    assert engine._kept[engine._key][0] is not before[0]
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


def test_an_engine_that_is_not_installed_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with pytest.raises(
        TokenizerError, match=r"gigatoken is not installed\. Run: pip install 'dataprep-assets\[gigatoken"
    ):
        fast_engine("gigatoken", bundle(), "text")


def test_auto_takes_the_first_engine_that_gives_the_references_ids_and_says_why() -> None:
    earned = certified(bundle(), declared(), "text", lambda: TEXTS)
    assert (earned.engine, earned.refused) == ("fastokens", ())
    assert earned.chosen is not None
    assert "the first in order of speed that is installed and gives the reference's ids" in earned.chosen


def test_an_engine_that_newer_characters_alone_are_kept_from_is_the_first_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encode = FastokensEngine.encode

    def wrong(engine: FastokensEngine, texts: list[str]) -> Encoded:
        ids, offsets = encode(engine, texts)
        ends = offsets[1:][[any(has_new_characters(text) for text in texts[at : at + 1]) for at in range(len(texts))]]
        ids = ids.copy()
        ids[ends.astype(np.int64) - 1] ^= 1
        return ids, offsets

    monkeypatch.setattr(FastokensEngine, "encode", wrong)
    earned = certified(bundle(), declared(), "text", lambda: TEXTS)
    assert (earned.engine, earned.refused) == ("fastokens", (NEW_UNICODE,))
    assert earned.chosen is not None
    assert earned.chosen.endswith("gives the reference's ids, characters of newer Unicode aside")
    facts = CertificateFacts.told_by(earned)
    assert facts.told.startswith(f"fastokens {earned.engine_version} with the ids of tokenizers ")
    assert facts.told.endswith(f"; tokenizers {earned.reference_version} for documents of class {NEW_UNICODE}")


def test_what_no_fast_engine_loads_is_told_without_a_place_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(loaded: TokenizerBundle, *_: object) -> None:
        raise TokenizerError(f"{loaded.directory}: this engine cannot load it: the model is no BPE")

    for engine in (FastokensEngine, GigatokenEngine):
        monkeypatch.setattr(engine, "_load", staticmethod(refuse))
        monkeypatch.setattr(engine, "_kept", {})
    told = CertificateFacts.told_by(certified(bundle(), declared(), "text", lambda: TEXTS)).told
    assert told.startswith(f"tokenizers {installed('tokenizers')} (this engine cannot load it: the model is no BPE")
    assert str(SAMPLE) not in told
    asked = CertificateFacts.told_by(certified(bundle(), declared(engine="tokenizers"), "text", lambda: TEXTS)).told
    assert asked == f"tokenizers {installed('tokenizers')} (the declaration asks for the reference engine)"


@gigatoken
def test_auto_takes_the_next_engine_where_the_first_cannot_load_the_tokenizer_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise TokenizerError("fastokens cannot load it")

    monkeypatch.setattr(FastokensEngine, "_load", staticmethod(refuse))
    monkeypatch.setattr(FastokensEngine, "_kept", {})
    earned = certified(bundle(), declared(), "text", lambda: TEXTS[:3])
    assert (earned.engine, earned.refused) == ("gigatoken", (NEW_UNICODE,))
    assert earned.chosen is not None
    assert earned.chosen.endswith("fastokens cannot load it")


# Keys


def test_which_engine_encodes_and_what_it_is_not_trusted_with_in_newer_characters_is_no_part_of_a_key() -> None:
    plan = stream_plan()
    other = replace(certificate(), engine="gigatoken", engine_version="1", refused=(NEW_UNICODE,))
    assert replace(plan, certificate=other.to_json()).key_parts() == plan.key_parts()
    # receipts from before newer characters were a class, and tables were named
    old = {
        k: v for k, v in certificate().to_json().items() if k not in ("reference_tables", "refused_in_use", "chosen")
    }
    assert replace(plan, certificate=old).key_parts() == plan.key_parts()
    assert plan.key_parts()["refused"] == []
    six = ("long", "special_literal", "ascii", "unnormalized", "east_asian", "other_script")
    before = Certificate.from_json({**old, "refused": list(six)})
    assert before.engine_is_refused
    assert decisive(before.to_json())["refused"] == sorted(six)


@pytest.mark.parametrize(
    "change", [{"refused": ("ascii",)}, {"refused": (NEW_UNICODE,), "refused_in_use": (NEW_UNICODE,)}]
)
def test_what_an_engine_was_wrong_about_in_use_is_a_part_of_the_key(change: dict[str, Any]) -> None:
    plan, refused = stream_plan(), replace(certificate(), **change)
    assert replace(plan, certificate=refused.to_json()).key_parts() != plan.key_parts()


def test_the_references_tables_are_a_part_of_the_key_once_they_are_others_and_are_told() -> None:
    newer = replace(certificate(), reference_tables={"normalization": "Unicode 17.0", "letters": "Unicode 16.0"})
    plan, after = stream_plan(), replace(stream_plan(), certificate=newer.to_json())
    assert after.key_parts() == plan.key_parts() | {"reference": newer.reference_tables}
    unnamed, named = Ingredients(settings={"dtype": "uint16"}), Ingredients(settings={"reference": TABLES_BEFORE})
    assert [one.name for one in unnamed.changes(named)] == ["dtype"]
    now = Ingredients(settings={"dtype": "uint16", "reference": dict(newer.reference_tables)})
    change = unnamed.change(now)
    assert change is not None
    assert change.reason == (
        "reference.normalization was Unicode 9.0, is Unicode 17.0 now (other ids for texts with combining marks and "
        "composed letters that Unicode 17.0 has and 9.0 has not, for no others)"
    )


def test_the_references_tables_are_a_part_of_the_key_of_chats_and_notes_too() -> None:
    newer = {"reference_tables": {"normalization": "Unicode 17.0", "letters": "Unicode 16.0"}}
    chat = conversations.plan()
    chats = replace(chat, certificate=chat.certificate | newer).key_parts()
    assert chats == chat.key_parts() | {"reference": newer["reference_tables"]}
    certificates = (certificate(), replace(certificate(), reference_tables=newer["reference_tables"]))
    before, after = (notes_plan(notes_declaration(), one).key_parts()["stream"] for one in certificates)
    assert after == before | {"reference": newer["reference_tables"]}


def test_tables_are_those_that_the_tokenizer_uses() -> None:
    known = installed_tables()
    split = {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "\\p{L}+"}}]}
    assert reference_tables({"type": "NFC"}, split) == known
    assert reference_tables(None, split) == {"letters": known["letters"]}
    assert reference_tables({"type": "Sequence", "normalizers": [{"type": "NFKC"}]}, None).keys() == {"normalization"}
    assert reference_tables({"type": "Replace"}, {"type": "Metaspace"}) == {}
    assert bundle().reference_tables == known


# The candidate of tokenizers 1.0

_ENCODES = """
import json, sys
from pathlib import Path
from dataprep_assets.tokenization import reference
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.engines import ReferenceEngine
bundle = TokenizerBundle.load(Path(sys.argv[1]))
texts = json.loads(sys.argv[2])
found = [[part.tolist() for part in ReferenceEngine(bundle, mode).encode(texts)] for mode in ("text", "match")]
ids = found[0][0]
print(json.dumps([reference.version(), reference.installed_tables(), bundle.vocab_size, bundle.decode(ids), found]))
"""


@candidate.needed
def test_the_candidate_of_the_next_reference_gives_the_same_ids_but_for_newer_characters() -> None:
    texts = [text for at, text in enumerate(TEXTS) if at != 4]
    said = json.loads(candidate.run(_ENCODES, str(SAMPLE / "tokenizer"), json.dumps(texts)))
    version, tables, vocab_size, decoded, found = said
    assert version.startswith("1.")
    assert (tables["normalization"], tables["letters"]) == ("Unicode 17.0", "Unicode 17.0")
    assert vocab_size == bundle().vocab_size
    assert decoded == "".join(texts)
    for mode, (ids, offsets) in zip(("text", "match"), found, strict=True):
        expected = ReferenceEngine(bundle(), mode).encode(texts)
        assert (ids, offsets) == (expected[0].tolist(), expected[1].tolist())
    marked = json.loads(candidate.run(_ENCODES, str(SAMPLE / "tokenizer"), json.dumps(TEXTS[4:5])))
    assert marked[-1][0][0] != ReferenceEngine(bundle(), "text").encode(TEXTS[4:5])[0].tolist()
