"""Facts of the pages with samples: a page has rows, and a row has one or more panels of text side by side."""

from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_ROWS = 200
"""Maximum number of rows on a page."""
MAX_CHARACTERS = 2_500
"""Maximum number of characters of a text on a page; the number of omitted characters is shown."""
SEED = 0
"""Seed of all samples, so that the same artifacts give the same pages."""


@dataclass(frozen=True)
class Run:
    """A part of a text: `kind` is `same`, `removed`, `added` or `shared` in a comparison, otherwise empty."""

    text: str
    kind: str = ""


@dataclass(frozen=True)
class TokenGroup:
    """Consecutive tokens of one message: the texts of the tokens, and whether each is in the loss.

    `label` is the role of the message; empty if there are no messages. Tokens that the template writes are a group of
    their own, without a label.
    """

    label: str
    tokens: Sequence[tuple[str, bool]]
    is_template: bool = False


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A text with a heading, either as runs or as tokens.

    `omitted` is a phrase about the part that is not shown, and `loss` has the number of tokens in the loss.
    """

    heading: str
    runs: Sequence[Run] = ()
    groups: Sequence[TokenGroup] = ()
    omitted: str = ""
    loss: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a page.

    Attributes:
        source: The source file and row, `file:row`.
        details: Short facts, such as the split.
        values: Column → value, as text.
        locations: Sentences about the files from which the row was read.
        command: The command that traces the row; empty if there is none.
        panels: Its texts.
        notes: Sentences about the row, such as about parts that are not shown.
    """

    source: str
    details: Sequence[str] = ()
    values: Sequence[tuple[str, str]] = ()
    locations: Sequence[str] = ()
    command: str = ""
    panels: Sequence[Panel] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class SampleFacts:
    """Facts of a page.

    Attributes:
        introduction: Sentences about the rows: how many there are, and where their texts come from.
        rows: The rows.
        problems: Sentences about what could not be read.
    """

    introduction: Sequence[str]
    rows: Sequence[Row] = field(repr=False)
    problems: Sequence[str] = ()

    @property
    def has_tokens(self) -> bool:
        """Whether rows have tokens, whose boundaries can be shown."""
        return any(panel.groups for row in self.rows for panel in row.panels)

    @property
    def has_loss(self) -> bool:
        """Whether a token is in the loss."""
        return any(
            is_trained
            for row in self.rows
            for panel in row.panels
            for group in panel.groups
            for _, is_trained in group.tokens
        )
