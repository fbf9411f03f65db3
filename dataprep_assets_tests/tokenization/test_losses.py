"""Losses of a tokenizer are counted: unknown tokens, and characters without any token."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, normalizers

from dataprep_assets.integrity.receipt import Ledger, Receipt
from dataprep_assets.stream.stream_losses import losses_within_limit
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.engines import ReferenceEngine, SpecialTokens
from dataprep_assets.tokenization.losses import Losses
from dataprep_assets_tests.tokenization.families import FAMILIES, save


def _losses(bundle: TokenizerBundle, texts: list[str]) -> tuple[int, int]:
    losses = Losses(bundle, "text")
    losses.count(texts, ReferenceEngine(bundle, "text").encode(texts)[0])
    return losses.counts["unknown_tokens"], losses.counts["dropped_characters"]


@pytest.mark.parametrize("family", FAMILIES)
def test_known_text_has_no_losses(tmp_path: Path, family: str) -> None:
    assert _losses(TokenizerBundle.load(save(tmp_path, family)), ["the quick brown fox", "quick  fox"]) == (0, 0)


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("unigram", (2, 0)),
        ("unigram_bytes", (0, 0)),
        ("wordlevel", (3, 0)),
        ("bytes", (0, 0)),
        ("bytes_ignore_merges", (0, 0)),
        ("characters", (2, 0)),
        # The normalizer of this family removes control characters.
        ("wordpiece_blanks", (2, 2)),
    ],
)
def test_losses_are_counted_by_kind(tmp_path: Path, family: str, expected: tuple[int, int]) -> None:
    texts = ["the ☃ fox", "☂", "fox\x01fox \x02"] if family == "wordpiece_blanks" else ["the ☃ fox", "☂"]
    texts += ["qwertz fox"] if family == "wordlevel" else []
    assert _losses(TokenizerBundle.load(save(tmp_path, family)), texts) == expected


def test_characters_that_a_model_drops_are_counted(tmp_path: Path) -> None:
    value = json.loads((save(tmp_path, "characters") / "tokenizer.json").read_bytes())
    value["model"]["unk_token"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(value))
    assert _losses(TokenizerBundle.load(tmp_path), ["the ☃☃ fox ☃", "quick"]) == (0, 3)


@pytest.mark.parametrize(
    ("normalizer", "text", "expected"),
    [
        (None, "The Ｆox é", (0, 0)),
        (normalizers.NFC(), "e\u0301 \uf900 é", (0, 0)),
        (normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), "the fox", (0, 0)),
        (normalizers.Strip(), "  the \n fox ", (0, 3)),
        (normalizers.Strip(left=False), "  the fox ", (0, 1)),
        (normalizers.Replace(Regex(" {2,}"), " "), "the   fox\n  and\n\nthe fox ", (0, 3)),
        (normalizers.Replace(Regex(r"\s+"), " "), "the   fox\n  and\n\nthe\tfox ", (0, 8)),
        (normalizers.Replace("\r\n", "\n"), "the\r\nfox\r", (0, 2)),
        (normalizers.Replace("\t", " "), "the\tfox  fox", (0, 1)),
        (normalizers.Replace(" ", ""), "the fox\n", (0, 1)),
        (normalizers.NFC(), "the\u2000fox \u00a0 \u3000", (0, 0)),
        (normalizers.NFKC(), "the\u2003fox \u00a0\u3000 ", (0, 3)),
        (normalizers.BertNormalizer(lowercase=False), "the\n\tfox  ", (0, 2)),
        (normalizers.Lowercase(), "The FOX is\u00a0Ä", (0, 5)),
        (normalizers.NFKC(), "① ﬁne Ａ e\u0301", (0, 3)),
        (normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]), "naïve e\u0301", (1, 1)),
        (normalizers.Replace(Regex("[„“]"), '"'), "„the“ fox", (0, 2)),
        (normalizers.Replace("``", '"'), "``the'' fox", (0, 2)),
        (normalizers.Replace("#", ""), "# the #fox", (2, 0)),
        (normalizers.Sequence([normalizers.Lowercase(), normalizers.ByteLevel()]), "The É fox", (0, 2)),
    ],
)
def test_characters_that_a_normalizer_changes_are_counted(
    tmp_path: Path, normalizer: normalizers.Normalizer | None, text: str, expected: tuple[int, int]
) -> None:
    value = json.loads((save(tmp_path, "bytes") / "tokenizer.json").read_bytes())
    tokenizer = Tokenizer.from_str(json.dumps(value | {"normalizer": None}))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    bundle = TokenizerBundle.load(tmp_path)
    losses = Losses(bundle, "text")
    for _ in range(2):
        losses.count([text, "the"], ReferenceEngine(bundle, "text").encode([text, "the"])[0])
    counted = losses.counts["dropped_characters"], losses.counts["changed_characters"]
    assert counted == (2 * expected[0], 2 * expected[1])
    assert losses.counts["unknown_tokens"] == 0


@pytest.mark.parametrize(("special", "expected"), [("text", 3), ("match", 5)])
def test_white_space_absorbed_by_an_added_token_is_counted(
    tmp_path: Path, special: SpecialTokens, expected: int
) -> None:
    value = json.loads((save(tmp_path, "bytes") / "tokenizer.json").read_bytes())
    tokenizer = Tokenizer.from_str(json.dumps(value))
    tokenizer.add_tokens([AddedToken("[name]", rstrip=True), AddedToken("[both]", lstrip=True, rstrip=True)])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    bundle = TokenizerBundle.load(tmp_path)
    losses, text = Losses(bundle, special), "the [name]\nfox [both] the  <mask> fox"
    losses.count([text, "the fox"], ReferenceEngine(bundle, special).encode([text, "the fox"])[0])
    assert losses.counts["dropped_characters"] == expected


def _receipt(**counts: int) -> Receipt:
    ledger = Ledger(rows_in=3, documents=3, tokens=1_000, text_characters=5_000, **counts)
    lines = tuple({"file": f"{name}.jsonl", "unknown_tokens": n} for name, n in (("few", 3), ("none", 0), ("most", 8)))
    return Receipt(
        dataset="set",
        artifact="token_bins",
        partition="train-00000",
        key="0" * 64,
        inputs={},
        files=(),
        ledger=ledger,
        sources=lines,
    )


def test_losses_above_the_limit_are_a_warning_that_names_the_worst_files() -> None:
    found = losses_within_limit(_receipt(unknown_tokens=11), 0.01)
    assert (found.passed, found.warning) == (False, True)
    assert "most.jsonl, few.jsonl" in found.summary
    assert "none.jsonl" not in found.summary
    assert found.facts["unknown_tokens"] == 11
    assert not losses_within_limit(_receipt(dropped_characters=51), 0.01).passed
    assert losses_within_limit(_receipt(unknown_tokens=10, dropped_characters=50), 0.01).passed
    assert losses_within_limit(_receipt(unknown_tokens=11), 0.02).passed
