"""Read the texts of a corpus with the simplest possible reader, as a reference for the pipeline's output."""

import json
from pathlib import Path

import zstandard

from dataprep_assets.planning.manifest import natural_key


def source_texts(folder: Path) -> list[str]:
    """Return the texts of a split, in natural order of its files."""
    texts = []
    for path in sorted(folder.rglob("*.jsonl.zst"), key=lambda p: natural_key(p.relative_to(folder).as_posix())):
        raw = zstandard.ZstdDecompressor().stream_reader(path.read_bytes(), read_across_frames=True).read()
        texts += [json.loads(line)["text"] for line in raw.split(b"\n") if line]
    return texts
