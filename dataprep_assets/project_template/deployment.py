"""Template of `dataprep init --deploy`: the image of a project, and the files that deploy it to one target.

The files are copies of `deploy/` in this repository, with the names of the user's project. The image differs: it
installs this package, while the repository's image is built from source.
"""

import json
import re
import shlex
import shutil
from collections.abc import Mapping
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from dataprep_assets.errors import ConfigError
from dataprep_assets.project import Project, read_project

_TEMPLATE = Path(__file__).parent
_DEPLOY = _TEMPLATE / "deploy"
PAGE = _DEPLOY / "README.md"
"""Page about all targets."""
_EXTRA_MODULES = {
    "duplicates": "rensa",
    "fasttext": "fasttext",
    "language": "py3langid",
    "onnx": "onnxruntime",
    "rewrite": "ftfy",
    "robots": "protego",
    "warc": "fastwarc",
    "words": "spacy",
}
"""Extra that declarations need → the module that shows whether it is installed."""
_IGNORED = """# passwords, and secrets for stores and hubs
compose/.env
compose/proxy/htpasswd
compose/credentials/*
wheels/*.whl
"""


class DeployTarget(StrEnum):
    """A system to which a project can be deployed."""

    COMPOSE = "compose"
    KUBERNETES = "kubernetes"
    SLURM = "slurm"


def write_deployment(root: Path, place: DeployTarget) -> list[Path]:
    """Write `deploy/<place>` into a project, and the image that it needs; return the written files.

    Raises ConfigError if the folder is not a project, or if `deploy/<place>` exists.
    """
    project = read_project(root)
    if project is None:
        raise ConfigError(
            f"{root}: not a project: no pyproject.toml with [tool.dg.project] found. Run `dataprep init DIR` to "
            "create a project"
        )
    target = root / "deploy" / place
    if target.exists():
        raise ConfigError(f"{target}: already exists. Edit it, or delete it and run `dataprep init` again")
    names = _list_replacements(project)
    files = [] if place == DeployTarget.SLURM else _write_image(root, project, names)
    for source in sorted(path for path in (_DEPLOY / place).rglob("*") if path.is_file()):
        relative = source.relative_to(_DEPLOY / place)
        # Skip the image's files, which `_write_image` writes, and hidden files such as `.gitignore`, which is written
        # below.
        if relative.name.startswith((".", "Dockerfile")) or relative.name == "dagster-webserver":
            continue
        (target / relative).parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text(encoding="utf-8")
        for source_name, target_name in names.items():
            text = text.replace(source_name, target_name)
        (target / relative).write_text(text, encoding="utf-8")
        shutil.copymode(source, target / relative)
        files.append(target / relative)
    if place == DeployTarget.COMPOSE:
        (target / "credentials").mkdir()
        files.append(target / "credentials")
    ignored = root / "deploy" / ".gitignore"
    if not ignored.exists():
        ignored.write_text(_IGNORED, encoding="utf-8")
    return files


def _list_replacements(project: Project) -> Mapping[str, str]:
    """Return a mapping from texts in the repository's files to their replacements in the project."""
    image = re.sub(r"[^a-z0-9]+", "-", project.location.lower()).strip("-")
    defs = project.defs.relative_to(project.root).as_posix()
    return {
        "-m, dataprep_assets.definitions": f"-m, {project.target_module}",
        "--location-name, dataprep_assets": f"--location-name, {project.location}",
        "location_name: dataprep_assets": f"location_name: {project.location}",
        "dataprep_assets/defs": defs,
        "dockerfile: deploy/compose/Dockerfile": "dockerfile: deploy/Dockerfile",
        "image: dataprep-assets:": f"image: {image}:",
        "registry.example/dataprep-assets": f"registry.example/{image}",
        f'tag: "{_find_image_tag()}"': 'tag: "1"',
        "host: dataprep-assets, port: 4000, name: dataprep_assets": (
            f"host: {image}, port: 4000, name: {project.location}"
        ),
        "- name: dataprep-assets": f"- name: {image}",
        # The remaining keys are the placeholders of the image's template.
        "PACKAGE": defs.partition("/")[0],
        "IMAGE": image,
        "MODULE": project.target_module,
        "LOCATION": project.location,
    }


def _find_image_tag() -> str:
    (tag,) = re.findall(r'tag: "([^"]+)"', (_DEPLOY / "kubernetes" / "values.yaml").read_text(encoding="utf-8"))
    return str(tag)


def _write_image(root: Path, project: Project, names: Mapping[str, str]) -> list[Path]:
    """Write the Dockerfile and the files that it copies; keep files that a different target wrote earlier."""
    folder = root / "deploy"
    (folder / "wheels").mkdir(parents=True, exist_ok=True)
    # Add an empty file, because git does not store empty folders, but the image copies this one.
    (folder / "wheels" / ".gitkeep").touch()
    sources = [_TEMPLATE / "Dockerfile", _TEMPLATE / "Dockerfile.dockerignore", _DEPLOY / "compose/dagster-webserver"]
    files = []
    for source in sources:
        if not (target := folder / source.name).exists():
            text = source.read_text(encoding="utf-8")
            for word in ("PACKAGE", "IMAGE", "MODULE", "LOCATION"):
                text = re.sub(rf"\b{word}\b", names[word], text)
            target.write_text(text, encoding="utf-8")
            shutil.copymode(source, target)
            files.append(target)
    if not (requirements := folder / "requirements.txt").exists():
        requirements.write_text(_list_requirements(), encoding="utf-8")
        files.append(requirements)
    origin = _find_installation_source()
    if origin is not None and origin.suffix == ".whl" and origin.is_file():
        wheel = folder / "wheels" / origin.name
        files += [] if wheel.exists() else [Path(shutil.copy(origin, wheel))]
    return files


def _find_installation_source() -> Path | None:
    """Return the local wheel or folder from which this package was installed; None if it came from an index.

    The format is PyPA's "Direct URL Data Structure".
    """
    from importlib.metadata import distribution

    origin = distribution("dataprep-assets").read_text("direct_url.json")
    url = urlsplit(json.loads(origin)["url"] if origin else "")
    return Path(unquote(url.path)) if url.scheme == "file" else None


def find_wheel_command(root: Path) -> str | None:
    """Return the command that builds the wheel for a project's image; None if the image does not need it."""
    origin, wheels = _find_installation_source(), root / "deploy" / "wheels"
    if origin is None or not wheels.is_dir() or next(wheels.glob("dataprep_assets-*.whl"), None) is not None:
        return None
    command = shlex.join(["python", "-m", "pip", "wheel", "--no-deps", "-w", str(wheels), str(origin)])
    return f"{command}   # dataprep-assets was not installed from an index"


def _find_installed_extras() -> list[str]:
    """Return the extras that are installed in this environment."""
    return [extra for extra, library in _EXTRA_MODULES.items() if find_spec(library) is not None]


def _list_requirements() -> str:
    from importlib.metadata import version

    lines = [
        "# Packages of the image, in the versions of the environment that wrote this file. Remove extras or add `ray`.",
        "# Add the packages that your own components import.",
        f"dataprep-assets[{','.join(['k8s', 'gcs', 'r2', *_find_installed_extras()])}]=={version('dataprep-assets')}",
        *(f"{name}=={version(name)}" for name in ("dagster", "dagster-webserver")),
    ]
    return "\n".join(lines) + "\n"
