"""Mistakes in the templates of a `defs.yaml`, before Dagster resolves them: line, key, and what is wrong."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep_assets.graph.declaration_mistakes import nearest, read
from dataprep_assets.graph.remark import refused

if TYPE_CHECKING:
    from jinja2 import nodes


def refuse_templates(attributes: Any, scope: Mapping[str, Any], path: Path) -> None:
    """Raise ConfigError for templates in a YAML's values that Dagster resolves to nothing or refuses without a line.

    `attributes` are the values before they are resolved, `scope` the names that a template may use. Unknown names and
    variables of the environment that are not set are empty text in Dagster's templates.
    """
    # Dagster, which resolves them, imports it anyway; `dataprep --help` does not need it
    from jinja2 import Environment, TemplateSyntaxError, meta

    found: list[tuple[Sequence[str | int], str]] = []
    jinja = Environment(autoescape=True)
    for keys, text in _texts(attributes, ()):
        try:
            tree = jinja.parse(text)
            unknown = meta.find_undeclared_variables(tree) - {*scope, *jinja.globals}
        except TemplateSyntaxError as error:
            found.append(
                (keys, f"not a template: {error.message}; text with braces goes between {{% raw %}} and {{% endraw %}}")
            )
            continue
        for name in sorted(unknown):
            near = nearest(name, [*scope])
            more = f"did you mean `{near}`?" if near else f"there are {', '.join(sorted(scope))}"
            found.append((keys, f"no variable `{name}` for `{{{{ {name} }}}}`; {more}"))
        found += [(keys, f"the variable {name} is not set") for name in _unset_in_text(tree)]
    if found:
        (document, *_) = read(path)
        where = [(document.line_of(keys), ".".join(map(str, keys)), told) for keys, told in found]
        raise refused([f"{path}:{line}: {key}: {told}" for line, key, told in sorted(where)])


def _texts(value: Any, keys: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The texts in a value which are templates, each with the keys that lead to it."""
    if isinstance(value, Mapping):
        inner: Iterable[tuple[str | int, Any]] = value.items()
    elif isinstance(value, list | tuple):
        inner = enumerate(value)
    else:
        if isinstance(value, str) and ("{{" in value or "{%" in value):
            yield keys, value
        return
    for key, one in inner:
        yield from _texts(one, (*keys, key))


def _unset_in_text(tree: "nodes.Template") -> list[str]:
    """The variables of the environment that are not set, and are asked for in a way that makes them no value."""
    from jinja2 import nodes

    def variable(node: nodes.Node, name: object) -> list[str]:
        if isinstance(node, nodes.Name) and node.name == "env" and isinstance(name, str) and name not in os.environ:
            return [name]
        return []

    outputs = [node for output in tree.find_all(nodes.Output) for node in output.nodes]
    found = []
    if len(outputs) > 1:  # else its value is none, which is the key's own matter
        found += [n for one in outputs if isinstance(one, nodes.Getattr) for n in variable(one.node, one.attr)]
    for call in tree.find_all(nodes.Call):
        if len(call.args) == 1 and not call.kwargs and isinstance(call.args[0], nodes.Const):
            found += variable(call.node, call.args[0].value)
    return found
