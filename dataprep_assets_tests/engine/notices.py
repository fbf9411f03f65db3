"""A dataset of two artifacts that take no time to build: partitioned notices, and a board of all notices.

Specs, recipes, checks and files are real; the text of a notice is in a file next to the artifacts.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from dataprep_assets.engine.artifact.build import Facts, WrittenFiles, ensure_built
from dataprep_assets.engine.artifact.metadata_values import Markdown, Table
from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.artifact.spec import (
    ArtifactSpec,
    BuildRequest,
    Partitions,
    SourceIdentity,
    SourceWatch,
    identify_listing,
    join_counts,
    read_modification_time,
)
from dataprep_assets.engine.checks.check import Check, Finding, OpenedArtifact
from dataprep_assets.engine.checks.verdicts import PartitionChecks
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.errors import SourceError
from dataprep_assets.execution.jobs import Outcome, run_fetches
from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.stores.files import digest_value, sha256_file

KEYS = ("n-0", "n-1", "n-2")


class NoticeFacts(Facts):
    """The facts of a notice."""

    words: int


class Notices(DatasetDeclaration):
    """The declaration: the folder of the texts, and the prefix of each text."""

    folder: Path
    greeting: str = ""


def make_notice_recipe(declaration: Notices, partition: str) -> Recipe:
    """Return the current recipe of a notice."""
    path = declaration.folder / f"{partition}.txt"
    if not path.exists():
        raise SourceError(f"{path.name}: is not there")
    digest = sha256_file(path)
    return Recipe(
        artifact=declaration.artifact("notices", partition),
        key=digest_value(["notices", 1, declaration.greeting, digest]),
        settings={"greeting": declaration.greeting},
        sources={path.name: digest},
    )


def build_notice(declaration: Notices, store: ArtifactStore, partition: str) -> tuple[Receipt, bool]:
    """Build a notice if it is out of date."""
    path = declaration.folder / f"{partition}.txt"

    def write(staged: Path) -> WrittenFiles:
        text = declaration.greeting + path.read_text()
        (staged / "notice.txt").write_text(text)
        return WrittenFiles(inputs={path.name: sha256_file(path)}, facts=NoticeFacts(words=len(text.split())))

    return ensure_built(make_notice_recipe(declaration, partition), store, write)


def _build_notices(declaration: Notices, request: BuildRequest) -> Iterator[Outcome]:
    def fetch(partition: str, fetched: Callable[[int], None]) -> tuple[Receipt, bool]:
        return build_notice(declaration, request.store, partition)

    yield from run_fetches(request.partitions, fetch, 0, request.progress)


def _identity(declaration: Notices, _: ArtifactStore) -> SourceIdentity:
    try:
        paths = sorted(declaration.folder.iterdir())
    except OSError as error:
        raise SourceError(f"{declaration.folder.name}: {error.strerror}") from error
    return identify_listing(
        [[path.name, path.stat().st_size] for path in paths],
        [[path.name, read_modification_time(path, path.name)] for path in paths],
    )


def _changes(declaration: Notices, store: ArtifactStore) -> str:
    """Return the number of words, so that a test can make an edit that the receipts do not show."""
    new = changed = 0
    for key in KEYS:
        receipt = store.receipt(declaration.artifact("notices", key))
        if receipt is None:
            new += 1
        else:
            text = (declaration.folder / f"{key}.txt").read_text()
            changed += NoticeFacts.from_receipt(receipt).words != len(text.split())
    return join_counts([(new, "notice", "new"), (changed, "notice", "changed")])


def _board_recipe(declaration: Notices, store: ArtifactStore) -> Recipe:
    contents = {f"notices/{key}": store.require(declaration.artifact("notices", key)).content for key in KEYS}
    return Recipe(artifact=declaration.artifact("board"), key=digest_value(["board", 1, contents]), upstream=contents)


def _build_board(declaration: Notices, request: BuildRequest) -> list[Outcome]:
    store = request.store

    def write(staged: Path) -> WrittenFiles:
        texts = [(store.local(declaration.artifact("notices", key)) / "notice.txt").read_text() for key in KEYS]
        (staged / "board.txt").write_text("".join(texts))
        return WrittenFiles(inputs={key: store.require(declaration.artifact("notices", key)).content for key in KEYS})

    request.warn("the board is small")
    return [Outcome.from_receipt(*ensure_built(_board_recipe(declaration, store), store, write))]


@dataclass(frozen=True)
class OpenedNotice(OpenedArtifact):
    """A notice as the checks see it."""

    @cached_property
    def text(self) -> str:
        return (self.directory / "notice.txt").read_text()


def _has_words(notice: OpenedNotice) -> Finding:
    """Fail for an empty notice, and warn for a notice of a single blank."""
    words = notice.text.split()
    return Finding(passed=bool(words), summary=f"{len(words)} words", warning=notice.text == " ")


def _is_polite(notice: OpenedNotice) -> Finding:
    shouted = notice.text.isupper()
    return Finding(passed=not shouted, summary="shouted" if shouted else "not shouted")


NOTICE_CHECKS = (
    Check("has_words", "A notice says something.", _has_words),
    Check("is_polite", "A notice does not shout.", _is_polite, blocking=False),
)


def open_notices(declaration: Notices, store: ArtifactStore, partitions: Sequence[str]) -> list[OpenedNotice]:
    """Return some notices for the checks."""
    return [OpenedNotice(declaration.artifact("notices", partition), store) for partition in partitions]


def make_notice_checks(
    declaration: Notices, checks: tuple[Check[OpenedNotice], ...] = NOTICE_CHECKS
) -> PartitionChecks[OpenedNotice, OpenedNotice]:
    """Return the checks of notices."""
    return PartitionChecks(checks=checks, planned=partial(open_notices, declaration))


def make_notices_specs(
    declaration: Notices, checks: tuple[Check[OpenedNotice], ...] = NOTICE_CHECKS
) -> list[ArtifactSpec]:
    """Return the specs of such a dataset: notices, the board, and a report without files."""
    partitions = Partitions.from_keys(KEYS, "notice")
    notices = ArtifactSpec(
        declaration=declaration,
        name="notices",
        description="What is to be said.",
        kinds={"file"},
        partitions=partitions,
        pool="network",
        build=partial(_build_notices, declaration),
        watch=SourceWatch(identity=partial(_identity, declaration), changes=partial(_changes, declaration)),
        recipes=lambda _store, slots: [make_notice_recipe(declaration, slot or "") for slot in slots],
        metadata=lambda _store, receipt: {
            "words": NoticeFacts.from_receipt(receipt).words,
            "kind": Markdown("*a notice*"),
        },
        check_groups=(make_notice_checks(declaration, checks),),
    )
    board = ArtifactSpec(
        declaration=declaration,
        name="board",
        description="All of it.",
        kinds={"file"},
        inputs=(notices,),
        build=partial(_build_board, declaration),
        recipes=lambda store, _slots: [_board_recipe(declaration, store)],
    )
    report = ArtifactSpec(
        declaration=declaration,
        name="report",
        description="What the board says, in numbers.",
        kinds={"file"},
        inputs=(board,),
        kept=False,
        build=partial(_build_report, declaration),
        recipes=lambda _store, _slots: [],
    )
    return [notices, board, report]


def _build_report(declaration: Notices, request: BuildRequest) -> list[Outcome]:
    board = request.store.require(declaration.artifact("board"))
    rows = [{"notice": key, "words": _words(declaration, request.store, key)} for key in KEYS]
    return [Outcome(partition="", content=board.content, metadata={"words": Table(rows)})]


def _words(declaration: Notices, store: ArtifactStore, partition: str) -> int:
    return NoticeFacts.from_receipt(store.require(declaration.artifact("notices", partition))).words


def write_notices(folder: Path, **texts: Any) -> Notices:
    """Declare a folder of three notices; `texts` replaces notices by the number of their partition: `n_1=`."""
    folder.mkdir(parents=True, exist_ok=True)
    for key in KEYS:
        (folder / f"{key}.txt").write_text(texts.get(key.replace("-", "_"), f"notice number {key}\n"))
    return Notices(dataset="notices", folder=folder)
