"""Mistakes and templates in a `defs.yaml`. A mistake is one sentence with the line, the key, the value and the remedy.

`read_documents` parses a file and refuses texts that YAML parsers accept or report badly (tabs, duplicate keys).
`describe_mistakes` turns each validation error of a component's model into one line.

PyYAML parses a text into events, and builds the tree from them by unbounded recursion in C. A few lines can expand to
billions of values, or crash the process. Therefore the events are checked against bounds before the tree is built.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml  # type: ignore[import-untyped]

from dataprep_assets.engine.yaml.declared_keys import (
    find_field,
    find_models,
    find_nearest,
    list_literals,
    suggest_for_unknown_key,
    suggest_key,
)
from dataprep_assets.engine.yaml.remark import build_mistakes_error
from dataprep_assets.errors import ConfigError

# Import these modules only for types, because shell completion only reads names from the files.
if TYPE_CHECKING:
    from jinja2 import Environment, nodes
    from pydantic import BaseModel, ValidationError
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

SECRETS = frozenset({"webhook", "openlineage", "user", "password", "id_key", "source_key"})
"""Keys whose values must not appear in errors, even if they are malformed."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MAX_DEPTH = 64
"""Maximum nesting of blocks and lists; a declaration has about ten levels."""
MAX_ALIASED_NODES = 100_000
"""Maximum number of values that the aliases (`*name`) of a text may expand to."""


def parse_trees(path: Path, text: str) -> list[yaml.Node]:
    """Return the tree of each non-empty document of a file.

    Raises yaml.MarkedYAMLError if the text is not YAML; ConfigError with the line if it exceeds a bound.
    """
    _require_bounded(path, text)
    return [node for node in yaml.compose_all(text, Loader=_LOADER) if node is not None]


def _require_bounded(path: Path, text: str) -> None:
    sizes: dict[str, int] = {}
    of_aliases = 0
    open_: list[tuple[str | None, int]] = []  # anchor and number of values of each open block or list
    for event in yaml.parse(text, Loader=_LOADER):
        size = 1
        if isinstance(event, yaml.DocumentStartEvent):
            sizes = {}
            continue
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append((event.anchor, 1))
            if len(open_) > MAX_DEPTH:
                raise _build_size_error(
                    path, event, f"blocks and lists are nested more than {MAX_DEPTH} levels deep. Use fewer levels"
                )
            continue
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == event.anchor for anchor, _ in open_):
                raise _build_size_error(
                    path, event, f"the alias `*{event.anchor}` contains itself. Write out its values"
                )
            size = sizes.get(event.anchor, 1)
            of_aliases += size
            if of_aliases > MAX_ALIASED_NODES:
                raise _build_size_error(
                    path, event, f"aliases expand to more than {MAX_ALIASED_NODES:,} values. Use fewer aliases"
                )
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_.pop()
            sizes |= {} if anchor is None else {anchor: size}
        elif isinstance(event, yaml.ScalarEvent):
            sizes |= {} if event.anchor is None else {event.anchor: 1}
        else:
            continue
        if open_:
            anchor, size_before = open_[-1]
            open_[-1] = anchor, size_before + size


def _build_size_error(path: Path, event: yaml.Event, problem: str) -> ConfigError:
    return ConfigError(f"{path}:{event.start_mark.line + 1}: {problem}")


_MAX_BYTES_FOR_LINES = 1 << 20
M = TypeVar("M", bound="BaseModel")
_KINDS = {
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "dict_type": "must be a block of keys",
    "model_type": "must be a block of keys",
    "model_attributes_type": "must be a block of keys",
    "path_type": "must be a path",
    "date_type": "must be a date as YYYY-MM-DD",
    "date_from_datetime_parsing": "must be a date as YYYY-MM-DD",
    "date_from_datetime_inexact": "must be a date as YYYY-MM-DD",
}


