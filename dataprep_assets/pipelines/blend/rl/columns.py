"""The columns of RL records, as far as they follow from the declared transforms.

Entry point: `columns_after`.
"""

from collections.abc import Mapping

from dataprep_assets.errors import ConfigError
from dataprep_assets.pipelines.blend.rl.options import RESOLVE
from dataprep_assets.pipelines.blend.rl.transforms import Declared, DeclaredTransform, parse

_MADE = {
    "sft": {"input": "string", "output": "string"},
    "openai_chat": {"messages": "list<object>"},
    "sharegpt": {"conversations": "list<object>"},
    "nemotron_rl": {"messages": "list<object>", "tools": "list<object>"},
}
_AS_IN_THE_SOURCE = "any"


def columns_after(declared: Declared) -> Mapping[str, str]:
    """Name → type of each column of the records that these transforms give; empty if the source or a user's function
    decides. `any` is the type of a column that is copied from the source."""
    columns: dict[str, str] = {}
    try:
        for transform in parse(declared):
            columns = _after(transform, columns)
    except ConfigError:  # the plan refuses such transforms, and says why
        return {}
    return columns


def _after(transform: DeclaredTransform, before: Mapping[str, str]) -> dict[str, str]:
    if transform.name in ("passthrough", RESOLVE):
        return dict(before)
    options = transform.options
    if transform.name == "select" and isinstance(options, list):
        return {name: before.get(name, _AS_IN_THE_SOURCE) for name in options}
    if transform.name == "rename" and isinstance(options, Mapping):
        return {new: before.get(old, _AS_IN_THE_SOURCE) for new, old in options.items()}
    made = dict(_MADE.get(transform.name, {}))
    if transform.name == "sft" and isinstance(options, Mapping) and options.get("system"):
        made["system"] = "string"
    return made
