"""Checks that read a token stream the way a trainer will: shifted labels, random batches, their loss."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.checks.finding import Finding, verdict
from dataprep_assets.formats import flat_bins

_REBUILD = "Materialize `combined_bins` of this split again"


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
    """Inputs and labels, read as a trainer reads them, are one token apart and on the token grid.

    `x[1:] == y[:-1]` on two slices of one array is true for any file. Here x and y are two reads of the file at byte
    offsets computed from counts, both are compared with the memory map, and the grid itself is proven: the file has as
    many tokens as the document ends say, and in each window separators are exactly at the document ends. So a file
    that is shifted by a few bytes, has lost a token, or is opened with the wrong dtype fails. If the text has literal
    separators, or BOS is the same id, only their presence at the ends is required. Windows are at the first, the last
    and randomly drawn document ends.
    """
    width = flat_bins.token_dtype(dtype).itemsize
    name, size = tokens_path.name, tokens_path.stat().st_size
    count = int(ends[-1]) if len(ends) else 0
    if size != count * width:
        return verdict(
            [f"{name}: {size} bytes, but its {len(ends)} documents end at byte {count * width} as {dtype}"],
            "",
            f"The dtype is wrong or tokens are lost. {_REBUILD}",
            facts={"bytes": size, "tokens": count},
        )
    tokens = flat_bins.open_tokens(tokens_path, dtype)
    rng = np.random.default_rng(seed)
    documents = {0, len(ends) - 1, *rng.integers(0, len(ends), max(windows - 2, 0)).tolist()} if count > 1 else set()
    defects: list[str] = []
    boundaries = 0
    # one token less, because the last one is a label alone
    length = min(block, count - 1)
    exact = not literal_separators and bos_id != separator_id
    for document in sorted(documents):
        # the document's end is at a random position within the labels
        start = int(np.clip(int(ends[document]) - 1 - int(rng.integers(0, max(length, 1))), 0, count - 1 - length))
        x = np.fromfile(tokens_path, flat_bins.token_dtype(dtype), length, offset=start * width)
        y = np.fromfile(tokens_path, flat_bins.token_dtype(dtype), length, offset=(start + 1) * width)
        # keys of the dtype of `ends`: with any other NumPy would convert the whole mapped file
        first, last = np.searchsorted(ends, np.array([start + 1, start + length + 1], np.uint64), side="left").tolist()
        inside = np.asarray(ends[first : last + 1]).astype(np.int64) - 1
        inside = inside[(inside >= start) & (inside <= start + length)]
        boundaries += len(inside)
        mapped = tokens[start : start + length + 1]
        wrong = _misaligned(x, y, mapped, inside - start, separator_id, vocab_size, exact=exact)
        defects += [f"{name}: window at token offset {start} (document {document}): {w}" for w in wrong]
    return verdict(
        defects,
        f"{len(documents)} windows are aligned: labels one token on, {boundaries} separators where documents end.",
        f"The file is shifted, cut or of another dtype: verify its digest. {_REBUILD}",
        facts={"windows": len(documents), "boundaries": boundaries, "tokens": count},
    )


def _misaligned(
    x: NDArray[Any],
    y: NDArray[Any],
    mapped: NDArray[Any],
    ends: NDArray[np.int64],
    separator: int,
    vocab_size: int,
    *,
    exact: bool,
) -> Iterator[str]:
    """The defects of one window; `ends` are the positions of its documents' last tokens in the window."""
    if not np.array_equal(x, mapped[:-1]) or not np.array_equal(y, mapped[1:]):
        yield "two reads of the file disagree; a writer is at work, or the disk is failing"
    if not np.array_equal(x[1:], y[:-1]):
        yield "labels are not the inputs one token on"
    # the whole window: its first token, which is no label, and the labels
    seen = np.concatenate((x[:1], y))
    if len(wrong := np.flatnonzero(seen >= vocab_size)):
        yield f"id {int(seen[wrong[0]])} at window position {int(wrong[0])} is not below {vocab_size}"
    if len(wrong := ends[seen[ends] != separator]):
        yield (
            f"a document ends at window position {int(wrong[0])}, where id {int(seen[wrong[0]])} is not the separator"
        )
    if exact:
        extra = np.setdiff1d(np.flatnonzero(seen == separator), ends)
        if len(extra):
            yield f"a separator at window position {int(extra[0])}, where no document ends"


