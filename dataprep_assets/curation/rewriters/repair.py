"""The rewriter `ftfy`, which repairs broken Unicode, such as text that was decoded with a wrong encoding.

It needs the extra `rewrite`, and calls `ftfy.fix_text` with the library's defaults.
"""

import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dataprep_assets.curation.rewriters.rewriting import Rewriter
from dataprep_assets.errors import build_missing_extra_error
from dataprep_assets.integrity.receipt import require_installed_version

FTFY = "ftfy"
_LIBRARY = ("rewrite", FTFY, "rewrite")


@dataclass(frozen=True, kw_only=True)
class FtfyRewriter(Rewriter):
    """The rewriter that repairs broken Unicode."""

    name: str = FTFY

    @property
    def version(self) -> str:
        version = require_installed_version(*_LIBRARY)
        # Include the version of Unicode, because the library composes characters with Python's tables.
        return f"{version}, Unicode {unicodedata.unidata_version}"

    @contextmanager
    def open(self) -> Iterator[Callable[[str], str]]:
        try:
            import ftfy
        except ImportError as error:
            raise build_missing_extra_error(*_LIBRARY) from error
        yield ftfy.fix_text
