"""The version of a function depends on its code, on the modules and files that the code names, and on declared
files.
"""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dataprep_assets.curation.declaration import DeclaredTagger
from dataprep_assets.curation.function_tagger import FunctionTagger
from dataprep_assets.curation.module_code import ModuleCode
from dataprep_assets.curation.table import DocumentBatch
from dataprep_assets.curation.tagging import TaggingError, compute_tags
from dataprep_assets.errors import ConfigError
from dataprep_assets_tests.messages import raises

# Importing the package raises an error, because the tests verify that computing a version executes nothing.
CODE = {
    "pond/__init__.py": "raise SystemExit('executed')\n",
    "pond/taggers.py": '''
"""What it does."""
import json, numpy
from pathlib import Path

from . import near
from .deep.lower import low
import shore

raise SystemExit("executed")

def quality(documents):
    """Say it."""
    from pond import late  # only when it is called
    words = Path(__file__).with_name("blocklist.txt").read_text()
    Path(__file__).with_name("calls.txt").open("a").write("called")
    with open("/nowhere/last.txt", mode="w") as last:
        Path(__file__).with_name("totals.txt").write_text("1")
    return {"quality": [low + near.N + shore.N + late.N + len(words)] * len(documents)}
''',
    "pond/near.py": "from .deep import *\nN = 1\n",
    "pond/late.py": "N = 1\n",
    "pond/deep/__init__.py": "M = 1\n",
    "pond/deep/lower.py": "from ..farther import low\n",
    "pond/farther.py": "low = 1\n",
    "pond/other.py": "N = 1\n",
    "pond/blocklist.txt": "bad\n",
    "pond/notes.txt": "x\n",
    "pond/calls.txt": "",
    "pond/totals.txt": "",
    "shore.py": "N = 1\nNAME = 'settings.json'\n",
    "settings.json": "{}",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in CODE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def version(**more: Any) -> str:
    return FunctionTagger(name="q", columns={"quality": "number"}, function="pond.taggers:quality", **more).version


def edit_file(path: Path, change: Callable[[str], str]) -> None:
    """Change a file and its modification time, however coarse the clock is."""
    before = path.stat().st_mtime_ns
    path.write_text(change(path.read_text()))
    os.utime(path, ns=(before + 1_000_000, before + 1_000_000))


FOLLOWED = [
    "pond/__init__.py",
    "pond/taggers.py",
    "pond/near.py",
    "pond/late.py",
    "pond/deep/__init__.py",
    "pond/deep/lower.py",
    "pond/farther.py",
    "shore.py",
]


@pytest.mark.parametrize("name", FOLLOWED)
def test_imported_code_is_part_of_the_version_but_its_comments_are_not(name: str, project: Path) -> None:
    before = version()
    edit_file(
        project / name, lambda code: code.replace("N = 1", "N  =  1  # one").replace("Say it", "Tell it") + "\n# end\n"
    )
    assert version() == before
    edit_file(project / name, lambda code: f"{code}\nL = 2\n")
    assert version() != before


@pytest.mark.parametrize("name", ["pond/blocklist.txt", "settings.json"])
def test_files_that_the_code_names_are_part_of_the_version(name: str, project: Path) -> None:
    before = version()
    edit_file(project / name, lambda text: text + " ")
    assert version() != before


@pytest.mark.parametrize("name", ["pond/other.py", "pond/notes.txt", "pond/calls.txt", "pond/totals.txt"])
def test_unused_files_are_not_part_of_the_version(name: str, project: Path) -> None:
    before = version()
    edit_file(project / name, lambda text: text + "\nM = 2\n")
    assert version() == before


def test_modules_are_found_like_python_does_but_installed_packages_are_not_followed(project: Path) -> None:
    assert set(ModuleCode("pond.taggers").sources) == {
        name[:-3].replace("/", ".").removesuffix(".__init__") for name in FOLLOWED
    }
    (project / "apart" / "inner").mkdir(parents=True)  # a package without `__init__`
    (project / "apart" / "inner" / "judge.py").write_text("from apart.inner import help_\nimport yaml\n")
    (project / "apart" / "inner" / "help_.py").write_text("")
    assert set(ModuleCode("apart.inner.judge").sources) == {"apart.inner.judge", "apart.inner.help_"}
    assert ModuleCode("pond.none").file is None


def test_a_declared_version_replaces_the_code_and_declared_files_always_count(project: Path) -> None:
    assert version(declared="7") == "7"
    files = (str(project / "pond" / "*.txt"),)
    for given in ({"files": files}, {"files": files, "declared": "7"}):
        before = version(**given)
        edit_file(project / "pond/notes.txt", lambda text: text + ".")
        assert version(**given) != before
    with raises(ConfigError, "pond.taggers:quality", "files", "none.txt"):
        version(files=(str(project / "none.txt"),))


READS = """
from pathlib import Path

def quality(documents):
    here = Path(__file__).parents[1]
    for part in {parts!r}:
        (here / "data" / (part + ".txt")).read_text()
    (here / "log").open("a").write("called")
    {more}
    return {{"quality": [1.0] * len(documents)}}
"""


def batch(count: int = 1) -> DocumentBatch:
    texts = [f"text {at}" for at in range(count)]
    return DocumentBatch({"row": [*range(1, count + 1)], "file": ["a"] * count}, [*range(count)], texts, "a.jsonl")


@pytest.fixture
def declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FunctionTagger]:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("one", "two"):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / f"{name}.txt").write_text("x")

    def make(source: str, **keys: Any) -> FunctionTagger:
        # Use a new name for each package, because Python imports a module only once.
        package = f"brook_{abs(hash((tmp_path, source, str(keys))))}"
        (tmp_path / package).mkdir()
        (tmp_path / package / "judge.py").write_text(source)
        said = DeclaredTagger(function=f"{package}.judge:quality", columns={"quality": "number"}, **keys)
        tagger = said.build_tagger(tmp_path / package)
        assert isinstance(tagger, FunctionTagger)
        return tagger

    return make


