"""The error of a failing command shows the line of the user's program if it is a Python program."""

import sys
from pathlib import Path

import pytest

from dataprep_assets.curation.external_taggers.command_tagger import CommandTagger
from dataprep_assets.curation.tagging import TaggingError

PROGRAM = "import json\n\n\ndef read(text):\n    return json.loads(text)\n\n\nread('secret {')\n"


@pytest.mark.parametrize("sensitive", [False, True])
def test_a_python_program_that_raises_is_reported_with_its_own_line_and_no_traceback(
    tmp_path: Path, sensitive: bool
) -> None:
    (tmp_path / "mark.py").write_text(PROGRAM)
    given = tmp_path / "scratch" / "given.parquet"
    given.parent.mkdir()
    command = (sys.executable, "mark.py", "{input}", "{output}")
    tagger = CommandTagger(name="mark", columns={"mark": "number"}, command=command, declared="1", folder=tmp_path)
    with pytest.raises(TaggingError) as failed:
        tagger.run(given, tmp_path / "made.parquet", "train-00000", sensitive=sensitive)
    said = str(failed.value)
    assert said.startswith("tag: mark: train-00000: the command ended with exit code 1")
    assert ("json.decoder.JSONDecodeError" in said) is not sensitive
    assert said.endswith("(mark.py:5 in read)") is not sensitive
    assert len(said.splitlines()) == 1
