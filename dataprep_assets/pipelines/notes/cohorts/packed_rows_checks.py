"""Checks of the rows of one packed cohort: the columnar file, the JSON Lines file, and the counts in the receipt.

Messages contain files, rows, lines, columns and positions, never a token.

Entry points: `check_rows`, `check_labels`, `check_ids`, `check_tokens`, `check_separators`, `check_json_lines`,
`check_packing`; `find_token_defects` for rows with a single column.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.checks.check import Finding, Row, build_verdict, describe_artifact, require_ledger
from dataprep_assets.errors import FormatError, count_of
from dataprep_assets.formats.tensorflow.example import ABSENT
from dataprep_assets.packing.row_defects import find_row_defects
from dataprep_assets.pipelines.notes.cohorts.opened_cohort import REBUILD, CohortRowScan, OpenedCohort
from dataprep_assets.pipelines.notes.cohorts.packed_files import list_packed_paths
from dataprep_assets.pipelines.notes.cohorts.row_shape import RowShape
from dataprep_assets.pipelines.notes.declaration import TOKENS
from dataprep_assets.pipelines.notes.tfds.maxtext import build_stock_rule
from dataprep_assets.serving.sampler.maxtext import six_columns


def find_token_defects(columns: Mapping[str, NDArray[Any]], shape: RowShape, vocab_size: int) -> Iterator[str]:
    """Yield the defects of unpacked rows, one sentence each; rows count from 0.

    ``columns`` is name → array of integers, shape ``(rows, width)``, with `ABSENT` after the tokens of a row. ``shape``
    is the common shape of all rows. Every id must be less than ``vocab_size``.
    """
    if set(columns) != {TOKENS} or columns[TOKENS].shape[1] > shape.row_length:
        widths = ", ".join(
            f"`{name}` ({count_of(values.shape[1], 'value')})" for name, values in sorted(columns.items())
        )
        yield (
            f"unpacked rows must have only the column `{TOKENS}`, with at most {count_of(shape.row_length, 'value')} "
            f"per row, but have {widths}"
        )
        return
    tokens = columns[TOKENS]
    # The lengths count the values that are not ABSENT, so an ABSENT among the tokens, or a value after the tokens, is
    # an error.
    lengths = (tokens != ABSENT).sum(axis=1)
    is_token = np.arange(tokens.shape[1]) < lengths[:, None]
    is_wrong = ((tokens < 0) | (tokens >= vocab_size)) & is_token | ~is_token & (tokens != ABSENT)
    if is_wrong.any():
        row, position = np.argwhere(is_wrong)[0].tolist()
        yield f"row {row}, position {position}: must be a token id from 0 to {vocab_size - 1:,}"
    if not lengths.all():
        yield f"row {int(lengths.argmin())} has no tokens"


def check_rows(cohort: OpenedCohort) -> Finding:
    """Check that no row is empty or too long, and that sampled JSON Lines rows satisfy the layout's invariants.

    See docs/formats/packed-rows.md#invariants.
    """
    defects, row_count, pad = [], 0, cohort.notes.pad
    pad_id: int | None = ABSENT
    # Use the declared pad id, because a file and its receipt may agree on a wrong id.
    if pad is not None:
        pad_id = pad.id if pad.token is None else cohort.bundle.find_token(pad.token, key="pad.token").id
    for name, scan in cohort.scans.items():
        path = list_packed_paths(cohort.notes, cohort.month)[name].jsonl
        if cohort.shape.row_length != cohort.notes.capacity or cohort.shape.columns != cohort.notes.columns:
            defects.append(
                f"{path}: has rows of {cohort.shape.row_length} tokens, but rows of {cohort.notes.capacity} are "
                "declared"
            )
        if cohort.shape.pad_id != pad_id:
            defects.append(
                f"{path}: rows are padded with id {cohort.shape.pad_id}, but the declared pad id is {pad_id}"
            )
        for line, columns in cohort.lines[name].columns.items():
            row_count += 1
            if cohort.notes.layout == "unpacked" and columns.keys() == {TOKENS}:
                row_tokens, line_tokens = int(scan.used[line]), columns[TOKENS].size
                defects += [
                    f"{path}: line {line + 1}: has {count_of(line_tokens, 'token')}, but its row has {row_tokens}"
                ] * (line_tokens != row_tokens)
            defects += [f"{path}: line {line + 1}: {d}" for d in _find_invalid_rows(cohort, columns)]
    return build_verdict(
        defects,
        f"{count_of(sum(len(s.used) for s in cohort.scans.values()), 'row has', 'rows have')} valid lengths; "
        f"{count_of(row_count, 'JSON line is', 'JSON lines are')} valid.",
        REBUILD,
        facts={"rows": sum(len(s.used) for s in cohort.scans.values()), "lines_examined": row_count},
    )


def _find_invalid_rows(cohort: OpenedCohort, columns: Mapping[str, NDArray[Any]]) -> Iterator[str]:
    if cohort.notes.layout == "unpacked":
        yield from find_token_defects(columns, cohort.shape, cohort.bundle.vocab_size)
        return
    if unknown := sorted(columns.keys() ^ set(cohort.notes.columns)):
        yield f"columns that are missing or not declared: {', '.join(unknown)}"
    for defect in find_row_defects(
        columns,
        row_length=cohort.shape.row_length,
        pad_id=cohort.shape.pad_id,
        vocab_size=cohort.bundle.vocab_size,
        pad_is_reserved=not cohort.notes.pad_may_occur,
    ):
        yield str(defect)


def check_json_lines(cohort: OpenedCohort) -> Finding:
    """Check that both files of rows and the receipt have equal counts, and that sampled lines equal their rows."""
    defects, total, compared_lines = [], 0, 0
    for name, path in list_packed_paths(cohort.notes, cohort.month).items():
        file, samples = cohort.open_rows(name), cohort.lines[name]
        lines = samples.count
        total += lines
        if not lines == len(file) == cohort.splits[name].rows:
            defects.append(
                f"{path.jsonl} has {count_of(lines, 'line')}, {path.rows} has {count_of(len(file), 'row')}, and the "
                f"receipt lists {count_of(cohort.splits[name].rows, 'row')}. The numbers must be equal"
            )
        for line, columns in samples.columns.items():
            compared_lines += 1
            # Skip verbatim lines, because they equal their rows byte for byte.
            if line in samples.verbatim:
                continue
            block = file.block(line, line + 1)
            stored_values = cohort.shape.values(block)
            # Remove the padding, because `values` pads rows to the row length, but lines are not padded.
            if cohort.notes.layout == "unpacked":
                stored_values = {name: column[:, : block.tokens.size] for name, column in stored_values.items()}
            if stored_values.keys() != columns.keys():
                defects.append(f"{path.jsonl}: line {line + 1}: the columns differ from {path.rows}")
                continue
            different = [
                column for column in stored_values if not np.array_equal(stored_values[column], columns[column])
            ]
            if different:
                defects.append(f"{path.jsonl}: line {line + 1}, column {different[0]}: differs from {path.rows}")
    return build_verdict(
        defects,
        f"{count_of(total, 'JSON line')}, as many as columnar rows; all {compared_lines} compared lines equal their "
        "rows.",
        REBUILD,
        facts={"lines": total, "lines_compared": compared_lines},
    )


def check_labels(cohort: OpenedCohort) -> Finding:
    """Load sampled JSON Lines rows as the trainer does, and check that no label is padding or belongs to another note.

    Unmodified MaxText loads unpacked rows, and `serving.sampler.maxtext` loads prepacked rows. The columnar file has
    the positions of the notes in a row.
    """
    labels = padding = crossing_labels = masked_count = 0
    for name in list_packed_paths(cohort.notes, cohort.month):
        file = cohort.open_rows(name)
        for line, columns in cohort.lines[name].columns.items():
            trained_mask, hidden = _find_trained_positions(cohort, columns)
            # Store the number of the note at each position, and 0 after the last token. This array is one longer than
            # the labels, because label i is token i + 1.
            notes = np.zeros(trained_mask.size + 1, np.int64)
            segments = file.block(line, line + 1).lengths
            numbers = np.repeat(np.arange(1, segments.size + 1), segments)[: notes.size]
            notes[: numbers.size] = numbers
            labels += int(np.count_nonzero(trained_mask))
            padding += int(np.count_nonzero(trained_mask & (notes[1:] == 0)))
            crossing_labels += int(np.count_nonzero(trained_mask & (notes[1:] != 0) & (notes[1:] != notes[:-1])))
            masked_count += hidden
    facts = {
        "labels": labels,
        "labels_on_padding": padding,
        "labels_across_notes": crossing_labels,
        "masked_labels": masked_count,
    }
    location = describe_artifact(cohort.receipt)
    crossing = (
        f"{crossing_labels} of {count_of(labels, 'label')} {'crosses' if crossing_labels == 1 else 'cross'} from one "
        "note into the next"
    )
    if crossing_labels and not padding and cohort.notes.is_concatenated:
        return Finding(
            passed=False,
            warning=True,
            facts=facts,
            summary=f"{location}: {crossing}, because the rows are one stream. The declaration requests this. To "
            "avoid it, set `rows: notes`, or a different `packing.algorithm`.",
        )
    is_or_are = "is" if padding == 1 else "are"
    defects = [f"{location}: {padding} of {count_of(labels, 'label')} {is_or_are} padding"] if padding else []
    defects += [f"{location}: {crossing}"] if crossing_labels else []
    return build_verdict(
        defects,
        f"None of the {count_of(labels, 'label')} in sampled rows is padding or belongs to the next note; the loader "
        f"leaves out {count_of(masked_count, 'label')}.",
        REBUILD,
        facts=facts,
    )


def _find_trained_positions(cohort: OpenedCohort, columns: Mapping[str, NDArray[Any]]) -> tuple[NDArray[np.bool_], int]:
    """Return, for one row, a mask of the trained labels, and the number of labels that the loader masks by id."""
    if cohort.notes.layout == "prepacked":
        batch = six_columns(columns)
        # No label is masked by its id, because the stored segments determine the trained labels.
        return batch["targets_segmentation"][0] != 0, 0
    if columns.keys() != {TOKENS}:
        raise FormatError(
            f"{cohort.month}: a line has the columns {', '.join(sorted(columns))}, not {TOKENS}. {REBUILD}"
        )
    batch_of_one = build_stock_rule(cohort.notes, cohort.bundle).labels([columns[TOKENS][0]])
    return batch_of_one.trained[0], int(np.count_nonzero(batch_of_one.masked))


def check_ids(cohort: OpenedCohort) -> Finding:
    """Check that ids are less than len(tokenizer), are not a reserved pad id, and have the range in the ledger."""
    size, ledger = cohort.bundle.vocab_size, require_ledger(cohort.receipt)
    lows = [s.low for s in cohort.scans.values() if s.low is not None]
    highs = [s.high for s in cohort.scans.values() if s.high is not None]
    low, high = min(lows, default=None), max(highs, default=None)
    pads = sum(s.pads for s in cohort.scans.values())
    defects = []
    if low is not None and high is not None and (low < 0 or high >= size):
        defects.append(
            f"{describe_artifact(cohort.receipt)}: ids are {low} to {high}, but {cohort.bundle.name} has {size} tokens"
        )
    if (low, high) != (ledger.min_id, ledger.max_id):
        defects.append(
            f"{describe_artifact(cohort.receipt)}: the range of ids is {_format_range(low, high)}, but the ledger has "
            f"{_format_range(ledger.min_id, ledger.max_id)}"
        )
    if pads and not cohort.notes.pad_may_occur:
        defects.append(
            f"{describe_artifact(cohort.receipt)}: notes contain the reserved pad id {count_of(pads, 'time')}"
        )
    return build_verdict(
        defects,
        f"The range of ids is {_format_range(low, high)}, below the vocabulary size {size}; "
        f"{count_of(pads, 'token in notes has', 'tokens in notes have')} the pad id.",
        f"The rows were built with a different tokenizer, or are damaged. {REBUILD}",
        facts={
            "vocab_size": str(size),
            "pad_ids_in_notes": pads,
            **({} if low is None or high is None else {"min_id": low, "max_id": high}),
        },
    )


def _format_range(low: int | None, high: int | None) -> str:
    return "empty" if low is None else f"{low} to {high}"


def check_tokens(cohort: OpenedCohort) -> Finding:
    """Check that tokens of notes − truncated + repeated headers + overlaps = tokens counted in the rows."""
    defects, table = [], list[Row]()
    for name, split_facts in cohort.splits.items():
        scan, tokens = cohort.scans[name], split_facts.tokens
        location = f"{describe_artifact(cohort.receipt)}: split {name}"
        if tokens.balance != tokens.in_rows:
            defects.append(
                f"{location}: its notes have {count_of(tokens.balance, 'token')}, but its rows have {tokens.in_rows}"
            )
        positions = _count_positions(cohort, scan)
        counts = {
            "tokens": (scan.tokens, tokens.in_rows),
            "rows": (len(scan.used), split_facts.rows),
            "segments": (scan.segments, split_facts.segments),
            "padding": (positions - scan.tokens, split_facts.padding),
            "fill": (round(scan.tokens / positions, 6) if positions else 1.0, split_facts.fill),
        }
        defects += [
            f"{location}: {what}: the file has {a}, but the receipt has {b}"
            for what, (a, b) in counts.items()
            if a != b
        ]
        table.append({"split": name, **tokens.to_json(), "padding": counts["padding"][0]})
    in_rows, ledger = sum(scan.tokens for scan in cohort.scans.values()), require_ledger(cohort.receipt)
    if in_rows != ledger.tokens:
        defects.append(
            f"{describe_artifact(cohort.receipt)}: its rows have {count_of(in_rows, 'token')}, but its ledger has "
            f"{ledger.tokens}"
        )
    return build_verdict(
        defects, f"{count_of(in_rows, 'token')}, none lost or added.", REBUILD, facts={"tokens": in_rows}, table=table
    )


def _count_positions(cohort: OpenedCohort, scan: CohortRowScan) -> int:
    """Return the number of stored positions of a split: its tokens, and padding if rows are padded."""
    return scan.tokens if cohort.notes.layout == "unpacked" else len(scan.used) * cohort.shape.row_length


def check_separators(cohort: OpenedCohort) -> Finding:
    """Check that each note begins with one BOS and ends with one separator, counted from the rows."""
    receipt, ledger = cohort.receipt, require_ledger(cohort.receipt)
    scans = list(cohort.scans.values())
    separators, inner = sum(s.separators for s in scans), sum(s.inner_separators for s in scans)
    defects = []
    location = describe_artifact(receipt)
    # Skip this comparison if texts contain separators (`special_tokens: match`), because overlaps and headers may
    # repeat these separators.
    if not ledger.literal_separators:
        if separators != ledger.separators:
            defects.append(
                f"{location}: its rows have {count_of(separators, 'separator')}, but "
                f"{count_of(ledger.separators, 'note ends', 'notes end')} with one"
            )
        if inner:
            defects.append(
                f"{location}: {count_of(inner, 'separator is inside a note', 'separators are inside notes')}, either "
                "repeated or from the text"
            )
    bos = cohort.facts.bos_id
    begins = sum(s.bos_starts for s in scans)
    if bos is not None and bos != cohort.facts.separator_id:
        segments = sum(s.segments for s in scans)
        # BOS is part of the header, so every chunk begins with BOS if headers are repeated; otherwise, only the first
        # chunk of each note does.
        repeats = not cohort.notes.is_concatenated and cohort.notes.long_notes.rule == "repeat_header"
        expected_count = segments if repeats else ledger.documents
        if begins != expected_count:
            defects.append(
                f"{location}: {count_of(begins, 'segment begins', 'segments begin')} with BOS, but {expected_count} "
                "should"
            )
        if repeat_count := sum(s.doubled_bos for s in scans):
            defects.append(
                f"{location}: {count_of(repeat_count, 'segment begins', 'segments begin')} with two BOS tokens"
            )
    return build_verdict(
        defects,
        f"{count_of(separators, 'separator')} in the rows of {count_of(ledger.documents, 'note')}"
        + ("." if bos is None else f"; {count_of(begins, 'segment begins', 'segments begin')} with BOS."),
        REBUILD,
        facts={
            "separators": separators,
            "documents": ledger.documents,
            "literal_separators": ledger.literal_separators,
        },
    )


def check_packing(cohort: OpenedCohort) -> Finding:
    """Check that rows are filled as well as the packing algorithm guarantees."""
    defects, table = [], list[Row]()
    algorithm = "concat_then_split" if cohort.notes.is_concatenated else cohort.notes.packing.algorithm
    for name, scan in cohort.scans.items():
        length, used_positions = cohort.shape.row_length, scan.used
        if cohort.notes.layout == "unpacked" and not cohort.notes.is_concatenated:
            wasted, reason = 0, ""
        elif algorithm == "concat_then_split":
            wasted = int(np.count_nonzero(used_positions[:-1] < length))
            singular, plural = "row before the last row has padding", "rows before the last row have padding"
            reason = count_of(wasted, singular, plural)
        elif algorithm == "concatenative":
            wasted = int(np.count_nonzero(used_positions[:-1] + used_positions[1:] <= length))
            singular, plural = "pair of neighboring rows would fit", "pairs of neighboring rows would each fit"
            reason = f"{count_of(wasted, singular, plural)} into one row"
        else:
            # Test only the two emptiest rows, because if they do not fit into one row, no other two rows do.
            emptiest = np.partition(used_positions, 1)[:2] if used_positions.size > 1 else np.array([length])
            wasted = int(emptiest.sum() <= length and used_positions.size > 1)
            reason = "two rows would fit into one row"
        if wasted:
            defects.append(
                f"{describe_artifact(cohort.receipt)}: split {name}: {reason}, which `{algorithm}` never produces"
            )
        fill = scan.tokens / _count_positions(cohort, scan) if used_positions.size else 1.0
        table.append({"split": name, "rows": int(used_positions.size), "fill": round(fill, 6)})
    rows, tokens = sum(s.used.size for s in cohort.scans.values()), sum(s.tokens for s in cohort.scans.values())
    positions = sum(_count_positions(cohort, scan) for scan in cohort.scans.values())
    fill = round(tokens / positions, 6) if rows else 1.0
    return build_verdict(
        defects,
        f"{count_of(rows, 'row is', 'rows are')} filled to {fill}.",
        REBUILD,
        facts={"rows": rows, "fill": fill},
        table=table,
    )
