"""Every how-to guide does what it shows: its files are written, its commands run, and their output is compared.

A guide is a script for a project of `dataprep init my-data`. Blocks of YAML, TOML and Python whose first line is a
comment with a path are files; other Python is run; each line of a shell block must exit with 0, or with the code in its
comment `# exit 1`; lines of a text block occur in the output of the shell block before it, in this order, where
`…` is any text. `<!-- setup` … `-->` is run first and shown to nobody. Blocks marked `no-run` are skipped.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dataprep_assets.definitions import PROJECT_ROOT
from dataprep_assets.project_template import write_project
from dataprep_assets_tests import forked

GUIDES = sorted((PROJECT_ROOT / "docs" / "how-to").glob("*.md"))
_BLOCK = re.compile(
    r"^```(?P<kind>\w+)(?P<flags>[^\n]*)\n(?P<text>.*?)^```$|^<!-- setup\n(?P<setup>.*?)^-->$", re.MULTILINE | re.DOTALL
)
_FILE = re.compile(r"# (?P<path>[\w./-]+\.(?:yaml|py|toml|json))\n")
_SHELL = frozenset("|><;&$*`(~")


@dataclass(frozen=True)
class Block:
    """A block of a guide: `setup`, or the kind of its fence."""

    kind: str
    text: str


def read_blocks(guide: Path) -> Iterator[Block]:
    """Yield the blocks that the test uses, in the order of the page."""
    for found in _BLOCK.finditer(guide.read_text(encoding="utf-8")):
        if found["setup"] is not None:
            yield Block("setup", found["setup"])
        elif "no-run" not in found["flags"]:
            yield Block(found["kind"], found["text"])


class Reader:
    """Somebody who follows a guide in a new project."""

    def __init__(self, folder: Path) -> None:
        self.project, self.said, self._installed = folder / "my-data", "", folder / "installed"
        self._environment = {
            # what a guide installs is only for its reader
            "PYTHONPATH": str(self._installed),
            "PIP_TARGET": str(self._installed),
            "PIP_NO_INDEX": "1",
            "PIP_NO_DEPS": "1",
            "PIP_NO_BUILD_ISOLATION": "0",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "DAGSTER_DISABLE_TELEMETRY": "yes",
        }
        write_project(self.project)

    def follow(self, block: Block) -> None:
        """Do what a block shows."""
        if block.kind == "setup":
            done = subprocess.run(["bash", "-euc", block.text], cwd=self.project, env=self._environment, check=False)
            assert done.returncode == 0
        elif block.kind in ("yaml", "python", "toml") and (named := _FILE.match(block.text)):
            path = self.project / named["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        elif block.kind == "python":
            (self.project / "block.py").write_text(block.text, encoding="utf-8")
            self.said = ""
            assert self._run("python block.py", self.project) == 0, self.said
        elif block.kind == "bash":
            self.said = ""
            for line in block.text.replace("\\\n", " ").splitlines():
                command, _, comment = line.partition("  #")
                wanted = re.search(r"exit (\d+)", comment)
                if command.strip():
                    assert self._run(command, self.project) == int(wanted[1] if wanted else 0), (command, self.said)
        elif block.kind == "text":
            self._compare(block.text.splitlines())

    def _run(self, command: str, folder: Path) -> int:
        words = shlex.split(command)
        # entry points are read when Python starts, so a process that starts before an installation cannot be forked
        if words[0] == "dataprep" and not _SHELL & set(command) and not self._installed.exists():
            done = forked.run(["-m", "dataprep_assets.cli", *words[1:]], cwd=folder, env=self._environment)
        else:
            done = subprocess.run(
                ["bash", "-c", command], cwd=folder, env=self._environment, capture_output=True, text=True, check=False
            )
        self.said += done.stdout + done.stderr
        return done.returncode

    def _compare(self, wanted: list[str]) -> None:
        """Find each line in the output, after the one before."""
        left = [_squeeze(line) for line in self.said.splitlines()]
        for line in filter(None, map(str.strip, wanted)):
            if line == "…":
                continue
            pattern = ".*".join(re.escape(part) for part in _squeeze(line).split("…"))
            at = next((at for at, said in enumerate(left) if re.fullmatch(pattern, said)), None)
            assert at is not None, f"not in the output: {line}\n\n{self.said}"
            left = left[at + 1 :]


def _squeeze(line: str) -> str:
    """The line without the widths of its columns."""
    return " ".join(line.split())


@pytest.mark.slow
@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_a_guide_does_what_it_shows(guide: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    for block in read_blocks(guide):
        reader.follow(block)


def test_every_guide_has_a_declaration_commands_and_next_steps() -> None:
    for guide in GUIDES:
        text, kinds = guide.read_text(encoding="utf-8"), [block.kind for block in read_blocks(guide)]
        assert "bash" in kinds, guide.name
        assert len(re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL).split()) <= 600, guide.name
        assert "## Next steps" in text, guide.name
