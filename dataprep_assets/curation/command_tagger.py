"""A tagger that is a command: it is given a Parquet file of a shard's documents, and writes one with the columns.

It ends with its run, with everything that it started, and after its time limit (`execution.guarded_command`).
"""

import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from dataprep_assets.curation.function_tagger import digest_of_files
from dataprep_assets.curation.module_code import is_of_project
from dataprep_assets.curation.tagging import ExternalTagger, TaggingError
from dataprep_assets.errors import count_of
from dataprep_assets.execution.guarded_command import run_guarded
from dataprep_assets.stores.files import digest_value

_SHOWN = 300
_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (\S+)$', re.MULTILINE)
"""A line of the traceback that Python prints."""


@dataclass(frozen=True, kw_only=True)
class CommandTagger(ExternalTagger):
    """A command, in whose words `{input}` and `{output}` are the Parquet files that it reads and writes.

    The input has `file`, `row`, `text` and the carried fields of every document of a shard; the output has `file`,
    `row` and the columns, in any order.

    Attributes:
        command: Its words.
        declared: The version that the user gives it.
        folder: Where it runs.
        seconds: How long it may take for a shard.
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
        return digest_value([declaration, digest_of_files(self.name, self.files)]) if self.files else declaration

    def absent(self) -> str | None:
        program = self.command[0]
        is_installed = (self.folder / program).is_file() if os.sep in program else shutil.which(program)
        return None if is_installed or "{" in program else f"tag: {self.name}: program {program} not found"

    def run(self, given: Path, made: Path, shard: str, *, sensitive: bool) -> None:
        """Run it on the documents of a shard; raises TaggingError if it fails or writes nothing.

        The folder of `given` is removed if this process is killed.
        """
        # No shell reads the words: a path with blanks or quotes stays one word.
        words = [word.replace("{input}", str(given)).replace("{output}", str(made)) for word in self.command]
        # of sensitive data its standard error is not read, because texts may be in it
        outcome = run_guarded(words, self.folder, seconds=self.seconds, scratch=given.parent, quoted=not sensitive)
        where = f"tag: {self.name}: {shard}: "
        if outcome.refused:
            raise TaggingError(f"tag: {self.name}: {words[0]}: {outcome.refused}")
        if outcome.code is None:
            raise TaggingError(
                f"{where}the command ran for more than {count_of(round(self.seconds), 'second')} and was ended. Set "
                "`timeout`, or make shards smaller"
            )
        if outcome.code or not made.is_file():
            reason = _reason(outcome.errors)
            how = f"ended with exit code {outcome.code}" if outcome.code else "did not write {output}"
            raise TaggingError(f"{where}the command {how}" + (f": {reason}" if reason else ""))


def _reason(errors: str) -> str:
    """Return why a program stopped: of a traceback the error with the innermost line of the user's, else the end."""
    own = [frame for frame in _FRAME.findall(errors) if is_of_project(Path(frame[0]))]
    if not own:
        return " ".join(errors.split())[-_SHOWN:]
    path, line, function = own[-1]
    return f"{errors.strip().splitlines()[-1].strip()[:_SHOWN]} ({Path(path).name}:{line} in {function})"
