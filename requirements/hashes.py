"""Writes the files beside it: what each extra installs, in the versions of `constraints.txt`, with hashes.

    python requirements/hashes.py                       asks pip what it would install here, in this Python
    python requirements/hashes.py --python 3.12.3       in another Python, on this kind of machine
    python requirements/hashes.py --report FILE         what a pip elsewhere reported
    python requirements/hashes.py --torch [WHEEL ...]   PyTorch: the index's files, and wheels that lie here

pip asks the index that it is configured with; no host is written. Hashes of versions that are still pinned stay, so
each further Python or machine adds its own. Run it after every change of `constraints.txt` or of a dependency.

Of PyTorch there are several files for one machine, those for GPUs and one for CPUs that may lie beside the index (pip's
`find-links`), and given hashes pip prefers one that its index lists with a hash. So `make` lets pip fetch the file that
it wants, without hashes, and installs from the folder that holds it alone: `torch.txt` has every file that may be it,
`torch-gpu.txt` what those for GPUs want beside what all do.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

HERE = Path(__file__).parent
ROOT = HERE.parent
BASE = "base"
"""What the project needs without any extra, and what builds it."""
WITHOUT_THEIR_OWN = {
    "readers": (
        *("accelerate", "ai2-olmo-core", "bettermap", "cached-path", "dataclass-extensions"),
        *("mosaicml-streaming", "trl"),
    )
}
"""Extra → packages that come without what they require: mosaicml-streaming declares older versions than it works with,
and the requirements of the others are installed anyway, or are for storage that tests do not use."""
TORCH, GPU = "torch", "torch-gpu"
"""The files of PyTorch, which tests alone want, and of what it wants for GPUs."""
OF_TORCH = re.compile(r"torch$|(cuda|nvidia)-|triton")
"""Names of the packages that are in these two files, and in no extra's."""
PYTHONS = ("3.11", "3.12", "3.13")
_LINE = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")

HEADER = """\
# Made by requirements/hashes.py of constraints.txt: what {what} installs. For Linux on x86-64.
# pip install --require-hashes --no-deps {more}
"""
_HEADS = {
    BASE: ("the project", "-r requirements/base.txt"),
    TORCH: (
        "PyTorch",
        "--no-index -r requirements/torch.txt, of a folder with its file: see Makefile",
    ),
    GPU: ("PyTorch for GPUs", "-r requirements/torch-gpu.txt, unless that is for CPUs: see Makefile"),
}


def pins() -> dict[str, str]:
    """Canonical name → version of every line of `constraints.txt`."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {canonicalize_name(found[1]): found[2] for line in lines if (found := _LINE.match(line))}


def extras() -> dict[str, list[str]]:
    """What the project itself asks for, by the name of the file: `base`, and each extra without what base asks for."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    base = [*declared["project"]["dependencies"], *declared["build-system"]["requires"]]
    return {BASE: base, **declared["project"]["optional-dependencies"]}


def known() -> dict[str, set[str]]:
    """Canonical name → hashes of its pinned version that the files have already."""
    wanted, found = pins(), dict[str, set[str]]()
    for path in HERE.glob("*.txt"):
        for entry in path.read_text().replace("\\\n", " ").splitlines():
            if (line := _LINE.match(entry)) and wanted.get(name := canonicalize_name(line[1])) == line[2]:
                found.setdefault(name, set()).update(_HASH.findall(entry))
    return found


def index() -> str:
    """The index that pip is configured with, as its own help has it."""
    said = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--help"],
        env=os.environ | {"COLUMNS": "999"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"index-url <url>.*?\(default (\S+?)/?\)", said.stdout, re.DOTALL)
    if found is None:
        raise LookupError("pip names no index in `pip download --help`")
    return found[1]


