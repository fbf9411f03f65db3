"""The header before a note, rendered from a patient's and a note's fields.

A template is text in which declared fields are named: `{name}` as in `str.format`, without attributes, indices or
format specifications; or Jinja, in its sandbox. Values are strings. Errors of a template may quote them, so they are
replaced by `CannotRenderError`, which has no details.

Entry points: `HeaderTemplate`, `as_text`.
"""

import math
from collections.abc import Callable, Collection, Mapping
from string import Formatter
from typing import Any, Literal

from dataprep_assets.errors import ConfigError


class MissingFieldError(Exception):
    """A field without a value and without a default; names neither the field nor the patient."""


class CannotRenderError(Exception):
    """A value that a header cannot have, or a template that failed; gives no details."""


class HeaderTemplate:
    """A compiled template. Raises ConfigError if it does not compile or uses undeclared names."""

    def __init__(
        self, text: str, *, engine: Literal["format", "jinja"], fields: Collection[str], defaults: Mapping[str, str]
    ) -> None:
        used, self._render = _formatter(text) if engine == "format" else _jinja(text)
        self.used = tuple(sorted(used))
        self._defaults = dict(defaults)
        if unknown := sorted(used - set(fields)):
            raise ConfigError(f"template.header: unknown fields {unknown}. Available: {', '.join(sorted(fields))}")
        if unknown := sorted(defaults.keys() - set(fields)):
            raise ConfigError(f"template.defaults: unknown fields {unknown}. Available: {', '.join(sorted(fields))}")

    def __call__(self, values: Mapping[str, str | None]) -> str:
        """The header of a note.

        Raises MissingFieldError when a field that it uses is None or absent, CannotRenderError.
        """
        used_values: dict[str, str] = {}
        for name in self.used:
            value = values.get(name)
            if value is None:
                value = self._defaults.get(name)
            if value is None:
                raise MissingFieldError
            used_values[name] = value
        try:
            return self._render(used_values)
        except Exception:  # a template can raise anything, and may quote its input
            failed = True
        # outside of the handler, so that the template's own error is not the context of this one
        assert failed
        raise CannotRenderError


def _formatter(text: str) -> tuple[set[str], Callable[[Mapping[str, str]], str]]:
    try:
        parts = list(Formatter().parse(text))
    except ValueError as error:
        raise ConfigError(f"template.header: {error}. Write {{{{ and }}}} for braces") from None
    names = set()
    for _, name, specification, conversion in parts:
        if name is None:
            continue
        # `{a.b}` and `{a[0]}` would read into objects, and `{a:1000000000}` would make a gigabyte of spaces
        if not name.isidentifier() or specification or conversion:
            raise ConfigError(
                f"template.header: {{{name}}}: must be only a field's name. For expressions use `engine: jinja`"
            )
        names.add(name)
    return names, lambda values: text.format_map(values)


def _jinja(text: str) -> tuple[set[str], Callable[[Mapping[str, str]], str]]:
    from jinja2 import StrictUndefined, TemplateError, meta
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # Jinja would drop the newline at the end of a header; nothing is escaped, because a header is no HTML.
    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False, auto_reload=False
    )
    try:
        # `range` and the like are Jinja's own, not fields
        names = meta.find_undeclared_variables(environment.parse(text)) - environment.globals.keys()
        template = environment.from_string(text)
    except TemplateError as error:
        raise ConfigError(f"template.header: {error}") from None
    return names, lambda values: template.render(values)


def as_text(value: Any) -> str | None:
    """A JSON value as text for a template; None for null.

    Raises CannotRenderError for a list, an object and an infinity.
    """
    if value is None or isinstance(value, str):
        return value
    # a bool is an int in Python, and `True` is not how JSON writes it
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float) and math.isfinite(value):
        return str(value)
    raise CannotRenderError
