"""The kept set depends only on the documents and their priority, is verified exactly, and takes linear time for many
duplicates.
"""

import random
import time
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from dataprep_assets.curation.duplicates import candidates, kept_set
from dataprep_assets.curation.duplicates.banding import choose_banding
from dataprep_assets.curation.duplicates.kept_set import ComparedPairs, count_overlap
from dataprep_assets.curation.duplicates.kinds import Normalization
from dataprep_assets.curation.duplicates.planted import NOTICES
from dataprep_assets.curation.duplicates.signatures import SignatureSettings, SignatureWriter, SignedShard, Signer
from dataprep_assets.curation.duplicates.words import split_compared_words, split_words
from dataprep_assets.errors import FormatError
from dataprep_assets_tests.curation.signed import (
    EXACT,
    NEAR,
    VOCABULARY,
    draw_page,
    edit_words,
    find_kept_set,
    kept_texts,
    replace_one,
    write_signatures,
)
from dataprep_assets_tests.messages import raises

pytest.importorskip("rensa", reason="the extra `duplicates`")


def corpus(seed: int, originals: int = 40) -> list[str]:
    """Return texts of which many are near-duplicates by chains of edits, and some are equal except for case and
    punctuation.
    """
    draw = random.Random(seed)
    texts = []
    for _ in range(originals):
        words = draw_page(draw)
        texts.append(" ".join(words))
        for _ in range(draw.randrange(4)):
            words = edit_words(words, draw, draw.choice([0.0, 0.01, 0.02, 0.05]))
            texts.append(" ".join(words))
        if draw.random() < 0.3:
            texts.append(texts[-1].upper().replace(" W", ",  w") + "!")
    return texts


def deal(texts: list[str], shards: int, seed: int) -> list[list[str]]:
    """Return the texts in a different order, in this number of shards."""
    shuffled = random.Random(seed).sample(texts, len(texts))
    return [shuffled[number::shards] for number in range(shards)]


def keep_by_hand(texts: list[str], key: dict[str, tuple[object, ...]]) -> list[str]:
    """Return the texts that remain after comparing each with every kept one."""
    sets = {
        text: frozenset(zip(*(split_compared_words(text, "words")[at:] for at in range(5)), strict=False))
        for text in texts
    }
    kept: list[str] = []
    for text in sorted(texts, key=lambda one: key[one]):
        if all(len(sets[text] & sets[o]) < 0.8 * len(sets[text] | sets[o]) for o in kept):
            kept.append(text)
    return sorted(kept)


def test_the_kept_set_is_equal_for_any_order_and_number_of_shards(tmp_path: Path) -> None:
    for seed in range(6):
        texts = corpus(seed)
        kept = {
            tuple(kept_texts(shards, find_kept_set(tmp_path / f"{seed}-{n}", shards)[0]))
            for n, shards in enumerate(deal(texts, count, count + seed) for count in (1, 2, 3, 7))
        }
        assert len(kept) == 1
        assert 40 <= len(kept.pop()) < len(texts)


def test_the_kept_set_equals_comparing_all_pairs_except_pairs_without_a_shared_band(tmp_path: Path) -> None:
    missed = total = 0
    for seed in range(6):
        texts = sorted(set(corpus(100 + seed)))
        (tmp_path / f"{seed}").mkdir()
        found, documents = find_kept_set(tmp_path / f"{seed}/s", [texts])
        nodes = np.arange(len(texts))
        digests = documents.get_digests(nodes)
        key: dict[str, tuple[object, ...]] = {
            text: (int(digests[at, 1]), int(digests[at, 0]), int(digests[at, 2])) for at, text in enumerate(texts)
        }
        wanted, kept = keep_by_hand(texts, key), kept_texts([texts], found)
        total += len(texts)
        missed += len(set(wanted) ^ set(kept))
    assert missed <= 0.02 * total


