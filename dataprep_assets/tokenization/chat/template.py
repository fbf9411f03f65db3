"""Finds, digests, compiles and renders chat templates as transformers does.

A template is the tokenizer's own, a name (`chatml_reasoning` is included), a path, or Jinja text. Keys contain the
digest of its text, so a changed text under the same name is a different template. A tokenizer may have several
templates. As in transformers, rows with tools then use the template named `tool_use`.

The environment is the same as in transformers (`utils/chat_template_utils`): sandboxed, `trim_blocks`, `lstrip_blocks`,
loop controls, `{% generation %}`, `tojson` without HTML escapes, `raise_exception`. In addition, the results of
operators have a maximum size. `strftime_now` needs a declared date, because the bytes would differ every day.

Entry points: `ChatTemplate.load`, `compile_template`, `get_template_variables`.
"""

import hashlib
import importlib.util
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path
from types import BuiltinMethodType, CodeType
from typing import TYPE_CHECKING, Any

from dataprep_assets.bounds import load_untrusted_json, report_activity
from dataprep_assets.errors import ConfigError
from dataprep_assets.stores.files import expand_path
from dataprep_assets.tokenization.bundle import TokenizerBundle

if TYPE_CHECKING:
    from jinja2 import Template
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
"""Name of a template in another package → path in that package (at commit e27b371 of 2026-08-21)."""
DEFAULT, TOOL_USE = "default", "tool_use"
"""Names of the templates that transformers selects by itself. The second is used for rows with tools, if it exists."""
FILE, FURTHER_FILES = "chat_template.jinja", "additional_chat_templates"
"""The file of the default template, and the folder of the other templates."""


class TemplateRenderError(Exception):
    """Error of a template that refuses a conversation or fails. Never log it, because it may quote the conversation."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A template: its name, its text, and the text for rows with tools if it differs."""

    name: str
    text: str
    tool_use: str | None = None

    @classmethod
    def load(cls, source: str) -> "ChatTemplate":
        """Load a template by its name, by its path, or from Jinja text.

        A folder, such as a clone of a model's repository, gives the template of its tokenizer. Names in `PUBLISHED` are
        read from the installed package. Raises ConfigError for anything else, because a mistyped path that is used as
        Jinja text would render every conversation to the same text.
        """
        if source in SHIPPED:
            return cls(source, (_FOLDER / f"{source}.jinja").read_text(encoding="utf-8"))
        if source in PUBLISHED:
            return cls(source, _find_published_template(source).read_text(encoding="utf-8"))
        if not is_template_path(source):
            return cls("inline", source)
        path = expand_path(source, "chat_template")
        if path.is_dir():
            return cls._load_from_folder(path, str(path))
        try:
            return cls(path.name, path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, ValueError) as error:
            raise ConfigError(
                f"chat_template: {source!r} must be `{OF_TOKENIZER}`, a name "
                f"({', '.join((*SHIPPED, *PUBLISHED))}), Jinja text, or a readable file: {error}"
            ) from error

    @classmethod
    def load_from_tokenizer(cls, bundle: TokenizerBundle, name: str | None = None) -> "ChatTemplate":
        """Return the template of a tokenizer: from the files next to it, otherwise from `tokenizer_config.json`.

        Without a `name`, it is the default template, with the template named `tool_use` for rows with tools. Raises
        ConfigError if there is none.
        """
        return cls._load_from_folder(bundle.directory, f"the tokenizer {bundle.name}", name)

    @classmethod
    def _load_from_folder(cls, folder: Path, folder_name: str, name: str | None = None) -> "ChatTemplate":
        from_files, text_by_name = _load_named_templates(folder)
        template_name = name or DEFAULT
        if template_name in text_by_name:
            tool_use = text_by_name.get(TOOL_USE) if name is None else None
            return cls(name or (FILE if from_files else OF_TOKENIZER), text_by_name[template_name], tool_use)
        if text_by_name:
            raise ConfigError(
                f"chat_template: {folder_name} has no template named {template_name}. Set `chat_template: "
                f"{{name: NAME}}`. Available: {', '.join(sorted(text_by_name))}"
            )
        raise ConfigError(
            f"chat_template: {folder_name} has no template: neither {FILE} nor `chat_template` in "
            f"tokenizer_config.json. Set a path, {{repo, revision, file}}, or the included `{SHIPPED[0]}`"
        )

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of the template: one, or one for rows without tools and one for rows with tools."""
        return (self.text,) if self.tool_use is None else (self.text, self.tool_use)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the text, or of the digests of both texts."""
        digests = [hashlib.sha256(text.encode()).hexdigest() for text in self.texts]
        return digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()

    @property
    def marks_answers(self) -> bool:
        """Whether each text marks the assistant's answers with `{% generation %}`."""
        return all(re.search(r"{%[-+]?\s*generation\s*[-+]?%}", text) for text in self.texts)


