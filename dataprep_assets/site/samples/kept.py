"""Rows of the files that a trainer reads, as facts of a page."""

import shlex
from collections.abc import Iterable, Iterator
from itertools import groupby

from dataprep_assets.engine.trace.document_table import Values
from dataprep_assets.engine.trace.place import TokenRange
from dataprep_assets.engine.trace.sample import SampledPart, SampledRow
from dataprep_assets.errors import count_of
from dataprep_assets.site.samples.facts import Panel, Row, Run, TokenGroup
from dataprep_assets.site.samples.texts import cut_text
from dataprep_assets.table import format_share


def build_kept_row(dataset: str, row: SampledRow, values: Values | None = None) -> Row:
    """Return the facts of a row that was read from a trainer's file; `values` are its columns that rules read."""
    return Row(
        source=f"{row.file}:{row.row}",
        details=[row.split, *([f"split {row.run_split}"] if row.run_split else [])],
        values=[(name, format_value(value)) for name, value in (values or {}).items()],
        locations=[describe_place(token_range) for token_range in row.locations],
        command=format_command(dataset, row.file, row.row, row.split) if row.is_traceable else "",
        panels=[build_panel(part) for part in row.parts],
        notes=row.notes,
    )


def format_command(dataset: str, file: str, row: int, split: str | None = None) -> str:
    """Return the command that traces a source row."""
    options = ["--file", file, "--row", str(row), *(["--split", split] if split else [])]
    return shlex.join(["dataprep", "trace", dataset, *options])


def describe_place(token_range: TokenRange) -> str:
    """Return the artifact, the file and the position of a place."""
    numbers = [f"{name} {value:,}" for name, value in token_range.at.items() if isinstance(value, int)]
    tokens = (
        [f"tokens {token_range.start:,} to {token_range.stop - 1:,}"] if token_range.start < token_range.stop else []
    )
    return ", ".join([f"{token_range.artifact}/{token_range.file}", *tokens, *numbers])


def format_value(value: object) -> str:
    """Return a value of a column of the document table as text."""
    return f"{value:.6g}" if isinstance(value, float) else "none" if value is None else str(value)


def build_panel(part: SampledPart) -> Panel:
    """Return a part of a row as a panel."""
    if part.text is not None:
        text, omitted = cut_text(part.text)
        return Panel(heading=part.name, runs=[Run(text)], omitted=omitted)
    omitted = f"{count_of(part.omitted_tokens, 'more token')}" if part.omitted_tokens else ""
    return Panel(heading=part.name, groups=list(_group_tokens(part)), omitted=omitted, loss=describe_loss([part]))


def describe_loss(parts: Iterable[SampledPart]) -> str:
    """Return the number of tokens in the loss; empty if the parts have no mask."""
    masked_parts = [part for part in parts if part.trained_mask is not None]
    total = sum(part.total_tokens for part in masked_parts)
    if not total:
        return ""
    trained_tokens = sum(part.trained_tokens for part in masked_parts)
    return f"{trained_tokens:,} of {count_of(total, 'token')} ({format_share(trained_tokens / total)}) in the loss"


def _group_tokens(part: SampledPart) -> Iterator[TokenGroup]:
    """Yield the tokens of each message, and the template's own text between them."""
    trained_mask = part.trained_mask if part.trained_mask is not None else [False] * len(part.tokens)
    tokens = list(zip(part.tokens, trained_mask, strict=True))
    if not part.messages:
        yield TokenGroup("", tokens)
        return
    for (_, role), members in groupby(
        zip(part.messages, part.roles, tokens, strict=True), key=lambda member: (member[0], member[1])
    ):
        yield TokenGroup(role or "", [token for *_, token in members], is_template=role is None)