def test_every_removed_document_has_a_kept_one_with_the_reported_similarity(tmp_path: Path) -> None:
    texts = corpus(7)
    found, documents = find_kept_set(tmp_path / "s", deal(texts, 3, 1))
    removed = set(found.removed.tolist())
    assert removed
    for node, stands, similar in zip(
        found.removed.tolist(), found.representatives.tolist(), found.similarities.tolist(), strict=True
    ):
        assert stands not in removed
        shards, begins, ends = documents.locate_shingles(np.array([node, stands]))
        sets = [
            documents.shards[shard].shingles[begin:end]
            for shard, begin, end in zip(shards.tolist(), begins.tolist(), ends.tolist(), strict=True)
        ]
        shared, either = count_overlap(*sets)
        assert similar == shared / either >= 0.8


def test_the_decisions_are_equal_in_ranges_and_parts_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = deal(corpus(9), 3, 1)
    whole, _ = find_kept_set(tmp_path / "whole", shards)
    monkeypatch.setattr(candidates, "DOCUMENTS_PER_RANGE", 7)
    monkeypatch.setattr(kept_set, "PAIRS_PER_PART", 5)
    parts, _ = find_kept_set(tmp_path / "parts", shards)
    assert len(whole.compared.pairs) > 5
    for name in ("removed", "representatives", "similarities"):
        assert np.array_equal(getattr(whole, name), getattr(parts, name))
    assert np.array_equal(whole.compared.pairs, parts.compared.pairs)


def test_repeated_hashes_are_found_next_to_hashes_that_differ_only_in_their_lowest_bit() -> None:
    hashes = np.array([8, 1 << 63, 9, 8, 9, (1 << 63) + 1, 8, 5], np.uint64)
    assert candidates.find_repeated_hashes(hashes).tolist() == [0, 3, 6, 2, 4]
    assert candidates.find_repeated_hashes(hashes[:0]).tolist() == []
    assert candidates.find_repeated_hashes(hashes[:1]).tolist() == []


def test_compared_pairs_are_sorted_and_each_is_kept_once() -> None:
    rows = [[1, 2, 3, 4], [1, 2, 2, 5], [7, 8, 1, 1], [1, 2, 3, 4], [7, 8, 1, 1]]
    pairs = ComparedPairs.from_pairs(np.array(rows, np.uint64))
    again = ComparedPairs.from_pairs(np.array(rows[::-1], np.uint64))
    assert np.array_equal(pairs.pairs, again.pairs)
    assert sorted(pairs.pairs.tolist()) == [[1, 2, 2, 5], [1, 2, 3, 4], [7, 8, 1, 1]]
    assert pairs.find_positions(np.array([8], np.uint64), np.array([7], np.uint64)) >= 0


def test_the_older_document_stays_unless_a_column_decides(tmp_path: Path) -> None:
    draw = random.Random(3)
    words = [draw_page(draw) for _ in range(30)]
    old, new = [" ".join(one) for one in words], [" ".join(replace_one(one, draw)) for one in words]
    found, _ = find_kept_set(tmp_path / "old", [old, new], ages=[0, 1])
    assert found.removed.tolist() == list(range(30, 60))
    found, _ = find_kept_set(tmp_path / "new", [old, new], ages=[1, 0])
    assert found.removed.tolist() == list(range(30))
    # A document with an unknown value has the lowest priority.
    values = [[float("nan")] * 30, [-float(at) for at in range(30)]]
    found, _ = find_kept_set(tmp_path / "column", [old, new], values=values)
    assert found.removed.tolist() == list(range(30))


def test_documents_of_other_splits_are_removed_or_block_or_stay(tmp_path: Path) -> None:
    draw = random.Random(4)
    words = [draw_page(draw) for _ in range(10)]
    train, held = [" ".join(one) for one in words], [" ".join(words[0]), " ".join(replace_one(words[1], draw))]
    found, _ = find_kept_set(tmp_path / "drop", [train, held], splits=[0, 1], across="drop")
    assert found.removed.tolist() == [0, 1]
    assert not len(found.across)
    found, _ = find_kept_set(tmp_path / "block", [train, held], splits=[0, 1], across="block")
    assert not len(found.removed)
    assert found.across.tolist() == [[0, 10], [1, 11]]
    assert found.across_similarities[0] == 1 > found.across_similarities[1] >= 0.8
    found, _ = find_kept_set(tmp_path / "ignore", [train, held], splits=[0, 1], across="ignore")
    assert not len(found.removed) + len(found.across)


