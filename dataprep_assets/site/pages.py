"""Rendering of pages: Jinja2 with autoescape, the filters of the templates, and the frame around each page.

Texts of documents and names of files are untrusted, so templates never mark a value as safe; only charts, which are
built as trees of elements, and escaped texts with code are `Markup`. A page has no inline script or style, so that it
can be served with a strict Content-Security-Policy (`folder.POLICY`).

Entry points: `PageEnvironment`, `Page`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import jinja2
from markupsafe import Markup, escape

from dataprep_assets.table import format_share

TEMPLATES, STATIC = Path(__file__).parent / "templates", Path(__file__).parent / "static"
_NOTHING = "–"
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_CODE = re.compile(r"`([^`\n]+)`")
_QUANTITY = re.compile(r"–|[+-]?[\d,.]+( ?(%|points|[kMGTP]?B))?")
"""A number with its unit, as pages show it."""


@dataclass(frozen=True)
class Link:
    """A link of the navigation; `href` is relative to the page."""

    title: str
    href: str
    current: bool = False


@dataclass(frozen=True, kw_only=True)
class PageEnvironment:
    """The frame around a page.

    Attributes:
        root: Relative address of the site's folder, with a slash at the end; empty for its index.
        navigation: The links at the top of the page.
    """

    root: str = ""
    navigation: tuple[Link, ...] = ()

    def render(self, template: str, *, title: str, **facts: Any) -> str:
        """Return a page.

        Args:
            template: File in `templates/` that extends `base.html.j2`.
            title: Title of the page.
            facts: The variables of the template.
        """
        return (
            load_templates()
            .get_template(template)
            .render(root=self.root, navigation=self.navigation, title=title, **facts)
        )


class Page(Protocol):
    """A page of a dataset.

    Attributes:
        slug: Name of its file, without `.html`.
        title: Title, which is also the text of links to it.
        digest: Digest of all facts of the page, which is rewritten only if the digest or a template changed.
    """

    @property
    def slug(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def digest(self) -> str: ...
    def render(self, environment: PageEnvironment) -> str: ...


@dataclass(frozen=True, kw_only=True)
class FactsPage:
    """A page that is one template with facts."""

    slug: str
    title: str
    digest: str
    template: str
    facts: Mapping[str, Any] = field(repr=False)

    def render(self, environment: PageEnvironment) -> str:
        """Return the page."""
        return environment.render(self.template, title=self.title, **self.facts)


@cache
def load_templates() -> jinja2.Environment:
    """Return the environment of the templates."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "count": format_count,
        "size": format_size,
        "share": format_optional_share,
        "time": format_time,
        "day": format_day,
        "with_code": mark_code,
    }
    templates.tests["quantity"] = is_quantity
    return templates


def is_quantity(value: Any) -> bool:
    """Return whether a cell of a table has a number, or no value, so that it is aligned to the right."""
    return value is None or isinstance(value, int | float) or _QUANTITY.fullmatch(str(value)) is not None


def format_count(value: int | float | str | None) -> str:
    """Return a count with separators; a text, such as a rounded count, unchanged; a dash for None."""
    if value is None:
        return _NOTHING
    return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:,.3g}"


def format_size(count: int | str | None) -> str:
    """Return a number of bytes in decimal units, such as `1.5 GB`."""
    if count is None or isinstance(count, str):
        return count or _NOTHING
    size, unit = float(count), 0
    while size >= 999.5 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 or size >= 99.5 else f"{size:.1f} {_UNITS[unit]}"


def format_optional_share(value: float | None) -> str:
    """Return a share from 0 to 1 in percent; a dash for None."""
    return _NOTHING if value is None else format_share(value)


def format_time(timestamp: float | None) -> str:
    """Return a time, in seconds since 1970, in UTC to the minute; a dash for None."""
    return _NOTHING if timestamp is None else f"{datetime.fromtimestamp(timestamp, tz=UTC):%Y-%m-%d %H:%M}"


def format_day(timestamp: float | None) -> str:
    """Return the day of a time in UTC; a dash for None."""
    return _NOTHING if timestamp is None else f"{datetime.fromtimestamp(timestamp, tz=UTC):%Y-%m-%d}"


def mark_code(text: str) -> Markup:
    """Return a text as HTML in which the parts between backticks are code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))