_FEWEST_BLOCKS = 8


def sampler_dry_run(
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
    """Random batches can be drawn and learned from: a unigram model beats the uniform one on batches held out.

    Blocks are drawn without replacement, as by a shuffling DataLoader, so the model was not fitted on any held-out
    block. A uniform model's loss, ln(vocabulary), is what training starts from; the unigram model has additive
    smoothing of 0.1 per token. Losses are in nats per token. If ids are noise, the unigram model is no better than the
    uniform one: an error, or a warning if it was fitted on fewer than eight blocks. A split of no token at all is an
    error, one too short for two batches a warning.
    Blocks of only one id are an error if they are the majority, and a warning if they are few: documents of one
    repeated token exist. `source_at` says which row of which source file a token offset is of.
    """
    tokens = flat_bins.open_tokens(tokens_path, dtype)
    rng = np.random.default_rng(seed)
    uniform = math.log(vocab_size)
    # the last token is a label alone
    blocks = max(len(tokens) - 1, 0) // block
    batch_size = min(batch_size, max(blocks // 2, 1))
    batches = min(batches, blocks // batch_size)
    if batches < 2:
        short = f"{len(tokens)} tokens are too few for two batches of a block of {block} tokens"
        todo = "Give the split more text, or train with a shorter block"
        if not len(tokens):
            short = "no token: every row of the split was dropped, or its files have none"
            todo = "The ledgers of its shards say why; give the split text, or take it out of `splits`"
        return verdict(
            [f"{tokens_path.name}: {short}"], "", todo, facts={"tokens": len(tokens)}, warning=bool(len(tokens))
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
            place = f"{tokens_path.name}: batch {number}"
            of = source_at(offsets[row])
            constant.append(f"{place}: all {block} tokens from token offset {offsets[row]} are id {x[row, 0]}: {of}")
        # a batch with such an id is not counted: `counts` has no place for it
        wrong = np.argwhere(y >= vocab_size).tolist()
        if wrong:
            row, column = wrong[0]
            defects.append(
                f"{tokens_path.name}: batch {number}: id {y[row, column]} at token offset "
                f"{offsets[row] + 1 + column} is not below {vocab_size}"
            )
        # fitted on the first half of the batches, tried on the second
        elif number < batches // 2:
            counts += np.bincount(y.ravel().astype(np.int64), minlength=vocab_size)
        else:
            shares = (counts + 0.1) / (counts.sum() + 0.1 * vocab_size)
            losses.append(float(-np.log(shares[y.ravel()]).mean()))
    unigram = float(np.mean(losses)) if losses else math.inf
    weak: list[str] = []
    if not defects and not unigram < uniform:
        # blocks may be in different languages
        (defects if batches // 2 * batch_size >= _FEWEST_BLOCKS else weak).append(
            f"{tokens_path.name}: a unigram model has a loss of {unigram:.3f} on held-out batches, the uniform one "
            f"{uniform:.3f}: the ids have no more structure than noise"
        )
    warning = not defects and 2 * len(constant) <= batches * batch_size
    return verdict(
        defects + weak + constant,
        f"Training would start at a loss of {uniform:.3f}; token frequencies alone bring it to {unigram:.3f}.",
        "Look at `eye_test`; wrong dtype and damaged bytes look like this",
        facts={
            # a text, because numbers are plotted, and this one cannot change
            "uniform_loss": str(round(uniform, 4)),
            "batches": batches,
            "batch_tokens": batch_size * block,
            "constant_blocks": len(constant),
            "unigram_loss": round(unigram, 4) if math.isfinite(unigram) else "none",
        },
        warning=warning,
    )
