"""What can be added from outside of this package: views of a corpus, pipelines. Each kind is a group of entry points.

What this package has of a kind is found in a folder of its own, what others have by their entry points: of this package
they would be a list by hand in pyproject.toml, and a checkout would know what is new only after it was installed again.

Names are known without importing anything. What is imported is what a declaration names, so a package that cannot be
imported is in the way of nobody who does not use it.

Entry points: `Extensions`, `Extension`.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import import_module, metadata
from typing import Any

from dataprep_assets.errors import ConfigError

_OWN = "dataprep-assets"


@cache
def _entry_points(path: tuple[str, ...]) -> Any:
    """Return the entry points of all packages on a path, whose files are read once for all kinds of extensions.

    Their class differs between versions of Python; each has `select`. `path` is `sys.path`, to which a project that is
    opened adds its folder.
    """
    return metadata.entry_points()


@dataclass(frozen=True, kw_only=True)
class Extension:
    """A named object in a module of an installed package.

    Attributes:
        kind: What it is: `view`.
        name: Its name in a YAML.
        module: The module that it is in.
        attribute: Its name there.
        package: The package that has it, with its version if it is not this one.
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
        """Whether it is of this package."""
        return self.package == _OWN

    def sibling(self, module: str, attribute: str) -> "Extension":
        """An object of another module of the same folder."""
        return replace(self, module=f"{self.module.rpartition('.')[0]}.{module}", attribute=attribute)

    def load(self) -> Any:
        """The object; raises ConfigError naming the package where its module cannot be imported."""
        try:
            return getattr(import_module(self.module), self.attribute)
        except Exception as error:  # whatever a module of somebody else's raises
            raise ConfigError(
                f"{self}: {self.module}:{self.attribute} cannot be imported: {type(error).__name__}: {error}. Repair "
                "the package, or uninstall it"
            ) from error

    def unfit(self, why: str) -> ConfigError:
        """The error for an object that is not what it should be."""
        return ConfigError(f"{self}: {self.module}:{self.attribute} {why}. Repair the package, or uninstall it")


class Extensions:
    """All extensions of a kind, by name; iterating gives the names, sorted."""

    def __init__(self, kind: str, group: str, own: Mapping[str, str]) -> None:
        """Say where they are.

        Args:
            kind: What each is, for messages: `view`.
            group: The group of entry points by which other packages name theirs, as `name = "module:attribute"`.
            own: Those of this package, in the same form.
        """
        self._kind, self._group, self._own = kind, group, own

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._by_name))

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Extension:
        """The extension with this name; raises ConfigError if there is none, or more than one."""
        matches = self._by_name.get(name, [])
        if len(matches) > 1:
            packages = " and ".join(sorted(one.package for one in matches))
            raise ConfigError(f"{self._kind} {name!r} is in {len(matches)} packages, {packages}. Uninstall all but one")
        if not matches:
            raise ConfigError(f"unknown {self._kind} {name!r}. Available: {', '.join(self)}")
        return matches[0]

    @cached_property
    def _by_name(self) -> Mapping[str, list[Extension]]:
        found: dict[str, list[Extension]] = {}
        for name, value in self._own.items():
            found.setdefault(name, []).append(self._extension(name, value, _OWN))
        for point in _entry_points(tuple(sys.path)).select(group=self._group):
            package = "" if point.dist is None else f"{point.dist.name} {point.dist.version}"
            found.setdefault(point.name, []).append(self._extension(point.name, point.value, package))
        return found

    def _extension(self, name: str, value: str, package: str) -> Extension:
        module, _, attribute = value.partition(":")
        return Extension(
            kind=self._kind, name=name, module=module.strip(), attribute=attribute.strip(), package=package
        )
