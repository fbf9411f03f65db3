"""The keys of a declaration that take a text, found in the JSON schema of its model."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_FITTING = (
    *("abc", "abc/def", "1.2.3", "2024-01", "01/2025", "https://example.org", "s3://bucket/abc", "a:b", "0" * 40, "c"),
)
"""A matching text for each pattern of a required key next to the tested one."""
Build = Callable[[str], Any]


@dataclass(frozen=True, kw_only=True)
class TextKey:
    """A place for a text: the keys that lead to it, and a function that builds the block around a text."""

    keys: tuple[str | int, ...]
    build: Build

    def __str__(self) -> str:
        return ".".join(map(str, self.keys))


def find_text_keys(schema: Mapping[str, Any]) -> list[TextKey]:
    """Return every place of a schema that takes a text: nested ones, items of lists, values and keys of mappings."""
    found: dict[tuple[str | int, ...], Build] = {}
    for keys, build in _Schema(schema.get("$defs", {})).texts(schema):
        found.setdefault(keys, build)  # members of a union can have the same keys
    return [TextKey(keys=keys, build=build) for keys, build in found.items()]


def insert_block(base: Any, block: Any, keys: Sequence[str | int]) -> Any:
    """Return a declaration with the block of a key in it; keys next to it keep their declared values."""
    if not keys:
        return block
    if isinstance(base, dict) and isinstance(block, dict) and base.get("kind") == block.get("kind", base.get("kind")):
        inner = {key: insert_block(base.get(key), value, keys[1:]) for key, value in block.items() if key == keys[0]}
        return {**block, **base, **(block if keys[0] == "[key]" else inner)}
    if isinstance(base, list) and isinstance(block, list) and base and len(block) == 1:
        return [insert_block(base[0], block[0], keys[1:]), *base[1:]]
    return block


class _Schema:
    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions

    def texts(
        self, schema: Mapping[str, Any], above: tuple[str, ...] = ()
    ) -> Iterator[tuple[tuple[str | int, ...], Build]]:
        reference = schema.get("$ref")
        if reference in above:
            return
        above = above if reference is None else (*above, reference)
        schema = self._there(schema)
        for member in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
            yield from self.texts(member, above)
        if schema.get("type") == "string":
            yield (), lambda text: text
        for key, inner, around in self._inner(schema):
            if key == "[key]":
                yield (key,), around
                continue
            for keys, build in self.texts(inner, above):
                yield (key, *keys), lambda text, build=build, around=around: around(build(text))  # type: ignore[misc]

    def _inner(self, schema: Mapping[str, Any]) -> Iterator[tuple[str | int, Mapping[str, Any], Callable[[Any], Any]]]:
        """Yield the schema of each key below a schema, and a function that sets its value together with other required
        keys.
        """
        if "items" in schema:
            yield 0, schema["items"], lambda value: [value]
        several = schema.get("prefixItems", ())
        for i, item in enumerate(several):
            rest = [self._make_value(other) for other in several]
            yield i, item, lambda value, i=i, rest=rest: [*rest[:i], value, *rest[i + 1 :]]  # type: ignore[misc]
        properties = schema.get("properties", {})
        for key, item in properties.items():
            beside = {
                other: self._make_value(properties[other]) for other in schema.get("required", ()) if other != key
            }
            yield key, item, lambda value, key=key, beside=beside: {**beside, key: value}  # type: ignore[misc]
        for item in self._values(schema):
            fitting = self._make_value(item)
            name = self._make_name(schema)
            yield "[key]", {}, lambda text, fitting=fitting: {text: fitting}  # type: ignore[misc]
            yield name, item, lambda value, name=name: {name: value}  # type: ignore[misc]

    def _values(self, schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Yield the schemas of the values of a mapping with arbitrary keys."""
        found = (schema.get("additionalProperties"), *schema.get("patternProperties", {}).values())
        return [item for item in found if isinstance(item, dict)]

    def _make_name(self, schema: Mapping[str, Any]) -> str:
        """Return a key that a mapping allows."""
        return str(next(iter(self._there(schema.get("propertyNames", {})).get("enum", ())), "abc"))

    def _make_value(self, schema: Mapping[str, Any]) -> Any:
        """Return a small value that the schema allows."""
        schema = self._there(schema)
        if "default" in schema:
            return schema["default"]
        if "const" in schema or "enum" in schema:
            return schema.get("const", next(iter(schema.get("enum", ())), None))
        for member in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
            return self._make_value(member)
        match schema.get("type"):
            case "object" if schema.get("minProperties"):
                return {self._make_name(schema): self._make_value(self._values(schema)[0])}
            case "object":
                return {key: self._make_value(schema["properties"][key]) for key in schema.get("required", ())}
            case "array":
                return [self._make_value(schema["items"])] if schema.get("minItems") else []
            case "integer" | "number":
                return max(1, schema.get("minimum", 1))
            case "boolean":
                return False
            case "string":
                return next(text for text in _FITTING if re.search(schema.get("pattern", ""), text))
        return "abc"

    def _there(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        while "$ref" in schema:
            schema = self._definitions[schema["$ref"].rpartition("/")[2]]
        return schema
