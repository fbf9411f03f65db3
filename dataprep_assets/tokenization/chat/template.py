"""Chat templates: found, digested, compiled and rendered as transformers renders them.

A template is named (`nano3`, shipped here), a path, or Jinja itself. What enters keys is the digest of its text: the
same name with another text is another template. The environment is that of transformers (`utils/chat_template_utils`):
sandboxed, `trim_blocks`, `lstrip_blocks`, loop controls, `{% generation %}`, `tojson` without HTML escapes,
`raise_exception`. Its `strftime_now` would make every day's bytes different, so it needs a declared date.

Entry points: `ChatTemplate.load`, `compile_template`, `template_variables`.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep_assets.errors import ConfigError
from dataprep_assets.tokenization.bundle import TokenizerBundle

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["BUNDLED", "ChatTemplate", "Renderer", "TemplateRenderError", "compile_template", "template_variables"]

_FOLDER = Path(__file__).parent / "templates"
BUNDLED = ("nano3",)
"""Templates that can be named."""
_TOKENIZER_VARIABLES = ("bos_token", "eos_token", "pad_token", "unk_token")


class TemplateRenderError(Exception):
    """A template refused a conversation or failed on it. Its message may quote the conversation: never log it."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """The text of a template, and what people call it."""

    name: str
    text: str

    @classmethod
    def load(cls, declared: str, folder: Path | None = None) -> "ChatTemplate":
        """A bundled name, Jinja text, or a path (relative to `folder`).

        ConfigError for what is none of them: taken for Jinja, a mistyped path would render every conversation alike.
        """
        if declared in BUNDLED:
            return cls(declared, (_FOLDER / f"{declared}.jinja").read_text(encoding="utf-8"))
        if "{{" in declared or "{%" in declared:
            return cls("inline", declared)
        path = (folder or Path()) / Path(declared).expanduser()
        try:
            return cls(path.name, path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, ValueError) as error:
            raise ConfigError(
                f"chat_template: {declared!r} is not a bundled template ({', '.join(BUNDLED)}), Jinja text, or a "
                f"readable file: {error}"
            ) from error

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def template_variables(bundle: TokenizerBundle) -> dict[str, str]:
    """`bos_token` and its like as the tokenizer configures them: what transformers passes to every template."""
    path = bundle.directory / "tokenizer_config.json"
    config = json.loads(path.read_bytes()) if path.is_file() else {}
    found = {name: config.get(name) for name in _TOKENIZER_VARIABLES}
    contents = {name: v.get("content") if isinstance(v, dict) else v for name, v in found.items()}
    return {name: value for name, value in contents.items() if isinstance(value, str)}


class Renderer:
    """A compiled template; `render` is a pure function of its arguments. Not picklable: compile it where it is used."""

    def __init__(self, render: Callable[..., str], failures: tuple[type[Exception], ...]) -> None:
        self._render, self._failures = render, failures

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        *,
        prompt: bool,
        thinking: bool,
    ) -> str:
        """The text of `messages` (role, content, …) and the `tools` they may call, JSON schemas or None.

        With `prompt`, the text ends where the assistant's next answer begins. `thinking` is passed as
        `enable_thinking`. Raises TemplateRenderError when the template refuses or fails.
        """
        try:
            return self._render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=prompt,
                enable_thinking=thinking,
            )
        except self._failures as error:
            raise TemplateRenderError(f"{type(error).__name__}: {error}") from error


def compile_template(
    template: ChatTemplate, variables: Mapping[str, Any] | None = None, today: date | None = None
) -> Renderer:
    """Compile `template`; `variables` are passed to every rendering, `today` is what `strftime_now` says.

    ConfigError names the line of a syntax error, and a template that wants a date where none is declared.
    """
    import jinja2
    import jinja2.ext
    import jinja2.meta

    environment = _environment_class()(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _generation_tag()]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    try:
        wanted = jinja2.meta.find_undeclared_variables(environment.parse(template.text))
        compiled = environment.from_string(template.text)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(
            f"chat_template {template.name}: line {error.lineno}: {error.message}. Correct the template"
        ) from error
    if "strftime_now" in wanted:
        if today is None:
            raise ConfigError(
                f"chat_template {template.name}: it writes today's date (strftime_now), so the same rows would give "
                "other bytes tomorrow. Declare `template_date`"
            )
        environment.globals["strftime_now"] = today.strftime
    fixed = dict(variables or {})
    # the errors that Python itself raises inside a template for data it did not expect
    failures = (
        *(jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError),
        RecursionError,  # a tool's schema may be nested more deeply than `tojson` goes
    )
    return Renderer(lambda **given: compiled.render({**fixed, **given}), failures)


_ATTRIBUTES_OF_DICT = frozenset(dir(dict))
_OF_LOOP = frozenset({"index", "index0", "first", "last", "length"})


def _environment_class() -> "type[ImmutableSandboxedEnvironment]":
    """The sandbox, with a short way to what templates do most: `message.role` of a plain dict, and `loop.index0`.

    The sandbox's own way ends in the same value, after a failed attribute look-up and its exception, or after proving
    that a number of the loop is no method that changes anything: half of all time.
    """
    from jinja2.runtime import LoopContext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Environment(ImmutableSandboxedEnvironment):
        def getattr(self, obj: Any, attribute: str) -> Any:
            if type(obj) is dict and attribute not in _ATTRIBUTES_OF_DICT:
                return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
            if type(obj) is LoopContext and attribute in _OF_LOOP:
                return getattr(obj, attribute)
            return super().getattr(obj, attribute)

    return Environment


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _generation_tag() -> Any:
    """The `{% generation %}` block of transformers, which marks what an assistant says: here it is only its body."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class GenerationTag(Extension):
        tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return GenerationTag
