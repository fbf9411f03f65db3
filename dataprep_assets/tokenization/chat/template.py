"""Chat templates: finds, digests, compiles and renders them as transformers does.

A template is the tokenizer's own, a name (`chatml_reasoning` ships here), a path, or Jinja text. Keys contain the
digest of its text: the same name with another text is another template. The environment is that of transformers
(`utils/chat_template_utils`): sandboxed, `trim_blocks`, `lstrip_blocks`, loop controls, `{% generation %}`, `tojson`
without HTML escapes, `raise_exception`; besides, what an operator makes has a limit. Its `strftime_now` would make
every day's bytes different, so it needs a declared date.

Entry points: `ChatTemplate.load`, `compile_template`, `template_variables`.
"""

import hashlib
import importlib.util
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from dataprep_assets.bounds import json_of, report_activity
from dataprep_assets.errors import ConfigError
from dataprep_assets.stores.files import expanded
from dataprep_assets.tokenization.bundle import TokenizerBundle

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

_FOLDER = Path(__file__).parent / "templates"
OF_TOKENIZER = "tokenizer"
"""Name for the tokenizer's own template."""
SHIPPED = ("chatml_reasoning",)
"""Templates that ship with this project."""
_NEMOTRON = "nemotron/data_prep/templates"
PUBLISHED = {
    "nano3": f"{_NEMOTRON}/nano3.jinja",
    "super3": f"{_NEMOTRON}/nano3.jinja",
    "ultra3": f"{_NEMOTRON}/nano3.jinja",
    "lightning35": f"{_NEMOTRON}/lightning35.jinja",
}
"""Name of a template in another package → its path in that package (at commit e27b371 of 2026-08-21)."""
_TOKENIZER_VARIABLES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


class TemplateRenderError(Exception):
    """A template refused a conversation or failed on it. The message may quote the conversation: never log it."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A template: its text and its name."""

    name: str
    text: str

    @classmethod
    def load(cls, declared: str) -> "ChatTemplate":
        """A shipped template by name, Jinja text, or a file by its path.

        For a folder, such as a clone of a model's repository, the template of its tokenizer. Names in `PUBLISHED` are
        read from the installed package. Raises ConfigError for anything else: a mistyped path taken for Jinja would
        render every conversation alike.
        """
        if declared in SHIPPED:
            return cls(declared, (_FOLDER / f"{declared}.jinja").read_text(encoding="utf-8"))
        if declared in PUBLISHED:
            return cls(declared, _published_path(declared).read_text(encoding="utf-8"))
        if not is_template_path(declared):
            return cls("inline", declared)
        path = expanded(declared, "chat_template")
        if path.is_dir():
            return cls._of_folder(path, str(path))
        try:
            return cls(path.name, path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, ValueError) as error:
            raise ConfigError(
                f"chat_template: {declared!r} must be `{OF_TOKENIZER}`, a name "
                f"({', '.join((*SHIPPED, *PUBLISHED))}), Jinja text, or a readable file: {error}"
            ) from error

    @classmethod
    def of_tokenizer(cls, bundle: TokenizerBundle) -> "ChatTemplate":
        """The template of a tokenizer: `chat_template.jinja` beside it, else that of `tokenizer_config.json`.

        Of several in the configuration, the one named `default`. Raises ConfigError if there is none.
        """
        return cls._of_folder(bundle.directory, f"the tokenizer {bundle.name}")

    @classmethod
    def _of_folder(cls, folder: Path, called: str) -> "ChatTemplate":
        path = folder / "chat_template.jinja"
        if path.is_file():
            with _reading(path):
                return cls(path.name, path.read_text(encoding="utf-8"))
        template = _tokenizer_config(folder).get("chat_template")
        if isinstance(template, list):
            text_by_name = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
            template = text_by_name.get("default")
        if not isinstance(template, str):
            raise ConfigError(
                f"chat_template: {called} has none (no chat_template.jinja, no `chat_template` in "
                f"tokenizer_config.json). Set a path, {{repo, revision, file}}, or {SHIPPED[0]}, which is included"
            )
        return cls(OF_TOKENIZER, template)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def marks_answers(self) -> bool:
        """Whether it marks the assistant's answers itself, with `{% generation %}`."""
        return re.search(r"{%[-+]?\s*generation\s*[-+]?%}", self.text) is not None


def is_template_path(declared: str) -> bool:
    """Return whether a declared template is a path, not a name or Jinja text."""
    return declared not in (OF_TOKENIZER, *SHIPPED, *PUBLISHED) and "{{" not in declared and "{%" not in declared