def is_template_path(source: str) -> bool:
    """Return whether a declared template is a path, not a name or Jinja text."""
    return source not in (OF_TOKENIZER, *SHIPPED, *PUBLISHED) and "{{" not in source and "{%" not in source


def _find_published_template(name: str) -> Path:
    """Return the path of a template in an installed package. Raises ConfigError with the package if it is missing."""
    inner_path = Path(PUBLISHED[name])
    package = importlib.util.find_spec(inner_path.parts[0])
    for folder in (package.submodule_search_locations or ()) if package else ():
        if (path := Path(folder, *inner_path.parts[1:])).is_file():
            return path
    hint = "" if inner_path.stem == name else f" (the recipes of {name} use {inner_path.stem})"
    raise ConfigError(
        f"chat_template: {name} is not part of this project{hint}. It is src/{inner_path} in NVIDIA-NeMo/Nemotron on "
        f"GitHub. Clone that repository and set the path of the file, or use the included `{SHIPPED[0]}`"
    )


@contextmanager
def _wrap_reading_errors(path: Path) -> Iterator[None]:
    """Raise a ConfigError with the path of a tokenizer's file for errors inside the block."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"chat_template: {path}: cannot be read: {error}. Correct the path or its permissions"
        ) from error


def _load_named_templates(folder: Path) -> tuple[bool, dict[str, str]]:
    """Return the templates of a tokenizer's folder by name, and whether they come from files.

    As in transformers, files replace all templates of the configuration.
    """
    paths = {path.stem: path for path in sorted((folder / FURTHER_FILES).glob("*.jinja"))}
    if (path := folder / FILE).is_file():
        paths[DEFAULT] = path
    text_by_name = {}
    for name, path in paths.items():
        with _wrap_reading_errors(path):
            text_by_name[name] = path.read_text(encoding="utf-8")
    if text_by_name:
        return True, text_by_name
    configured_templates = _read_tokenizer_config(folder).get("chat_template")
    default_entry = {"name": DEFAULT, "template": configured_templates}
    entries = configured_templates if isinstance(configured_templates, list) else [default_entry]
    pairs = [(entry.get("name"), entry.get("template")) for entry in entries if isinstance(entry, dict)]
    return False, {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}


def _read_tokenizer_config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    with _wrap_reading_errors(path):
        config = load_untrusted_json(path.read_bytes()) if path.is_file() else {}
        if not isinstance(config, dict):
            raise ValueError("not a JSON object")
        return config


def get_template_variables(bundle: TokenizerBundle) -> dict[str, str]:
    """Return the tokens in the tokenizer's settings that transformers passes to every template, such as `bos_token`."""
    return bundle.settings.variables


class Renderer:
    """A compiled template. `render` is a pure function of its arguments. Not picklable: compile it where it is used."""

    def __init__(
        self,
        render: Callable[..., str],
        failures: tuple[type[Exception], ...],
        kwargs: Mapping[str, Any] | None = None,
        *,
        name: str,
        texts: tuple[str, ...] = (),
    ) -> None:
        self._render, self._failures, self._kwargs = render, failures, dict(kwargs or {})
        self.name, self._texts = name, texts

    def reads(self, variable: str) -> bool:
        """Return whether the template reads this variable, or the object with all additional variables."""
        return not find_variables(self._texts).isdisjoint((variable, ALL_KWARGS))

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        *,
        prompt: bool,
        thinking: bool,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the text of a conversation. Raises TemplateRenderError if the template refuses or fails.

        Args:
            messages: The messages (role, content, …).
            tools: JSON schemas of the declared tools, or None.
            prompt: Whether the text ends with the generation prompt.
            thinking: The value of `enable_thinking`, which is also in `chat_template_kwargs` for Nemotron's templates.
            kwargs: Variables of the row, which replace additional variables.
        """
        variables = {**self._kwargs, "enable_thinking": thinking, **(kwargs or {})}
        context = {
            **variables,
            "messages": messages,
            "tools": tools,
            "documents": variables.get("documents"),
            "add_generation_prompt": prompt,
            ALL_KWARGS: variables,
        }
        try:
            return self._render(**context)
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
        kwargs: Additional variables, passed individually and together as `chat_template_kwargs`.
        marks: Texts to write at the beginning and end of `{% generation %}`.

    Raises ConfigError for a syntax error (with its line), for an expression that is nested too deeply, for a template
    that needs a date if none is declared, and for an additional variable that each rendering sets.
    """
    import jinja2

    compiled = [_compile(template.name, text, today, marks, variables or {}) for text in template.texts]
    if reserved_names := sorted(RENDERING_VARIABLES & {*(kwargs or {})}):
        raise ConfigError(
            f"template_kwargs: {', '.join(reserved_names)}: reserved, because each rendering sets them. Remove them"
        )
    # A template can raise any of these errors if it receives unexpected data.
    failures = (
        *(jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError),
        RecursionError,  # a tool's schema may be nested too deeply for `tojson`
    )

    def render(**context: Any) -> str:
        # Use the template for tools even if their list is empty, as transformers does.
        compiled_template = compiled[0 if context["tools"] is None else -1]
        # Do not use `Template.render`, which returns the same text, because it rewrites the traceback of an error.
        return "".join(compiled_template.root_render_func(compiled_template.new_context(context)))

    return Renderer(render, failures, kwargs, name=template.name, texts=template.texts)


