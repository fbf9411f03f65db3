"""A tagger that is a command, which reads a Parquet file of a shard's documents and writes a file with the columns.

The command and all its child processes end with the run or at its time limit (`execution.guarded_command`).
"""

import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from dataprep_assets.curation.module_code import is_of_project
from dataprep_assets.curation.project_function import digest_files
from dataprep_assets.curation.tagging import ExternalTagger, TaggingError
from dataprep_assets.errors import count_of
from dataprep_assets.execution.guarded_command import run_guarded
from dataprep_assets.stores.files import digest_value

_MAX_SHOWN = 300
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (\S+)$', re.MULTILINE)
"""Matches the location line of a Python traceback."""


@dataclass(frozen=True, kw_only=True)
class CommandTagger(ExternalTagger):
    """A command whose words may contain `{input}` and `{output}`, the Parquet files that it reads and writes.

    The input has `file`, `row`, `text` and the carried fields of every document of a shard. The output has `file`,
    `row` and the columns, in any order.

    Attributes:
        command: Its words.
        declared: The version that the user declared.
        folder: The working directory.
        seconds: Time limit per shard.
        files: Patterns of the files that are part of its version, as absolute paths.
    """

    by: ClassVar[str] = "the command"
    command: tuple[str, ...]
    declared: str
    folder: Path
    seconds: float = 86_400.0
    files: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        declaration = f"{self.declared} {shlex.join(self.command)}"
        return digest_value([declaration, digest_files(f"tag: {self.name}", self.files)]) if self.files else declaration

    def explain_missing(self) -> str | None:
        program = self.command[0]
        is_installed = (self.folder / program).is_file() if os.sep in program else shutil.which(program)
        return (
            None
            if is_installed or "{" in program
            else f"tag: {self.name}: program {program!r} not found. Install it, or correct `command`"
        )

    def run(self, input_path: Path, output_path: Path, shard: str, *, sensitive: bool) -> None:
        """Run the command on the documents of a shard. Raises TaggingError if it fails or writes no output.

        The folder of `input_path` is removed if this process is killed.
        """
        # Replace the placeholders in each word separately, so that a path with spaces or quotes stays one argument. No
        # shell parses the command.
        words = [
            word.replace("{input}", str(input_path)).replace("{output}", str(output_path)) for word in self.command
        ]
        # If the data is sensitive, discard the command's standard error, because its messages may quote texts.
        outcome = run_guarded(words, self.folder, seconds=self.seconds, scratch=input_path.parent, quoted=not sensitive)
        location = f"tag: {self.name}: {shard}: "
        if outcome.refused:
            raise TaggingError(f"tag: {self.name}: {words[0]}: cannot be started: {outcome.refused}. Correct `command`")
        if outcome.code is None:
            raise TaggingError(
                f"{location}the command ran for more than {count_of(round(self.seconds), 'second')} and was stopped. "
                "Raise `timeout`, or make the shards smaller"
            )
        if outcome.code or not output_path.is_file():
            reason = _describe_failure(outcome.errors)
            how = f"ended with exit code {outcome.code}" if outcome.code else "did not write {output}"
            raise TaggingError(f"{location}the command {how}" + (f": {reason}" if reason else ""))


def _describe_failure(errors: str) -> str:
    """Return why a program stopped: the error and the user's innermost line in a traceback, or the last output."""
    own_frames = [frame for frame in _FRAME.findall(errors) if is_of_project(Path(frame[0]))]
    if not own_frames:
        return " ".join(errors.split())[-_MAX_SHOWN:]
    path, line, function = own_frames[-1]
    return f"{errors.strip().splitlines()[-1].strip()[:_MAX_SHOWN]} ({Path(path).name}:{line} in {function})"
