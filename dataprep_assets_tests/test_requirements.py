"""The files in `requirements/` have the hashes of each extra's packages, in the versions of `constraints.txt`."""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from dataprep_assets.stores.files import sha256_file
from dataprep_assets_tests import fresh_environment
from dataprep_assets_tests.messages import raises

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "requirements"
ENTRY = re.compile(r"([a-z0-9-]+)==(\S+)((?: --hash=sha256:[0-9a-f]{64})+)")


def hashes() -> ModuleType:
    """Return the command that writes the hashes, which is not part of the package."""
    spec = importlib.util.spec_from_file_location("hashes", FOLDER / "hashes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entries(path: Path) -> Iterator[tuple[str, str]]:
    """Return name and version of each line; fail for a line that is neither that with its hashes nor a comment."""
    for line in path.read_text().replace(" \\\n   ", "").splitlines():
        if not line.startswith("#"):
            found = ENTRY.fullmatch(line)
            assert found is not None, f"{path.name}: {line}"
            yield found[1], found[2]


def test_installed_packages_have_hashes_in_the_versions_of_the_constraints() -> None:
    module = hashes()
    assert {path.stem for path in FOLDER.glob("*.txt")} == {*module.extras(), module.TORCH, module.GPU}
    pins = module.pins()
    for path in FOLDER.glob("*.txt"):
        found = dict(entries(path))
        assert found, path.name
        if path.stem == module.GPU:
            assert not {*found} & {*pins}, "resolved on a machine without GPUs"
        else:
            assert found == {name: pins[name] for name in found}, path.name


def test_every_pinned_version_can_be_installed_in_the_oldest_python() -> None:
    """The oldest Python that the project allows is its first release: systems keep early ones for years."""
    oldest = re.search(r'^requires-python = ">=(3\.\d+)', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert oldest is not None
    pins = hashes().pins()
    refused = {
        name: requires
        for found in importlib.metadata.distributions()
        if pins.get(name := canonicalize_name(found.metadata["Name"])) == found.version
        and (requires := found.metadata.get("Requires-Python")) is not None
        and not SpecifierSet(requires).contains(f"{oldest[1]}.0")
    }
    assert refused == {}


@pytest.mark.parametrize("python", hashes().PYTHONS)
def test_an_extra_s_file_and_the_base_s_contain_all_requirements(python: str) -> None:
    """`--no-deps` installs only the named packages, so all indirect requirements must be named."""
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
        assert {name for name in wanted - there if not module.OF_TORCH.match(name)} == set(), extra


def test_no_file_names_a_host() -> None:
    for path in (*FOLDER.iterdir(), ROOT / "constraints.txt"):
        if path.is_file():
            text = re.sub(r"[0-9a-f]{64}", "", path.read_text())
            assert not re.search(r"://|--(extra-)?index-url|--find-links|\.(org|com|io)\b", text), path.name


def test_hashes_of_versions_that_are_no_longer_pinned_are_removed(
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
    with raises(LookupError, "r2", "constraints.txt", "botocore"):
        module.written("r2", ["boto3", "botocore"], {"boto3": "1.44.5"}, {"boto3": set(digests)})


def test_pytorch_has_its_own_file_and_every_other_package_has_a_hash() -> None:
    module = hashes()
    everything = {name for path in FOLDER.glob("*.txt") for name, _ in entries(path)}
    assert everything == {*module.pins(), *dict(entries(FOLDER / "torch-gpu.txt"))}
    assert dict(entries(FOLDER / "torch.txt")) == {"torch": module.pins()["torch"]}
    # PyTorch has one hash per Python version, and at least one more for the CPU wheels.
    assert (FOLDER / "torch.txt").read_text().count("--hash=") > len(module.PYTHONS)
    assert all(module.OF_TORCH.match(name) for name, _ in entries(FOLDER / "torch-gpu.txt"))


def test_a_local_wheel_adds_its_hash_and_another_version_s_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = hashes()
    one = {"filename": "torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl", "hashes": {"sha256": "a" * 64}}
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "pins", lambda: {"torch": "2.13.0"})
    monkeypatch.setattr(module, "listed", lambda name: {Version("2.13.0"): [one]})
    monkeypatch.setattr(module, "of_gpus", lambda wheel: ({"triton": "3.7.1"}, {"triton": {"c" * 64}}))
    mine = wheel(tmp_path, "torch", "2.13.0+cpu")
    module.of_torch([mine])
    text = (tmp_path / "torch.txt").read_text()
    assert set(re.findall("sha256:(.*?)(?: |$)", text, re.MULTILINE)) == {"a" * 64, sha256_file(mine)}
    assert dict(entries(tmp_path / "torch-gpu.txt")) == {"triton": "3.7.1"}
    with raises(LookupError, "torch", "2.13.0"):
        module.of_torch([wheel(tmp_path, "torch", "2.12.0")])


def test_only_wheels_for_supported_pythons_on_linux_count() -> None:
    fits = hashes()._fits
    machine = "manylinux_2_28_x86_64"
    for python in ("cp311-cp311", "cp313-cp313", "cp39-abi3", "py3-none"):
        assert fits(f"torch-2.13.0-{python}-{machine}.whl"), python
    assert fits("sympy-1.14.0-py3-none-any.whl")
    for name in ("cp310-cp310", "cp313-cp313t", "cp314-cp314"):
        assert not fits(f"torch-2.13.0-{name}-{machine}.whl"), name
    for other in ("manylinux_2_28_aarch64", "musllinux_1_2_x86_64", "win_amd64", "macosx_11_0_arm64"):
        assert not fits(f"torch-2.13.0-cp311-cp311-{other}.whl"), other


def wheel(folder: Path, name: str, version: str) -> Path:
    """Write a wheel of one module that contains its version."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    about = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")
    return path


@dataclass(frozen=True)
class Machine:
    """A checkout's Makefile with requirements of invented wheels, and their package index."""

    folder: Path
    index: Path
    links: Path

    def offer(self, name: str, version: str) -> Path:
        """Add a wheel to the index with its hash, like every index has it."""
        (page := self.index / name).mkdir(parents=True)
        path = wheel(page, name, version)
        (page / "index.html").write_text(f'<a href="{path.name}#sha256={sha256_file(path)}">{path.name}</a>')
        return path

    def require(self, file: str, *wheels: Path) -> None:
        """Make these files the accepted ones of a requirement file."""
        name, version, *_ = wheels[0].name.split("-")
        lines = [f"{name}=={version.partition('+')[0]}", *(f"--hash=sha256:{sha256_file(path)}" for path in wheels)]
        (self.folder / "requirements" / f"{file}.txt").write_text(" \\\n    ".join(lines) + "\n")

    def make(self) -> subprocess.CompletedProcess[str]:
        """Run `make torch` in a fresh environment."""
        fresh_environment.create_environment(self.folder / ".venv", [])
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "MAKE"))}
        pip = {"CONFIG_FILE": os.devnull, "INDEX_URL": self.index.as_uri(), "FIND_LINKS": str(self.links)}
        return subprocess.run(
            ["make", "torch"],
            cwd=self.folder,
            env=environment | {f"PIP_{name}": value for name, value in pip.items()},
            capture_output=True,
            text=True,
            check=False,
        )

    def has(self, name: str) -> str:
        """Return the installed version; empty if there is none."""
        (site,) = self.folder.glob(".venv/lib/python*/site-packages")
        found = [d.version for d in importlib.metadata.distributions(path=[str(site)]) if d.metadata["Name"] == name]
        return "".join(found)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    if shutil.which("make") is None:
        pytest.skip("no make")
    made = Machine(tmp_path / "checkout", tmp_path / "index", tmp_path / "links")
    for folder in (made.folder / "requirements", made.index, made.links):
        folder.mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", made.folder)
    (made.folder / "constraints.txt").write_text("torch==2.13.0\n")
    return made