@dataclass(frozen=True, kw_only=True)
class Document:
    """One YAML document of a `defs.yaml`: a component and its attributes.

    Attributes:
        path: The file.
        type: The component's name, as written in the file.
        attributes: The parsed attributes.
        node: The YAML tree of `attributes`, which has the line numbers.
        line: The line where the document begins, from 1; 0 if it is not in a file.
        keys: Its keys: `type`, `attributes`, and keys that only Dagster reads.
    """

    path: Path
    type: str
    attributes: Any
    node: yaml.Node | None
    line: int
    keys: frozenset[str] = frozenset()

    def find_line(self, keys: Sequence[str | int]) -> int:
        """Return the line of the deepest of these nested keys that is present."""
        node, line = self.node, self.line if self.node is None else self.node.start_mark.line + 1
        for key in keys:
            child = None
            if isinstance(node, yaml.MappingNode):
                child = next(((k, v) for k, v in node.value if k.value == str(key)), None)
            elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
                child = (node.value[key], node.value[key])
            if child is None:  # the key is absent, or it is the tag of a union, which pydantic includes in the path
                continue
            line, node = child[0].start_mark.line + 1, child[1]
        return int(line)

    def find_scalar(self, keys: Sequence[str | int]) -> str | None:
        """Return the scalar at these nested keys, as written in the file; None if there is no scalar."""
        node = self.node
        for key in keys:
            if isinstance(node, yaml.MappingNode):
                node = next((value for key_node, value in node.value if key_node.value == str(key)), node)
            elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
                node = node.value[key]
        return str(node.value) if isinstance(node, yaml.ScalarNode) else None


