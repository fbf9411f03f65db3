"""Extensions from other packages, such as views of a corpus and pipelines; each kind is a group of entry points.

This package's own extensions are found in a folder, and other packages' extensions by their entry points. Entry points
for this package's own extensions would require a manual list in pyproject.toml, and a checkout would find a new
extension only after a reinstallation.

Names are known without importing anything. Only an extension that a declaration names is imported, so a package that
cannot be imported affects only its users.

Entry points: `Extensions`, `Extension`.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import import_module, metadata
from typing import Any

from dataprep_assets.errors import ConfigError

_OWN = "dataprep-assets"
_GROUPS = "[dataprep_assets."
"""Start of the heading of each group of extensions in `entry_points.txt`."""


@cache
def _read_entry_points(path: tuple[str, ...]) -> Sequence[metadata.EntryPoint]:
    """Return the entry points of all packages on `path` that extend this one, read once for all kinds of extensions.

    `path` is `sys.path`, because opening a project adds the project's folder.
    """
    packages: dict[str, metadata.Distribution] = {}
    for package in metadata.distributions():
        # Parse only the files that contain a group of this package, because parsing every package's file takes a large
        # part of a short command's time.
        if _GROUPS in (package.read_text("entry_points.txt") or ""):
            # Of two versions on the path, Python imports the first one, which may have other extensions or none.
            packages[package.name] = next(iter(metadata.distributions(name=package.name)), package)
    return [point for package in packages.values() for point in package.entry_points]


@dataclass(frozen=True, kw_only=True)
class Extension:
    """A named object in a module of an installed package.

    Attributes:
        kind: The kind of extension, such as `view`.
        name: The extension's name in a YAML file.
        module: The module that defines the object.
        attribute: The object's name in the module.
        package: The package of the extension, with its version unless it is this package.
    """

    kind: str
    name: str
    module: str
    attribute: str
    package: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} of the package {self.package}"

    @property
    def is_own(self) -> bool:
        """Whether the extension is part of this package."""
        return self.package == _OWN

    def get_sibling(self, module: str, attribute: str) -> "Extension":
        """Return the extension for an object in another module of the same folder."""
        return replace(self, module=f"{self.module.rpartition('.')[0]}.{module}", attribute=attribute)

    def load(self) -> Any:
        """Import and return the object; raise ConfigError, which names the package, if that fails."""
        try:
            return getattr(import_module(self.module), self.attribute)
        except Exception as error:  # another package's module may raise any exception
            raise ConfigError(
                f"{self}: {self.module}:{self.attribute} cannot be imported: {type(error).__name__}: {error}. Repair "
                "the package, or uninstall it"
            ) from error

    def build_unfit_error(self, reason: str) -> ConfigError:
        """Return an error for an object of the wrong type or with wrong attributes."""
        return ConfigError(f"{self}: {self.module}:{self.attribute} {reason}. Repair the package, or uninstall it")


class Extensions:
    """All extensions of a kind, by name; iterating yields the sorted names."""

    def __init__(self, kind: str, group: str, own_modules: Mapping[str, str]) -> None:
        """Collect the extensions of a kind.

        Args:
            kind: The kind of extension for messages, such as `view`.
            group: The entry point group in which other packages register extensions, as `name = "module:attribute"`.
            own_modules: This package's extensions, in the same form.
        """
        self._kind, self._group, self._own = kind, group, own_modules

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._by_name))

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Extension:
        """Return the extension with this name; raise ConfigError if it does not exist or is not unique."""
        matches = self._by_name.get(name, [])
        if len(matches) > 1:
            packages = " and ".join(sorted(match.package for match in matches))
            raise ConfigError(
                f"{self._kind} {name!r} is provided by {len(matches)} packages: {packages}. Uninstall all but one"
            )
        if not matches:
            raise ConfigError(f"unknown {self._kind} {name!r}. Available: {', '.join(self)}")
        return matches[0]

    @cached_property
    def _by_name(self) -> Mapping[str, list[Extension]]:
        extensions: dict[str, list[Extension]] = {}
        for name, value in self._own.items():
            extensions.setdefault(name, []).append(self._build_extension(name, value, _OWN))
        for point in _read_entry_points(tuple(sys.path)):
            if point.group != self._group:
                continue
            package = "" if point.dist is None else f"{point.dist.name} {point.dist.version}"
            extensions.setdefault(point.name, []).append(self._build_extension(point.name, point.value, package))
        return extensions

    def _build_extension(self, name: str, value: str, package: str) -> Extension:
        module, _, attribute = value.partition(":")
        return Extension(
            kind=self._kind, name=name, module=module.strip(), attribute=attribute.strip(), package=package
        )