@pytest.mark.slow
@pytest.mark.parametrize("cpu", [False, True])
def test_make_installs_the_pytorch_of_this_machine_by_its_hash(machine: Machine, cpu: bool) -> None:
    gpus = machine.offer("torch", "2.13.0")
    accepted = [gpus, *([wheel(machine.links, "torch", "2.13.0+cpu")] if cpu else [])]
    machine.require("torch", *accepted)
    machine.require("torch-gpu", machine.offer("triton", "3.7.1"))
    done = machine.make()
    assert done.returncode == 0, done.stderr
    assert machine.has("torch") == ("2.13.0+cpu" if cpu else "2.13.0")
    assert machine.has("triton") == ("" if cpu else "3.7.1"), "only what the chosen file wants"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["torch", "torch-gpu"])
def test_make_refuses_a_pytorch_without_a_known_hash(machine: Machine, where: str) -> None:
    files = {"torch": machine.offer("torch", "2.13.0"), "torch-gpu": machine.offer("triton", "3.7.1")}
    for file, path in files.items():
        machine.require(file, path)
    name, version, *_ = files[where].name.split("-")
    wheel(files[where].parent, name, version).open("ab").write(b"another file of the same name")
    page = files[where].parent / "index.html"
    page.write_text(re.sub(r"#sha256=\w+", "", page.read_text()))
    done = machine.make()
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert machine.has(name) == ""