@pytest.mark.parametrize("across", ["drop", "block", "ignore"])
def test_documents_of_other_datasets_stay_and_remove_duplicates_in_every_split(tmp_path: Path, across: str) -> None:
    """More documents share a band than are compared with each other: equal ones, and versions of one another."""
    draw = random.Random(3)
    original, other = draw_page(draw), draw_page(draw)
    theirs = [original, replace_one(original, draw), other, other]
    ours = [replace_one(original, draw) for _ in range(80)]
    shards = [[" ".join(words) for words in some] for some in ([other, *ours[:40]], [*ours[40:], other], theirs)]
    found, documents = find_kept_set(
        tmp_path, shards, splits=[0, 1, 2], ages=[0, 0, 9], theirs=[False, False, True], across=across
    )
    first = int(documents.first[2])
    assert found.removed.tolist() == list(range(first))
    assert (found.representatives >= first).all()
    assert found.across.tolist() == []
    assert sorted(found.similarities.tolist())[-2:] == [1, 1]
    # The comparisons depend only on the documents, so the same documents stay if the documents are distributed to the
    # shards in a different way.
    dealt = [shards[0][::2], shards[0][1::2], shards[1], shards[2][::-1]]
    again, _ = find_kept_set(
        tmp_path / "dealt", dealt, splits=[0, 0, 1, 2], theirs=[False, False, False, True], across=across
    )
    assert kept_texts(dealt, again) == kept_texts(shards, found) == sorted(shards[2])


@pytest.mark.parametrize("notice", range(len(NOTICES)))
def test_a_text_and_its_translations_are_distinct_and_all_stay(tmp_path: Path, notice: int) -> None:
    """They have only names and numbers in common."""
    texts = NOTICES[notice]
    assert len(set(texts)) == 8
    found, _ = find_kept_set(tmp_path, [texts[:3], texts[3:], [texts[0]]])
    assert found.removed.tolist() == [len(texts)]  # the copy is removed, and the translations stay
    hashes, ends = Signer(NEAR).compute_shingles(texts)
    sets = np.split(hashes, ends[:-1])
    shared = [count_overlap(one, other) for one, other in combinations(sets, 2)]
    assert max(both / either for both, either in shared) < 0.5
    assert sum(both > 0 for both, _ in shared) >= len(shared) * 3 // 4


def test_earlier_comparisons_are_reused_without_changing_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = deal(corpus(11), 2, 1)
    before, _ = find_kept_set(tmp_path / "before", shards)
    assert len(before.compared.pairs)
    monkeypatch.setattr(
        "dataprep_assets.curation.duplicates.kept_set.count_overlap", lambda *_: pytest.fail("compared")
    )
    again, _ = find_kept_set(tmp_path / "again", shards, known=before.compared)
    for name in ("removed", "representatives", "similarities"):
        assert np.array_equal(getattr(before, name), getattr(again, name))
    assert np.array_equal(before.compared.pairs, again.compared.pairs)
    assert (ComparedPairs().find_positions(np.array([1], np.uint64), np.array([2], np.uint64)) == [-1]).all()