def _compile(
    name: str, text: str, today: date | None, marks: tuple[str, str], variables: Mapping[str, Any]
) -> "Template":
    """Compile one text of a template. A rendering's own variables replace `variables`."""
    import jinja2

    environment = _build_environment(marks)
    # Report the template's name now, because compiling the template may exceed this process's limits.
    report_activity(f"chat_template {name}")
    try:
        code, dated = _compile_code(text, marks)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(
            f"chat_template {name}: line {error.lineno or 0}: {error.message}. Correct the template"
        ) from error
    # Deep nesting causes these errors, because Jinja recurses into expressions, and Python's compiler recurses into the
    # generated code.
    except (RecursionError, MemoryError, SyntaxError) as error:
        raise ConfigError(f"chat_template {name}: an expression is nested too deeply. Correct the template") from error
    if dated:
        if today is None:
            raise ConfigError(
                f"chat_template {name}: uses today's date (strftime_now), so the same rows would give "
                "different bytes tomorrow. Set `template_date`"
            )
        environment.globals["strftime_now"] = today.strftime
    # Use a plain dict, because each rendering copies the globals, and a copy of Jinja's `ChainMap` takes several times
    # as long.
    return environment.template_class.from_code(environment, code, {**environment.globals, **variables})


@lru_cache(maxsize=16)
def _compile_code(text: str, marks: tuple[str, str]) -> tuple[CodeType, bool]:
    """Return the code of a template, and whether it reads the date. Cached, because a plan needs it four times."""
    code = _build_environment(marks).compile(text)
    # Search the text first, because finding the names takes twice as long as compiling.
    return code, "strftime_now" in text and "strftime_now" in _find_names(text)


def find_variables(texts: Iterable[str]) -> frozenset[str]:
    """Return the names of the variables that the texts of a template read."""
    return frozenset().union(*map(_find_names, texts))


@lru_cache(maxsize=16)
def _find_names(text: str) -> frozenset[str]:
    """Return the names of the variables that a template reads."""
    import jinja2.meta

    return frozenset(jinja2.meta.find_undeclared_variables(_build_environment(("", "")).parse(text)))


def _build_environment(marks: tuple[str, str]) -> "ImmutableSandboxedEnvironment":
    """Return the environment in which transformers renders templates."""
    import jinja2.ext

    environment = _build_environment_class()(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _build_generation_tag(marks)]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment


ALL_KWARGS = "chat_template_kwargs"
"""The variable with all additional variables of a template, and the key of a row's variables."""
RENDERING_VARIABLES = {"messages", "tools", "documents", "add_generation_prompt", "enable_thinking", ALL_KWARGS}
"""Variables that each rendering sets."""
_MAX_RENDERED = 64 << 20
"""Maximum number of characters that one operation in a template may create. The process limits their sum."""
_PADDING = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
"""Methods of texts whose first argument is a width."""
_WIDE = re.compile(r"%[^%a-zA-Z]*(?:\*|\d{8})")
"""Matches a `%` conversion with a variable width or a width of 8 or more digits."""
_WIDE_FIELD, _WIDTH_GIVEN = re.compile(r":[^{}]*\d{8}"), re.compile(r":[^{}]*\{")
"""Match a field of `format` with a width of 8 or more digits, and a field whose width is another field."""
_ATTRIBUTES_OF_DICT = frozenset(dir(dict))
_PLAIN = (bool, int, str, list)
"""Types of values without a method that the sandbox would wrap."""
_TEXT_METHODS = frozenset(name for name in dir(str) if not name.startswith(("_", "format")))
"""Methods of texts that the sandbox neither wraps nor refuses."""
_UNLIMITED_METHODS = _TEXT_METHODS - _PADDING
"""Methods of texts that the sandbox calls without looking at their arguments."""
_SCOPES = {"_loop_vars", "_block_vars"}
"""Arguments that Jinja adds to calls in loops and blocks, for functions that read the context."""
_LOOP_ATTRIBUTES = frozenset({"index", "index0", "first", "last", "length"})


