"""The files of `requirements/`: hashes of what is installed, for each extra, in the versions of `constraints.txt`."""

import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "requirements"
ENTRY = re.compile(r"([a-z0-9-]+)==(\S+)((?: --hash=sha256:[0-9a-f]{64})+)")


def hashes() -> ModuleType:
    """The command that writes them, which is in no package."""
    spec = importlib.util.spec_from_file_location("hashes", FOLDER / "hashes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entries(path: Path) -> Iterator[tuple[str, str]]:
    """Name and version of each line; a line that is neither that with its hashes nor a comment fails."""
    for line in path.read_text().replace(" \\\n   ", "").splitlines():
        if not line.startswith("#"):
            found = ENTRY.fullmatch(line)
            assert found is not None, f"{path.name}: {line}"
            yield found[1], found[2]


def test_what_is_installed_has_hashes_in_the_versions_of_the_constraints() -> None:
    module = hashes()
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(module.extras())
    pins = module.pins()
    for path in FOLDER.glob("*.txt"):
        found = dict(entries(path))
        assert found, path.name
        assert found == {name: pins[name] for name in found}, path.name


@pytest.mark.parametrize("python", hashes().PYTHONS)
def test_with_its_extra_s_file_and_the_base_s_nothing_is_lacking(python: str) -> None:
    """`--no-deps` installs what is named alone, so what any of it requires has to be named."""
    module = hashes()
    requires = {
        canonicalize_name(d.metadata["Name"]): list(d.requires or ())
        for d in importlib.metadata.distributions()
        if d.metadata["Name"]
    }
    base = set(dict(entries(FOLDER / "base.txt")))
    for extra, roots in module.extras().items():
        there = base | set(dict(entries(FOLDER / f"{extra}.txt")))
        wanted = set(module.closure(roots, requires, python))
        assert {name for name in wanted - there if not name.startswith(module.UNHASHED)} == set(), extra


def test_no_file_names_a_host() -> None:
    for path in (*FOLDER.iterdir(), ROOT / "constraints.txt"):
        if path.is_file():
            text = re.sub(r"[0-9a-f]{64}", "", path.read_text())
            assert not re.search(r"://|--(extra-)?index-url|--find-links|\.(org|com|io)\b", text), path.name


def test_hashes_of_versions_that_are_pinned_no_more_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = hashes()
    digests = ["a" * 64, "b" * 64]
    text = module.written("r2", ["boto3"], {"boto3": "1.44.5"}, {"boto3": set(digests)})
    (tmp_path / "r2.txt").write_text(text)
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "pins", lambda: {"boto3": "1.44.5"})
    assert module.known() == {"boto3": set(digests)}
    monkeypatch.setattr(module, "pins", lambda: {"boto3": "1.44.6"})
    assert module.known() == {}
    with pytest.raises(LookupError, match=r"r2: no pin in constraints\.txt, or no hash, of botocore"):
        module.written("r2", ["boto3", "botocore"], {"boto3": "1.44.5"}, {"boto3": set(digests)})
