"""Remarks on a declaration that can be made before anything is built, if its tokenizer and source are at hand."""

from collections.abc import Sequence
from dataclasses import dataclass

from dataprep_assets.errors import ConfigError

MOST_SHOWN = 5
"""Maximum number of mistakes shown per file."""


@dataclass(frozen=True, kw_only=True)
class Remark:
    """One remark on a declaration.

    Attributes:
        keys: Path of the YAML key that it is about: keys from the outermost, and indices in lists.
        sentence: What is wrong, and what to do.
        hint: Whether it may be intended: then a run goes on.
        of_source: Whether it is about the source only: a first run does not go on, a later one may not need it.
    """

    keys: tuple[str | int, ...]
    sentence: str
    hint: bool = False
    of_source: bool = False


def mistakes_error(mistakes: Sequence[str]) -> ConfigError:
    """An error with the first mistakes in a declaration, one on each line, and how many more there are.

    What is declared counts nobody, so all of it is shown.
    """
    hidden_count = len(mistakes) - MOST_SHOWN
    return ConfigError(
        "\n".join([*mistakes[:MOST_SHOWN], *([f"… and {hidden_count} more"] if hidden_count > 0 else [])])
    )
