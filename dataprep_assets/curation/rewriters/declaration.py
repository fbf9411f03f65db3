"""The key `rewrite` of `defs.yaml`, whose field descriptions are the YAML reference."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, field_validator, model_validator

from dataprep_assets.curation.declaration import FUNCTION, NAME, VersionText, resolve_patterns
from dataprep_assets.curation.table import name_rewritten_column
from dataprep_assets.engine.yaml.declaration_model import DeclarationModel
from dataprep_assets.engine.yaml.remark import Remark
from dataprep_assets.errors import ConfigError

# Import the rewriters only where they are built, because most datasets have none.
if TYPE_CHECKING:
    from dataprep_assets.curation.rewriters.rewriting import Rewriter, Rewriting

PERSONAL = "personal"
"""The tagger that finds personal data, and the default name of the rewriter that replaces it."""
EMPTY = "rewritten_empty"
"""The drop reason of documents whose rewritten text is empty."""
_RESERVED = re.compile(r"[\d@:]")
"""Characters that a placeholder must not have, because all personal data has one of them."""
_LINE_ENDS = re.compile(r"[\n-\r\x1c-\x1e\x85\u2028\u2029]")
"""Characters that a placeholder must not have, because texts are rewritten line by line."""
Kind = Literal["emails", "phones", "ibans", "cards", "ip_addresses"]


class DeclaredRewriter(DeclarationModel):
    """Replacement of personal data, or your own function from text to text."""

    personal: dict[Kind, str] | None = Field(
        None,
        min_length=1,
        description=(
            "Kind of personal data, as found by the tagger `personal` → the placeholder that replaces it. Other "
            "kinds stay in the text."
        ),
    )
    function: str | None = Field(
        None,
        pattern=FUNCTION,
        description="Python function in the project, as `module:function`. It receives a text and returns a text.",
    )
    name: str | None = Field(
        None,
        pattern=NAME,
        description=(
            "Name of the rewriter, for its column `rewritten_<name>`. Default: `personal`, or the function's name."
        ),
    )
    version: VersionText | None = Field(
        None,
        description=(
            "Version of the function. Changing it rebuilds tags, signatures and tokens. Default: a digest of the "
            "function's code."
        ),
    )
    files: tuple[str, ...] = Field(
        (),
        description=(
            "Files that the function reads: paths or globs, relative to this YAML. Changing their contents rebuilds "
            "tags, signatures and tokens. Default: none."
        ),
    )

    @field_validator("personal")
    @classmethod
    def _require_plain_placeholders(cls, personal: dict[Kind, str] | None) -> dict[Kind, str] | None:
        for kind, placeholder in (personal or {}).items():
            if _RESERVED.search(placeholder) or _LINE_ENDS.search(placeholder):
                raise ValueError(
                    f"{kind}: {placeholder!r} must not contain digits, `@`, `:` or line ends, because the rewritten "
                    "line is searched for personal data again. Use, e.g., `<EMAIL>`"
                )
        return personal

    @model_validator(mode="after")
    def _require_one_kind(self) -> Self:
        if (self.personal is None) == (self.function is None):
            raise ValueError("exactly one of `personal` and `function` is required")
        if self.function is None and (self.version is not None or self.files):
            key = "files" if self.version is None else "version"
            raise ValueError(f"`{key}` has no effect without a `function`. Remove it")
        return self

    def build_rewriter(self, folder: Path) -> "Rewriter":
        """Return the rewriter. Files are relative to this folder."""
        if self.personal is not None:
            from dataprep_assets.curation.rewriters.personal_data import PersonalDataRewriter

            return PersonalDataRewriter(name=self.name or PERSONAL, placeholders=tuple(sorted(self.personal.items())))
        from dataprep_assets.curation.project_function import ProjectFunction
        from dataprep_assets.curation.rewriters.function_rewriter import FunctionRewriter

        assert self.function is not None
        files = resolve_patterns(self.files, folder)
        code = ProjectFunction(key="rewrite", name=self.function, declared=self.version, files=files)
        return FunctionRewriter(name=self.name or self.function.partition(":")[2].lower(), code=code)


Rewrites = tuple[str | DeclaredRewriter, ...]


def replaces_personal_data(rewrite: Rewrites) -> bool:
    """Return whether a rewriter replaces personal data."""
    return any(not isinstance(item, str) and item.personal is not None for item in rewrite)


def build_rewriting(rewrite: Rewrites, folder: Path, *, sensitive: bool) -> "Rewriting":
    """Return the declared rewriters, in declaration order.

    Raises ConfigError for an unknown rewriter, and for names that two rewriters share.
    """
    from dataprep_assets.curation.rewriters.rewriting import Rewriting

    rewriters: list[Rewriter] = []
    for item in rewrite:
        rewriter = _build_named_rewriter(item) if isinstance(item, str) else item.build_rewriter(folder)
        if any(rewriter.name == earlier_rewriter.name for earlier_rewriter in rewriters):
            raise ConfigError(f"rewrite: {rewriter.name!r} is listed twice. Remove one, or set a different `name`")
        rewriters.append(rewriter)
    return Rewriting(rewriters=tuple(rewriters), sensitive=sensitive)


def _build_named_rewriter(name: str) -> "Rewriter":
    from dataprep_assets.curation.rewriters.repair import FTFY, FtfyRewriter

    if name != FTFY:
        raise ConfigError(
            f"rewrite: unknown rewriter {name!r}. Use `ftfy`, `{{personal: {{emails: <EMAIL>}}}}` or `{{function: "
            "module:function}`"
        )
    return FtfyRewriter()


def build_empty_rule(rewriters: Sequence[str]) -> str:
    """Return the rule that drops documents whose text is empty, but was not before these rewriters."""
    return f"bytes == 0 and ({' or '.join(f'{name_rewritten_column(name)} > 0' for name in rewriters)})"


def find_rewriter_remarks(rewriting: "Rewriting") -> Iterator[Remark]:
    """Yield remarks on missing libraries, functions and files of rewriters."""
    for index, rewriter in enumerate(rewriting.rewriters):
        try:
            # Read the property only because it raises an error if a library or a file is missing.
            rewriter.version  # noqa: B018
        except ConfigError as error:
            yield Remark(keys=("rewrite", index), sentence=str(error))
        if (sentence := rewriter.explain_missing()) is not None:
            yield Remark(keys=("rewrite", index), sentence=sentence, hint=True)
