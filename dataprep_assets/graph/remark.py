"""What can be said of a declaration before anything is built, because its tokenizer and source are at hand."""

from dataclasses import dataclass

__all__ = ["Remark"]


@dataclass(frozen=True, kw_only=True)
class Remark:
    """One thing about a declaration.

    Attributes:
        keys: Of the YAML, outermost first, and places in lists: what it is about.
        sentence: What is wrong, and what to do.
        hint: Whether it can be meant: a run then goes on.
        of_source: Whether the source alone says it, of which a run may need nothing: it goes on, too.
    """

    keys: tuple[str | int, ...]
    sentence: str
    hint: bool = False
    of_source: bool = False