@pytest.mark.parametrize(
    ("normalization", "groups"),
    [
        ("words", [{0, 1, 2, 3, 4, 5}, {6, 7}, {9, 11}, {12, 13}, {14, 15}]),
        ("space", [{0, 1, 2, 3}, {9, 11}, {12, 13}]),
        ("none", [{0, 1}, {9, 11}, {12, 13}]),
    ],
)
def test_exact_duplicates_compare_equal_and_blank_texts_are_counted(
    tmp_path: Path, normalization: Normalization, groups: list[set[int]]
) -> None:
    texts = [
        *("The sea, calm.\n", "The sea, calm.\r\n", "The sea, calm.", "The  sea, calm.", "the sea, calm."),
        *("THE SEA , CALM .", "don\u2019t", "DON'T", "the sea calm", "☂", "☀", "☂", "caf\u00e9", "cafe\u0301"),
        *("\u4e2d\u6587", "\u4e2d \u6587", "", " \n", "\u3000"),
    ]
    settings = replace(EXACT, normalization=normalization)
    found, documents = find_kept_set(tmp_path / "s", [texts], settings=settings)
    kept = np.setdiff1d(np.arange(len(texts)), found.removed)
    assert len(found.removed) == sum(len(one) - 1 for one in groups)
    assert all(len(one.intersection(kept.tolist())) == 1 for one in groups)
    assert set(found.similarities.tolist()) == {1.0}
    assert documents.compared_count == len(texts) - 3
    with SignatureWriter(tmp_path, settings) as writer:
        writer.add(len(texts) + 1, range(len(texts)), texts)
    assert (writer.rows, writer.documents, writer.blank) == (len(texts) + 1, len(texts) - 3, 3)


@pytest.mark.parametrize("settings", [NEAR, EXACT], ids=["near", "exact"])
def test_texts_that_differ_only_in_signs_all_stay(tmp_path: Path, settings: SignatureSettings) -> None:
    texts = [
        *(f"def f(a, b):\n    return a {sign} b" for sign in ("+", "-", "*", "/", "%", "//", "**", "<", "<=", "==")),
        *("f(a,b)", "f(a.b)", "f[a,b]", "if (ok) return x;", "if (!ok) return x;", "p.x = 1", "p->x = 1", "#a", "@a"),
        *(
            "-5",
            "5",
            "+5",
            "5%",
            "$5",
            "3.14",
            "3,14",
            "314",
            "10\u00b2",
            "102",
            "1, 2; 3: 4!",
            "1 2 3 4",
            "!",
            "!!",
            "?",
        ),
        *(
            "\u222b f(x) dx = F(b) - F(a)",
            "\u222b f(x) dx = F(b) + F(a)",
            "a \u2264 b",
            "a \u2265 b",
            "\u4f60\u597d\uff01",
            "\u4f60\u597d\uff1f",
        ),
    ]
    found, _ = find_kept_set(tmp_path, [texts], settings=settings)
    assert [texts[at] for at in found.removed.tolist()] == []


@pytest.mark.parametrize("threshold", [0.55, 0.56, 0.57, 0.58, 0.7, 0.8])
def test_a_pair_exactly_at_the_threshold_is_removed(tmp_path: Path, threshold: float) -> None:
    """In floating point, 0.55 * 100 is more than 55."""
    draw, most = random.Random(8), 100
    words = [f"w{number}" for number in range(most + 4)]
    settings = replace(NEAR, banding=choose_banding(threshold, 128))
    # The longer text has 100 shingles, and the shorter text has exactly the threshold's share of them.
    texts = [" ".join(words), " ".join(words[: round(threshold * most) + 4])]
    for seed in range(5):
        draw.shuffle(words)
        texts += [" ".join(words), " ".join(words[: round(threshold * most) + 4])]
        found, _ = find_kept_set(tmp_path / f"{seed}", [texts[-2:]], settings=settings, threshold=threshold)
        if len(found.removed):
            assert found.similarities.tolist() == [threshold]
            return
    pytest.fail("no band of five pairs is shared")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("\u201cgo\u201d \u2013 don\u2019t", '"go" - don\'t', True),
        ("Cafe\u0301 au lait", "café AU lait", True),
        ("ﬁle", "file", True),
        ("soft\u00adhyphen", "softhyphen", True),
        ("straße", "STRASSE", True),
        ("कि", "का", False),
        ("東京都", "東 京 都", True),
        ("12", "１２", True),
        ("a_b", "a b", True),
    ],
)
def test_words_are_compared_as_a_reader_sees_them(one: str, other: str, same: bool) -> None:
    assert (split_words(one) == split_words(other)) is same