def read_documents(path: Path) -> list[Document]:
    """Return the documents of a `defs.yaml`.

    Raises ConfigError with the line if the text is not YAML or exceeds the bounds of the tree, if a key is duplicated,
    or if a document has no `type`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not valid UTF-8 at byte {error.start}. Save the file as UTF-8") from error
    except PermissionError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}. Change its permissions") from error
    try:
        nodes = parse_trees(path, text)
        for node in nodes:
            _refuse_malformed(path, node)
        documents = [_build_document(path, node) for node in nodes]
    except yaml.MarkedYAMLError as error:
        line, reason = locate_yaml_error(error, text)
        raise ConfigError(f"{path}:{line}: invalid YAML: {reason}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: invalid YAML: {str(error).splitlines()[0]}") from error
    if not documents:
        raise ConfigError(f"{path}: empty. Run `dg scaffold defs` to write a commented example")
    return documents


def locate_yaml_error(error: yaml.MarkedYAMLError, text: str) -> tuple[int, str]:
    """Return the line where the text stops being valid YAML, and the reason in terms of the text on that line."""
    mark, context, problem = error.problem_mark or error.context_mark, error.context or "", error.problem or str(error)
    line = mark.line + 1 if mark is not None else 1
    start_line = error.context_mark.line + 1 if error.context_mark is not None else line
    line_text = "".join(text.splitlines()[line - 1 : line])
    if "\t" in line_text:
        return line, "found a tab, but YAML is indented with spaces"
    if "constructor for the tag" in problem:
        return line, f"unknown tag {problem.rpartition('tag ')[2]}. Remove it"
    if "unknown escape" in problem:
        return line, "invalid escape after a backslash. Put the value in single quotes"
    if "end of stream" in problem and "quoted scalar" in context:
        return start_line, "unclosed quote"
    if "expected" in problem and (unclosed := _find_unclosed_quote(text, line)) is not None:
        return unclosed, "unclosed quote"
    if "flow sequence" in context or "flow mapping" in context:
        return start_line, f"unclosed `{'[' if 'sequence' in context else '{'}`"
    if "alias" in context or "alias" in problem or "cannot start any token" in problem:
        character = line_text[mark.column] if mark is not None and mark.column < len(line_text) else "*"
        return line, f"a value begins with `{'*' if 'alias' in context else character}`. Put it in quotes"
    if ":" in line_text and "mapping values" in problem:
        return line, "unexpected colon. Put the value in quotes"
    if "expected key" in problem:
        return line, "expected a key, or deeper indentation"
    return line, problem


def _find_unclosed_quote(text: str, last: int) -> int | None:
    """Return the first line, up to `last`, with an unclosed quote; lines count from 1."""
    for number, line in enumerate(text.splitlines()[:last], 1):
        for quote in "\"'":
            opens = re.search(rf"(?:^|[:\[{{,-])\s*{quote}", line)
            if opens is not None and line.replace(f"\\{quote}", "").count(quote) % 2:
                return number
    return None


def wrap_json(path: Path, text: str, value: Any) -> Document:
    """Return a document for a JSON file that a declaration names; its `attributes` are the parsed `value`.

    Line numbers come from the YAML parser, because nearly all JSON is valid YAML. Mistakes are reported without a line
    number if the text is not valid YAML (for example, because of escaped surrogate pairs), or is larger than 1 MiB,
    because its tree may take a thousand times as much memory.
    """
    node = None
    if len(text) <= _MAX_BYTES_FOR_LINES:
        with suppress(yaml.YAMLError, ConfigError):
            node = next(iter(parse_trees(path, text)), None)
    return Document(path=path, type="", attributes=value, node=node, line=0)


_MERGE = "tag:yaml.org,2002:merge"


def _refuse_malformed(path: Path, node: yaml.Node) -> None:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            _refuse_key(path, key)
            if key.value in lines:
                raise ConfigError(
                    f"{path}:{key.start_mark.line + 1}: duplicate key `{key.value}`, first set in line "
                    f"{lines[key.value]}. Remove one of them"
                )
            lines[key.value] = key.start_mark.line + 1
            _refuse_malformed(path, value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_malformed(path, value)
    elif node.tag.endswith(":int") and (":" in node.value or re.fullmatch(r"[-+]?0[0-7_]+", node.value)):
        # YAML 1.1 reads `12:30` as a base-60 number and `010` as an octal number, which authors rarely intend.
        number = _parse_value(node)
        raise ConfigError(f"{path}:{line}: `{node.value}` means {number} in YAML. Write {number}, or put it in quotes")
    elif not node.tag.endswith(":str"):
        try:
            # Convert the value only to validate it, because `2024-02-30` has the form of a date but is not a valid one.
            _parse_value(node)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            problem = f"`{node.value}` looks like a date or number, but is not a valid one"
            raise ConfigError(f"{path}:{line}: {problem}. Correct it, or put it in quotes") from error


def _refuse_key(path: Path, key: yaml.Node) -> None:
    """Raise ConfigError for a key that is not text: `on`, `no` and `2020` are values of other types in YAML."""
    begins = f"{path}:{key.start_mark.line + 1}"
    if not isinstance(key, yaml.ScalarNode):
        character = "{" if isinstance(key, yaml.MappingNode) else "["
        raise ConfigError(f"{begins}: a value begins with `{character}`. Put it in quotes")
    if key.tag == _MERGE:
        raise ConfigError(f"{begins}: merging blocks with `<<` is not supported. Write out the keys")
    if not key.tag.endswith(":str"):
        raise ConfigError(f"{begins}: the key `{key.value}` is not text in YAML. Put it in quotes")


def _suggest_key(name: str, keys: Iterable[str]) -> str:
    """Return a suggestion in brackets if another key resembles the missing one; otherwise an empty text."""
    nearest_key = find_nearest(name, [key for key in keys if key != name])
    return f" (found `{nearest_key}`; did you mean `{name}`?)" if nearest_key else ""


def _build_document(path: Path, node: yaml.Node) -> Document:
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{path}:{line}: must be a block with the keys `type` and `attributes`")
    keys = {str(key.value): value for key, value in node.value}
    type_ = keys.get("type")
    if type_ is None:
        raise ConfigError(
            f"{path}:{line}: `type` is missing. Add the component, for example "
            "dataprep_assets.components.TokenizedCorpus" + _suggest_key("type", keys)
        )
    return Document(
        path=path,
        type=str(type_.value),
        attributes=_parse_value(keys["attributes"]) if "attributes" in keys else None,
        node=keys.get("attributes"),
        line=line,
        keys=frozenset(keys),
    )


def _parse_value(node: yaml.Node) -> Any:
    # Give the loader an empty text, because it only constructs a value from the parsed node.
    return yaml.SafeLoader("").construct_document(node)


def validate_document(model: type[M], document: Document) -> M:
    """Validate the attributes of a document; raise ConfigError with a line for each mistake."""
    if document.attributes is None:
        nearest_key = _suggest_key("attributes", document.keys)
        raise ConfigError(
            f"{document.path}:{document.line}: `attributes` is missing"
            + (nearest_key or ". Run `dg scaffold defs` to write them")
        )
    from pydantic import ValidationError

    try:
        declaration = model.model_validate(document.attributes)
    except ValidationError as error:
        raise build_mistakes_error(describe_mistakes(error, model, document)) from error
    truths = [(document.find_line(keys), keys) for keys in _find_converted_truths(document.attributes, declaration, ())]
    if truths:
        raise build_mistakes_error(
            [
                f"{document.path}:{line}: {'.'.join(map(str, keys))}: must be a number, not "
                + _format_value(True, document.find_scalar(keys))
                for line, keys in truths
            ]
        )
    return declaration


def _find_converted_truths(
    written_value: Any, value: Any, keys: tuple[str | int, ...]
) -> Iterator[tuple[str | int, ...]]:
    """Yield the keys with the value true or false that pydantic has converted to 1 or 0."""
    if isinstance(written_value, bool):
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield keys
    elif isinstance(written_value, dict):
        from pydantic import BaseModel

        inner = dict(value) if isinstance(value, BaseModel | Mapping) else {}
        for key, item in written_value.items():
            yield from _find_converted_truths(item, inner.get(key), (*keys, key))
    elif isinstance(written_value, list) and isinstance(value, list | tuple):
        for index, (item, parsed_item) in enumerate(zip(written_value, value, strict=False)):
            yield from _find_converted_truths(item, parsed_item, (*keys, index))


def describe_mistakes(error: "ValidationError", model: "type[BaseModel]", document: Document) -> list[str]:
    """Return one sentence for each mistake, `file:line: key: what is wrong`, in the order of the file."""
    hides_all = bool(model.model_config.get("hide_input_in_errors", False))
    lines = []
    errors = error.errors(include_url=False)
    # Collect the intended keys of misspelled keys, so that the intended keys are not also reported as missing.
    suggestions = {
        (d["loc"][:-1], suggestion)
        for d in errors
        if d["type"] == "extra_forbidden" and (suggestion := suggest_key(model, d["loc"]))
    }
    for details in errors:
        if details["type"] == "missing" and (details["loc"][:-1], details["loc"][-1]) in suggestions:
            continue
        if _is_of_other_member(details, errors, document.attributes):
            continue
        keys = list(details["loc"])
        if details["type"] == "union_tag_invalid":
            keys.append(str(details["ctx"]["discriminator"]).strip("'"))
        line = document.find_line([*keys, *_find_first_named_key(details)])
        written_keys = map(str, _iterate_written_keys(keys, document.attributes, details["type"]))
        key_text = ".".join(key if key.isprintable() else repr(key) for key in written_keys)
        # Hide the value if any key on its path is the key of a secret, because the secret may be nested under a wrong
        # key.
        hidden = hides_all or not SECRETS.isdisjoint(keys)
        value_text = "" if hidden else _format_value(details["input"], document.find_scalar(details["loc"]))
        sentence = _describe_unset_variable(document, line, details) or _describe_mistake(details, model, value_text)
        location = f"{document.path}:{line}" if line else str(document.path)
        lines.append((line, f"{location}: {f'{key_text}: ' if key_text else ''}{sentence}"))
    # Remove repeated lines, because several members of a union may report the same mistake.
    return list(dict.fromkeys(text for _, text in sorted(lines, key=lambda one: one[0])))


def _is_of_other_member(details: "ErrorDetails", errors: "Sequence[ErrorDetails]", attributes: Any) -> bool:
    """Return whether an error comes from a member of a union that the block was not written for.

    Such a member is a short form, which rejects every block, or a model with different keys. The member that the block
    was written for reports the actual mistake.
    """
    value, loc = attributes, details["loc"]
    for depth, member in enumerate(loc):
        if isinstance(value, dict) and member not in value:  # `member` is a member of a union, or a missing last key
            # For each member of the union: whether the block lacks keys of the member's model, or has keys that the
            # model does not have.
            is_unfit: dict[str | int, bool] = {}
            for error in errors:
                if error["loc"][:depth] == loc[:depth] and len(error["loc"]) > depth + 1:
                    misses_keys = error["type"] in ("extra_forbidden", "missing") and len(error["loc"]) == depth + 2
                    is_unfit[error["loc"][depth]] = is_unfit.get(error["loc"][depth], False) or misses_keys
            if depth == len(loc) - 1:
                return details["type"] in _KINDS and value is details["input"] and not {*is_unfit} <= {member}
            if is_unfit[member] and not all(is_unfit.values()):
                return True
        _, value = _look_up(value, member)
    return False


def _describe_unset_variable(document: Document, line: int, details: "ErrorDetails") -> str | None:
    """Return the message for a key whose value is an unset environment variable; None for a different mistake."""
    if details["input"] is not None or not line or not document.path.is_file():
        return None
    lines = document.path.read_text(encoding="utf-8", errors="replace").splitlines()[line - 1 : line]
    match = re.search(r"\{\{\s*env(?:\.|\(['\"])(\w+)", "".join(lines))
    return None if match is None else f"the environment variable {match[1]} is not set"


def _find_first_named_key(details: "ErrorDetails") -> list[str]:
    """Return the key that a block's own validator names first (`template.header: …`), to report its line."""
    match = re.match(r"Value error, `?([a-z_]+(?:\.[a-z_]+)*)", details["msg"])
    return match[1].split(".") if match else []