def test_a_project_file_that_is_read_without_declaration_is_refused_by_name(
    declared: Callable[..., FunctionTagger],
) -> None:
    source = READS.format(parts=["one", "two"], more="import json, colorsys")
    with raises(ConfigError, "judge:quality", "data/two.txt"):
        compute_tags(declared(source, files=("../data/one.txt",)), batch(), sensitive=False)
    for keys in ({"files": ("../data/*.txt",)}, {"version": "1"}):
        assert compute_tags(declared(source, **keys), batch(), sensitive=False) == {"quality": [1.0]}


@pytest.mark.parametrize("sensitive", [False, True])
@pytest.mark.parametrize(
    "raised", ["raise ValueError(str(documents['text']))", "import sys; sys.exit(str(documents['text']))"]
)
def test_an_exception_names_the_tagger_the_row_and_the_users_line(
    raised: str, sensitive: bool, declared: Callable[..., FunctionTagger]
) -> None:
    source = READS.format(parts=[], more=f"if 'text 1' in documents['text'].to_pylist(): {raised}")
    with pytest.raises(TaggingError) as failed:
        compute_tags(declared(source), batch(3), sensitive=sensitive)
    said = str(failed.value)
    assert said.startswith("a.jsonl: row 2: tagger 'quality' raised ")
    assert "judge.py:9 in quality)" in said
    assert ("text 1" in said) is not sensitive
    assert len(said.splitlines()) == 1
    # Pickle the exception, because worker processes and Ray send it pickled.
    copy = pickle.loads(pickle.dumps(failed.value))
    assert (str(copy), copy.at) == (said, failed.value.at)
    if sensitive:
        assert copy.at["code"].endswith("judge.py:9 in quality")
        assert failed.value.__cause__ is failed.value.__context__ is None


def test_keys_without_effect_on_a_kind_of_tagger_are_refused() -> None:
    for keys, value in (
        ({"function": "a:b", "timeout": "1h"}, "`timeout`"),
        ({"asset": ["a"], "files": ["x"]}, "`files`"),
        ({"asset": ["a"], "version": "1"}, "`version`"),
        ({"name": "c", "version": "1", "command": ["x", "{input}", "{output}"], "timeout": "soon"}, "'soon'"),
        ({"name": "c", "version": "1", "command": ["x", "{input}", "{output}"], "timeout": "0s"}, "'0s'"),
    ):
        with raises(ValidationError, value):
            DeclaredTagger(columns={"b": "number"}, **keys)
