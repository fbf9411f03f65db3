"""An environment of Jinja whose templates render watched texts (`watched.py`), or say that they cannot.

A text is written, joined, compared and searched by its own methods, which know what they say. Every other function,
filter, test or operator could look at its characters without them: it gets no text, nor anything that may hold one,
unless it is known to look at none.

Entry point: `watching`.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any

from dataprep_assets.tokenization.chat.watched import UnclearError, WatchedText

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["watching"]

_FILTERS = frozenset({"d", "default", "count", "first", "last", "length", "list", "string", "trim"})
_TESTS = frozenset(
    {"boolean", "defined", "false", "float", "integer", "mapping", "none", "number", "string", "true", "undefined"}
)
"""Filters and tests of Jinja that look at no text, or only by methods that a watched text answers or refuses."""
_OF_A_FRAME = frozenset({"caller", "_loop_vars", "_block_vars"})
"""What a compiled template passes to every call beside the call's arguments."""


def watching(base: "type[ImmutableSandboxedEnvironment]") -> "type[ImmutableSandboxedEnvironment]":
    """An environment like `base` whose templates render watched texts, or raise UnclearError."""
    from jinja2 import nodes
    from jinja2.compiler import CodeGenerator, Frame
    from jinja2.runtime import Macro, Undefined
    from jinja2.utils import Namespace

    def refuse_in(*values: Any) -> None:
        for value in values:
            if not isinstance(value, Undefined) and _may_hold_texts(value):
                raise UnclearError

    def joined(texts: Iterable[Any]) -> Any:
        found = [str(text) for text in texts]
        watched = next((text for text in found if isinstance(text, WatchedText)), None)
        return "".join(found) if watched is None else watched.joined(*found)

    def within(value: Any, container: Any) -> bool:
        if isinstance(value, WatchedText) and isinstance(container, str):
            raise UnclearError
        return value in container

    def refusing(known: frozenset[str], functions: dict[str, Callable[..., Any]]) -> None:
        for name, function in functions.items():
            if name not in known:
                functions[name] = _refusing(function, refuse_in)

    class Generator(CodeGenerator):
        def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 (as in jinja2)
            if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
                raise UnclearError
            self.write("environment.joined((")
            for part in node.nodes:
                self.visit(part, frame)
                self.write(", ")
            self.write("))")

        def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:  # noqa: N802 (as in jinja2)
            if not any(operand.op in ("in", "notin") for operand in node.ops):
                super().visit_Compare(node, frame)
                return
            if len(node.ops) > 1:
                raise UnclearError
            self.write("(not " if node.ops[0].op == "notin" else "(")
            self.write("environment.within(")
            self.visit(node.expr, frame)
            self.write(", ")
            self.visit(node.ops[0].expr, frame)
            self.write("))")

    class Environment(base):  # type: ignore[misc,valid-type]
        code_generator_class = Generator
        intercepted_binops = frozenset(base.default_binop_table)
        concat = staticmethod(joined)

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.joined, self.within = joined, within

        def from_string(self, *args: Any, **kwargs: Any) -> Any:
            refusing(_FILTERS, self.filters)
            refusing(_TESTS, self.tests)
            return super().from_string(*args, **kwargs)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator != "+":
                refuse_in(left, right)
            return super().call_binop(context, operator, left, right)

        def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 (as in jinja2)
            of_strings = isinstance(getattr(__obj, "__self__", None), WatchedText)
            if not of_strings and not isinstance(__obj, Macro) and __obj is not Namespace:
                refuse_in(*args, *(value for name, value in kwargs.items() if name not in _OF_A_FRAME))
            return super().call(__context, __obj, *args, **kwargs)

    return Environment


def _refusing(function: Callable[..., Any], refuse_in: Callable[..., None]) -> Callable[..., Any]:
    """A filter or test that refuses watched texts. The context that some are given first is not looked at."""
    skipped = 1 if hasattr(function, "jinja_pass_arg") else 0

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        refuse_in(*args[skipped:], *kwargs.values())
        return function(*args, **kwargs)

    return guarded


def _may_hold_texts(value: Any) -> bool:
    """Whether a watched text is in a value, or may be because nothing is known of its type."""
    if isinstance(value, dict):
        return any(_may_hold_texts(part) for item in value.items() for part in item)
    if isinstance(value, list | tuple):
        return any(map(_may_hold_texts, value))
    return isinstance(value, WatchedText) or not isinstance(value, str | int | float | None)