def listed(name: str) -> dict[Version, list[dict[str, Any]]]:
    """Version → the wheels for Linux on x86-64 and any of `PYTHONS` that the index lists (PEP 691) of a package."""
    asked = urllib.request.Request(f"{index()}/{name}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        page = json.load(answer)
    found = dict[Version, list[dict[str, Any]]]()
    for file in page["files"]:
        if file["filename"].endswith(".whl") and not file.get("yanked") and _fits(file["filename"]):
            found.setdefault(parse_wheel_filename(file["filename"])[1], []).append(file)
    return found


def _fits(wheel: str) -> bool:
    """Whether a wheel is for one of `PYTHONS` on Linux for x86-64 with glibc."""
    pythons = {f"cp{python.replace('.', '')}" for python in PYTHONS}
    return any(
        (tag.platform == "any" or re.fullmatch(r"(many)?linux.*_x86_64", tag.platform) is not None)
        and (tag.interpreter.startswith("py") or tag.interpreter in pythons or tag.abi == "abi3")
        and tag.abi in {"none", "abi3", tag.interpreter}
        for tag in parse_wheel_filename(wheel)[3]
    )


def _requires(wheel: Mapping[str, Any]) -> list[str]:
    """What a wheel of the index requires, of its metadata beside it (PEP 658)."""
    with urllib.request.urlopen(f"{wheel['url']}.metadata", timeout=60) as answer:
        return re.findall(r"^Requires-Dist: (.*)$", answer.read().decode().partition("\n\n")[0], re.MULTILINE)


def of_gpus(wheel: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Versions and hashes of what this wheel of PyTorch wants and `constraints.txt` has not.

    Of each the newest version that all others allow, and that says beside its wheels what it requires itself.
    """
    pinned, there = pins(), dict[str, dict[Version, list[dict[str, Any]]]]()
    chosen, requires = dict[str, Version](), {TORCH: _requires(wheel)}
    while True:
        wanted = dict[str, list[Requirement]]()
        names = sorted({*closure([TORCH], requires, PYTHONS[0], into=wanted)} - {*pinned})
        name = next((n for n in names if n not in chosen or not _allowed(chosen[n], wanted[n])), None)
        if name is None:
            hashes = {n: {file["hashes"]["sha256"] for file in there[n][chosen[n]]} for n in names}
            return {n: str(chosen[n]) for n in names}, hashes
        found = there.setdefault(name, listed(name))
        for version in sorted((v for v in found if _allowed(v, wanted[name])), reverse=True):
            with contextlib.suppress(urllib.error.HTTPError):
                chosen[name], requires[name] = version, _requires(found[version][0])
                break
        else:
            raise LookupError(f"{name}: no version of the index fits {', '.join(map(str, wanted[name]))}")


def _allowed(version: Version, wanted: Iterable[Requirement]) -> bool:
    return all(version in one.specifier for one in wanted)


def reported(python: str | None) -> dict[str, Any]:
    """What pip would install of all pins: its report, of this Python or of another version."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        other = ["--python-version", python, "--target", folder] if python else []
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
        subprocess.run([*command, *other, "--report", str(report), "-r", str(ROOT / "constraints.txt")], check=True)
        found: dict[str, Any] = json.loads(report.read_text())
        return found


def closure(
    roots: Iterable[str],
    requires: Mapping[str, Sequence[str]],
    python: str,
    *,
    own: bool = True,
    into: dict[str, list[Requirement]] | None = None,
) -> Iterator[str]:
    """Canonical names of all that these requirements install in a Python of Linux.

    Args:
        roots: Requirements.
        requires: Canonical name → its requirements.
        python: `3.12`.
        own: Whether what they require in turn is installed, too.
        into: Gets the requirements of each name.
    """
    environment = dict(default_environment()) | {
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
    }
    environment |= {"python_version": python, "python_full_version": f"{python}.7", "platform_machine": "x86_64"}
    left, seen = [Requirement(text) for text in roots], set[tuple[str, str]]()
    while left:
        wanted = left.pop()
        name = canonicalize_name(wanted.name)
        if into is not None:
            into.setdefault(name, []).append(wanted)
        for extra in ("", *sorted(wanted.extras)):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            yield name
            for text in requires.get(name, ()) if own else ():
                inner = Requirement(text)
                if inner.marker is None or inner.marker.evaluate(environment | {"extra": extra}):
                    left.append(inner)


def files(requires: Mapping[str, Sequence[str]]) -> dict[str, set[str]]:
    """Name of each file → canonical names of what is in it; an extra's has nothing of the base's."""
    found = dict[str, set[str]]()
    for extra, roots in extras().items():
        names = {name for python in PYTHONS for name in closure(roots, requires, python)}
        names |= set(WITHOUT_THEIR_OWN.get(extra, ()))
        found[extra] = {n for n in names if not OF_TORCH.match(n)} - found.get(BASE, set())
    return found


def written(extra: str, names: Iterable[str], versions: Mapping[str, str], hashes: Mapping[str, set[str]]) -> str:
    """The text of a file; LookupError naming what has no pin or no hash."""
    missing = [name for name in sorted(names) if name not in versions or not hashes.get(name)]
    if missing:
        raise LookupError(f"{extra}: no pin in constraints.txt, or no hash, of {', '.join(missing)}")
    what, more = _HEADS.get(extra, (f"the extra `{extra}`", f"-r requirements/base.txt -r requirements/{extra}.txt"))
    text = HEADER.format(what=what, more=more)
    for name in sorted(names):
        text += (
            f"{name}=={versions[name]}" + "".join(f" \\\n    --hash=sha256:{h}" for h in sorted(hashes[name])) + "\n"
        )
    return text


def of_torch(wheels: Sequence[Path]) -> None:
    """Write the files of PyTorch: of what the index lists in the pinned version, and of wheels that lie here."""
    hashes, version = known().get(TORCH, set()), Version(pins()[TORCH])
    for path in wheels:
        name, found, *_ = parse_wheel_filename(path.name)
        if (name, found.public) != (TORCH, str(version)):
            raise LookupError(f"{path}: not a wheel of torch {version}")
        with path.open("rb") as file:
            hashes.add(hashlib.file_digest(file, "sha256").hexdigest())
    there = listed(TORCH)[version]
    hashes |= {file["hashes"]["sha256"] for file in there}
    (HERE / f"{TORCH}.txt").write_text(written(TORCH, [TORCH], pins(), {TORCH: hashes}))
    versions, wanted = of_gpus(there[0])
    (HERE / f"{GPU}.txt").write_text(written(GPU, versions, versions, wanted))


def main() -> None:
    """Ask, and write all files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="version of another Python, as 3.12.3")
    parser.add_argument("--report", type=Path, action="append", default=[], help="of `pip install --report`")
    parser.add_argument("--torch", type=Path, nargs="*", metavar="WHEEL", help="PyTorch alone; wheels that lie here")
    options = parser.parse_args()
    if options.torch is not None:
        of_torch(options.torch)
        return
    reports = [json.loads(path.read_text()) for path in options.report] or [reported(options.python)]
    hashes, requires = known(), dict[str, list[str]]()
    for installed in (one for report in reports for one in report["install"]):
        name = canonicalize_name(installed["metadata"]["name"])
        hashes.setdefault(name, set()).add(installed["download_info"]["archive_info"]["hashes"]["sha256"])
        requires.setdefault(name, []).extend(installed["metadata"].get("requires_dist", ()))
    texts = {extra: written(extra, names, pins(), hashes) for extra, names in files(requires).items()}
    for extra, text in texts.items():
        (HERE / f"{extra}.txt").write_text(text)


if __name__ == "__main__":
    main()
