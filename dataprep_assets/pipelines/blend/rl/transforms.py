"""Transforms of RL records, composed in YAML. A transform returns a new record, or None to leave the record out.

The names are those in Nemotron's `formats/transforms.py`::

    transforms:
      - resolve_hf_placeholders: {sources: {nano_v3_sft_profiled_dapo17k: hf://…@<commit>}}
      - nemotron_rl                       # messages and tools of responses_create_params
      - select: [messages, id]
      - rename: {conversation: messages}  # new name: old name; other fields are dropped
      - my_package.my_module:my_function  # called with the record, and with options if there are any

A record without a field that a transform needs is left out and counted under the transform's name. Records without a
prompt are treated differently (`apply_transforms.py`). The source file of a user's function is part of every key, so an
edit of the file rebuilds the data.

Entry points: `compose_steps`, `build_fingerprint`.
"""

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataprep_assets.curation.module_code import locate_in_project
from dataprep_assets.errors import ConfigError
from dataprep_assets.pipelines.blend.declaration import SourceAccessDeclaration
from dataprep_assets.pipelines.blend.rl.options import OURS, RESOLVE, RlRules
from dataprep_assets.pipelines.blend.rl.placeholders import (
    PlaceholderFiles,
    PlaceholderSource,
    fill_placeholder,
    has_placeholder,
    identify_sources,
    is_malformed,
    parse_sources,
)
from dataprep_assets.stores.files import PLAIN, SourceDigests, sha256_file

Record = dict[str, Any]
Transform = Callable[[Record], Record | None]
DeclaredTransforms = Sequence[str | dict[str, Any]]


def sft(*, input: str = "input", output: str = "output", system: str | None = None) -> Transform:
    """Return a transform that keeps only `input`, `output` and, if present, `system`; the arguments name the fields."""

    def transform(record: Record) -> Record:
        fields = {"input": record[input], "output": record[output]}
        return fields | {"system": record[system]} if system is not None and system in record else fields

    return transform


def openai_chat(*, messages: str = "messages") -> Transform:
    """Return a transform that keeps only `messages`; the argument is the field that contains them."""
    return lambda record: {"messages": record[messages]}


def sharegpt(*, conversations: str = "conversations") -> Transform:
    """Return a transform that keeps only `conversations`; the argument is the field that contains them."""
    return lambda record: {"conversations": record[conversations]}


def nemotron_rl() -> Transform:
    """Return a transform that keeps only `messages` and non-empty `tools`, from `responses_create_params`.

    `messages` is the `input` of these parameters.
    """

    def transform(record: Record) -> Record | None:
        params = record["responses_create_params"]
        if not isinstance(params, dict):
            return None
        tools = params.get("tools")
        return {"messages": params["input"], **({"tools": tools} if tools else {})}

    return transform


def passthrough() -> Transform:
    """Return a transform that keeps records unchanged."""
    return lambda record: record


def select(*fields: str) -> Transform:
    """Return a transform that keeps only these fields."""
    return lambda record: {name: record[name] for name in fields}


def rename(**fields: str) -> Transform:
    """Return a transform that keeps only these fields, under new names (`new=old`)."""
    return lambda record: {new: record[old] for new, old in fields.items()}


_FACTORIES: Mapping[str, Callable[..., Transform]] = {
    f.__name__: f for f in (sft, openai_chat, sharegpt, nemotron_rl, passthrough, select, rename)
}


@dataclass(frozen=True)
class DeclaredTransform:
    """A declared transform: a known name or `module:function`, and its options."""

    name: str
    options: Any = None

    @property
    def is_user_function(self) -> bool:
        """Whether the transform is a user's function."""
        return ":" in self.name


def parse_transforms(transforms: DeclaredTransforms) -> list[DeclaredTransform]:
    """Return the declared transforms.

    Raises ConfigError for an unknown name, an entry with several keys, or invalid options.
    """
    steps = []
    for entry in transforms:
        if isinstance(entry, dict) and len(entry) != 1:
            raise ConfigError(
                f"transforms: each entry must be one transform, not {', '.join(sorted(entry))}. Write each with its "
                "own `-`"
            )
        name, options = next(iter(entry.items())) if isinstance(entry, dict) else (entry, None)
        if name not in _FACTORIES and name != RESOLVE and ":" not in name:
            raise ConfigError(
                f"transforms: unknown transform {name!r}. Available: {', '.join([*_FACTORIES, RESOLVE])}; or your "
                "own function as `module:function`"
            )
        if ":" in name and not isinstance(options, Mapping | None):
            raise ConfigError(f"transforms: {name}: the options must be names with values, not {options!r}")
        steps.append(DeclaredTransform(name, options))
    return steps


