"""Views: artifacts with the same tokens as a finished artifact, in a trainer's file format.

A corpus has views of its combined bins (`pipelines/corpus/view.py`), and a blend has views of the rows of its run
(`pipelines/blend/view.py`). Every view is an extension: a module with a `VIEW`, in this or another package. This module
has the code that all views share.

Entry points: `View`, `load_view`, `StagedView`, `view_recipe`, `layout_valid`, `locate_for_trainer`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from dataprep_assets.engine.artifact.recipe import Recipe
from dataprep_assets.engine.checks.check import Finding, build_verdict
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.errors import ConfigError, DataprepError, count_of
from dataprep_assets.extensions import Extensions
from dataprep_assets.formats.croissant import ParquetColumn
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore, JoinedFile
from dataprep_assets.integrity.receipt import Content, Ledger, Receipt
from dataprep_assets.stores.files import digest_value

REBUILD_VIEW = "Rebuild the view"
"""Remedy for a view with defects."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Parquet rows in a view, for the data card.

    Attributes:
        prefix: Returns the start of the paths of a split's files, given the split's name.
        columns: The columns of the rows.
    """

    prefix: Callable[[str], str]
    columns: Sequence[ParquetColumn]


@dataclass(frozen=True, kw_only=True)
class View:
    """A trainer's format.

    Attributes:
        name: Name in YAML, in lower case.
        description: Description on the asset's page.
        rows: The view's Parquet rows.
        kinds: Dagster's kinds.
        settings: The declaration's keys that determine the view's bytes in addition to the tokens.
        version: Version of the writer. Increase it when a change to the writer can change a byte.
        columns: Name → type of each column, for a view whose rows have columns.
        column_descriptions: Name → a sentence about each column.
    """

    reserved: ClassVar[frozenset[str]] = frozenset()
    """Names of other artifacts of the dataset, which a view cannot have."""

    name: str
    description: str
    rows: Rows | None = None
    kinds: frozenset[str] = frozenset({"numpy"})
    settings: tuple[str, ...] = ()
    version: int = 1
    columns: Mapping[str, str] = field(default_factory=dict)
    column_descriptions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name in self.reserved:
            names = " and ".join(f"`{name}`" for name in sorted(self.reserved, reverse=True))
            raise ConfigError(
                f"{self.name!r} is not a valid name for a view: only lower-case letters, digits and '_' are allowed, "
                f"and {names} are reserved. Rename the view"
            )


V = TypeVar("V", bound=View)


def load_view(views: Extensions, name: str, kind: type[V]) -> V:
    """Return the view with this name, from this or another package.

    Raises ConfigError if it is unknown, defined by several packages, of a different kind, or cannot be imported.
    """
    extension = views[name]
    view = extension.load()
    if not isinstance(view, kind):
        raise extension.build_unfit_error(f"is not a {kind.__name__}")
    # Require equal names, because some functions find the view's artifact by the declared name, others by the view's
    # own name.
    if view.name != name:
        raise extension.build_unfit_error(f"has the name {view.name!r}")
    return view


@dataclass(frozen=True, kw_only=True)
class StagedView:
    """A view under construction in the staging directory `target`, and the values that its receipt will record."""

    store: ArtifactStore
    target: Path
    threads: int
    joined: list[JoinedFile] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)


def view_recipe(
    view: View,
    artifact: Artifact,
    declaration: DatasetDeclaration,
    *,
    content: Sequence[Any],
    upstream: Mapping[str, Content],
    ledger: Ledger | None,
) -> Recipe:
    """Return the recipe of a view.

    Args:
        view: The view.
        artifact: Its artifact.
        declaration: The dataset, with the view's settings.
        content: JSON values that identify the tokens, by split and in order.
        upstream: Name → content of each input.
        ledger: Counts of the documents in the view.
    """
    settings = {name: getattr(declaration, name) for name in view.settings}
    return Recipe(
        artifact=artifact,
        key=digest_value(["view", view.version, view.name, settings, content]),
        version=view.version,
        settings=settings,
        upstream=upstream,
        ledger=ledger,
    )


def locate_for_trainer(store: ArtifactStore, artifact: Artifact) -> str:
    """Return the location of an artifact for a trainer: absolute, because the trainer starts in a different folder."""
    location = store.location(artifact)
    return location if "://" in location else str(Path(location).resolve())


class _OpenedView(Protocol):
    """A view of any pipeline, opened for checks."""

    @property
    def view(self) -> View: ...
    @property
    def splits(self) -> Sequence[object]: ...
    @property
    def receipt(self) -> Receipt: ...
    def defects(self) -> Iterator[str]: ...


def layout_valid(subject: _OpenedView) -> Finding:
    """Check that the layout is valid for the trainer, by recomputing every invariant of the format."""
    return build_verdict(
        subject.defects(),
        f"The {subject.view.name} layout is valid for {count_of(len(subject.splits), 'split')}.",
        REBUILD_VIEW,
        facts={"files": len(subject.receipt.files)},
    )


def catch_errors(defects: Callable[[], Iterator[str]]) -> Iterator[str]:
    """Yield the defects of a layout, and the error of its reader, which may come from another package, as a defect."""
    try:
        yield from defects()
    except (DataprepError, OSError, ValueError, LookupError, TypeError) as error:
        yield str(error)
