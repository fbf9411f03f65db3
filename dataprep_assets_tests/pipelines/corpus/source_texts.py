"""The texts of a corpus, by the plainest reader there is."""

import json
from pathlib import Path

import zstandard

__all__ = ["source_texts"]


def source_texts(folder: Path) -> list[str]:
    """Texts of a split in natural order of its files, by the plainest reader there is."""
    from dataprep_assets.planning.manifest import natural_key

    texts = []
    for path in sorted(folder.rglob("*.jsonl.zst"), key=lambda p: natural_key(p.relative_to(folder).as_posix())):
        raw = zstandard.ZstdDecompressor().stream_reader(path.read_bytes(), read_across_frames=True).read()
        texts += [json.loads(line)["text"] for line in raw.split(b"\n") if line]
    return texts
