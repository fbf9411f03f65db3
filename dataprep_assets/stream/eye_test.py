"""Checks that read a token stream as a trainer does, and the eye test, which decodes windows of the stream.

The eye test computes entropy, printable share and runs of one id, for windows at the start and further in.
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.checks.check import REBUILD, Finding, Row, build_verdict, fail_on_errors
from dataprep_assets.errors import count_of
from dataprep_assets.formats import document_ends, flat_bins
from dataprep_assets.table import format_share
from dataprep_assets.tokenization.bundle import TokenizerBundle

_REBUILD = "Rebuild `combined_bins` of this split"


def alignment(
    tokens_path: Path,
    dtype: str,
    ends: NDArray[np.uint64],
    *,
    separator_id: int,
    vocab_size: int,
    seed: int,
    bos_id: int | None = None,
    literal_separators: int = 0,
    windows: int = 64,
    block: int = 1024,
) -> Finding:
    """Check that inputs and labels, read as a trainer reads them, are one token apart and on the token grid.

    `x[1:] == y[:-1]` on two slices of one array is true for any file. Here x and y are two reads of the file, at byte
    offsets computed from counts, and both are compared with the memory map. The grid is checked as well: the file must
    have as many tokens as the document ends require, and each window must have separators exactly at the document
    ends. So the check fails if a file is shifted by a few bytes, has lost a token, or is opened with the wrong dtype.
    If the text has literal separators, or BOS has the same id, separators are required only at the ends. Windows are
    placed at the first, the last and randomly drawn document ends.
    """
    width = flat_bins.token_dtype(dtype).itemsize
    name, size = tokens_path.name, tokens_path.stat().st_size
    count = int(ends[-1]) if len(ends) else 0
    if size != count * width:
        return build_verdict(
            [
                f"{name}: has {count_of(size, 'byte')}, but its {count_of(len(ends), 'document')} of {dtype} tokens "
                f"need {count * width:,}"
            ],
            "",
            f"The dtype is wrong, or tokens are missing. {_REBUILD}",
            facts={"bytes": size, "tokens": count},
        )
    tokens = flat_bins.open_tokens(tokens_path, dtype)
    rng = np.random.default_rng(seed)
    documents = {0, len(ends) - 1, *rng.integers(0, len(ends), max(windows - 2, 0)).tolist()} if count > 1 else set()
    defects: list[str] = []
    boundaries = 0
    # The last token of the stream is a label but never an input, so a window has at most `count - 1` inputs.
    length = min(block, count - 1)
    exact = not literal_separators and bos_id != separator_id
    for document in sorted(documents):
        # Choose a random start, so that the document's end is at a random position in the window.
        start = int(np.clip(int(ends[document]) - 1 - int(rng.integers(0, max(length, 1))), 0, count - 1 - length))
        x = np.fromfile(tokens_path, flat_bins.token_dtype(dtype), length, offset=start * width)
        y = np.fromfile(tokens_path, flat_bins.token_dtype(dtype), length, offset=(start + 1) * width)
        # Use the dtype of `ends` for the keys, because NumPy would otherwise convert the whole memory-mapped file.
        first_document, last_document = np.searchsorted(
            ends, np.array([start + 1, start + length + 1], np.uint64), side="left"
        ).tolist()
        inside_ends = np.asarray(ends[first_document : last_document + 1]).astype(np.int64) - 1
        inside_ends = inside_ends[(inside_ends >= start) & (inside_ends <= start + length)]
        boundaries += len(inside_ends)
        mapped_window = tokens[start : start + length + 1]
        wrong = _find_alignment_defects(x, y, mapped_window, inside_ends - start, separator_id, vocab_size, exact=exact)
        defects += [f"{name}: window at token offset {start} (document {document}): {w}" for w in wrong]
    return build_verdict(
        defects,
        f"{count_of(len(documents), 'window is', 'windows are')} aligned: labels are shifted by one token, "
        f"and {count_of(boundaries, 'document ends', 'documents end')} with a separator.",
        f"The file is shifted, truncated or has a different dtype. Verify its digest. {_REBUILD}",
        facts={"windows": len(documents), "boundaries": boundaries, "tokens": count},
    )


def _find_alignment_defects(
    x: NDArray[Any],
    y: NDArray[Any],
    mapped: NDArray[Any],
    ends: NDArray[np.int64],
    separator: int,
    vocab_size: int,
    *,
    exact: bool,
) -> Iterator[str]:
    """Yield the defects of one window; `ends` are the positions of its documents' last tokens in the window."""
    if not np.array_equal(x, mapped[:-1]) or not np.array_equal(y, mapped[1:]):
        yield "two reads of the file differ, because a process writes to it or the disk is failing"
    if not np.array_equal(x[1:], y[:-1]):
        yield "labels are not the inputs shifted by one token"
    # Join the window's first token, which is not a label, and the labels, to check every token of the window.
    ids = np.concatenate((x[:1], y))
    if len(positions := np.flatnonzero(ids >= vocab_size)):
        yield (
            f"id {int(ids[positions[0]])} at window position {int(positions[0])} is outside the vocabulary (0 to "
            f"{vocab_size - 1})"
        )
    if len(positions := ends[ids[ends] != separator]):
        yield (
            f"a document ends at window position {int(positions[0])}, where id {int(ids[positions[0]])} is "
            "not the separator"
        )
    if exact:
        extra = np.setdiff1d(np.flatnonzero(ids == separator), ends)
        if len(extra):
            yield f"there is a separator at window position {int(extra[0])}, where no document ends"


