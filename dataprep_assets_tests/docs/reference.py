"""Write `docs/yaml-reference.md` and a page for each component, for `make docs-reference`.

A component's page has its artifacts (in the sample datasets), a declaration with every key (its scaffold), and its
keys, which are the fields of its pydantic model. Each nested model has its own table on the pages that use it. The
page of `TokenizedCorpus` also lists the columns of the built-in taggers, and the page of `TrainingBlend` the values of
the presets of `like`, with the meanings from their docstrings.

Entry points: `pages` (the whole texts), and `python -m dataprep_assets_tests.docs.reference`, which writes them.
"""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dataprep_assets import components
from dataprep_assets.curation.taggers import TAGGERS
from dataprep_assets.curation.text_tagger import TextTagger
from dataprep_assets.engine.yaml.declaration import DatasetDeclaration
from dataprep_assets.pipelines.blend.rl.options import PRESETS as RL_PRESETS
from dataprep_assets.tokenization.chat.choices import PRESETS as CHAT_PRESETS
from dataprep_assets_tests.docs.checks import samples

ROOT = Path(__file__).resolve().parents[2]
INDEX = ROOT / "docs" / "yaml-reference.md"
_HEAD = """\
# YAML reference

This page is generated from the components' models. Do not edit it: run `make docs-reference`.

A dataset is declared in a `defs.yaml` in its own folder below `defs/`:

```yaml
type: dataprep_assets.components.TokenizedCorpus   # the component
attributes:                                        # its keys: see below, and the component's page
  dataset: my_corpus
```

`dg scaffold defs dataprep_assets.components.<Component> NAME` writes this file with every key and its comment.
In the column *default*, "required" means that you must set the key, and "none" that it is not set.
Paths are relative to the folder of the `defs.yaml`. An unknown key is an error.

| component | purpose |
|---|---|
"""
_COMPONENT = """\
# {name}

This page is generated from the component's model. Do not edit it: run `make docs-reference`.

{what} See also [{guide_title}](../pipelines/{guide}.md) and the [checks](../checks.md#{anchor}).

## Artifacts

| artifact | content |
|---|---|
{artifacts}

The table lists the artifacts of the samples. `dataprep show NAME` lists the artifacts of your dataset.

## Declaration

`dg scaffold defs dataprep_assets.components.{name} NAME` writes this file, with every key:

```text
{scaffold}
```

## Keys

These keys are in addition to the [keys of every component](../yaml-reference.md#keys-of-every-component):

"""
_TAGGERS = """\
## Built-in taggers

The key `tag` selects taggers by name. Their columns can be used in [rules](../documents.md#rules), such as the rules
with [published thresholds](../documents.md#taggers). Missing values are null.
"""
_GUIDES = {
    "TokenizedCorpus": ("corpus", "tokenized corpora"),
    "ShardRelease": ("release", "shard releases"),
    "PackedCohorts": ("notes", "clinical notes"),
    "CombinedCohorts": ("notes", "clinical notes"),
    "TaskMigration": ("tasks", "task folders"),
    "TrainingBlend": ("blends", "training blends"),
    "TrainingSchedule": ("schedule", "training schedules"),
}
_PRESETS: Mapping[str, Mapping[str, Mapping[Any, Any]]] = {
    "TrainingBlend": {"sft": CHAT_PRESETS, "rl": RL_PRESETS},
}
"""Component → stage → preset of `like` → its values."""
_PRESETS_HEAD = """\
## Presets of `like`

The preset `ours` has dataprep's rules, and `nemotron` has the rules of Nemotron's `data_prep`. The tables list the
choices in which they differ. Receipts record each choice that differs from `ours`. The keys `roles` and
`join_text_parts` of `sft` override the choices `roles` and `content`."""
_WORDS: Mapping[Any, str] = {str: "text", int: "whole number", float: "number", bool: "`true` or `false`", Any: "any"}
_BOUNDS = {"ge": "at least {}", "gt": "above {}", "le": "at most {}", "lt": "below {}"}