def _iterate_written_keys(keys: Sequence[str | int], attributes: Any, kind: str) -> Iterator[str | int]:
    """Yield the keys as written in the file, without the tags of unions."""
    value = attributes
    for i, key in enumerate(keys):
        is_written, value = _look_up(value, key)
        if is_written or (kind == "missing" and i == len(keys) - 1):
            yield key


def _look_up(value: Any, key: str | int) -> tuple[bool, Any]:
    """Return whether a value has the key, and the value of the key.

    If the key is missing, it is the tag of a union, and the value itself is returned.
    """
    is_item = isinstance(value, list) and isinstance(key, int) and key < len(value)
    has = is_item or (isinstance(value, dict) and key in value)
    return has, value[key] if has else value


def _format_value(value: Any, value_text: str | None) -> str:
    """Format a wrong value for a message; numbers, dates, true and false appear as written in the file."""
    return f"{value!r:.80}" if isinstance(value, str | dict | list) or value_text is None else f"{value_text:.80}"


def _describe_mistake(details: "ErrorDetails", model: "type[BaseModel]", value_text: str) -> str:
    kind, context = details["type"], details.get("ctx") or {}
    _, field = find_field(model, details["loc"])
    if kind == "extra_forbidden":
        return "unknown key; " + suggest_for_unknown_key(model, details["loc"])
    if kind == "missing":
        return "missing" + _describe_field(field)
    if kind == "union_tag_not_found":
        name = str(context["discriminator"]).strip("'")
        models = find_models(field.annotation) if field is not None else []
        tags = [tag for m in models for tag in list_literals(m.model_fields[name].annotation)]
        return f"`{name}` is missing. Must be one of {', '.join(map(str, tags))}"
    if kind in ("literal_error", "union_tag_invalid", "enum"):
        return _describe_choice(details, context, value_text)
    if kind in _KINDS and details["input"] is None:
        return f"no value; {_KINDS[kind]}{_describe_field(field)}"
    if kind in _KINDS:
        return _KINDS[kind] + (f", not {value_text}" if value_text else "")
    if kind == "string_pattern_mismatch":
        description = "" if details["loc"][-1] == "[key]" else _describe_field(field)
        return f"invalid value {value_text}".strip() + (description or f": must match {context.get('pattern')}")
    if kind in ("greater_than_equal", "greater_than", "less_than_equal", "less_than"):
        limit = f"{next(iter(context.values())):g}"
        words = {"greater_than_equal": "at least", "greater_than": "greater than", "less_than_equal": "at most"}
        return f"must be {words.get(kind, 'less than')} {limit}" + (f", not {value_text}" if value_text else "")
    if kind in ("too_short", "string_too_short"):
        return "must not be empty" + _describe_field(field)
    message = details["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    scalar = isinstance(details["input"], str | int | float)
    return (
        f"{message} (got {value_text})"
        if value_text and value_text not in message and (scalar or kind != "value_error")
        else message
    )


def _describe_choice(details: "ErrorDetails", context: dict[str, Any], value_text: str) -> str:
    allowed = str(context.get("expected_tags") or context.get("expected", "")).replace("'", "").replace(" or ", ", ")
    names = [name.strip() for name in allowed.split(",")]
    value = context.get("tag", details["input"])
    nearest_name = find_nearest(str(value), names) if value_text else None
    start = f"unknown value {value!r:.80}; " if value_text else "unknown value; "
    return f"{start}one of {', '.join(names)}" + (f". Did you mean `{nearest_name}`?" if nearest_name else "")


def _describe_field(field: "FieldInfo | None") -> str:
    return f": {field.description.rstrip('.')}" if field is not None and field.description else ""


# The values of a `defs.yaml` may contain templates: `{{ env.X }}`, and the names that Dagster gives a component.
#
# Dagster's own resolution renders every string. It drops a final newline and parses the output as a Python literal, so
# `"1.0"` becomes a number and `"\n"` becomes empty. Here, a string without a template is unchanged. The value of a
# template is a string, or an object if the template is a single expression.
#
# Entry point: `render_templates`.

Keys = tuple[str | int, ...]
_TEMPLATE = re.compile(r"""\{[{%][-+]?\s*[\w"'(\[]""")
"""Matches the beginning of a template. `{{` without an expression is plain text."""
_RAW = re.compile(r"\{%-?\s*raw\b")


def render_templates(attributes: Any, scope: Mapping[str, Any], path: Path, own_keys: Collection[Keys] = ()) -> Any:
    """Return the values of a `defs.yaml` with their templates rendered.

    Args:
        attributes: The values, as written in the file.
        scope: The names that a template may use.
        path: The file, for the lines of mistakes.
        own_keys: Keys whose text is another program's template and is left unchanged.

    Raises ConfigError with line and key for an invalid template, an unknown name, an unset environment variable inside
    a text, and an expression that raises.
    """
    texts = _find_templates(attributes, own_keys)
    if not texts:
        return attributes
    wrong_keys = [(keys, sentence) for keys, text in texts for sentence in _find_mistakes(text, scope)]
    values: dict[Keys, Any] = {}
    for keys, text in [] if wrong_keys else texts:
        try:
            values[keys] = _render_template(text, scope)
        except Exception as error:  # functions of the user's project may raise any error
            wrong_keys.append((keys, f"`{text.strip()}` cannot be resolved: {error}"))
    if wrong_keys:
        (document, *_) = read_documents(path)
        located_sentences = [
            (document.find_line(keys), ".".join(map(str, keys)), sentence) for keys, sentence in wrong_keys
        ]
        raise build_mistakes_error(
            [f"{path}:{line}: {key}: {sentence}" for line, key, sentence in sorted(located_sentences)]
        )
    return _replace_values(attributes, values, ())


def has_templates(attributes: Any, own_keys: Collection[Keys] = ()) -> bool:
    """Return whether `render_templates` would render any template."""
    return bool(_find_templates(attributes, own_keys))


def has_dates(value: Any) -> bool:
    """Return whether the values of a `defs.yaml` include one that YAML reads as a date or time."""
    return isinstance(value, date) or any(has_dates(item) for _, item in _list_items(value))


def _find_templates(attributes: Any, own_keys: Collection[Keys]) -> list[tuple[Keys, str]]:
    # Also render a text under one of `own_keys` that has a `raw` mark, because rendering removes the mark. Users had to
    # write it before `own_keys` existed.
    return [(keys, text) for keys, text in _find_texts(attributes, ()) if keys not in own_keys or _RAW.search(text)]


def _find_texts(value: Any, keys: Keys) -> Iterator[tuple[Keys, str]]:
    """Yield the texts in a value that are templates, each with its path of keys."""
    for key, item in _list_items(value):
        yield from _find_texts(item, (*keys, key))
    if isinstance(value, str) and _TEMPLATE.search(value):
        yield keys, value


def _list_items(value: Any) -> Iterable[tuple[str | int, Any]]:
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, list | tuple) else ()


