"""Keys of `sft` and `rl` that there were before a preset decided all differences from Nemotron's data_prep together.

Entry points: `of_presets` makes their sentences, `refuse_former` says them to whoever still writes such a key.
"""

from collections.abc import Mapping
from typing import Any


def of_presets(ours: Any, nemotron: Any) -> str:
    """What to write instead of a key that has these values in the two presets."""
    first, second = (str(value).lower() if isinstance(value, bool) else value for value in (ours, nemotron))
    return f"the preset decides: `like: ours`, the default: `{first}`; `like: nemotron`: `{second}`. Remove the key"


def refuse_former(given: Any, former: Mapping[str, str]) -> Any:
    """`given` as it is; raises ValueError if it has keys of `former`: `block.key` → what to write."""
    found = []
    for key, instead in former.items():
        block, _, name = key.rpartition(".")
        inside = given.get(block) if block and isinstance(given, Mapping) else given
        if isinstance(inside, Mapping) and name in inside:
            found.append(f"`{key}` is no key any more: {instead}")
    if found:
        raise ValueError(". ".join(found))
    return given
