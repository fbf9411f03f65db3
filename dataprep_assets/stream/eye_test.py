"""The eye test: decoded windows of a token stream look like text.

Statistics of windows near the start and deep in: entropy, printable share, runs of one id.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.checks.finding import REBUILD, Finding, Row, judged, verdict
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.tokenization.bundle import TokenizerBundle

BLOCK = 1 << 20
"""Tokens processed at a time; a proof needs memory for a few arrays of this length only."""
WINDOW = 4096
"""Tokens of one window of the eye test."""
LONGEST_RUN = 512
"""Runs of this many equal ids are not text: the smallest hole of a file system is 1,024 uint32 ids."""


@judged
def eye_test(
    tokens_path: Path,
    ends_path: Path,
    dtype: str,
    bundle: TokenizerBundle,
    *,
    seed: int,
    windows: int = 6,
) -> Finding:
    """Windows of the stream, at its start and deep in, decode to text with the statistics of text.

    A wrong dtype or shifted bytes show as ids outside the vocabulary, one id at every other place, or the entropy of
    noise; a hole shows as a run of id 0, for which the whole file is searched. Real documents can be unprintable,
    monotonous or repetitive too (hex dumps, tables, indented code), so everything except an id outside the vocabulary
    is only a warning: digests and the round trip prove the bytes.
    """
    tokens, ends = flat_bins.open_tokens(tokens_path, dtype), document_ends.open_ends(ends_path)
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    foreign: list[str] = []
    odd: list[str] = []
    odd_windows = 0
    for offset in _offsets(len(tokens), windows, rng):
        window = tokens[offset : offset + WINDOW]
        row = _statistics(window, bundle, rng)
        document = int(np.searchsorted(ends, np.uint64(offset), side="right"))
        rows.append({"offset": offset, "document": document, **row})
        place = f"{tokens_path.name}: window at token offset {offset} (document {document})"
        foreign += [f"{place}: {why}" for why in _foreign(window, bundle.vocab_size)]
        unlikely = list(_unlikely(window, row))
        odd += [f"{place}: {why}" for why in unlikely]
        odd_windows += bool(unlikely)
    if hole := _hole(tokens):
        first, length = hole
        odd.append(f"{tokens_path.name}: {length} times id 0 in a row from token offset {first}, as in a hole")
    return verdict(
        foreign + odd,
        f"{len(rows)} windows of {len(tokens)} tokens decode to plausible text.",
        f"The bytes are not {dtype} ids of {bundle.name}, or are damaged: verify the digests. {REBUILD}"
        if foreign
        else "Look at these documents. Where files_intact and round_trip pass, the text is like that: say so with "
        "`accept: {eye_test: <why>}`",
        warning=not foreign,
        facts={
            "tokens": len(tokens),
            "windows": len(rows),
            "odd_windows": odd_windows,
            **{f"least_{k}": min((float(r[k]) for r in rows), default=0.0) for k in ("bits_per_token", "printable")},
            "most_bits_per_token": max((float(r["bits_per_token"]) for r in rows), default=0.0),
        },
        table=rows,
    )


def _offsets(tokens: int, windows: int, rng: np.random.Generator) -> list[int]:
    """Where windows start: at 0, at the very end, and one at random in each even part between them."""
    last = max(tokens - WINDOW, 0)
    if not tokens:
        return []
    between = [int(last * (i + rng.random()) / max(windows - 2, 1)) for i in range(max(windows - 2, 0))]
    # a set, because in a short stream several begin at the same place
    return sorted({0, *between, last} if windows > 1 else {0})


def _statistics(window: NDArray[Any], bundle: TokenizerBundle, rng: np.random.Generator) -> dict[str, Any]:
    """The numbers of one window, and the first of its text."""
    counts = np.unique(window, return_counts=True)[1]
    # the entropy of as many draws from the whole vocabulary: what noise of this length has
    noise = np.unique(rng.integers(0, bundle.vocab_size, len(window)), return_counts=True)[1]
    text = bundle.decode(window)
    return {
        "bits_per_token": round(_entropy(counts), 3),
        "noise_bits": round(_entropy(noise), 3),
        "printable": round(_printable(text), 4),
        "distinct": round(len(counts) / len(window), 4),
        "longest_run": _longest_run(window),
        "text": text.strip("\ufffd")[:200],
    }


def _foreign(window: NDArray[Any], vocab_size: int) -> Iterator[str]:
    """A sentence if a window has ids outside of the vocabulary."""
    if outside := int(np.count_nonzero(window >= vocab_size)):
        yield f"{outside} of {len(window)} ids are not below {vocab_size}"


def _unlikely(window: NDArray[Any], row: Mapping[str, Any]) -> Iterator[str]:
    """Why a window does not look like text; some real documents do not either."""
    # in a shorter window too few ids repeat to tell text from noise
    if len(window) >= WINDOW // 4 and row["bits_per_token"] > 0.97 * row["noise_bits"]:
        yield f"{row['bits_per_token']} bits per token: noise over the vocabulary has {row['noise_bits']}"
    if row["printable"] < 0.7:
        yield f"only {row['printable']:.0%} of the decoded characters are printable"
    if row["longest_run"] >= LONGEST_RUN:
        yield f"one id {row['longest_run']} times in a row"
    if len(window) >= WINDOW // 4:
        if row["bits_per_token"] < 3.0:
            yield f"{row['bits_per_token']} bits per token: text has 6 to 11"
        # of ids of 32 bits that are read as 16, every second one is a high half, mostly 0
        halves = (window[::2], window[1::2])
        low, high = sorted(np.unique(half, return_counts=True)[1].max() / len(half) for half in halves)
        if high > 0.7 and low < 0.5:
            yield f"{high:.0%} of every other id are the same one, as in ids of another width"


def _entropy(counts: NDArray[np.intp]) -> float:
    """Bits per item of an empirical distribution."""
    shares = counts / counts.sum()
    # + 0.0, because the sum is -0.0 if there is one id alone
    return float(-(shares * np.log2(shares)).sum()) + 0.0


def _printable(text: str) -> float:
    """Share of printable characters; 0 for no text.

    Replacement characters at the edges come from the window's own cuts.
    """
    counts = Counter(text.strip("\ufffd"))
    # control characters, unassigned and private ones, and surrogates do not count as printable
    good = sum(
        n
        for c, n in counts.items()
        if c in "\t\n\r" or (c != "\ufffd" and unicodedata.category(c) not in ("Cc", "Cn", "Co", "Cs"))
    )
    return good / counts.total() if counts else 0.0


def _longest_run(window: NDArray[Any]) -> int:
    changes = np.flatnonzero(window[1:] != window[:-1]) + 1
    return int(np.diff(np.concatenate(([0], changes, [len(window)]))).max())


def _hole(tokens: NDArray[Any]) -> tuple[int, int] | None:
    """Offset and length of the first run of at least `LONGEST_RUN` zeros; length is counted up to one block.

    Such a run covers two neighbours of any two tokens half its length apart, so only those are compared first.
    """
    stride = LONGEST_RUN // 2
    for start in range(0, len(tokens), BLOCK):
        # one more than those of the block, so that a pair across two blocks is seen
        sampled = tokens[start : start + BLOCK + stride : stride]
        for index in np.flatnonzero((sampled[1:] == 0) & (sampled[:-1] == 0)).tolist():
            inside = start + index * stride
            # two zeros may have nothing to do with each other: what lies between decides
            if tokens[inside : inside + stride].any():
                continue
            # far enough back: a run that began a stride earlier would have had an earlier pair
            low = max(inside - LONGEST_RUN, 0)
            around = np.flatnonzero(tokens[low : inside + BLOCK])
            before, after = around[around < inside - low], around[around >= inside - low]
            first = low + int(before[-1]) + 1 if len(before) else low
            stop = low + int(after[0]) if len(after) else min(inside + BLOCK, len(tokens))
            if stop - first >= LONGEST_RUN:
                return first, stop - first
    return None