def list_declared_sources(transforms: DeclaredTransforms) -> dict[str, PlaceholderSource]:
    """Return the placeholder sources of all `resolve_hf_placeholders` steps, by their name in records."""
    sources: dict[str, PlaceholderSource] = {}
    for step in parse_transforms(transforms):
        if step.name == RESOLVE:
            sources |= parse_sources(step.options if isinstance(step.options, Mapping) else {})
    return sources


def build_fingerprint(
    transforms: DeclaredTransforms,
    access: SourceAccessDeclaration,
    digests: SourceDigests = PLAIN,
    placeholder_files: Sequence[PlaceholderFiles] = (),
) -> list[Any]:
    """Return the values that determine the transforms' output, for artifact keys.

    These are the names and options, the content of placeholder sources, and the digests of the files of users'
    functions. Placeholder sources in `placeholder_files` are not listed again. Every step is built, so that an invalid
    declaration fails before any data is read. Raises ConfigError for an invalid declaration.
    """
    contents: list[Any] = []
    for step in parse_transforms(transforms):
        content: Any = step.options
        if step.name == RESOLVE:
            content = identify_sources(
                list_declared_sources([{RESOLVE: step.options}]), access, digests, placeholder_files
            )
        elif step.is_user_function:
            # Digest the whole module, because the function may call other functions in it.
            content = [step.options, sha256_file(_find_source(_import_transform(step.name)))]
        else:
            _build_transform(step)
        contents.append([step.name, content])
    return contents


@dataclass(frozen=True, kw_only=True)
class TransformStep:
    """A transform, ready to run.

    Attributes:
        name: The declared name.
        transform: The function that transforms a record.
        prompts: Paths at which an input record may have its prompt, as keys, outermost first; empty if unknown.
        gives: Paths at which an output record may have its prompt.
        brings_prompt: Returns whether the step adds the record's prompt.
        malformed: Returns whether a record is bad because the step cannot read its form.
        find_unread: Yields the dotted names of a record's fields that the step leaves out although no option lists
            them.
    """

    name: str
    transform: Transform
    prompts: tuple[tuple[str, ...], ...] = ()
    gives: tuple[tuple[str, ...], ...] = ()
    brings_prompt: Callable[[Record], bool] = lambda _: False
    malformed: Callable[[Record], bool] = lambda _: False
    find_unread: Callable[[Record], Iterable[str]] = lambda _: ()

    @property
    def is_user_function(self) -> bool:
        """Whether the step is a user's function."""
        return ":" in self.name


def compose_steps(
    transforms: DeclaredTransforms, placeholders: Sequence[PlaceholderFiles] = (), rules: RlRules = OURS
) -> list[TransformStep]:
    """Return the declared steps, in order, ready to run with these placeholder files and rules."""
    sources = {source.name: source for source in placeholders}
    return [_build_step(step, sources, rules) for step in parse_transforms(transforms)]


def _build_step(step: DeclaredTransform, sources: Mapping[str, PlaceholderFiles], rules: RlRules) -> TransformStep:
    if step.name == RESOLVE:
        return _build_resolve_step(sources, rules)
    if not step.is_user_function:
        prompts = _find_prompt_paths(step)
        return TransformStep(
            name=step.name,
            transform=_build_transform(step),
            prompts=prompts,
            gives=_GIVES.get(step.name, ()),
            find_unread=_find_unread_function(step, prompts),
        )
    function = _import_transform(step.name)
    # Convert the names to strings, because YAML keys may be numbers or booleans, but argument names must be strings.
    options = {str(key): value for key, value in (step.options or {}).items()}
    return TransformStep(name=step.name, transform=lambda record: function(record, **options))


