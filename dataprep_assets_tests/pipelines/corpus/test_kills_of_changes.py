"""Killed at any point of an append, a retraction or a prune, the next run ends as an undisturbed one."""

import shutil
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from dataprep_assets.engine.staleness.status import find_stale, find_unplanned_artifacts, list_unplanned, prune
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.corpus.dataset import corpus_specs
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration
from dataprep_assets.pipelines.corpus.retract import retract_documents
from dataprep_assets.pipelines.corpus.source.manifest import load_manifest
from dataprep_assets_tests import forked
from dataprep_assets_tests.faults.armed import Role, make_armed_environment, read_log
from dataprep_assets_tests.pipelines.corpus.pipeline import debris, products, run_pipeline
from dataprep_assets_tests.tools.bench.changes.corpus import Corpus, File

pytestmark = pytest.mark.slow

SECONDS = 120
PARENT_KILLS, WORKER_KILLS = 3, 2


def do(what: str, declaration: Path, root: Path) -> int:
    """A run or a prune, in this process."""
    corpus, store = CorpusDeclaration.model_validate_json(declaration.read_bytes()), LocalArtifacts(root)
    if what == "prune":
        return int(not all(gone for _, gone in prune(corpus_specs(corpus), store)))
    failed = run_pipeline(corpus, store).failed
    for error in failed.values():
        traceback.print_exception(error)
    return int(bool(failed))


class Process:
    """The same in a process of its own, watched, and killed where it is told."""

    def __init__(
        self, home: Path, what: str, declaration: Path, root: Path, role: Role = "parent", at: int = 0
    ) -> None:
        code = f"import sys; from {__name__} import do, Path; sys.exit(do({what!r}, *map(Path, sys.argv[1:])))"
        self._home, environment = home, make_armed_environment(home, root, role, at)
        with open(home / "errors", "wb") as errors:
            self._process = forked.start(["-c", code, declaration, root], env=environment, stderr=errors.fileno())

    def ended(self) -> int:
        """Its exit code, when all its processes have ended."""
        code, deadline = self._process.wait(SECONDS), time.monotonic() + SECONDS
        while any(_alive(int(line.split()[1])) for line in read_log(self._home)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        if code > 0:
            print((self._home / "errors").read_text())
        return code

    def points(self, role: Role) -> int:
        """How many write points its processes of this role passed."""
        return max((int(line.split()[2]) for line in read_log(self._home, role)), default=0)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@dataclass
class Changed:
    """A built corpus whose source, list or plan has changed since, and what an undisturbed `what` makes of it."""

    what: str
    declaration: Path
    root: Path
    expected: dict[str, bytes]
    points: dict[Role, int]

    def defects(self, folder: Path, role: Role, at: int) -> list[str]:
        """After a kill at a point and the same again; none is right. A process goes on without its killed worker."""
        root = Path(shutil.copytree(self.root, folder / "root"))
        code = Process(folder / "killed", self.what, self.declaration, root, role, at).ended()
        expected = -signal.SIGKILL if role == "parent" else 0
        assert do(self.what, self.declaration, root) == 0
        found = self.differences(root)
        shutil.rmtree(folder)
        return [f"{role} killed at {at}: {one}" for one in ([] if code == expected else [f"exit code {code}"]) + found]

    def differences(self, root: Path) -> list[str]:
        """What is not as an undisturbed process leaves it."""
        now = products(root)
        corpus, store = CorpusDeclaration.model_validate_json(self.declaration.read_bytes()), LocalArtifacts(root)
        return [
            *(name for name in now.keys() | self.expected.keys() if now.get(name) != self.expected.get(name)),
            *(f"debris: {name}" for name in debris(root)),
            *(str(one) for one in find_stale(corpus_specs(corpus), store)),
        ]


def _append(corpus: Corpus) -> None:
    for _ in range(2):
        corpus.write(corpus.new_path("train"), File([corpus.document() for _ in range(3)]))
    gone = next(path for path in sorted(corpus.state.files) if path.startswith("val/"))
    corpus.delete(gone)  # this also removes the shard of the file, because the shard has no other file


def _retract(corpus: Corpus) -> None:
    files, ids = sorted(corpus.state.files), corpus.folder / "ids"
    ids.write_text("".join(f"{corpus.state.files[path].documents[0][0]}\n" for path in (files[0], files[-1])))
    retract_documents(corpus.declared(), corpus.store, ids)


def _prune(corpus: Corpus) -> None:
    _append(corpus)
    assert run_pipeline(corpus.declared(), corpus.root).failed == {}
    assert len(list_unplanned(corpus_specs(corpus.declared()), corpus.store)) == 2


CHANGES = {"append": (_append, "run"), "retract": (_retract, "run"), "prune": (_prune, "prune")}


def changed(folder: Path, name: str) -> Changed:
    """The corpus of a change."""
    change, what = CHANGES[name]
    corpus = Corpus(folder, seed=5)
    assert run_pipeline(corpus.declared(), corpus.root).failed == {}
    before = load_manifest(corpus.declared(), corpus.store).plan
    change(corpus)
    declaration = folder / "declaration.json"
    declaration.write_text(corpus.declared().model_dump_json())
    undisturbed = Path(shutil.copytree(corpus.root, folder / "undisturbed"))
    process = Process(folder / "process", what, declaration, undisturbed)
    assert process.ended() == 0
    found = Changed(what, declaration, corpus.root, products(undisturbed), {})
    found.points = {role: process.points(role) for role in ("parent", "worker")}
    assert found.expected != products(corpus.root)
    assert found.differences(undisturbed) == []
    if name == "append":
        store = LocalArtifacts(undisturbed)
        now = load_manifest(corpus.declared(), store).plan
        assert (len(now.keys() - before.keys()), len(before.keys() - now.keys())) == (1, 1)
        assert len(list(find_unplanned_artifacts(corpus_specs(corpus.declared()), store))) == 2
    return found


def spread(last: int, count: int) -> list[int]:
    """So many different points between the first and the last."""
    return sorted({1 + at * (last - 1) // max(1, count - 1) for at in range(count)})


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Changed]:
    """Return the corpus of a change, built once."""
    return cache(lambda name: changed(tmp_path_factory.mktemp(name) / "corpus", name))


@pytest.mark.parametrize("name", CHANGES)
def test_a_kill_at_any_point_of_a_change_leaves_a_run_that_ends_the_same(
    name: str, corpora: Callable[[str], Changed], tmp_path: Path
) -> None:
    corpus = corpora(name)
    assert (corpus.points["worker"] > 0) == (name != "prune")
    defects = []
    for role, count in (("parent", PARENT_KILLS), ("worker", WORKER_KILLS)):
        for at in spread(corpus.points[role], count) if corpus.points[role] else ():
            defects += corpus.defects(tmp_path / f"{role}-{at}", role, at)
    assert defects == []


def test_two_appends_at_once_give_the_same_bytes(corpora: Callable[[str], Changed], tmp_path: Path) -> None:
    corpus = corpora("append")
    root = Path(shutil.copytree(corpus.root, tmp_path / "root"))
    both = [Process(tmp_path / str(number), "run", corpus.declaration, root) for number in range(2)]
    assert [process.ended() for process in both] == [0, 0]
    assert corpus.differences(root) == []
