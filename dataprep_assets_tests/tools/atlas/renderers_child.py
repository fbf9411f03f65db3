"""Read the trained text of each conversation, in an environment with the package `renderers`.

Standard input has a list of JSON objects: `tokenizer` (a folder), `family` (a name of a renderer), `rows`. Standard
output gets, for each, a list with the trained text of each row, or null. This module imports nothing of this project.
"""

import json
import sys
from pathlib import Path
from typing import Any


class _Tokenizer:
    """A tokenizer with the interface that the package needs, without transformers."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        config = json.loads((folder / "tokenizer_config.json").read_bytes())
        self.name_or_path = folder.name
        self.unk_token_id = None
        self.eos_token, self.bos_token = config["eos_token"], config["bos_token"]
        self.eos_token_id = self._tokenizer.token_to_id(self.eos_token)
        self.bos_token_id = self._tokenizer.token_to_id(self.bos_token)

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Any, *_: Any, **__: Any) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        return self._id_of(tokens) if isinstance(tokens, str) else [self._id_of(token) for token in tokens]

    def _id_of(self, token: str) -> int:
        # Add missing tokens, because a renderer requires all tokens of its family, even those that the template does
        # not write. Only texts are compared.
        if self._tokenizer.token_to_id(token) is None:
            self._tokenizer.add_special_tokens([token])
        return int(self._tokenizer.token_to_id(token))


def _read(given: dict[str, Any]) -> list[str | None]:
    import renderers

    tokenizer = _Tokenizer(Path(given["tokenizer"]))
    outcomes: list[str | None] = []
    try:
        renderer = renderers.create_renderer(tokenizer, renderers.config_from_name(given["family"]))
    except Exception as error:  # a renderer that refuses the tokenizer has no answers
        print(f"{given['family']}: {type(error).__name__}: {error}", file=sys.stderr)
        return [None] * len(given["rows"])
    for row in given["rows"]:
        try:
            sample = renderers.build_training_sample(renderer, row["messages"], tools=row.get("tools"))
        except Exception as error:  # any refusal counts as a missing answer
            print(f"{given['family']}: {type(error).__name__}: {error}", file=sys.stderr)
            outcomes.append(None)
            continue
        pairs = zip(sample.token_ids, sample.loss_mask, strict=True)
        outcomes.append(tokenizer.decode([token for token, trained in pairs if trained]))
    return outcomes


if __name__ == "__main__":
    print(json.dumps([_read(given) for given in json.load(sys.stdin)]))