def _published_path(name: str) -> Path:
    """The path of a template of an installed package; raises ConfigError, naming the package, if it is missing."""
    inside = Path(PUBLISHED[name])
    package = importlib.util.find_spec(inside.parts[0])
    for folder in (package.submodule_search_locations or ()) if package else ():
        if (path := Path(folder, *inside.parts[1:])).is_file():
            return path
    hint = "" if inside.stem == name else f" (the recipes of {name} use {inside.stem})"
    raise ConfigError(
        f"chat_template: {name} is not part of this project{hint}: it is src/{inside} in NVIDIA-NeMo/Nemotron on "
        f"GitHub. Clone that repository and set the path of the file, or use the included `{SHIPPED[0]}`"
    )


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Inside, what is wrong with a file of a tokenizer is a ConfigError that names it."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise ConfigError(f"chat_template: {path}: cannot be read: {error}") from error


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    with _reading(path):
        config = json_of(path.read_bytes()) if path.is_file() else {}
        if not isinstance(config, dict):
            raise ValueError("not a JSON object")
        return config


def template_variables(bundle: TokenizerBundle) -> dict[str, str]:
    """`bos_token` and similar tokens of the tokenizer's configuration, which transformers passes to every template."""
    config = _tokenizer_config(bundle.directory)
    configured_tokens = {name: config.get(name) for name in _TOKENIZER_VARIABLES}
    contents = {name: v.get("content") if isinstance(v, dict) else v for name, v in configured_tokens.items()}
    return {name: value for name, value in contents.items() if isinstance(value, str)}


