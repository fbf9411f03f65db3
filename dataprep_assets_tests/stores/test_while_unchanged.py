"""Values read from a file are cached only while the file is unchanged."""

import os
from pathlib import Path

from dataprep_assets.stores.files import cache_by_file


def test_a_file_is_read_again_after_it_was_replaced_or_just_changed(tmp_path: Path) -> None:
    path, reads = tmp_path / "f", list[str]()

    @cache_by_file
    def read(path: str) -> str:
        reads.append(path)
        return Path(path).read_text()

    path.write_text("one")
    assert [read(str(path)), read(str(path))] == ["one", "one"]
    assert len(reads) == 2, "it changed a moment ago: its time may not tell the next change"
    os.utime(path, (1, 1))
    assert [read(str(path)), read(str(path)), read(str(path))] == ["one"] * 3
    assert len(reads) == 3
    other = tmp_path / "g"
    other.write_text("two")
    os.utime(other, (1, 1))
    os.replace(other, path)  # the new file has the same size and time
    assert [read(str(path)), len(reads)] == ["two", 4]
