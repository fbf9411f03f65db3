"""The keys of a declaration's model: their locations, and suggestions for unknown keys."""

import difflib
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from dataprep_assets.errors import ConfigError

# these are imported only for types, because shell completion only lists names and validates nothing
if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

_CUTOFF, _SURE = 0.6, 0.85
"""Minimum similarity (difflib's) of a suggested name: in the same block, and elsewhere."""


def nearest(name: str, known: Sequence[str], *, cutoff: float = _CUTOFF) -> str | None:
    """Return the known name that a misspelled name most probably means; None if no name is similar."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=cutoff)), None)


def require_known(kind: str, names: Iterable[str], known: Sequence[str]) -> None:
    """Raise ConfigError for the first unknown name. The message has the nearest name and all known names."""
    for name in names:
        if name not in known:
            near = nearest(name, known)
            meant = "." if near is None else f"; did you mean {near!r}?"
            raise ConfigError(f"unknown {kind} {name!r}{meant} Available: {', '.join(known) or 'none'}")


def near_key(model: "type[BaseModel]", keys: Sequence[str | int]) -> str | None:
    """Return the key of the same block that an unknown key most probably means.

    Returns None if there is none, or if a key of another block is more similar.
    """
    near = nearest(str(keys[-1]), _known_beside(model, keys))
    elsewhere = nearest(str(keys[-1]), [path[-1] for path in _paths(model)])
    if near is not None and elsewhere is not None and _likeness(elsewhere, keys[-1]) > _likeness(near, keys[-1]):
        return None
    return near


def meant_key(model: "type[BaseModel]", keys: Sequence[str | int]) -> str:
    """Return a suggestion for an unknown key, as the second part of a sentence."""
    if (near := near_key(model, keys)) is not None:
        return f"did you mean `{near}`?"
    paths = list(dict.fromkeys(_paths(model)))
    alternatives = f"available: {', '.join(_known_beside(model, keys))}"
    for position, kind in enumerate(keys[:-1]):
        # the path that pydantic reports includes the kind of a block, which is not a key
        if (*keys[:position], *keys[position + 1 :]) in paths and tuple(keys[: position + 1]) not in paths:
            return f"not a key of `kind: {kind}`; {alternatives}"
    key_names = [path[-1] for path in paths]
    # a key of another block is suggested only if it is equal or very similar
    elsewhere = str(keys[-1]) if keys[-1] in key_names else nearest(str(keys[-1]), key_names, cutoff=_SURE)
    if elsewhere is not None:
        dotted_paths = [".".join(path) for path in paths if path[-1] == elsewhere]
        # the shortest paths come first, because the others are mostly the same block nested elsewhere
        nearest_top = sorted(dotted_paths, key=lambda place: place.count("."))[:2]
        path_texts = [f"`{place}`" + ("" if "." in place else " at the top level") for place in nearest_top]
        where = " or ".join(path_texts)
        return f"it belongs at {where}" if elsewhere == keys[-1] else f"did you mean {where}?"
    return alternatives


def _known_beside(model: "type[BaseModel]", keys: Sequence[str | int]) -> list[str]:
    owner, _ = field_at(model, keys)
    return [info.alias or name for name, info in owner.model_fields.items()]


def _paths(model: "type[BaseModel]", above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every key of a model, outermost first; `NAME` stands for a name that the user chooses."""
    for name, info in model.model_fields.items():
        path = (*above, info.alias or name)
        yield path
        inner_path = (*path, "NAME") if _is_mapping(info.annotation) else path
        for inner in models_in(info.annotation):
            yield from _paths(inner, inner_path)


def _is_mapping(annotation: Any) -> bool:
    """Return whether a type is a mapping, or a union with one."""
    if get_origin(annotation) is dict:
        return True
    return get_origin(annotation) in (Union, types.UnionType, Annotated) and any(
        _is_mapping(part) for part in get_args(annotation)
    )


def _likeness(name: str, other: str | int) -> float:
    return difflib.SequenceMatcher(None, name, str(other)).ratio()


def field_at(model: "type[BaseModel]", keys: Sequence[str | int]) -> "tuple[type[BaseModel], FieldInfo | None]":
    """Return the innermost model on the path that pydantic reports, and the field of its last key."""
    owner: type[BaseModel] = model
    annotation: Any = model
    field: FieldInfo | None = None
    for key in keys:
        inner = models_in(annotation)
        key_model = next((m for m in inner if key in m.model_fields), None)
        if key_model is not None:
            owner, field = key_model, key_model.model_fields[str(key)]
            annotation = field.annotation
            continue
        tagged = [m for m in inner if any(key in literals(f.annotation) for f in m.model_fields.values())]
        if tagged and len(inner) > 1:
            annotation = owner = tagged[0]
            continue
        owner, field = (inner[0], None) if len(inner) == 1 else (owner, field)
    return owner, field


def models_in(annotation: Any) -> "list[type[BaseModel]]":
    """Return the models that a type may contain, through unions, lists and mappings."""
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    origin = get_origin(annotation)
    if origin is Annotated:
        return models_in(get_args(annotation)[0])
    if origin in (Union, types.UnionType) or (origin is not None and origin is not Literal):
        return [model for part in get_args(annotation) for model in models_in(part)]
    return []


def literals(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) is Literal else ()
