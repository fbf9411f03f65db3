"""Writes the files beside it: what each extra installs, in the versions of `constraints.txt`, with hashes.

    python requirements/hashes.py                       asks pip what it would install here, in this Python
    python requirements/hashes.py --python 3.12.3       in another Python, on this kind of machine
    python requirements/hashes.py --report FILE         what a pip elsewhere reported

pip asks the index that it is configured with; no host is written. Hashes of versions that are still pinned stay, so
each further Python or machine adds its own. Run it after every change of `constraints.txt` or of a dependency.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).parent
ROOT = HERE.parent
BASE = "base"
"""What the project needs without any extra, and what builds it."""
WITHOUT_THEIR_OWN = {"readers": ("mosaicml-streaming",)}
"""Extra → packages that come without what they require: this one declares older versions than it works with."""
UNHASHED = ("torch", "cuda-", "nvidia-", "triton")
"""PyTorch, which tests alone want, and what it wants for GPUs: which files depends on the machine. Given two hashes pip
takes the file that its index lists with one, not a wheel for CPUs that lies beside."""
PYTHONS = ("3.11", "3.12", "3.13")
_LINE = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")

HEADER = """\
# Made by requirements/hashes.py of constraints.txt: what {what} installs. For Linux on x86-64.
# pip install --require-hashes --no-deps -r requirements/base.txt{more}
"""


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
    roots: Iterable[str], requires: Mapping[str, Sequence[str]], python: str, *, own: bool = True
) -> Iterator[str]:
    """Canonical names of all that these requirements install in a Python of Linux.

    Args:
        roots: Requirements.
        requires: Canonical name → its requirements.
        python: `3.12`.
        own: Whether what they require in turn is installed, too.
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
        found[extra] = {n for n in names if not n.startswith(UNHASHED)} - found.get(BASE, set())
    return found


def written(extra: str, names: Iterable[str], versions: Mapping[str, str], hashes: Mapping[str, set[str]]) -> str:
    """The text of a file; LookupError naming what has no pin or no hash."""
    missing = [name for name in sorted(names) if name not in versions or not hashes.get(name)]
    if missing:
        raise LookupError(f"{extra}: no pin in constraints.txt, or no hash, of {', '.join(missing)}")
    what, more = ("the project", "") if extra == BASE else (f"the extra `{extra}`", f" -r requirements/{extra}.txt")
    text = HEADER.format(what=what, more=more)
    for name in sorted(names):
        text += (
            f"{name}=={versions[name]}" + "".join(f" \\\n    --hash=sha256:{h}" for h in sorted(hashes[name])) + "\n"
        )
    return text


def main() -> None:
    """Ask, and write all files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="version of another Python, as 3.12.3")
    parser.add_argument("--report", type=Path, action="append", default=[], help="of `pip install --report`")
    options = parser.parse_args()
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
