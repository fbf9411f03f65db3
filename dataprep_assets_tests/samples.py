"""The corpus that is shipped, and the small part of it that most tests read. Holds no test."""

import re
from collections.abc import Sequence
from pathlib import Path

import dataprep_assets

SAMPLE = Path(dataprep_assets.__file__).parent / "defs" / "samples" / "sample_corpus"
"""The folder of the shipped sample: `data` (1,980 documents), `tokenizer` and its declaration."""
SMALL = Path(__file__).with_name("small_corpus")
"""Its data, but of each file the first twenty documents: a run takes a third of the time."""


def shrink(declared: Path, views: Sequence[str] = ("nanogpt",)) -> None:
    """Have the declaration of the shipped sample, in another project, read the small part, with some views."""
    text, paths = re.subn("path: ./data", f"path: {SMALL}", declared.read_text())
    text, lists = re.subn("views: .*", f"views: [{', '.join(views)}]", text)
    assert (paths, lists) == (1, 1)
    declared.write_text(text)
