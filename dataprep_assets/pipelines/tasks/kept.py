"""Keeps files that a migration replaces: a user's file in the new project is saved before it is replaced there.

Until the artifact is finished, replaced files are in a folder of their own, added one by one and durably, so that a run
killed in between loses nothing and the next one takes them over.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dataprep_assets.errors import IntegrityError
from dataprep_assets.integrity.commit import write_atomically
from dataprep_assets.integrity.digest import canonical_json, sha256_file
from dataprep_assets.pipelines.tasks.placing import Placement, Standing
from dataprep_assets.pipelines.tasks.record import NAME, REPLACED, ReplacedFile, read_record
from dataprep_assets.stores.files import fsync_directory


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The replaced files of the finished artifact in `directory`, and those since, in `holding`.

    Entries have numbers of their own, so that a kill between publishing and clearing enters nothing twice. `version` is
    the one that the artifact's migration took, None without an artifact, and `placed` the copies that it made: name →
    digest as the record has it.
    """

    directory: Path
    holding: Path
    earlier: tuple[ReplacedFile, ...]
    version: str | None
    placed: Mapping[str, str]

    @classmethod
    def open(cls, directory: Path, holding: Path) -> "Kept":
        """Open the kept files of the artifact in `directory` and the folder `holding`.

        Raises IntegrityError if the artifact has kept files and no record of them.
        """
        record = read_record(directory)
        if record is None and (directory / REPLACED).exists():
            raise IntegrityError(
                f"{directory / NAME}: is lost, and {REPLACED}/ beside it holds replaced files. Save that folder if you "
                f"need it, then delete {directory} and migrate again"
            )
        return cls(
            directory=directory,
            holding=holding,
            earlier=record.history if record else (),
            version=record.version if record else None,
            placed={file.name: file.sha256 for file in record.files if file.how == "copied"} if record else {},
        )

    def made(self, placement: Placement, version: str) -> bool:
        """Whether the file at a target is a copy that the migration of this version made, and nobody has changed."""
        target = placement.target
        return version == self.version and self.placed.get(target.name) == placement.digests.of(sha256_file(target))

    def keep(self, placement: Placement, state: Standing) -> None:
        """Keep a file that is about to be replaced, if its content would be lost."""
        target = placement.target
        if state not in ("other_file", "other_link"):
            return
        data = target.read_bytes() if state == "other_file" else None
        digest = sha256_file(target) if target.is_file() else None
        if digest is not None and data is None:
            # A link may lead to a source. A kept file is complete, and must be found again under any other key.
            digest = placement.digests.of(digest)
        waiting = self._waiting()
        entry = ReplacedFile(
            number=1 + max((e.number for e in (*self.earlier, *waiting)), default=0),
            name=target.name,
            kind="file" if state == "other_file" else "link",
            bytes=len(data) if data is not None else None,
            sha256=digest,
            link=os.readlink(target) if state == "other_link" else None,
            kept=data is not None,
        )
        if any(entry == e.model_copy(update={"number": entry.number}) for e in waiting):
            return  # a run that was killed before it replaced anything has kept it
        self.holding.mkdir(parents=True, exist_ok=True)
        # the content before the entry that names it: a kill in between leaves a file that nothing refers to
        if data is not None:
            write_atomically(self.holding / str(entry.sha256), data)
        write_atomically(self.holding / f"{entry.number:06d}.json", canonical_json(entry.model_dump(mode="json")))
        # the folder may be new: what is durable in it is of no use if its own name is not
        fsync_directory(self.holding.parent)

    def history(self, target: Path) -> list[ReplacedFile]:
        """Every replaced file, oldest first. What was kept but not replaced after all is left out."""
        # a kept file that was damaged since is told as lost, and stops no migration
        files = [e.model_copy(update={"kept": e.kept and self._source(e) is not None}) for e in self.earlier]
        return files + [e for e in self._waiting() if not self._still_there(e, target / e.name)]

    def copy_into(self, staged: Path, history: Sequence[ReplacedFile]) -> None:
        """Put the kept files of a history into a new artifact."""
        for entry in history:
            source = self._source(entry)
            if entry.kept and source is not None:
                (staged / REPLACED).mkdir(exist_ok=True)
                shutil.copyfile(source, staged / REPLACED / str(entry.sha256))

    def close(self) -> None:
        """Remove files from the holding folder that the finished artifact has now."""
        if self.holding.exists():
            shutil.rmtree(self.holding)

    def _source(self, entry: ReplacedFile) -> Path | None:
        """The path of a kept, complete file; None if it is lost."""
        places = (self.directory / REPLACED / str(entry.sha256), self.holding / str(entry.sha256))
        # looked at in both places: a kill after publishing leaves it in both, before it in the second alone
        return next((p for p in places if p.is_file() and sha256_file(p) == entry.sha256), None)

    def _waiting(self) -> list[ReplacedFile]:
        """Files that are kept but in no artifact yet, oldest first."""
        known = {e.number for e in self.earlier}
        found = [ReplacedFile.model_validate_json(p.read_bytes()) for p in sorted(self.holding.glob("*.json"))]
        return [e for e in found if e.number not in known]

    @staticmethod
    def _still_there(entry: ReplacedFile, target: Path) -> bool:
        if entry.kind == "link":
            return target.is_symlink() and os.readlink(target) == entry.link
        return target.is_file() and not target.is_symlink() and sha256_file(target) == entry.sha256