def _replace_values(value: Any, values: Mapping[Keys, Any], keys: Keys) -> Any:
    """Return the value with the texts at these keys replaced."""
    if isinstance(value, Mapping):
        return {key: _replace_values(item, values, (*keys, key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_values(item, values, (*keys, i)) for i, item in enumerate(value)]
    return values.get(keys, value)


def _render_template(text: str, scope: Mapping[str, Any]) -> Any:
    """Render a template to text, or to an object if the template is a single expression."""
    from jinja2 import nodes

    expressed: list[Any] = []

    def note_value(value: Any) -> Any:
        expressed.append(value)
        return value

    jinja = _build_environment(text, note_value)
    outcome = jinja.from_string(text).render(scope)
    match jinja.parse(text).body:
        case [nodes.Output(nodes=[nodes.Expr() as only])] if not isinstance(only, nodes.TemplateData):
            return expressed[-1]
    return outcome


def _build_environment(text: str, finalize: Callable[[Any], Any] | None = None) -> "Environment":
    # Import Jinja here, because `dataprep --help` does not need it.
    from jinja2 import Environment, StrictUndefined

    return Environment(
        undefined=StrictUndefined,
        finalize=finalize,
        keep_trailing_newline=True,
        # Keep the line endings of the text, because Jinja converts all line endings of a template to this sequence,
        # which is `\n` by default.
        newline_sequence="\r\n" if "\r\n" in text else "\r" if "\r" in text else "\n",
        autoescape=False,  # the output is not HTML, and a path may contain `&`
    )


def _find_mistakes(text: str, scope: Mapping[str, Any]) -> Iterator[str]:
    """Yield the mistakes of a template that can be found without rendering it."""
    from jinja2 import TemplateSyntaxError, meta

    jinja = _build_environment(text)
    try:
        tree = jinja.parse(text)
        unknown = meta.find_undeclared_variables(tree) - {*scope, *jinja.globals}
    except TemplateSyntaxError as error:
        yield (
            f"invalid template: {str(error.message).rstrip('.')}. Correct the expression, or put text with braces "
            "between {% raw %} and {% endraw %}"
        )
        return
    for name in sorted(unknown):
        nearest_name = find_nearest(name, [*scope])
        suggestion = f"did you mean `{nearest_name}`?" if nearest_name else f"available: {', '.join(sorted(scope))}"
        yield f"unknown variable `{name}` in `{{{{ {name} }}}}`; {suggestion}"
    for name in _find_unset_variables(tree):
        yield f"the environment variable {name} is not set"


def _find_unset_variables(tree: "nodes.Template") -> Sequence[str]:
    """Return the unset environment variables that a template uses inside a text, or without a default (`env('X')`)."""
    from jinja2 import nodes

    def find_unset(node: nodes.Node, name: object) -> list[str]:
        if isinstance(node, nodes.Name) and node.name == "env" and isinstance(name, str) and name not in os.environ:
            return [name]
        return []

    outputs = [node for output in tree.find_all(nodes.Output) for node in output.nodes]
    names = []
    # Skip a template of a single expression, because an unset variable makes its value None, which validation reports.
    if len(outputs) > 1:
        names += [
            n
            for output_node in outputs
            if isinstance(output_node, nodes.Getattr)
            for n in find_unset(output_node.node, output_node.attr)
        ]
    for call in tree.find_all(nodes.Call):
        if len(call.args) == 1 and not call.kwargs and isinstance(call.args[0], nodes.Const):
            names += find_unset(call.node, call.args[0].value)
    return names