def test_signatures_give_the_same_estimates_as_datasketch() -> None:
    datasketch = pytest.importorskip("datasketch", reason="the reference for comparison with rensa")
    draw, signer, ours, theirs = random.Random(5), Signer(NEAR), [], []
    for number in range(60):
        words = draw_page(draw, 200)
        pair = [words, edit_words(words, draw, 0.002 * (number % 30))]
        hashes, ends = signer.compute_shingles([" ".join(one) for one in pair])
        sets = [hashes[: ends[0]], hashes[ends[0] :]]
        shared, either = count_overlap(*sets)
        bands = signer.compute_bands(hashes, ends)
        ours.append((bool((bands[0] == bands[1]).any()), float(NEAR.banding.match_probability(shared / either))))
        made = [datasketch.MinHash(num_perm=128, hashfunc=lambda data: hash(data) & 0xFFFFFFFF) for _ in sets]
        for one, values in zip(made, sets, strict=True):
            one.update_batch([int(value) for value in values])
        rows = NEAR.banding.rows
        theirs.append(any(
            (made[0].hashvalues[at : at + rows] == made[1].hashvalues[at : at + rows]).all()
            for at in range(0, NEAR.banding.bands * rows, rows)
        ))  # fmt: skip
    found, promised = sum(one for one, _ in ours), sum(chance for _, chance in ours)
    assert abs(found - promised) < 8
    assert abs(found - sum(theirs)) < 10


def test_bands_find_at_least_the_promised_share_at_the_threshold() -> None:
    assert (choose_banding(0.8, 128).bands, choose_banding(0.8, 128).rows) == (18, 7)
    for threshold in (0.5, 0.7, 0.8, 0.9, 0.95):
        assert float(choose_banding(threshold, 128).match_probability(threshold)) >= 0.95


def test_copies_and_form_letters_need_no_quadratic_number_of_comparisons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(9)
    words = draw_page(draw, 60)
    # Any two of these texts have more than half of their shingles in common.
    forms = [" ".join([*words, *draw_page(draw, 22)]) for _ in range(2000)]
    copies = [" ".join(words)] * 2000
    counted = []
    real = candidates.find_pairs
    monkeypatch.setattr(
        "dataprep_assets.curation.duplicates.kept_set.find_pairs",
        lambda *given: counted.append(real(*given)) or counted[-1],
    )
    sizes = []
    for count in (500, 2000):
        started = time.monotonic()
        found, _ = find_kept_set(tmp_path / f"{count}", [forms[:count], copies[:count]])
        assert len(found.removed) == count - 1
        sizes.append(len(counted[-1]))
        assert time.monotonic() - started < 60
    # With quadratic growth, four times as many documents would need sixteen times as many comparisons.
    assert 0 < sizes[1] < 6 * sizes[0], sizes
    assert sizes[1] < 2000 * 400, sizes


def test_of_many_versions_of_one_page_only_one_stays(tmp_path: Path) -> None:
    draw = random.Random(10)
    words = draw_page(draw, 300)
    texts = []
    for at in range(2000):
        changed = list(words)
        changed[at % 300] = VOCABULARY[at]
        texts.append(" ".join(changed))
    found, _ = find_kept_set(tmp_path / "s", deal(texts, 3, 1))
    assert len(texts) - len(found.removed) <= 2
    assert len(found.compared.pairs) < 10 * len(texts)


def test_a_truncated_file_is_reported(tmp_path: Path) -> None:
    shard = write_signatures(tmp_path / "s", ["a b c d e f", "g h i j k l"])
    path = tmp_path / "s" / "key_hashes.bin"
    path.write_bytes(path.read_bytes()[:-8])
    with raises(FormatError, path, "`signatures`"):
        _ = SignedShard(shard.directory, shard.rows, shard.documents, shard.bands).keys
