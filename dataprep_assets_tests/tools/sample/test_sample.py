"""The committed sample equals its generator's output, and it has the properties that other tests rely on."""

import json
from collections import Counter
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import zstandard
from tokenizers import Tokenizer

from dataprep_assets_tests.readers.transformers import encoded, tokenizer_facts
from dataprep_assets_tests.tools.sample.make_sample import (
    END_OF_TEXT,
    ESCAPED,
    HOLDOUT_FILES,
    MAX_CHARS,
    NASTY,
    PAD,
    TRAIN_FILES,
    VOCAB_SIZE,
    sample_files,
    tokenizer_files,
    write_sample,
)

COMMITTED = Path(str(files("dataprep_assets"))) / "defs" / "samples" / "sample_corpus"
COUNTS = {**TRAIN_FILES, **HOLDOUT_FILES}


def decompressed(path: Path) -> bytes:
    return zstandard.ZstdDecompressor().decompress(path.read_bytes())


def texts(name: str) -> list[str]:
    return [json.loads(line)["text"] for line in decompressed(COMMITTED / name).split(b"\n")[:-1]]


@pytest.fixture(scope="module")
def generated() -> dict[str, bytes]:
    return sample_files()


@pytest.fixture(scope="module")
def all_texts() -> list[str]:
    return [text for name in COUNTS for text in texts(name)]


def test_the_committed_files_are_exactly_the_generated_ones(tmp_path: Path) -> None:
    write_sample(tmp_path)
    written = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    committed = {
        path.relative_to(COMMITTED)
        for folder in ("data", "tokenizer")
        for path in (COMMITTED / folder).rglob("*")
        if path.is_file()
    }
    assert committed == written


@pytest.mark.parametrize("name", COUNTS)
def test_regenerating_gives_the_committed_rows(generated: dict[str, bytes], name: str) -> None:
    assert decompressed(COMMITTED / name) == generated[name]


def test_regenerating_gives_the_committed_tokenizer(generated: dict[str, bytes]) -> None:
    for name, content in tokenizer_files(generated).items():
        assert (COMMITTED / name).read_text(encoding="utf-8") == content, name


@pytest.mark.parametrize("name", COUNTS)
def test_every_file_is_one_frame_with_its_size_and_a_checksum(name: str) -> None:
    packed = (COMMITTED / name).read_bytes()
    frame = zstandard.get_frame_parameters(packed)
    assert frame.has_checksum
    assert frame.content_size == len(decompressed(COMMITTED / name))
    reader = zstandard.ZstdDecompressor().decompressobj()
    reader.decompress(packed)
    assert reader.eof
    assert reader.unused_data == b""


def test_the_tree_stays_under_a_megabyte() -> None:
    assert sum((COMMITTED / name).stat().st_size for name in COUNTS) < 1_000_000


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_every_file_has_its_rows_and_each_difficult_document_once(name: str, count: int) -> None:
    found = texts(name)
    assert len(found) == count
    assert max(map(len, found)) <= MAX_CHARS
    for label, nasty in NASTY.items():
        kept = [text for text in found if (text.startswith(nasty) if nasty.strip() else text == nasty)]
        assert len(kept) == 1, label


def test_no_text_except_blank_ones_occurs_twice(all_texts: list[str]) -> None:
    repeated = {text for text, count in Counter(all_texts).items() if count > 1}
    assert not {text for text in repeated if text.strip()}


def test_only_the_escaped_file_is_ascii() -> None:
    assert [name for name in COUNTS if decompressed(COMMITTED / name).isascii()] == [ESCAPED]


def test_the_special_tokens_are_the_last_ids() -> None:
    tokenizer = Tokenizer.from_file(str(COMMITTED / "tokenizer/tokenizer.json"))
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    assert tokenizer.token_to_id(END_OF_TEXT) == VOCAB_SIZE - 2
    assert tokenizer.token_to_id(PAD) == VOCAB_SIZE - 1


def test_transformers_loads_the_bundle_and_agrees(all_texts: list[str]) -> None:
    facts = tokenizer_facts(COMMITTED / "tokenizer")
    assert facts == {"length": VOCAB_SIZE, "eos_token": END_OF_TEXT, "pad_token": PAD}
    reference = Tokenizer.from_file(str(COMMITTED / "tokenizer/tokenizer.json"))
    assert encoded(COMMITTED / "tokenizer", all_texts) == [
        encoding.ids for encoding in reference.encode_batch(all_texts)
    ]


@pytest.mark.parametrize("split_special_tokens", [False, True])
def test_fastokens_agrees_on_every_document(all_texts: list[str], split_special_tokens: bool) -> None:
    fastokens = pytest.importorskip("fastokens")
    path = str(COMMITTED / "tokenizer/tokenizer.json")
    reference = Tokenizer.from_file(path)
    reference.encode_special_tokens = split_special_tokens
    expected = [encoding.ids for encoding in reference.encode_batch(all_texts, add_special_tokens=False)]
    packed_ids, packed_offsets = fastokens.Tokenizer.from_file(path).encode_batch_flat(
        all_texts, False, split_special_tokens=split_special_tokens
    )
    ids, offsets = np.frombuffer(packed_ids, np.uint32), np.frombuffer(packed_offsets, np.uint64).tolist()
    found = [ids[start:end].tolist() for start, end in pairwise(offsets)]
    assert found == expected


def test_the_license_names_both_licenses() -> None:
    license = (COMMITTED / "LICENSE.md").read_text(encoding="utf-8")
    assert "CC0-1.0" in license
    assert "Apache-2.0" in license
