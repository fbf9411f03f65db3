"""The keys of a declaration's model: their locations, and suggestions for unknown keys."""

import difflib
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from dataprep_assets.errors import ConfigError

# Import these modules only for types, because shell completion only lists names and validates nothing.
if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

_CUTOFF, _CUTOFF_ELSEWHERE = 0.6, 0.85
"""Minimum similarity, as measured by `difflib`, of a name that is suggested from the same block or from elsewhere."""


def find_nearest(name: str, known_names: Sequence[str], *, cutoff: float = _CUTOFF) -> str | None:
    """Return the known name that a misspelled name most probably means; None if no name is similar."""
    return next(iter(difflib.get_close_matches(name, known_names, n=1, cutoff=cutoff)), None)


def require_known_names(kind: str, names: Iterable[str], known_names: Sequence[str]) -> None:
    """Raise ConfigError for the first unknown name. The message has the nearest name and all known names."""
    for name in names:
        if name not in known_names:
            nearest_name = find_nearest(name, known_names)
            suggestion = "." if nearest_name is None else f"; did you mean {nearest_name!r}?"
            raise ConfigError(f"unknown {kind} {name!r}{suggestion} Available: {', '.join(known_names) or 'none'}")


def suggest_key(model: "type[BaseModel]", keys: Sequence[str | int]) -> str | None:
    """Return the key of the same block that an unknown key most probably means.

    Returns None if there is none, or if a key of another block is more similar.
    """
    # Leave out the key itself, which another member of a union may have.
    siblings = [name for name in _list_known_siblings(model, keys) if name != keys[-1]]
    nearest_name = find_nearest(str(keys[-1]), siblings)
    nearest_key = find_nearest(str(keys[-1]), [path[-1] for path in _list_paths(model)])
    if (
        nearest_name is not None
        and nearest_key is not None
        and _measure_likeness(nearest_key, keys[-1]) > _measure_likeness(nearest_name, keys[-1])
    ):
        return None
    return nearest_name


def suggest_for_unknown_key(model: "type[BaseModel]", keys: Sequence[str | int]) -> str:
    """Return a suggestion for an unknown key, as the second part of a sentence."""
    if (suggestion := suggest_key(model, keys)) is not None:
        return f"did you mean `{suggestion}`?"
    paths = list(dict.fromkeys(_list_paths(model)))
    alternatives = f"available: {', '.join(_list_known_siblings(model, keys))}"
    for position, kind in enumerate(keys[:-1]):
        # Look for the kind of a block in the path, because pydantic includes it in the path of an error, although it is
        # not a key.
        if (*keys[:position], *keys[position + 1 :]) in paths and tuple(keys[: position + 1]) not in paths:
            return f"not a key of `kind: {kind}`; {alternatives}"
    key_names = [path[-1] for path in paths]
    # Require more similarity for a key of a different block, because such a key is less likely to be the intended one.
    nearest_key = (
        str(keys[-1]) if keys[-1] in key_names else find_nearest(str(keys[-1]), key_names, cutoff=_CUTOFF_ELSEWHERE)
    )
    if nearest_key is not None:
        dotted_paths = [".".join(path) for path in paths if path[-1] == nearest_key]
        # Prefer the shortest paths, because longer paths mostly lead to the same block nested elsewhere.
        nearest_top = sorted(dotted_paths, key=lambda place: place.count("."))[:2]
        path_texts = [f"`{place}`" + ("" if "." in place else " at the top level") for place in nearest_top]
        location = " or ".join(path_texts)
        return f"it belongs at {location}" if nearest_key == keys[-1] else f"did you mean {location}?"
    return alternatives


def _list_known_siblings(model: "type[BaseModel]", keys: Sequence[str | int]) -> list[str]:
    owner, _ = find_field(model, keys)
    return [info.alias or name for name, info in owner.model_fields.items()]


def _list_paths(model: "type[BaseModel]", parent_keys: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every key of a model, outermost first; `NAME` represents a name that the user chooses."""
    for name, info in model.model_fields.items():
        path = (*parent_keys, info.alias or name)
        yield path
        inner_path = (*path, "NAME") if _is_mapping(info.annotation) else path
        for inner in find_models(info.annotation):
            yield from _list_paths(inner, inner_path)


def _is_mapping(annotation: Any) -> bool:
    """Return whether a type is a mapping, or a union with one."""
    if get_origin(annotation) is dict:
        return True
    return get_origin(annotation) in (Union, types.UnionType, Annotated) and any(
        _is_mapping(part) for part in get_args(annotation)
    )


def _measure_likeness(name: str, other_name: str | int) -> float:
    return difflib.SequenceMatcher(None, name, str(other_name)).ratio()


def find_field(model: "type[BaseModel]", keys: Sequence[str | int]) -> "tuple[type[BaseModel], FieldInfo | None]":
    """Return the innermost model on the path that pydantic reports, and the field of its last key."""
    owner: type[BaseModel] = model
    annotation: Any = model
    field: FieldInfo | None = None
    for key in keys:
        inner = find_models(annotation)
        key_model = next((m for m in inner if key in m.model_fields), None)
        if key_model is not None:
            owner, field = key_model, key_model.model_fields[str(key)]
            annotation = field.annotation
            continue
        tagged = [m for m in inner if any(key in list_literals(f.annotation) for f in m.model_fields.values())]
        if tagged and len(inner) > 1:
            annotation = owner = tagged[0]
            continue
        owner, field = (inner[0], None) if len(inner) == 1 else (owner, field)
    return owner, field


def find_models(annotation: Any) -> "list[type[BaseModel]]":
    """Return the models that a type may contain, through unions, lists and mappings."""
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    origin = get_origin(annotation)
    if origin is Annotated:
        return find_models(get_args(annotation)[0])
    if origin in (Union, types.UnionType) or (origin is not None and origin is not Literal):
        return [model for part in get_args(annotation) for model in find_models(part)]
    return []


def list_literals(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) is Literal else ()
