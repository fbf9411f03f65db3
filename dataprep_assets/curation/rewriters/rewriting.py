"""Rewriting of documents' texts, with functions from text to text.

A text is rewritten as it is read from the source (`SourcePart.rewrite_block`), so tokens, tags, signatures and checks
all have the rewritten text. Only ids are computed from the source texts, because a changed rewriter must not bring back
a retracted document.

Entry points: `Rewriter`, `Rewriting`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from dataprep_assets.curation.module_code import describe_error, locate_in_project
from dataprep_assets.errors import DataprepError, raise_detached
from dataprep_assets.execution.run_task import discard_output

if TYPE_CHECKING:
    from dataprep_assets.sources.readers.records import Block


class RewritingError(DataprepError):
    """Error for a rewriter that failed or returned no text. It names the file and the row."""


@dataclass(frozen=True, kw_only=True)
class Rewriter(ABC):
    """A rewriter of a dataset. Picklable; `name` is also part of the name of its column."""

    name: str

    @property
    @abstractmethod
    def version(self) -> str:
        """The values that determine its output in addition to the text. Raises ConfigError if a library is missing."""

    @abstractmethod
    def open(self) -> AbstractContextManager[Callable[[str], str]]:
        """Return a context manager that yields the function from text to text."""

    @property
    def function(self) -> str | None:
        """The function of the user's project that it calls; None if it calls none."""
        return None

    def explain_missing(self) -> str | None:
        """Return a sentence if the rewriter cannot be found without calling it; otherwise None."""
        return None


@dataclass(frozen=True, kw_only=True)
class Rewriting:
    """The rewriters of a dataset, in order; each gets the output of the one before it. Picklable.

    Attributes:
        rewriters: The rewriters.
        sensitive: Whether messages must not show text.
    """

    rewriters: tuple[Rewriter, ...]
    sensitive: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the rewriters, in order."""
        return tuple(rewriter.name for rewriter in self.rewriters)

    @property
    def functions(self) -> list[str]:
        """The functions of the user's project that the rewriters call."""
        return [rewriter.function for rewriter in self.rewriters if rewriter.function is not None]

    @cached_property
    def version(self) -> str:
        """The name and version of each rewriter; part of every key that depends on texts."""
        return ", ".join(f"{rewriter.name} {rewriter.version}" for rewriter in self.rewriters)

    def rewrite_block(self, block: "Block", label: str) -> "Block":
        """Return a block of the source file `label` with rewritten texts, and the texts before each rewriter.

        Raises RewritingError, naming the row, if a rewriter fails.
        """
        texts, texts_before = block.texts, dict[str, list[str]]()
        for rewriter in self.rewriters:
            texts_before[rewriter.name] = texts
            texts = self._rewrite(rewriter, texts, lambda index: f"{label}: row {block.row(index)}")
        return replace(block, texts=texts, texts_before=texts_before)

    def rewrite_texts(self, texts: Sequence[str]) -> list[str]:
        """Return texts as all rewriters together rewrite them."""
        rewritten_texts = list(texts)
        for _, _, rewritten_texts in self.iterate_steps(texts):  # noqa: B007
            pass
        return rewritten_texts

    def iterate_steps(self, texts: Sequence[str]) -> Iterator[tuple[str, list[str], list[str]]]:
        """Yield the name of each rewriter, and the texts before and after it."""
        texts_before = list(texts)
        for rewriter in self.rewriters:
            rewritten_texts = self._rewrite(rewriter, texts_before, lambda index: f"text {index}")
            yield rewriter.name, texts_before, rewritten_texts
            texts_before = rewritten_texts

    def _rewrite(self, rewriter: Rewriter, texts: Sequence[str], locate: Callable[[int], str]) -> list[str]:
        rewritten_texts: list[str] = []
        # Discard the output of functions with sensitive texts, because checks and traces run them outside of workers.
        with discard_output(self.sensitive and rewriter.function is not None), rewriter.open() as rewrite:
            for index, text in enumerate(texts):
                try:
                    rewritten = rewrite(text)
                except (Exception, SystemExit) as error:  # the user's function may raise any error
                    code_line = locate_in_project(error)
                    reason = type(error).__name__ if self.sensitive else describe_error(error)
                    sentence = f"{locate(index)}: rewriter {rewriter.name!r} raised {reason}"
                    sentence += f" ({code_line})" if code_line else ""
                    if self.sensitive:  # the cause's message may quote a text
                        raise_detached(
                            RewritingError(sentence, code=code_line) if code_line else RewritingError(sentence)
                        )
                    raise RewritingError(sentence) from error
                if (defect := _find_defect(rewritten)) is not None:
                    raise RewritingError(
                        f"{locate(index)}: rewriter {rewriter.name!r} returned {defect}. Return a valid string"
                    )
                # Keep the given object if the text is unchanged, because both lists are then compared faster.
                rewritten_texts.append(text if rewritten == text else rewritten)
        return rewritten_texts


def _find_defect(text: object) -> str | None:
    if not isinstance(text, str):
        return f"{type(text).__name__} instead of a string"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "text with a lone surrogate, which UTF-8 cannot represent"
    return None
