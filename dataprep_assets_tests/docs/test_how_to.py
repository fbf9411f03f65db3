"""Every how-to guide does what it shows: its files are written, its commands run, and their output is compared.

A guide is a script for an empty folder; its first block creates a project and the example's input. Blocks of YAML, TOML
and Python whose first line is a comment with a path are files; other Python is run; each command of a shell block must
exit with 0, or with the code in its comment `# exit 1`; lines of a text block occur in the output of the shell block
before it, in this order, where `…` is any text. Blocks marked `no-run` are skipped.
"""

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets.project import find_user_cache
from dataprep_assets_tests.cli.commands import run_line

GUIDES = sorted((PROJECT_ROOT / "docs" / "how-to").glob("*.md"))
_BLOCK = re.compile(r"^```(?P<kind>\w+)(?P<flags>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^[^\n]*<<'(?P<end>\w+)'.*?^(?P=end)$|^for .*?^done$|^[^\n]+$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"  # *(?:exit (?P<code>\d+))?[^\n]*$")
_FILE = re.compile(r"# (?P<path>[\w./-]+\.(?:yaml|py|toml|json))\n")


@dataclass(frozen=True)
class Block:
    """A block of a guide, with the language and words of its fence."""

    kind: str
    text: str


def read_blocks(guide: Path) -> Iterator[Block]:
    """Yield the blocks that the test uses, in the order of the page."""
    for found in _BLOCK.finditer(guide.read_text(encoding="utf-8")):
        if "no-run" not in found["flags"]:
            yield Block(found["kind"], found["text"])


class Reader:
    """A reader who follows a guide in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said, self._installed = folder / "empty", "", folder / "installed"
        self.folder.mkdir()
        self._environment = {
            # Install a guide's packages into a separate folder, because other tests must not find them.
            "PYTHONPATH": str(self._installed),
            "PIP_TARGET": str(self._installed),
            "PIP_NO_INDEX": "1",
            "PIP_NO_DEPS": "1",
            "PIP_NO_BUILD_ISOLATION": "0",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "XDG_CACHE_HOME": str(find_user_cache().parent),
            "LANG": "C.UTF-8",
            "DAGSTER_DISABLE_TELEMETRY": "yes",
        }

    def follow(self, block: Block) -> None:
        """Perform the action of a block."""
        if block.kind in ("yaml", "python", "toml") and (named := _FILE.match(block.text)):
            path = self.folder / named["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.kind == "python":
            (self.folder / "block.py").write_text(block.text, encoding="utf-8")
            self.said = ""
            assert self._run("python block.py") == 0, self.said
        elif block.kind == "bash":
            self.said = ""
            for found in _COMMAND.finditer(block.text.replace("\\\n", " ")):
                command, comment = _COMMENT.sub("", found[0]), _COMMENT.search(found[0])
                if folder := re.fullmatch(r"cd (\S+)", command):
                    self.folder /= folder[1]
                else:
                    code = int((comment and comment["code"]) or 0)
                    assert self._run(command) == code, (command, self.said)
        elif block.kind == "text":
            self._compare(block.text.splitlines())

    def _run(self, command: str) -> int:
        # Entry points are read when Python starts. So after an installation, start a new process instead of forking an
        # older one.
        done = run_line(command, self.folder, self._environment, fork=not self._installed.exists())
        self.said += done.stdout + done.stderr
        return done.returncode

    def _compare(self, wanted: list[str]) -> None:
        """Find each line in the output, after the previous match."""
        left = [_squeeze(line) for line in self.said.splitlines()]
        for line in filter(None, map(str.strip, wanted)):
            if line == "…":
                continue
            pattern = ".*".join(re.escape(part) for part in _squeeze(line).split("…"))
            at = next((at for at, said in enumerate(left) if re.fullmatch(pattern, said)), None)
            assert at is not None, f"not in the output: {line}\n\n{self.said}"
            left = left[at + 1 :]


def _squeeze(line: str) -> str:
    """Return the line without the padding of its columns."""
    return " ".join(line.split())


@pytest.mark.slow
@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_a_guide_does_what_it_shows(guide: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    for block in read_blocks(guide):
        reader.follow(block)


def test_every_guide_creates_its_input_and_has_next_steps() -> None:
    for guide in GUIDES:
        text = guide.read_text(encoding="utf-8")
        first = next(block for block in read_blocks(guide) if block.kind == "bash")
        # A reader can repeat the guide only if all of its input is on the page.
        assert re.match(r"dataprep init my-data( --sample \w+)?\ncd my-data\n", first.text), guide.name
        assert "<!--" not in text, guide.name
        assert len(re.sub(r"```.*?```", "", text, flags=re.DOTALL).split()) <= 600, guide.name
        assert "## Next steps" in text, guide.name