def _build_resolve_step(sources: Mapping[str, PlaceholderFiles], rules: RlRules) -> TransformStep:
    """Return the step that fills in placeholders. The rules decide how it treats records without a placeholder."""
    messages = nemotron_rl()

    def is_placeholder(record: Record) -> bool:
        return has_placeholder(record, rules)

    def transform(record: Record) -> Record | None:
        if rules.other_records == "messages" and not is_placeholder(record):
            return messages(record)
        return fill_placeholder(record, sources, rules)

    prompt_paths = (_PARAMS, _MESSAGES)
    checked_paths = (_PARAMS,) if rules.other_records == "messages" else prompt_paths
    return TransformStep(
        name=RESOLVE,
        transform=transform,
        prompts=checked_paths,
        gives=prompt_paths,
        brings_prompt=is_placeholder,
        malformed=lambda record: rules.malformed == "bad_record" and is_malformed(record, sources),
        find_unread=lambda record: (
            _find_unread_params(record) if rules.other_records == "messages" and not is_placeholder(record) else ()
        ),
    )


def _find_unread_params(record: Record) -> Iterator[str]:
    """Yield the names of the fields, also in `responses_create_params`, that `nemotron_rl` does not read."""
    params = record.get(_PARAMS[0])
    yield from (name for name in record if name != _PARAMS[0])
    if isinstance(params, dict):
        yield from (f"{_PARAMS[0]}.{name}" for name in params if name not in (_PARAMS[1], "tools"))


def _find_unread_function(
    step: DeclaredTransform, prompts: tuple[tuple[str, ...], ...]
) -> Callable[[Record], Iterable[str]]:
    """Return the function `find_unread` of a step.

    The function yields no names for `select` and `rename`, because their options list the fields to keep.
    """
    if step.name == "nemotron_rl":
        return _find_unread_params
    if step.name not in _PROMPT_OPTIONS:
        return lambda _: ()
    options = step.options if isinstance(step.options, Mapping) else {}
    read_fields = {path[0] for path in prompts}
    if step.name == "sft":
        read_fields |= {str(options.get("output", "output")), *filter(None, [options.get("system")])}
    return lambda record: (name for name in record if name not in read_fields)


_PARAMS, _MESSAGES = ("responses_create_params", "input"), ("messages",)
_GIVES = {
    "sft": (("input",),),
    "openai_chat": (_MESSAGES,),
    "sharegpt": (("conversations",),),
    "nemotron_rl": (_MESSAGES,),
}
_PROMPT_OPTIONS = {"sft": "input", "openai_chat": "messages", "sharegpt": "conversations"}
"""Transform → the option that names the field of the prompt, which is also the field's default name."""


def _find_prompt_paths(step: DeclaredTransform) -> tuple[tuple[str, ...], ...]:
    if step.name == "nemotron_rl":
        return (_PARAMS,)
    if (option := _PROMPT_OPTIONS.get(step.name)) is None:
        return ()
    field = step.options.get(option, option) if isinstance(step.options, Mapping) else option
    return ((str(field),),)


def _build_transform(step: DeclaredTransform) -> Transform:
    factory, options = _FACTORIES[step.name], step.options
    try:
        if options is None:
            transform = factory()
        elif isinstance(options, list) and all(isinstance(name, str) for name in options):
            transform = factory(*options)
        elif isinstance(options, Mapping):
            transform = factory(**{str(key): value for key, value in options.items()})
        else:
            raise TypeError(f"the options must be a list or names with values, not {type(options).__name__}")
    except TypeError as error:
        raise ConfigError(f"transforms: {step.name}: {error}. The options are {inspect.signature(factory)}") from error
    if step.name in ("select", "rename") and not options:
        raise ConfigError(f"transforms: {step.name} without fields would drop everything. Add fields")
    return transform


def _import_transform(name: str) -> Callable[..., Record | None]:
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"transforms: {name}: cannot be imported: {error}. Add its folder to PYTHONPATH, or correct the name"
        ) from error
    except Exception as error:  # catch every error of a user's module, because the message must name the transform
        location = locate_in_project(error)
        error_name = type(error).__name__ + (f" ({location})" if location else "")
        raise ConfigError(f"transforms: {name}: the import raised {error_name}. Correct the module") from None
    if not callable(function):
        raise ConfigError(f"transforms: {name}: not a function. Correct the name")
    return function


def _find_source(function: Callable[..., Any]) -> Path:
    try:
        path = inspect.getsourcefile(function)
    except TypeError:
        path = None
    if path is None:
        raise ConfigError(
            f"transforms: {function!r} has no source file, so changes could not be detected. Define it in a .py file"
        )
    return Path(path)
