"""Checks of the rows of one packed cohort: the columnar file, its JSON lines, and the counts in the receipt.

Messages contain files, rows, lines, columns and positions, never a token.

Entry points: `rows_valid`, `labels_within_notes`, `ids_in_vocabulary`, `tokens_conserved`, `separators_match_notes`,
`jsonl_matches_rows`, `packing_efficient`; `token_defects` for rows with a single column.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.checks.check import Finding, Row, ledger_of, name_of, verdict
from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.formats.tensorflow.example import ABSENT
from dataprep_assets.packing.row_defects import find_row_defects
from dataprep_assets.pipelines.notes.cohorts.opened_cohort import REBUILD, CohortRowScan, OpenedCohort
from dataprep_assets.pipelines.notes.cohorts.packed_files import packed_paths
from dataprep_assets.pipelines.notes.cohorts.row_shape import RowShape
from dataprep_assets.pipelines.notes.declaration import TOKENS
from dataprep_assets.pipelines.notes.tfds.maxtext import stock_rule
from dataprep_assets.serving.sampler.maxtext import six_columns


def token_defects(columns: Mapping[str, NDArray[Any]], shape: RowShape, vocab_size: int) -> Iterator[str]:
    """Yield the defects of unpacked rows, one sentence each; rows count from 0.

    ``columns`` is name → array of integers, shape ``(rows, width)``, with `ABSENT` after the tokens of a row. ``shape``
    is the common shape of all rows. Every id must be below ``vocab_size``.
    """
    if set(columns) != {TOKENS} or columns[TOKENS].shape[1] > shape.row_length:
        yield (
            f"its columns are {', '.join(sorted(columns))}, but unpacked rows must have `tokens` of at most "
            f"{count_of(shape.row_length, 'value')}"
        )
        return
    tokens = columns[TOKENS]
    # Lengths count the values that are not ABSENT, so an ABSENT among tokens, or a value after it, is out of place.
    lengths = (tokens != ABSENT).sum(axis=1)
    is_token = np.arange(tokens.shape[1]) < lengths[:, None]
    wrong = ((tokens < 0) | (tokens >= vocab_size)) & is_token | ~is_token & (tokens != ABSENT)
    if wrong.any():
        row, position = np.argwhere(wrong)[0].tolist()
        yield f"row {row}, position {position}: the id is not below the vocabulary size {vocab_size}"
    if not lengths.all():
        yield f"row {int(lengths.argmin())} has no tokens"


def rows_valid(packed: OpenedCohort) -> Finding:
    """Check that no row is empty or too long, and that sampled JSON lines satisfy the invariants of their layout.

    See docs/formats/packed-rows.md#invariants.
    """
    defects, looked, pad = [], 0, packed.notes.pad
    pad_id: int | None = ABSENT
    # taken from the declaration, because a file and its receipt may agree on a wrong id
    if pad is not None:
        pad_id = pad.id if pad.token is None else packed.bundle.token(pad.token, key="pad.token").id
    for name, scan in packed.scans.items():
        path = packed_paths(packed.notes, packed.month)[name].jsonl
        if packed.shape.row_length != packed.notes.capacity or packed.shape.columns != packed.notes.columns:
            defects.append(f"{path}: rows of {packed.shape.row_length}, but {packed.notes.capacity} are declared")
        if packed.shape.pad_id != pad_id:
            defects.append(f"{path}: rows are padded with {packed.shape.pad_id}, but the declared pad is {pad_id}")
        for line, columns in packed.lines[name].columns.items():
            looked += 1
            if packed.notes.layout == "unpacked" and columns.keys() == {TOKENS}:
                row_tokens, line_tokens = int(scan.used[line]), columns[TOKENS].size
                defects += [
                    f"{path}: line {line + 1}: {count_of(line_tokens, 'token')}, but its row has {row_tokens}"
                ] * (line_tokens != row_tokens)
            defects += [f"{path}: line {line + 1}: {d}" for d in _invalid(packed, columns)]
    return verdict(
        defects,
        f"{count_of(sum(len(s.used) for s in packed.scans.values()), 'row')} fit; "
        f"{count_of(looked, 'JSON line satisfies', 'JSON lines satisfy')} every invariant.",
        REBUILD,
        facts={"rows": sum(len(s.used) for s in packed.scans.values()), "lines_examined": looked},
    )


def _invalid(packed: OpenedCohort, columns: Mapping[str, NDArray[Any]]) -> Iterator[str]:
    if packed.notes.layout == "unpacked":
        yield from token_defects(columns, packed.shape, packed.bundle.vocab_size)
        return
    if unknown := sorted(columns.keys() ^ set(packed.notes.columns)):
        yield f"columns {unknown} are missing or not declared"
    for defect in find_row_defects(
        columns,
        row_length=packed.shape.row_length,
        pad_id=packed.shape.pad_id,
        vocab_size=packed.bundle.vocab_size,
        pad_is_reserved=not packed.notes.pad_may_occur,
    ):
        yield str(defect)


def jsonl_matches_rows(packed: OpenedCohort) -> Finding:
    """Check that JSON lines, columnar rows and receipt have the same count, and that sampled lines equal their rows."""
    defects, total, compared_lines = [], 0, 0
    for name, path in packed_paths(packed.notes, packed.month).items():
        file, samples = packed.rows(name), packed.lines[name]
        lines = samples.count
        total += lines
        if not lines == len(file) == packed.splits[name].rows:
            defects.append(
                f"{path.jsonl}: {count_of(lines, 'line')} for {count_of(len(file), 'columnar row')}, but the receipt "
                f"lists {packed.splits[name].rows}"
            )
        for line, columns in samples.columns.items():
            compared_lines += 1
            # verbatim lines equal their row byte for byte
            if line in samples.verbatim:
                continue
            block = file.block(line, line + 1)
            stored_values = packed.shape.values(block)
            # arrays are padded to the longest row, lines are not
            if packed.notes.layout == "unpacked":
                stored_values = {name: column[:, : block.tokens.size] for name, column in stored_values.items()}
            if stored_values.keys() != columns.keys():
                defects.append(f"{path.jsonl}: line {line + 1} has other columns than {path.rows}")
                continue
            different = [
                column for column in stored_values if not np.array_equal(stored_values[column], columns[column])
            ]
            if different:
                defects.append(f"{path.jsonl}: line {line + 1}, column {different[0]}: differs from {path.rows}")
    return verdict(
        defects,
        f"{count_of(total, 'line')}, as many as columnar rows; all {compared_lines} compared are equal.",
        REBUILD,
        facts={"lines": total, "lines_compared": compared_lines},
    )


def labels_within_notes(packed: OpenedCohort) -> Finding:
    """Load sampled JSON lines as the trainer does, and check that no label is padding or crosses into another note.

    Unpacked rows are loaded by unmodified MaxText, prepacked ones by `serving.sampler.maxtext`. The columnar file has
    the positions of the notes in a row.
    """
    labels = padding = across = masked = 0
    for name in packed_paths(packed.notes, packed.month):
        file = packed.rows(name)
        for line, columns in packed.lines[name].columns.items():
            trained_mask, hidden = _trained_positions(packed, columns)
            # The array has the note of each position, 0 after the tokens. It is one longer than labels, because label i
            # is the token at i + 1.
            notes = np.zeros(trained_mask.size + 1, np.int64)
            segments = file.block(line, line + 1).lengths
            numbers = np.repeat(np.arange(1, segments.size + 1), segments)[: notes.size]
            notes[: numbers.size] = numbers
            labels += int(np.count_nonzero(trained_mask))
            padding += int(np.count_nonzero(trained_mask & (notes[1:] == 0)))
            across += int(np.count_nonzero(trained_mask & (notes[1:] != 0) & (notes[1:] != notes[:-1])))
            masked += hidden
    facts = {"labels": labels, "on_padding": padding, "across_notes": across, "masked_labels": masked}
    where = name_of(packed.receipt)
    if across and not padding and packed.notes.concatenated:
        sentence = (
            f"{where}: {across} of {labels} labels cross from one note into the next, because its rows are one stream"
        )
        return Finding(
            passed=False,
            warning=True,
            facts=facts,
            summary=f"{sentence}. The declaration requests this; with `rows: notes`, or a different packing.algorithm, "
            "no labels would.",
        )
    defects = [f"{where}: {padding} of {labels} labels are padding"] if padding else []
    defects += [f"{where}: {across} of {labels} labels cross from one note into the next"] if across else []
    return verdict(
        defects,
        f"{labels} labels of sampled rows: none on padding, none across notes; {masked} left out by the loader.",
        REBUILD,
        facts=facts,
    )


def _trained_positions(packed: OpenedCohort, columns: Mapping[str, NDArray[Any]]) -> tuple[NDArray[np.bool_], int]:
    """Return, for one row, the mask of trained labels, and the number of labels that the loader masks by their id."""
    if packed.notes.layout == "prepacked":
        batch = six_columns(columns)
        # stored segments determine the trained labels, so none is left out because of its id
        return batch["targets_segmentation"][0] != 0, 0
    if columns.keys() != {TOKENS}:
        raise FormatError(
            f"{packed.month}: a line has the columns {', '.join(sorted(columns))}, not {TOKENS}. {REBUILD}"
        )
    batch_of_one = stock_rule(packed.notes, packed.bundle).labels([columns[TOKENS][0]])
    return batch_of_one.trained[0], int(np.count_nonzero(batch_of_one.masked))


def ids_in_vocabulary(packed: OpenedCohort) -> Finding:
    """Check that ids are below len(tokenizer), are no reserved pad, and have the range in the ledger."""
    size, ledger = packed.bundle.vocab_size, ledger_of(packed.receipt)
    lows = [s.low for s in packed.scans.values() if s.low is not None]
    highs = [s.high for s in packed.scans.values() if s.high is not None]
    low, high = min(lows, default=None), max(highs, default=None)
    pads = sum(s.pads for s in packed.scans.values())
    defects = []
    if low is not None and high is not None and (low < 0 or high >= size):
        defects.append(f"{name_of(packed.receipt)}: ids are {low} to {high}, but {packed.bundle.name} has {size}")
    if (low, high) != (ledger.min_id, ledger.max_id):
        defects.append(f"{name_of(packed.receipt)}: ids are {low} to {high}, but its ledger has others")
    if pads and not packed.notes.pad_may_occur:
        defects.append(f"{name_of(packed.receipt)}: {count_of(pads, 'token')} in notes are the reserved pad id")
    return verdict(
        defects,
        f"Ids are {low} to {high}, below {size}; {count_of(pads, 'token')} in notes are the pad id.",
        f"The rows were built with a different tokenizer, or are damaged. {REBUILD}",
        facts={
            "vocab_size": str(size),
            "pad_ids_in_notes": pads,
            **({} if low is None or high is None else {"min_id": low, "max_id": high}),
        },
    )


def tokens_conserved(packed: OpenedCohort) -> Finding:
    """Check that tokens of notes − truncated + repeated headers + overlaps = tokens in rows, counted from the rows."""
    defects, table = [], list[Row]()
    for name, split_facts in packed.splits.items():
        scan, tokens = packed.scans[name], split_facts.tokens
        where = f"{name_of(packed.receipt)}: split {name}"
        if tokens.balance != tokens.in_rows:
            defects.append(
                f"{where}: its notes have {count_of(tokens.balance, 'token')}, but its rows {tokens.in_rows}"
            )
        positions = _positions(packed, scan)
        counts = {
            "tokens": (scan.tokens, tokens.in_rows),
            "rows": (len(scan.used), split_facts.rows),
            "segments": (scan.segments, split_facts.segments),
            "padding": (positions - scan.tokens, split_facts.padding),
            "fill": (round(scan.tokens / positions, 6) if positions else 1.0, split_facts.fill),
        }
        defects += [f"{where}: {a} {what} in the file, {b} in the receipt" for what, (a, b) in counts.items() if a != b]
        table.append({"split": name, **tokens.to_json(), "padding": counts["padding"][0]})
    in_rows, ledger = sum(scan.tokens for scan in packed.scans.values()), ledger_of(packed.receipt)
    if in_rows != ledger.tokens:
        defects.append(
            f"{name_of(packed.receipt)}: {count_of(in_rows, 'token')} in its rows, but {ledger.tokens} in its ledger"
        )
    return verdict(
        defects, f"{count_of(in_rows, 'token')}, none lost or added.", REBUILD, facts={"tokens": in_rows}, table=table
    )


def _positions(packed: OpenedCohort, scan: CohortRowScan) -> int:
    """Return the stored positions of a split: its tokens, and padding if rows are padded."""
    return scan.tokens if packed.notes.layout == "unpacked" else len(scan.used) * packed.shape.row_length


def separators_match_notes(packed: OpenedCohort) -> Finding:
    """Check that each note begins with one BOS and ends with one separator, counted from the rows."""
    receipt, ledger = packed.receipt, ledger_of(packed.receipt)
    scans = list(packed.scans.values())
    separators, inner = sum(s.separators for s in scans), sum(s.inner_separators for s in scans)
    defects = []
    where = name_of(receipt)
    # text contains them only with `special_tokens: match`; overlaps and headers may then repeat them
    if not ledger.literal_separators:
        if separators != ledger.separators:
            defects.append(
                f"{where}: {count_of(separators, 'separator')} in its rows, but "
                f"{count_of(ledger.separators, 'note has', 'notes have')} their end there"
            )
        if inner:
            defects.append(
                f"{where}: {count_of(inner, 'separator is', 'separators are')} within a note: repeated, or from its "
                "text"
            )
    bos = packed.facts.bos_id
    begins = sum(s.bos_starts for s in scans)
    if bos is not None and bos != packed.facts.separator_id:
        segments = sum(s.segments for s in scans)
        # BOS is part of the header, so it is in every chunk if headers are repeated, else once per note
        repeats = not packed.notes.concatenated and packed.notes.long_notes.rule == "repeat_header"
        expected_count = segments if repeats else ledger.documents
        if begins != expected_count:
            defects.append(
                f"{where}: {count_of(begins, 'segment begins', 'segments begin')} with BOS, but {expected_count} should"
            )
        if doubled := sum(s.doubled_bos for s in scans):
            defects.append(f"{where}: {count_of(doubled, 'segment begins', 'segments begin')} with two BOS")
    return verdict(
        defects,
        f"{count_of(separators, 'separator ends', 'separators end')} {count_of(ledger.documents, 'note')}"
        + ("." if bos is None else f", {count_of(begins, 'segment begins', 'segments begin')} with BOS."),
        REBUILD,
        facts={
            "separators": separators,
            "documents": ledger.documents,
            "literal_separators": ledger.literal_separators,
        },
    )


def packing_efficient(packed: OpenedCohort) -> Finding:
    """Check that rows are filled as well as the packing algorithm guarantees."""
    defects, table = [], list[Row]()
    algorithm = "concat_then_split" if packed.notes.concatenated else packed.notes.packing.algorithm
    for name, scan in packed.scans.items():
        length, used = packed.shape.row_length, scan.used
        if packed.notes.layout == "unpacked" and not packed.notes.concatenated:
            wasted, why = 0, ""
        elif algorithm == "concat_then_split":
            wasted = int(np.count_nonzero(used[:-1] < length))
            why = f"{count_of(wasted, 'row')} before the last have padding"
        elif algorithm == "concatenative":
            wasted = int(np.count_nonzero(used[:-1] + used[1:] <= length))
            why = f"{count_of(wasted, 'pair')} of neighboring rows would fit into one"
        else:
            # if the two emptiest rows do not fit into one, no two rows do
            emptiest = np.partition(used, 1)[:2] if used.size > 1 else np.array([length])
            wasted = int(emptiest.sum() <= length and used.size > 1)
            why = "two rows would fit into one"
        if wasted:
            defects.append(f"{name_of(packed.receipt)}: split {name}: {why}, which {algorithm} never leaves")
        fill = scan.tokens / _positions(packed, scan) if used.size else 1.0
        table.append({"split": name, "rows": int(used.size), "fill": round(fill, 6)})
    rows, tokens = sum(s.used.size for s in packed.scans.values()), sum(s.tokens for s in packed.scans.values())
    positions = sum(_positions(packed, scan) for scan in packed.scans.values())
    fill = round(tokens / positions, 6) if rows else 1.0
    return verdict(
        defects, f"{count_of(rows, 'row')}, filled to {fill}.", REBUILD, facts={"rows": rows, "fill": fill}, table=table
    )