class Renderer:
    """A compiled template; `render` is a pure function of its arguments. Not picklable: compile it where it is used."""

    def __init__(
        self,
        render: Callable[..., str],
        failures: tuple[type[Exception], ...],
        kwargs: Mapping[str, Any] | None = None,
        *,
        name: str,
    ) -> None:
        self._render, self._failures, self._kwargs = render, failures, dict(kwargs or {})
        self.name = name

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
        `enable_thinking`, and in `chat_template_kwargs`, which is where Nemotron's templates look for it. Raises
        TemplateRenderError when the template refuses or fails.
        """
        variables = {**self._kwargs, "enable_thinking": thinking}
        try:
            return self._render(
                **variables,
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=prompt,
                chat_template_kwargs=variables,
            )
        except self._failures as error:
            raise TemplateRenderError(f"{type(error).__name__}: {error}") from error


def compile_template(
    template: ChatTemplate,
    variables: Mapping[str, Any] | None = None,
    today: date | None = None,
    kwargs: Mapping[str, Any] | None = None,
    marks: tuple[str, str] = ("", ""),
) -> Renderer:
    """Compile a template.

    Args:
        template: The template to compile.
        variables: The special tokens, passed to every rendering.
        today: The date that `strftime_now` returns.
        kwargs: Further variables, passed individually and all together as `chat_template_kwargs`.
        marks: Texts to write where a `{% generation %}` begins and ends.

    Raises ConfigError for a syntax error, naming the line, for an expression that is nested too deeply, for a template
    that needs a date if none is declared, and for a further variable whose value each rendering sets.
    """
    import jinja2

    environment = _environment(marks)
    # should compiling it exceed the bounds of this process, it is named
    report_activity(f"chat_template {template.name}")
    try:
        code, dated = _code_of(template.text, marks)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(
            f"chat_template {template.name}: line {error.lineno or 0}: {error.message}. Correct the template"
        ) from error
    # jinja descends into an expression, and Python's compiler into the code that is made of it
    except (RecursionError, MemoryError, SyntaxError) as error:
        raise ConfigError(
            f"chat_template {template.name}: an expression is nested too deeply. Correct the template"
        ) from error
    if dated:
        if today is None:
            raise ConfigError(
                f"chat_template {template.name}: uses today's date (strftime_now), so the same rows would give "
                "different bytes tomorrow. Set `template_date`"
            )
        environment.globals["strftime_now"] = today.strftime
    compiled = environment.template_class.from_code(environment, code, environment.make_globals(None))
    if reserved_names := sorted(_OF_A_RENDERING & {*(kwargs or {})}):
        raise ConfigError(f"template_kwargs: {', '.join(reserved_names)}: set by each rendering. Remove them")
    fixed = dict(variables or {})
    # the errors that Python raises inside a template for unexpected data
    failures = (
        *(jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError),
        RecursionError,  # a tool's schema may be nested too deeply for `tojson`
    )
    return Renderer(lambda **given: compiled.render({**fixed, **given}), failures, kwargs, name=template.name)


@lru_cache(maxsize=16)
def _code_of(text: str, marks: tuple[str, str]) -> tuple[CodeType, bool]:
    """Return the code of a template, and whether it asks for the date; a plan needs it four times."""
    import jinja2.meta

    environment = _environment(marks)
    code = environment.compile(text)
    # a name is in the text as it is; finding the names takes twice the time of compiling
    names = jinja2.meta.find_undeclared_variables(environment.parse(text)) if "strftime_now" in text else ()
    return code, "strftime_now" in names


def _environment(marks: tuple[str, str]) -> "ImmutableSandboxedEnvironment":
    """Return what transformers gives to every template."""
    import jinja2.ext

    environment = _environment_class()(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _generation_tag(marks)]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment


_OF_A_RENDERING = {
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "enable_thinking",
    "chat_template_kwargs",
}
_MOST_MADE = 64 << 20
"""Most characters that an operator or method of a template makes at once; what many make together is left to the bound
of the process."""
_PADDING = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
"""Methods of texts whose first argument is a width."""
_WIDE = re.compile(r"%[^%a-zA-Z]*(?:\*|\d{8})")
"""A conversion that makes a text as wide as a number says."""
_WIDE_FIELD, _WIDTH_GIVEN = re.compile(r":[^{}]*\d{8}"), re.compile(r":[^{}]*\{")
"""The same of a field of `format`, and one whose width is another field."""
_ATTRIBUTES_OF_DICT = frozenset(dir(dict))
_OF_LOOP = frozenset({"index", "index0", "first", "last", "length"})


def _environment_class() -> "type[ImmutableSandboxedEnvironment]":
    """The sandbox, with shortcuts for the most frequent expressions: `message.role` of a plain dict, and `loop.index0`.

    The sandbox itself gives the same values, but after a failed attribute look-up and its exception, or after checking
    that a number of the loop is not a mutating method: half of the time.
    """
    from jinja2.exceptions import SecurityError
    from jinja2.runtime import Context, LoopContext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**", "+", "%"})  # which are then not folded at compile time, either

        def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
            if _size(operator, left, right) > _MOST_MADE:
                raise SecurityError(f"`{operator}` creates more than {_MOST_MADE:,} characters at once")
            return super().call_binop(context, operator, left, right)

        def call(self, context: Context, called: Any, *args: Any, **named: Any) -> Any:
            if _is_wide_format(called, [*args, *named.values()]):
                raise SecurityError(f"`format` creates more than {_MOST_MADE:,} characters at once")
            is_padding = bool(args) and getattr(called, "__name__", "") in _PADDING
            if is_padding and isinstance(args[0], int) and args[0] > _MOST_MADE:
                raise SecurityError(f"a text of more than {_MOST_MADE:,} characters")
            return super().call(context, called, *args, **named)

        def getattr(self, obj: Any, attribute: str) -> Any:
            # as in Jinja itself `message.items` is the method, also where a message has such a key
            if type(obj) is dict and attribute not in _ATTRIBUTES_OF_DICT:
                return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
            if type(obj) is LoopContext and attribute in _OF_LOOP:
                return getattr(obj, attribute)
            return super().getattr(obj, attribute)

    return Environment


def _is_wide_format(called: Any, given: Sequence[Any]) -> bool:
    """Return whether this is a text's `format`, with a field as wide as a large number says, or one of what it is
    given."""
    if getattr(called, "__name__", "") not in ("format", "format_map"):
        return False
    text = getattr(getattr(called, "__wrapped__", called), "__self__", None)  # the sandbox's is around that of the text
    if not isinstance(text, str):
        return False
    values = [
        value for argument in given for value in (argument.values() if isinstance(argument, dict) else (argument,))
    ]
    is_large = any(isinstance(value, int) and value > _MOST_MADE for value in values)
    return _WIDE_FIELD.search(text) is not None or (is_large and _WIDTH_GIVEN.search(text) is not None)


def _size(operator: str, left: Any, right: Any) -> float:
    """About how many characters an operator will make of texts, lists and numbers."""
    if operator == "%":
        return float("inf") if isinstance(left, str) and _WIDE.search(left) else 0
    # in bits, of which there are more than digits
    if operator == "**":
        return left.bit_length() * right if isinstance(left, int) and isinstance(right, int) else 0
    size = sum(len(value) for value in (left, right) if isinstance(value, str | list | tuple))
    return size * max(value if isinstance(value, int) else 1 for value in (left, right)) if operator == "*" else size


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _generation_tag(marks: tuple[str, str]) -> Any:
    """The `{% generation %}` block of transformers, which marks an answer: writes its body between `marks`."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class GenerationTag(Extension):
        tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            begin, end = (nodes.Output([nodes.TemplateData(mark)]) for mark in marks)
            return [begin, *body, end] if any(marks) else body

    return GenerationTag
