"""The shipped corpus, and the small part of it that most tests read. Contains no test."""

import re
from collections.abc import Sequence
from pathlib import Path

import dataprep_assets

SAMPLE = Path(dataprep_assets.__file__).parent / "defs" / "samples" / "sample_corpus"
"""The folder of the shipped sample: `data` (1,980 documents), `tokenizer` and its declaration."""
SMALL = Path(__file__).with_name("small_corpus")
"""The first twenty documents of each file, with which a run takes a third of the time."""


def shrink(declared: Path, views: Sequence[str] = ("nanogpt",)) -> None:
    """Change the shipped sample's declaration in another project to read only the small part, with some views."""
    text, paths = re.subn("path: ./data", f"path: {SMALL}", declared.read_text())
    text, lists = re.subn("views: .*", f"views: [{', '.join(views)}]", text)
    assert (paths, lists) == (1, 1)
    declared.write_text(text)