_FEWEST_BLOCKS = 8


def random_batches_load(
    tokens_path: Path,
    dtype: str,
    vocab_size: int,
    *,
    seed: int,
    source_at: Callable[[int], str],
    batches: int = 32,
    batch_size: int = 8,
    block: int = 256,
) -> Finding:
    """Check that random batches can be drawn and learned from: a unigram model must beat a uniform one on them.

    Blocks are drawn without replacement, as by a shuffling DataLoader, so the model was not fitted on any held-out
    block. Training starts from a uniform model's loss, ln(vocabulary). The unigram model has additive smoothing of 0.1
    per token. Losses are in nats per token.

    If ids are noise, the unigram model is no better than the uniform one. This is an error, or a warning if the model
    was fitted on fewer than eight blocks. A split without tokens is an error, and a split too short for two batches is
    a warning. Blocks of only one id are an error if they are the majority, otherwise a warning, because documents of
    one repeated token exist. `source_at` returns the source file and row of a token offset.
    """
    tokens = flat_bins.open_tokens(tokens_path, dtype)
    rng = np.random.default_rng(seed)
    uniform = math.log(vocab_size)
    # Exclude the last token, because it is a label but never an input.
    blocks = max(len(tokens) - 1, 0) // block
    batch_size = min(batch_size, max(blocks // 2, 1))
    batches = min(batches, blocks // batch_size)
    if batches < 2:
        short = (
            f"{count_of(len(tokens), 'token is', 'tokens are')} too few for two batches with one block of "
            f"{count_of(block, 'token')} each"
        )
        remedy = "Add text to the split, or train with a shorter block"
        if not len(tokens):
            short = "no tokens: every row of the split was dropped, or its files are empty"
            remedy = "See the ledgers of its shards. Add text to the split, or remove the split from `splits`"
        return build_verdict(
            [f"{tokens_path.name}: {short}"], "", remedy, facts={"tokens": len(tokens)}, warning=bool(len(tokens))
        )
    starts = (rng.choice(blocks, (batches, batch_size), replace=False) * block).tolist()
    counts = np.zeros(vocab_size, np.int64)
    losses: list[float] = []
    defects: list[str] = []
    constant: list[str] = []
    for number, offsets in enumerate(starts):
        x = np.stack([tokens[o : o + block] for o in offsets])
        y = np.stack([tokens[o + 1 : o + 1 + block] for o in offsets])
        for row in np.flatnonzero(x.min(axis=1) == x.max(axis=1)).tolist():
            batch = f"{tokens_path.name}: batch {number}"
            source = source_at(offsets[row])
            constant.append(
                f"{batch}: all {count_of(block, 'token')} from token offset {offsets[row]} are id {x[row, 0]}: {source}"
            )
        # Skip a batch with an id outside the vocabulary, because `counts` has no entry for the id.
        wrong_positions = np.argwhere(y >= vocab_size).tolist()
        if wrong_positions:
            row, column = wrong_positions[0]
            defects.append(
                f"{tokens_path.name}: batch {number}: id {y[row, column]} at token offset "
                f"{offsets[row] + 1 + column} is outside the vocabulary (0 to {vocab_size - 1})"
            )
        # Fit the model on the first half of the batches and evaluate it on the second half, which it has not seen.
        elif number < batches // 2:
            counts += np.bincount(y.ravel().astype(np.int64), minlength=vocab_size)
        else:
            shares = (counts + 0.1) / (counts.sum() + 0.1 * vocab_size)
            losses.append(float(-np.log(shares[y.ravel()]).mean()))
    unigram = float(np.mean(losses)) if losses else math.inf
    weak: list[str] = []
    if not defects and not unigram < uniform:
        # With few blocks, only warn, because the model may be fitted and evaluated on blocks in different languages.
        (defects if batches // 2 * batch_size >= _FEWEST_BLOCKS else weak).append(
            f"{tokens_path.name}: on held-out batches, a unigram model has a loss of {unigram:.3f}, and a uniform "
            f"model has {uniform:.3f}, so the ids have no more structure than noise"
        )
    warning = not defects and 2 * len(constant) <= batches * batch_size
    return build_verdict(
        defects + weak + constant,
        f"The initial training loss is {uniform:.3f}; token frequencies reduce it to {unigram:.3f}.",
        "Possible causes are a wrong dtype and damaged bytes. If files_intact and round_trip pass, the text itself "
        "is repetitive. Drop such documents with a filter rule",
        facts={
            # Use a string, because Dagster plots numbers over time, and a plot of a constant is useless.
            "uniform_loss": str(round(uniform, 4)),
            "batches": batches,
            "batch_tokens": batch_size * block,
            "constant_blocks": len(constant),
            "unigram_loss": round(unigram, 4) if math.isfinite(unigram) else "none",
        },
        warning=warning,
    )


BLOCK = 1 << 20
"""Tokens processed at a time, so that a check needs memory for only a few arrays of this length."""
WINDOW = 4096
"""Tokens per window of the eye test."""
LONGEST_RUN = 512
"""Minimum length of a run of one id that is not text; the smallest hole in a file is 1,024 uint32 ids."""


@fail_on_errors
def looks_like_text(
    tokens_path: Path,
    ends_path: Path,
    dtype: str,
    bundle: TokenizerBundle,
    *,
    seed: int,
    windows: int = 6,
) -> Finding:
    """Check that windows of the stream, at its start and further in, decode to text with the statistics of text.

    A wrong dtype or shifted bytes show as ids outside the vocabulary, as equal ids at every second position, or as the
    entropy of noise. A hole shows as a run of id 0, for which the whole file is searched. Real documents can also be
    unprintable, monotonous or repetitive (hex dumps, tables, indented code). So everything except an id outside the
    vocabulary is only a warning; the digests and the round trip verify the bytes.
    """
    tokens, ends = flat_bins.open_tokens(tokens_path, dtype), document_ends.open_ends(ends_path)
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    foreign: list[str] = []
    odd_texts: list[str] = []
    odd_windows = 0
    for offset in _choose_offsets(len(tokens), windows, rng):
        window = tokens[offset : offset + WINDOW]
        row = _compute_statistics(window, bundle, rng)
        document = int(np.searchsorted(ends, np.uint64(offset), side="right"))
        rows.append({"offset": offset, "document": document, **row})
        location = f"{tokens_path.name}: window at token offset {offset} (document {document})"
        foreign += [f"{location}: {why}" for why in _find_foreign_ids(window, bundle.vocab_size)]
        unlikely = list(_explain_unlikely_window(window, row))
        odd_texts += [f"{location}: {why}" for why in unlikely]
        odd_windows += bool(unlikely)
    if hole := _find_hole(tokens):
        start, length = hole
        odd_texts.append(
            f"{tokens_path.name}: id 0 occurs {count_of(length, 'time')} in a row from token offset {start}, which "
            "suggests a hole in the file"
        )
    return build_verdict(
        foreign + odd_texts,
        f"{count_of(len(rows), 'window decodes', 'windows decode')} to plausible text "
        f"({count_of(len(tokens), 'token')} in the file).",
        f"The bytes are not {dtype} ids of {bundle.name}, or are damaged. Verify the digests. {REBUILD}"
        if foreign
        else "Look at these documents. If files_intact and round_trip pass, the source text itself is unusual. Set "
        "`accept: {looks_like_text: <why>}`",
        warning=not foreign,
        facts={
            "tokens": len(tokens),
            "windows": len(rows),
            "unusual_windows": odd_windows,
            **{f"least_{k}": min((float(r[k]) for r in rows), default=0.0) for k in ("bits_per_token", "printable")},
            "most_bits_per_token": max((float(r["bits_per_token"]) for r in rows), default=0.0),
        },
        table=rows,
    )


def _choose_offsets(tokens: int, windows: int, rng: "np.random.Generator") -> list[int]:
    """Return the start offsets of windows: the first, the last, and a random one in each equal part between them."""
    last_offset = max(tokens - WINDOW, 0)
    if not tokens:
        return []
    between = [int(last_offset * (i + rng.random()) / max(windows - 2, 1)) for i in range(max(windows - 2, 0))]
    # Remove duplicates, because several windows of a short stream can start at the same offset.
    return sorted({0, *between, last_offset} if windows > 1 else {0})


def _compute_statistics(window: NDArray[Any], bundle: TokenizerBundle, rng: "np.random.Generator") -> dict[str, Any]:
    """Return the statistics of one window and the beginning of its text."""
    counts = np.unique(window, return_counts=True)[1]
    # Draw as many random ids as the window has tokens, because the measured entropy depends on the number of tokens.
    noise = np.unique(rng.integers(0, bundle.vocab_size, len(window)), return_counts=True)[1]
    text = bundle.decode(window)
    return {
        "bits_per_token": round(_measure_entropy(counts), 3),
        "noise_bits": round(_measure_entropy(noise), 3),
        "printable": round(_measure_printable_share(text), 4),
        "distinct": round(len(counts) / len(window), 4),
        "longest_run": _measure_longest_run(window),
        "text": text.strip("\ufffd")[:200],
    }


def _find_foreign_ids(window: NDArray[Any], vocab_size: int) -> Iterator[str]:
    """Yield a sentence if a window has ids outside the vocabulary."""
    if outside := int(np.count_nonzero(window >= vocab_size)):
        verb = "is" if outside == 1 else "are"
        yield f"{outside:,} of {count_of(len(window), 'id')} {verb} outside the vocabulary (0 to {vocab_size - 1})"


def _explain_unlikely_window(window: NDArray[Any], row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the reasons why a window does not look like text; some real documents do not either."""
    # Skip shorter windows, because not enough of their ids repeat to distinguish text from noise.
    if len(window) >= WINDOW // 4 and row["bits_per_token"] > 0.97 * row["noise_bits"]:
        yield f"has an entropy of {row['bits_per_token']} bits per token, almost as much as noise ({row['noise_bits']})"
    if row["printable"] < 0.7:
        yield f"only {format_share(row['printable'])} of the decoded characters are printable"
    if row["longest_run"] >= LONGEST_RUN:
        yield f"has the same id {row['longest_run']} times in a row"
    if len(window) >= WINDOW // 4:
        if row["bits_per_token"] < 3.0:
            yield f"has an entropy of {row['bits_per_token']} bits per token, but text has 6 to 11"
        # If 32-bit ids are read as 16-bit ids, every second id is the upper half of a 32-bit id, which is usually 0.
        halves = (window[::2], window[1::2])
        low, high = sorted(np.unique(half, return_counts=True)[1].max() / len(half) for half in halves)
        if high > 0.7 and low < 0.5:
            yield f"{format_share(high)} of the ids at every second position are equal, so their width may be wrong"


def _measure_entropy(counts: NDArray[np.intp]) -> float:
    """Return the bits per item of an empirical distribution."""
    shares = counts / counts.sum()
    # Add 0.0, because the entropy of a single distinct id is -0.0, and the sum with 0.0 is 0.0.
    return float(-(shares * np.log2(shares)).sum()) + 0.0


def _measure_printable_share(text: str) -> float:
    """Return the share of printable characters; 0 for empty text.

    Replacement characters at the edges are ignored, because the window's own boundaries cause them.
    """
    counts = Counter(text.strip("\ufffd"))
    # Control (Cc), unassigned (Cn), private-use (Co) and surrogate (Cs) characters count as unprintable, except tabs
    # and line endings.
    good = sum(
        n
        for c, n in counts.items()
        if c in "\t\n\r" or (c != "\ufffd" and unicodedata.category(c) not in ("Cc", "Cn", "Co", "Cs"))
    )
    return good / counts.total() if counts else 0.0


def _measure_longest_run(window: NDArray[Any]) -> int:
    changes = np.flatnonzero(window[1:] != window[:-1]) + 1
    return int(np.diff(np.concatenate(([0], changes, [len(window)]))).max())


def _find_hole(tokens: NDArray[Any]) -> tuple[int, int] | None:
    """Return offset and length of the first run of at least `LONGEST_RUN` zeros; the length is counted up to one block.

    Tokens are first sampled at half the length of such a run. The run contains at least two neighboring samples, so
    only the tokens between two samples of 0 are examined further.
    """
    stride = LONGEST_RUN // 2
    for start in range(0, len(tokens), BLOCK):
        # The slice is one sample longer than the block, to include the pair across the boundary to the next block.
        sampled_tokens = tokens[start : start + BLOCK + stride : stride]
        for index in np.flatnonzero((sampled_tokens[1:] == 0) & (sampled_tokens[:-1] == 0)).tolist():
            hole_start = start + index * stride
            # Check the tokens between the samples, because two neighboring samples of 0 need not be in the same run.
            if tokens[hole_start : hole_start + stride].any():
                continue
            # Look back only `LONGEST_RUN` tokens, because a run that began earlier would contain an earlier pair of
            # samples.
            low = max(hole_start - LONGEST_RUN, 0)
            around = np.flatnonzero(tokens[low : hole_start + BLOCK])
            points_before, points_after = around[around < hole_start - low], around[around >= hole_start - low]
            run_start = low + int(points_before[-1]) + 1 if len(points_before) else low
            stop = low + int(points_after[0]) if len(points_after) else min(hole_start + BLOCK, len(tokens))
            if stop - run_start >= LONGEST_RUN:
                return run_start, stop - run_start
    return None
