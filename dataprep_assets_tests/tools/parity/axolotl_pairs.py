"""The view `pairs_sharegpt` in axolotl's preparation for DPO, next to the run's ids.

axolotl makes texts, which TRL encodes. It removes what the template writes after the stop token.
Entry point: `compare`.
"""

import importlib
import tempfile
from pathlib import Path

from dataprep_assets_tests.tools.parity.axolotl import prepare
from dataprep_assets_tests.tools.parity.pair_views import ROWS, TEMPLATE, pair_views, stored_ids
from dataprep_assets_tests.tools.parity.sft_views import their_tokenizer
from dataprep_assets_tests.tools.parity.table import Row


def compare(folder: Path) -> list[Row]:
    """A row for the pairs. `folder` is a clone of axolotl-ai-cloud/axolotl."""
    prepare(folder)
    with tempfile.TemporaryDirectory() as scratch, pair_views(Path(scratch), "pairs_sharegpt") as made:
        tokenizer, ours = their_tokenizer(made, TEMPLATE), stored_ids(made)
        importlib.import_module("axolotl.loaders").load_tokenizer = lambda _: tokenizer
        reader = importlib.import_module("axolotl.utils.data.rl")
        reader.save_preprocessed_dataset = lambda *_: None
        path = made.directory("pairs_sharegpt") / "train.jsonl"
        dataset = {"path": str(path), "ds_type": "json", "split": "train", "type": "chat_template.default"}
        options = {"datasets": [dataset], "rl": reader.RLType.DPO, "sequence_len": 2048, "is_preprocess": True}
        configured = importlib.import_module("axolotl.utils.dict").DictDefault(options)
        texts = reader._load_split(configured, "train").to_list()
    equal = 0
    for row, text in zip(ours, texts, strict=True):
        wanted = [row["prompt_ids"]]
        for side in ("chosen", "rejected"):
            last = max(at for at, written in enumerate(row[f"{side}_mask"]) if written)
            wanted.append(row[f"{side}_ids"][: last + 1])
        names = ("prompt", "chosen", "rejected")
        equal += wanted == [tokenizer(text[name], add_special_tokens=False)["input_ids"] for name in names]
    note = "ids of prompt, chosen and rejected up to the stop token"
    return [Row("pairs_sharegpt in axolotl", "train.jsonl", len(ROWS), equal, 0, note)]
