"""Remarks on a declaration that are available before a build, if its tokenizer and source are on this machine."""

from collections.abc import Sequence
from dataclasses import dataclass

from dataprep_assets.errors import ConfigError

MAX_SHOWN = 5
"""Maximum number of mistakes shown per file."""


@dataclass(frozen=True, kw_only=True)
class Remark:
    """One remark on a declaration.

    Attributes:
        keys: Path of the YAML key that the remark is about: keys from the outermost, and indices in lists.
        sentence: The problem and the remedy.
        hint: Whether the declaration may be intended. If so, a run continues.
        of_source: Whether the remark is about the source only. It stops a first run, but not later ones, which may not
            need the source.
    """

    keys: tuple[str | int, ...]
    sentence: str
    hint: bool = False
    of_source: bool = False


def format_examples(names: Sequence[str], max_shown: int) -> str:
    """Return the first names as examples; in brackets, without `for example`, if these are all of the names."""
    examples = ", ".join(names[:max_shown])
    return f", for example {examples}" if len(names) > max_shown else f" ({examples})"


def parse_error_keys(error: Exception) -> tuple[str, ...]:
    """Return the path of the YAML key with which the message of an error begins: `source.region: …`."""
    return tuple(str(error).partition(":")[0].split("."))


def build_mistakes_error(mistakes: Sequence[str]) -> ConfigError:
    """Return an error with the first mistakes of a declaration, one per line, and the number of the remaining ones.

    All mistakes may be shown in full, because a declaration contains no counts of people.
    """
    hidden_count = len(mistakes) - MAX_SHOWN
    return ConfigError(
        "\n".join([*mistakes[:MAX_SHOWN], *([f"… and {hidden_count} more"] if hidden_count > 0 else [])])
    )
