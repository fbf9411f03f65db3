"""Templates in the values of a `defs.yaml`: `{{ env.X }}`, and the names that Dagster gives a component.

Dagster's own resolution renders every text: it drops a final newline, and reads what comes out as a Python literal, so
that `"1.0"` becomes a number and `"\\n"` nothing. Here a text without a template stays as the YAML has it. The value of
a template is text, or the object that its only expression names.

Entry point: `rendered`.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep_assets.engine.yaml.declared_keys import nearest
from dataprep_assets.engine.yaml.mistakes import read_documents
from dataprep_assets.engine.yaml.remark import mistakes_error

if TYPE_CHECKING:
    from jinja2 import Environment, nodes

Keys = tuple[str | int, ...]
_TEMPLATE = re.compile(r"""\{[{%][-+]?\s*[\w"'(\[]""")
"""Where a template begins; `{{` alone is text, because no expression follows it."""
_RAW = re.compile(r"\{%-?\s*raw\b")


def rendered(attributes: Any, scope: Mapping[str, Any], path: Path, own: Collection[Keys] = ()) -> Any:
    """The values of a `defs.yaml` with their templates rendered.

    Args:
        attributes: The values, as they are written.
        scope: The names that a template may use.
        path: The file, for the lines of mistakes.
        own: Keys whose text is a template of another program, and stays as it is written.

    Raises ConfigError, with line and key, for what is no template, for an unknown name, for a variable of the
    environment that is not set inside of a text, and for an expression that raises.
    """
    # a text that was marked by hand, as was needed before `own`, is unmarked by rendering it
    texts = [(keys, text) for keys, text in _texts(attributes, ()) if keys not in own or _RAW.search(text)]
    if not texts:
        return attributes
    mistakes = [(keys, told) for keys, text in texts for told in _mistakes(text, scope)]
    values: dict[Keys, Any] = {}
    for keys, text in [] if mistakes else texts:
        try:
            values[keys] = _value(text, scope)
        except Exception as error:  # whatever a function of the project's own raises
            mistakes.append((keys, f"`{text.strip()}` cannot be resolved: {error}"))
    if mistakes:
        (document, *_) = read_documents(path)
        where = [(document.line_of(keys), ".".join(map(str, keys)), told) for keys, told in mistakes]
        raise mistakes_error([f"{path}:{line}: {key}: {told}" for line, key, told in sorted(where)])
    return _replaced(attributes, values, ())


def _texts(value: Any, keys: Keys) -> Iterator[tuple[Keys, str]]:
    """The texts in a value which are templates, each with the keys that lead to it."""
    for key, one in _items(value):
        yield from _texts(one, (*keys, key))
    if isinstance(value, str) and _TEMPLATE.search(value):
        yield keys, value


def _items(value: Any) -> Iterable[tuple[str | int, Any]]:
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, list | tuple) else ()


def _replaced(value: Any, values: Mapping[Keys, Any], keys: Keys) -> Any:
    """The value with the texts at these keys replaced."""
    if isinstance(value, Mapping):
        return {key: _replaced(one, values, (*keys, key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(one, values, (*keys, i)) for i, one in enumerate(value)]
    return values.get(keys, value)


def _value(text: str, scope: Mapping[str, Any]) -> Any:
    """What a template is rendered to: text, or what its expression names if there is nothing else in it."""
    from jinja2 import nodes

    expressed: list[Any] = []

    def expression(value: Any) -> Any:
        expressed.append(value)
        return value

    jinja = _jinja(text, expression)
    outcome = jinja.from_string(text).render(scope)
    match jinja.parse(text).body:
        case [nodes.Output(nodes=[nodes.Expr() as only])] if not isinstance(only, nodes.TemplateData):
            return expressed[-1]
    return outcome


def _jinja(text: str, finalize: Callable[[Any], Any] | None = None) -> "Environment":
    # Dagster imports it anyway; `dataprep --help` does not need it
    from jinja2 import Environment, StrictUndefined

    return Environment(
        undefined=StrictUndefined,
        finalize=finalize,
        keep_trailing_newline=True,
        # Jinja gives each line of a template the same end
        newline_sequence="\r\n" if "\r\n" in text else "\r" if "\r" in text else "\n",
        autoescape=False,  # this is no HTML: a path may have a `&`
    )


def _mistakes(text: str, scope: Mapping[str, Any]) -> Iterator[str]:
    """What can be told of a template before it is rendered."""
    from jinja2 import TemplateSyntaxError, meta

    jinja = _jinja(text)
    try:
        tree = jinja.parse(text)
        unknown = meta.find_undeclared_variables(tree) - {*scope, *jinja.globals}
    except TemplateSyntaxError as error:
        yield f"not a template: {error.message}; text with braces goes between {{% raw %}} and {{% endraw %}}"
        return
    for name in sorted(unknown):
        near = nearest(name, [*scope])
        more = f"did you mean `{near}`?" if near else f"there are {', '.join(sorted(scope))}"
        yield f"no variable `{name}` for `{{{{ {name} }}}}`; {more}"
    for name in _unset_in_text(tree):
        yield f"the variable {name} is not set"


def _unset_in_text(tree: "nodes.Template") -> Sequence[str]:
    """The variables of the environment that are not set, and are asked for in a way that makes them no value."""
    from jinja2 import nodes

    def variable(node: nodes.Node, name: object) -> list[str]:
        if isinstance(node, nodes.Name) and node.name == "env" and isinstance(name, str) and name not in os.environ:
            return [name]
        return []

    outputs = [node for output in tree.find_all(nodes.Output) for node in output.nodes]
    names = []
    if len(outputs) > 1:  # else its value is none, which is the key's own matter
        names += [n for one in outputs if isinstance(one, nodes.Getattr) for n in variable(one.node, one.attr)]
    for call in tree.find_all(nodes.Call):
        if len(call.args) == 1 and not call.kwargs and isinstance(call.args[0], nodes.Const):
            names += variable(call.node, call.args[0].value)
    return names
