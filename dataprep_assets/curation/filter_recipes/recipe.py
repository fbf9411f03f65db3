"""Published recipes of filters, by name: sets of taggers and rules, which are written out before validation.

After that, nothing else knows of recipes: tables, checks and reasons see ordinary taggers and rules. A recipe is a YAML
file in this folder with these keys:

- `title`: a short description, for the data card;
- `published`: the addresses of the settings;
- `not_included`: the steps of the published pipeline that are no taggers and rules;
- `columns`: columns that rules use and the user's own taggers must write → an example of such a tagger;
- `tag`, `keep`, `drop`: as in a declaration;
- `languages`: for recipes with settings per language, language → value of each `{name}` in the other keys.

Entry points: `FilterRecipe`, `load_recipe`, `write_out_recipe`.
"""

import json
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from pydantic import BaseModel

from dataprep_assets.errors import ConfigError

_SETTING = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class FilterRecipe:
    """A recipe, for one language if its settings depend on the language.

    Attributes:
        name: The name in a declaration, such as `fineweb2/deu_Latn`.
        title: A short description.
        published: The addresses of the settings.
        not_included: The steps of the published pipeline that are no taggers and rules.
        columns: Column that the user's taggers must write → an example of such a tagger.
        tag: The taggers, as in a declaration.
        keep: The rules of documents to keep.
        drop: The rules of documents to drop.
    """

    name: str
    title: str
    published: Sequence[str]
    not_included: Sequence[str]
    columns: Mapping[str, str]
    tag: Sequence[Any]
    keep: Mapping[str, str]
    drop: Mapping[str, str]

    def to_yaml(self) -> str:
        """Return the taggers and rules as in a declaration."""
        import yaml  # type: ignore[import-untyped]

        def dump(value: Any, *, flow: bool) -> str:
            return str(yaml.safe_dump(value, default_flow_style=flow, sort_keys=False, allow_unicode=True, width=110))

        taggers = [tagger if isinstance(tagger, str) else dump(tagger, flow=True).strip() for tagger in self.tag]
        rules = {key: dict(rules) for key, rules in (("keep", self.keep), ("drop", self.drop)) if rules}
        return "".join(["tag:\n", *(f"- {tagger}\n" for tagger in taggers), dump(rules, flow=False)])

    def to_lines(self) -> list[str]:
        """Return the recipe for a terminal: its title, taggers and rules, and the steps that it leaves out."""
        return [
            f"recipe {self.name}: {self.title}",
            *(f"  {line}" for line in self.to_yaml().splitlines()),
            "  not included:",
            *(f"  - {step}" for step in self.not_included),
        ]

    def to_markdown(self) -> str:
        """Return the recipe for a data card, with the addresses of its settings."""
        steps = "\n".join(f"- {step}" for step in self.not_included)
        addresses = "\n".join(f"- <{address}>" for address in self.published)
        return (
            f"The documents were filtered by the recipe `{self.name}`: {self.title}. It stands for these taggers and "
            f"rules:\n\n```yaml\n{self.to_yaml()}```\n\nThe settings are published at:\n\n{addresses}\n\n"
            f"The recipe does not include these steps of the published pipeline:\n\n{steps}"
        )

    def require_columns(self, columns: Container[str]) -> None:
        """Raise ConfigError if a column that the user's taggers must write does not exist."""
        for name, example in self.columns.items():
            if name not in columns:
                raise ConfigError(
                    f"recipe: {self.name} needs the column {name!r}. Add a tagger that writes it to `tag`, e.g., "
                    f"`- {example}`"
                )


def list_recipes() -> list[str]:
    """Return the names of the recipes, without languages."""
    files = resources.files(__package__).iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