def _build_environment_class() -> "type[ImmutableSandboxedEnvironment]":
    """Return the sandbox with shortcuts for frequent expressions, e.g., `message.role`, `text.strip()` and `a + b`.

    The results are the same, but rendering takes half the time, because the shortcuts skip the sandbox's attempts to
    look up an attribute and its check for mutating methods.
    """
    from jinja2.exceptions import SecurityError
    from jinja2.runtime import Context, LoopContext
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**", "+", "%"})  # this also prevents constant folding at compile time

        def call_binop(self, context: Context, operator: str, left_operand: Any, right: Any) -> Any:
            joins_texts = operator == "+" and type(left_operand) is str and type(right) is str
            size = len(left_operand) + len(right) if joins_texts else _estimate_size(operator, left_operand, right)
            if size > _MAX_RENDERED:
                raise SecurityError(f"`{operator}` creates more than {_MAX_RENDERED:,} characters at once")
            return left_operand + right if joins_texts else super().call_binop(context, operator, left_operand, right)

        def call(self, context: Context, function: Any, *args: Any, **named_arguments: Any) -> Any:
            is_of_text = type(function) is BuiltinMethodType and type(function.__self__) is str
            if is_of_text and function.__name__ in _UNLIMITED_METHODS and named_arguments.keys() <= _SCOPES:
                return function(*args)
            if function is Namespace:
                return Namespace(*args, **named_arguments)
            if _is_wide_format(function, [*args, *named_arguments.values()]):
                raise SecurityError(f"`format` creates more than {_MAX_RENDERED:,} characters at once")
            is_padding = bool(args) and getattr(function, "__name__", "") in _PADDING
            if is_padding and isinstance(args[0], int) and args[0] > _MAX_RENDERED:
                raise SecurityError(f"padding creates more than {_MAX_RENDERED:,} characters at once")
            return super().call(context, function, *args, **named_arguments)

        def getattr(self, obj: Any, attribute: str) -> Any:
            # Exclude dict's own attributes, because in Jinja `message.items` is the method even if a message has such a
            # key.
            if type(obj) is dict and attribute not in _ATTRIBUTES_OF_DICT:
                return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
            if type(obj) is LoopContext and attribute in _LOOP_ATTRIBUTES:
                return getattr(obj, attribute)
            if type(obj) is Namespace and type(value := getattr(obj, attribute, None)) in _PLAIN:
                return value
            if type(obj) is str and attribute in _TEXT_METHODS:
                return getattr(obj, attribute)
            return super().getattr(obj, attribute)

    return Environment


def _is_wide_format(function: Any, arguments: Sequence[Any]) -> bool:
    """Return whether a function is the `format` method of a text with a very wide field.

    The width is in the text, or may be one of the arguments.
    """
    if getattr(function, "__name__", "") not in ("format", "format_map"):
        return False
    text = getattr(getattr(function, "__wrapped__", function), "__self__", None)  # the sandbox wraps the text's method
    if not isinstance(text, str):
        return False
    values = [
        value for argument in arguments for value in (argument.values() if isinstance(argument, dict) else (argument,))
    ]
    is_large = any(isinstance(value, int) and value > _MAX_RENDERED for value in values)
    return _WIDE_FIELD.search(text) is not None or (is_large and _WIDTH_GIVEN.search(text) is not None)


def _estimate_size(operator: str, left_operand: Any, right: Any) -> float:
    """Estimate the number of characters in the result of an operator on texts, lists and numbers."""
    if operator == "%":
        return float("inf") if isinstance(left_operand, str) and _WIDE.search(left_operand) else 0
    # An integer has at least as many bits as digits, so the estimate is never too low.
    if operator == "**":
        return left_operand.bit_length() * right if isinstance(left_operand, int) and isinstance(right, int) else 0
    size = sum(len(value) for value in (left_operand, right) if isinstance(value, str | list | tuple))
    return (
        size * max(value if isinstance(value, int) else 1 for value in (left_operand, right))
        if operator == "*"
        else size
    )


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _build_generation_tag(marks: tuple[str, str]) -> Any:
    """Return the `{% generation %}` block of transformers, which marks answers. It writes its body between `marks`."""
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
