"""The fast engine and the reference with one interface: the choice between them, and its effect on keys."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from dataprep_assets.engine.artifact.recipe import RecipeInputs
from dataprep_assets.errors import TokenizerError
from dataprep_assets.integrity.receipt import find_installed_version
from dataprep_assets.pipelines.notes.notes_plan import build_notes_plan
from dataprep_assets.stream.declaration import TokenizerDeclaration
from dataprep_assets.stream.engine_certificate import CertificateFacts, certify_engine
from dataprep_assets.tokenization import engines
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import CertifiedEncoder
from dataprep_assets.tokenization.engines import (
    EncodedTexts,
    FastokensEngine,
    ReferenceEngine,
)
from dataprep_assets.tokenization.reference import VERSIONS, detect_tables, find_reference_tables
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.blend.sft import conversations
from dataprep_assets_tests.pipelines.corpus.shards import SEPARATOR, bundle, certificate, stream_plan
from dataprep_assets_tests.pipelines.notes.pipeline import declaration as notes_declaration
from dataprep_assets_tests.samples import SAMPLE
from dataprep_assets_tests.tokenization import candidate

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


def test_the_fast_engine_is_certified_and_encodes() -> None:
    earned = certify_engine(bundle(), declared(), "text", lambda: TEXTS)
    assert (earned.engine, earned.refused, earned.reason) == ("fastokens", (), None)
    versions = f"{earned.engine_version} with the ids of tokenizers {earned.reference_version}"
    assert CertificateFacts.from_certificate(earned).description == f"fastokens {versions}"


def test_newer_characters_that_the_engine_reads_differently_refuse_their_classes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encode = FastokensEngine.encode
    newest = {*VERSIONS[-1].sample}

    def wrong(engine: FastokensEngine, texts: list[str]) -> EncodedTexts:
        ids, offsets = encode(engine, texts)
        ids = ids.copy()
        ids[offsets[1:][[not newest.isdisjoint(text) for text in texts]].astype(np.int64) - 1] ^= 1
        return ids, offsets

    monkeypatch.setattr(FastokensEngine, "encode", wrong)
    earned = certify_engine(bundle(), declared(), "text", lambda: TEXTS)
    assert "other_script" in earned.refused
    assert "ascii" not in earned.refused
    assert not earned.engine_is_refused


def _absent(name: str) -> str | None:
    return None


def _refuse(loaded: TokenizerBundle, *_: object) -> None:
    raise TokenizerError(f"{loaded.directory}: this engine cannot load it: the model is no BPE")


def _ends(directory: Path, digest: str, engine: str) -> str | None:
    return "crashes its process" if engine == "fastokens" else None


@pytest.mark.parametrize(
    ("where", "name", "replaced", "reason"),
    [
        (engines, "find_installed_version", _absent, "fastokens is not installed. Run: pip install fastokens"),
        (FastokensEngine, "_load", staticmethod(_refuse), "this engine cannot load it: the model is no BPE"),
        (engines, "_find_refusal", _ends, "tokenizer.json: fastokens crashes its process"),
    ],
    ids=["absent", "no BPE", "crashes its process"],
)
def test_the_reference_replaces_an_unusable_engine_and_the_reason_names_no_local_path(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, replaced: object, reason: str
) -> None:
    monkeypatch.setattr(FastokensEngine, "_cache", {})
    monkeypatch.setattr(where, name, replaced)
    earned = certify_engine(bundle(), declared(), "text", lambda: TEXTS)
    assert earned.engine_is_refused
    assert earned.reason is not None
    assert earned.reason.startswith(reason)
    assert str(SAMPLE) not in earned.reason
    encoder = CertifiedEncoder(bundle(), "text", earned)
    assert np.array_equal(encoder.encode(TEXTS)[0], ReferenceEngine(bundle(), "text").encode(TEXTS)[0])
    assert encoder.reference_documents == len(TEXTS)


def test_the_reference_encodes_if_it_is_declared() -> None:
    told = CertificateFacts.from_certificate(
        certify_engine(bundle(), declared(engine="tokenizers"), "text", lambda: TEXTS)
    ).description
    assert told == f"tokenizers {find_installed_version('tokenizers')} (the declaration asks for the reference engine)"


@pytest.mark.parametrize("engine", ["auto", "gigatoken"])
def test_an_unknown_engine_is_refused_with_the_two_available_ones(engine: str) -> None:
    with raises(ValidationError, "fastokens", "tokenizers"):
        declared(engine=engine)


# --- keys


def test_the_engine_is_not_part_of_a_key_but_its_refused_classes_are() -> None:
    plan = stream_plan()
    other = replace(certificate(), engine="another", engine_version="1")
    assert replace(plan, certificate=other.to_json()).key_parts() == plan.key_parts()
    refused = replace(certificate(), refused=("ascii",))
    assert replace(plan, certificate=refused.to_json()).key_parts() == plan.key_parts() | {"refused": ["ascii"]}


def test_changed_tables_of_the_reference_are_part_of_the_key_and_reported() -> None:
    newer = replace(certificate(), reference_tables={"normalization": "Unicode 17.0", "letters": "Unicode 16.0"})
    plan, after = stream_plan(), replace(stream_plan(), certificate=newer.to_json())
    assert after.key_parts() == plan.key_parts() | {"reference": newer.reference_tables}
    before = RecipeInputs(settings={"reference": {"normalization": "Unicode 9.0", "letters": "Unicode 16.0"}})
    change = before.describe_change(RecipeInputs(settings={"reference": dict(newer.reference_tables)}))
    assert change is not None
    assert change.reason == (
        "reference.normalization was Unicode 9.0, now Unicode 17.0 (different ids for texts with combining marks "
        "and composed letters added between Unicode 9.0 and 17.0; all other ids are unchanged)"
    )


def test_changed_tables_are_also_part_of_the_key_of_chats_and_notes() -> None:
    newer = {"reference_tables": {"normalization": "Unicode 17.0", "letters": "Unicode 16.0"}}
    chat = conversations.plan()
    chats = replace(chat, certificate=chat.certificate | newer).key_parts()
    assert chats == chat.key_parts() | {"reference": newer["reference_tables"]}
    certificates = (certificate(), replace(certificate(), reference_tables=newer["reference_tables"]))
    before, after = (build_notes_plan(notes_declaration(), one).settings for one in certificates)
    assert after == before | {"reference": newer["reference_tables"]}


def test_only_tables_that_the_tokenizer_uses_count() -> None:
    known = detect_tables()
    split = {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "\\p{L}+"}}]}
    assert find_reference_tables({"type": "NFC"}, split) == known
    assert find_reference_tables(None, split) == {"letters": known["letters"]}
    assert find_reference_tables({"type": "Sequence", "normalizers": [{"type": "NFKC"}]}, None).keys() == {
        "normalization"
    }
    assert find_reference_tables({"type": "Replace"}, {"type": "Metaspace"}) == {}
    assert bundle().reference_tables == known


# --- the release candidate of tokenizers 1.0

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
print(json.dumps([reference.read_library_version(), reference.detect_tables(), bundle.vocab_size, bundle.decode(ids),
found])) """


@candidate.needed
def test_the_candidate_reference_gives_equal_ids_except_for_newer_characters() -> None:
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