@cache
def load_recipe(name: str) -> FilterRecipe:
    """Return a recipe. Raises ConfigError if the recipe or its language does not exist."""
    import yaml

    stem, _, language = name.partition("/")
    if stem not in list_recipes():
        raise ConfigError(f"recipe: unknown recipe {stem!r}. Available: {', '.join(list_recipes())}")
    content = yaml.safe_load((resources.files(__package__) / f"{stem}.yaml").read_text(encoding="utf-8"))
    languages = content.pop("languages", {})
    if language not in (languages or {"": {}}):
        available = f"Write {stem}/LANGUAGE with one of {', '.join(languages)}" if languages else f"Write {stem}"
        reason = f"no language {language!r}" if language else "a language is missing"
        raise ConfigError(f"recipe: {name}: {reason}. {available}")
    content = _fill_in(content, languages.get(language, {}))
    return FilterRecipe(name=name, **{"keep": {}, "drop": {}, "columns": {}, "not_included": (), **content})


def _fill_in(value: Any, settings: Mapping[str, Any]) -> Any:
    """Return a value with each `{name}` replaced by the language's setting."""
    if isinstance(value, dict):
        return {key: _fill_in(inner, settings) for key, inner in value.items()}
    if isinstance(value, list):
        return [_fill_in(inner, settings) for inner in value]
    if not isinstance(value, str) or not settings:
        return value
    if (only_setting := _SETTING.fullmatch(value)) is not None:
        return settings[only_setting[1]]
    return _SETTING.sub(lambda match: str(settings[match[1]]), value)


def write_out_recipe(declaration: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a declaration with the taggers and rules of its recipe added.

    The declaration's own taggers come first, because messages refer to them by their position in the file. Raises
    ConfigError for a tagger or rule that both have, unless both are equal.
    """
    recipe = load_recipe(declaration["recipe"])
    types = {"tag": (list, tuple), "keep": (Mapping,), "drop": (Mapping,)}
    # Leave out the recipe if a key has a different type, because the validation then reports the key.
    if not all(isinstance(declaration[key], type_) for key, type_ in types.items() if declaration.get(key) is not None):
        return dict(declaration)
    taggers = [*(declaration.get("tag") or ())]
    own_taggers = dict(map(_name_tagger, taggers))
    for name, settings in map(_name_tagger, recipe.tag):
        if name not in own_taggers:
            taggers.append({name: settings} if settings else name)
        elif own_taggers[name] != settings:
            raise ConfigError(
                f"tag: {name}: the recipe {recipe.name} has this tagger with the settings {json.dumps(settings)}. "
                "Remove yours, because the recipe's rules need these settings"
            )
    own_rules = {key: dict(declaration.get(key) or {}) for key in ("keep", "drop")}
    rules = {"keep": recipe.keep, "drop": recipe.drop}
    for own_key, named_rules in own_rules.items():
        for name, text in named_rules.items():
            if text != rules[own_key].get(name, text) or name in rules["drop" if own_key == "keep" else "keep"]:
                raise ConfigError(
                    f"{own_key}.{name}: the recipe {recipe.name} has a rule with this name. Rename yours: both rules "
                    "then apply. To replace the recipe's rule, remove `recipe`, and declare the taggers and rules that "
                    "`dataprep show` prints"
                )
    return {**declaration, "tag": taggers, **{key: {**rules[key], **own_rules[key]} for key in rules}}


def _name_tagger(tagger: Any) -> tuple[str, Any]:
    """Return the name and the settings of a declared tagger; the tagger itself if it is the user's own."""
    if isinstance(tagger, str):
        return tagger, {}
    # Accept a validated tagger, because a declaration may be validated again.
    content = _remove_null(tagger.model_dump() if isinstance(tagger, BaseModel) else tagger)
    if isinstance(content, dict) and len(content) == 1:
        ((name, settings),) = content.items()
        return str(name), settings
    return str(content), content


def _remove_null(value: Any) -> Any:
    """Return a value without keys that are null, and with lists for tuples."""
    if isinstance(value, Mapping):
        return {key: _remove_null(inner) for key, inner in value.items() if inner is not None}
    return [*map(_remove_null, value)] if isinstance(value, list | tuple) else value
