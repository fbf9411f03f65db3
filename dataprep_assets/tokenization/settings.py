"""The settings in a tokenizer's folder: BOS, EOS and added tokens, merged as in transformers.

Since 2023, `tokenizer_config.json` has all settings. Older folders have some of them in `special_tokens_map.json` and
`added_tokens.json`. As in transformers, these two are read only if the first file has no `added_tokens_decoder`.

Entry points: `read_settings`, `Settings`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.errors import TokenizerError

CONFIG, TOKENS_MAP, ADDED_TOKENS = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
RECORD = "conversion.json"
"""The record of a conversion, in the folder of a tokenizer converted from a different form (`conversion.py`)."""
OLDER_FILES = (TOKENS_MAP, ADDED_TOKENS)
DECODER = "added_tokens_decoder"
_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_EXTRA = ("extra_special_tokens", "additional_special_tokens")
_FROM_FILE = "from_file"
"""Mark of a token from `added_tokens.json`, whose flags the tokenizer.json overrides."""


@dataclass(frozen=True)
class Settings:
    """The merged settings.

    Attributes:
        values: The settings by their keys in `tokenizer_config.json`.
        older: Settings that the older files change, for the tokenizer's digest.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    older: Mapping[str, Any] = field(default_factory=dict)

    def find_token(self, name: str) -> str | None:
        """Return the content of a token, such as `pad_token`; None if it is not set."""
        return _read_content(self.values.get(name))

    @cached_property
    def variables(self) -> dict[str, str]:
        """The tokens that transformers passes to every chat template, by name."""
        contents = {name: self.find_token(name) for name in _TOKEN_NAMES}
        # a model's own tokens, such as `image_token`
        own_values = {
            name: value for name, value in self.values.items() if name.endswith("_token") and name not in _TOKEN_NAMES
        }
        extra = self.values.get(_EXTRA[0])
        own_values |= extra if isinstance(extra, dict) else {}
        texts = {name: value for name, value in own_values.items() if isinstance(value, str)}
        return {name: content for name, content in contents.items() if content is not None} | texts

    @cached_property
    def extra_tokens(self) -> tuple[str, ...]:
        """Contents of additional special tokens, which transformers adds if the tokenizer.json lacks them."""
        return tuple(dict.fromkeys(content for content in _list_extra_tokens(self.values) if content))


def _list_extra_tokens(values: Mapping[str, Any]) -> Iterator[str]:
    value = next((values[name] for name in _EXTRA if values.get(name)), ())
    for token in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        if (content := _read_content(token)) is not None:
            yield content


def _read_content(value: Any) -> str | None:
    # transformers writes a token as text or as an object with flags
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def read_settings(directory: Path) -> Settings:
    """Return the settings of a tokenizer's folder. Raises TokenizerError for a file that is not a JSON object."""
    config = _read_object(directory / CONFIG)
    if DECODER in config:
        return Settings(config)
    changes = {
        name: value
        for name, value in _read_object(directory / TOKENS_MAP).items()
        if (_read_content(value) or value) != (_read_content(config.get(name)) or config.get(name))
    }
    settings = config | changes
    if ids := _read_object(directory / ADDED_TOKENS):
        contents = [content for name in _TOKEN_NAMES if (content := _read_content(settings.get(name)))]
        changes[DECODER] = _read_decoder(directory / ADDED_TOKENS, ids, {*contents, *_list_extra_tokens(settings)})
    return Settings(config | changes, changes)


def _read_decoder(path: Path, ids: Mapping[str, Any], special: set[str]) -> dict[str, Any]:
    """Return the tokens of an `added_tokens.json` in the form of `added_tokens_decoder`."""
    if any(type(number) is not int or number < 0 for number in ids.values()):
        raise TokenizerError(f"{path}: must be an object of tokens and ids (integers of at least 0)")
    return {
        str(number): {
            "content": content,
            "special": content in special,
            "normalized": content not in special,
            _FROM_FILE: True,
        }
        for content, number in ids.items()
    }


def is_from_older_file(token: Mapping[str, Any]) -> bool:
    """Return whether a token of the decoder comes from `added_tokens.json`."""
    return bool(token.get(_FROM_FILE))


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = load_untrusted_json(path.read_bytes()) if path.is_file() else {}
    except ValueError as error:
        raise TokenizerError(
            f"{path}: invalid JSON: {error}. Save the tokenizer again with `save_pretrained(folder)` of transformers"
        ) from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path}: must be a JSON object")
    return value