def pages() -> dict[Path, str]:
    """Return the text of each page, by file."""
    models = {name: getattr(components, name).model for name in sorted(components.__all__)}
    links = [
        f"| [{name}](components/{find_page(name).name}) | {_first_line(model)} |" for name, model in models.items()
    ]
    index = [_HEAD + "\n".join(links), "", "## Keys of every component", "", *_table(DatasetDeclaration.model_fields)]
    index += _write_nested_tables(DatasetDeclaration.model_fields)
    return {INDEX: _text(index), **{find_page(name): _text(_component(name, model)) for name, model in models.items()}}


def find_page(component: str) -> Path:
    """Return the file of a component's page."""
    return INDEX.parent / "components" / f"{re.sub(r'(?<=.)(?=[A-Z])', '-', component).lower()}.md"


def _text(lines: Iterable[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


def _component(name: str, model: type[BaseModel]) -> Iterator[str]:
    guide, title = _GUIDES[name]
    made = {spec.name: spec for one in samples() if one.component == name for spec in one.specs}
    rows = [f"| `{key}` | {_first_sentence(spec.description)} |" for key, spec in made.items()]
    wing = Path(inspect.getfile(components.find_dataset_class(name))).parent
    (scaffold,) = wing.glob(f"{find_page(name).stem.replace('-', '_')}.scaffold.yaml")
    yield _COMPONENT.format(
        name=name,
        what=_first_line(model),
        guide=guide,
        guide_title=title,
        anchor=name.lower(),
        artifacts="\n".join(rows),
        scaffold=scaffold.read_text(encoding="utf-8").replace("__name__", "NAME").rstrip(),
    ).rstrip("\n")
    yield ""
    own_fields = {key: field for key, field in model.model_fields.items() if not _is_common(key, field)}
    yield from _table(own_fields)
    yield from _write_nested_tables(own_fields)
    if name == "TokenizedCorpus":
        yield from _write_taggers()
    if name in _PRESETS:
        yield _PRESETS_HEAD
        for stage, presets in _PRESETS[name].items():
            yield from ("", f"### `{stage}.like`", "", *_write_presets(presets))


def _write_taggers() -> Iterator[str]:
    """Return a section for each built-in tagger: its module's docstring, and its columns by type."""
    yield _TAGGERS
    for extension in (TAGGERS[name] for name in TAGGERS if TAGGERS[name].is_own):
        tagger: TextTagger = extension.load()
        yield from (f"### {extension.name}", "", *_unwrap(inspect.getdoc(import_module(extension.module)) or ""))
        yield from ("| type | columns |", "|---|---|")
        for kind in dict.fromkeys(tagger.columns.values()):
            names = ", ".join(f"`{name}`" for name, one in tagger.columns.items() if one == kind)
            yield f"| {kind} | {names} |"
        yield ""


def _unwrap(docstring: str) -> Iterator[str]:
    """Return the paragraphs of a docstring as one line each, with an empty line after each."""
    for paragraph in docstring.split("\n\n"):
        yield from (" ".join(paragraph.split()), "")


def _write_presets(presets: Mapping[Any, Any]) -> Iterator[str]:
    """Yield a table of the values that differ between presets, which are instances of one class."""
    first = next(iter(presets.values()))
    meanings = read_attributes(type(first))
    yield f"| choice | {' | '.join(f'`{name}`' for name in presets)} | meaning |"
    yield "|---" * (len(presets) + 2) + "|"
    for choice in vars(first):
        values = [getattr(preset, choice) for preset in presets.values()]
        if any(value != values[0] for value in values):
            yield _write_row(f"`{choice}`", *(f"`{_write_yaml(value)}`" for value in values), meanings[choice])


def read_attributes(described: type) -> dict[str, str]:
    """Return the descriptions in the section `Attributes` of a class's docstring, by attribute."""
    section = inspect.cleandoc(described.__doc__ or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def _write_nested_tables(fields: Mapping[str, FieldInfo]) -> Iterator[str]:
    """Return a table for each model below the fields."""
    models = [model for field in fields.values() for model in _find_models(field.annotation)]
    if nested := {*models, *_find_nested(models)}:
        yield from ("", "## Nested keys", "")
        for model in sorted(nested, key=lambda model: model.__name__):
            yield from (f"### {model.__name__}", "", _first_line(model), "", *_table(model.model_fields), "")


def find_undescribed() -> list[str]:
    """Return `Model.key` for every key without a description."""
    roots = [getattr(components, name).model for name in components.__all__]
    models = {*roots, *_find_nested(roots)}
    return sorted(
        f"{model.__name__}.{key}"
        for model in models
        for key, field in model.model_fields.items()
        if not field.description
    )


def _is_common(key: str, field: FieldInfo) -> bool:
    """Return whether every component has this key with the same meaning and default."""
    common = DatasetDeclaration.model_fields.get(key)
    return common is not None and _row(key, common) == _row(key, field)


def _find_nested(roots: Sequence[type[BaseModel]]) -> Iterator[type[BaseModel]]:
    """Return the models below the roots, each once."""
    seen = set(roots)
    waiting = list(roots)
    while waiting:
        for field in waiting.pop(0).model_fields.values():
            for model in _find_models(field.annotation):
                if model not in seen:
                    seen.add(model)
                    waiting.append(model)
                    yield model


def _find_models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Return the models that an annotation names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _find_models(part)


def _first_sentence(description: str) -> str:
    return f"{' '.join(description.split('. ')[0].split()).rstrip('.')}."


def _first_line(model: type[BaseModel]) -> str:
    return str(model.__doc__).strip().splitlines()[0]


def _table(fields: Mapping[str, FieldInfo]) -> list[str]:
    return ["| key | type | default | meaning |", "|---|---|---|---|", *(_row(*item) for item in fields.items())]


def _row(key: str, field: FieldInfo) -> str:
    kind = "; ".join([_describe_type(field.annotation), *_describe_constraints(field.metadata)])
    cells = (f"`{field.alias or key}`", kind, _default(field), field.description or "")
    return _write_row(*cells)


def _write_row(*cells: str) -> str:
    return "| " + " | ".join(re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in cells) + " |"


def _describe_type(annotation: Any) -> str:
    """Describe an annotation in words."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return "; ".join([_describe_type(parts[0]), *_describe_constraints(parts[1:])])
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_describe_type(part) for part in parts if part is not NoneType))
    if origin is Literal:
        return ("one of " if parts[1:] else "") + ", ".join(f"`{_write_yaml(value)}`" for value in parts)
    if origin in (tuple, list, frozenset, set):
        return f"list of {_describe_type(parts[0])}"
    if origin in (dict, Mapping):
        return f"map of {_describe_type(parts[0])} to {_describe_type(parts[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    return _WORDS.get(annotation) or getattr(annotation, "__name__", str(annotation)).lower()


def _describe_constraints(metadata: Sequence[Any]) -> list[str]:
    """Describe in words what pydantic checks in addition to the type."""
    found = []
    for one in metadata:
        if isinstance(one, FieldInfo):
            found += _describe_constraints(one.metadata)
            continue
        found += [
            word.format(getattr(one, name)) for name, word in _BOUNDS.items() if getattr(one, name, None) is not None
        ]
        if (pattern := getattr(one, "pattern", None)) is not None:
            found.append(f"as `{pattern}`")
        if (least := getattr(one, "min_length", None)) is not None:
            found.append("not empty" if least == 1 else f"at least {least} long")
    return found


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None:
        return "none"
    if isinstance(value, BaseModel):
        return "its defaults"
    return f"`{_write_yaml(value)}`" if value not in ("", (), [], {}) else "empty"


def _write_yaml(value: Any) -> str:
    """Return a value as a user would write it in YAML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_write_yaml(one) for one in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_write_yaml(one)}" for key, one in value.items()) + "}"
    return str(value)


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: written")
