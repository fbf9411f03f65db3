"""Rendering of a note's header from the fields of the patient and the note.

A template contains the names of declared fields. It is either text with `{name}` as in `str.format`, without
attributes, indices or format specifications, or sandboxed Jinja. Values are strings. A template's errors may quote
values, so they are replaced by `RenderError`, which has no details.

Entry points: `HeaderTemplate`, `convert_to_text`.
"""

import math
from collections.abc import Callable, Collection, Mapping
from string import Formatter
from typing import Any, Literal

from dataprep_assets.errors import ConfigError


class MissingFieldError(Exception):
    """Error for a field without a value or default. Its message does not name the field or the patient."""


class RenderError(Exception):
    """Error, without details, for a value that is not allowed in a header or a template that failed."""


class HeaderTemplate:
    """Compiled header template; raises ConfigError if it does not compile or uses undeclared names."""

    def __init__(
        self, text: str, *, engine: Literal["format", "jinja"], fields: Collection[str], defaults: Mapping[str, str]
    ) -> None:
        used_fields, self._render = _build_formatter(text) if engine == "format" else _compile_jinja(text)
        self.used = tuple(sorted(used_fields))
        self._defaults = dict(defaults)
        if unknown := sorted(used_fields - set(fields)):
            raise ConfigError(
                f"template.header: unknown fields {', '.join(unknown)}. Available: {', '.join(sorted(fields))}"
            )
        if unknown := sorted(defaults.keys() - set(fields)):
            raise ConfigError(
                f"template.defaults: unknown fields {', '.join(unknown)}. Available: {', '.join(sorted(fields))}"
            )

    def __call__(self, values: Mapping[str, str | None]) -> str:
        """Return the header of a note.

        Raises MissingFieldError if a field in the template is None or absent; RenderError if rendering fails.
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
        except Exception:  # a template may raise any exception, which may quote the template's input
            failed = True
        # Raise the error outside the handler, so that the template's error, which may quote its input, does not become
        # the context of the new error.
        assert failed
        raise RenderError


def _build_formatter(text: str) -> tuple[set[str], Callable[[Mapping[str, str]], str]]:
    try:
        parts = list(Formatter().parse(text))
    except ValueError as error:
        raise ConfigError(f"template.header: {error}. Write {{{{ and }}}} for braces") from None
    names = set()
    for _, name, specification, conversion in parts:
        if name is None:
            continue
        # Reject everything except names: `{a.b}` and `{a[0]}` would read attributes and items, and `{a:1000000000}`
        # would create a gigabyte of spaces.
        if not name.isidentifier() or specification or conversion:
            raise ConfigError(
                f"template.header: {{{name}}}: must be the name of a field. For expressions use `engine: jinja`"
            )
        names.add(name)
    return names, lambda values: text.format_map(values)


def _compile_jinja(text: str) -> tuple[set[str], Callable[[Mapping[str, str]], str]]:
    from jinja2 import StrictUndefined, TemplateError, meta
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # Keep a trailing newline, which Jinja would drop. Do not escape values, because a header is not HTML.
    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False, auto_reload=False
    )
    try:
        # Subtract Jinja's globals, such as `range`, because they are not fields.
        names = meta.find_undeclared_variables(environment.parse(text)) - environment.globals.keys()
        template = environment.from_string(text)
    except TemplateError as error:
        raise ConfigError(f"template.header: {error}. Correct the template") from None
    return names, lambda values: template.render(values)


def convert_to_text(value: Any) -> str | None:
    """Convert a JSON value to text for a template; return None for null.

    Raises RenderError for a list, an object or an infinity.
    """
    if value is None or isinstance(value, str):
        return value
    # Test for a bool first, because in Python a bool is also an int, and JSON writes `true` instead of `True`.
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float) and math.isfinite(value):
        return str(value)
    raise RenderError
