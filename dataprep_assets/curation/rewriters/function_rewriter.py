"""A rewriter that is a function of the user's project."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from dataprep_assets.curation.project_function import ProjectFunction
from dataprep_assets.curation.rewriters.rewriting import Rewriter


@dataclass(frozen=True, kw_only=True)
class FunctionRewriter(Rewriter):
    """A function of the user's project, `module:function`, which is called with a text and returns a text.

    Attributes:
        code: The function.
    """

    code: ProjectFunction

    @property
    def version(self) -> str:
        return self.code.version

    @property
    def function(self) -> str:
        return self.code.name

    def explain_missing(self) -> str | None:
        return self.code.explain_missing()

    def open(self) -> AbstractContextManager[Callable[[str], str]]:
        return self.code.open()
