"""The view `messages` in ms-swift's template `qwen2_5`, next to `sft_rows` with a chat template that equals it.

ms-swift has templates of its own, and trains the newline after an answer. Entry point: `compare`.
"""

import importlib
import json
import logging
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dataprep_assets_tests.tools.parity.absent import stand_in
from dataprep_assets_tests.tools.parity.sft_views import (
    ROWS,
    is_equal_but_newlines,
    lines,
    qwen_template,
    sequences,
    their_tokenizer,
    views,
)
from dataprep_assets_tests.tools.parity.table import Row

_NAME = "qwen2_5"
_TOOL = {"type": "function", "function": {"name": "any"}}


def compare(folder: Path) -> list[Row]:
    """A row for the conversations. `folder` is a clone of modelscope/ms-swift."""
    stand_in("peft", "modelscope", "json_repair")
    importlib.import_module("modelscope.utils.logger").get_logger = _logger
    # Put the clone first, because an OpenStack package has the same name.
    sys.path.insert(0, str(folder))
    get_template = importlib.import_module("swift.template").get_template
    hermes = importlib.import_module("swift.agent_template").agent_template_map["hermes"]()
    head, tail = hermes._format_tools([_TOOL]).split("\n" + json.dumps(_TOOL))
    text = qwen_template(head, tail)
    with tempfile.TemporaryDirectory() as scratch, views(Path(scratch), "messages", "sft_rows", template=text) as made:
        tokenizer, ours = their_tokenizer(made, text), sequences(made)
        tokenizer.model_info = SimpleNamespace(
            model_type=_NAME, torch_dtype=None, max_model_len=4096, config=None, task_type="causal_lm", model_dir=""
        )
        tokenizer.model_meta = SimpleNamespace(template=_NAME, is_multimodal=False)
        template = get_template(tokenizer, default_system="", template_type=_NAME)
        template.set_mode("train")
        equal = 0
        for line in lines(made):
            taken = template.encode({name: line[name] for name in ("messages", "tools") if name in line})
            trained = [label != -100 for label in taken["labels"]]
            wanted = ours[line["extra_info"]["row"] - 1]
            equal += is_equal_but_newlines(taken["input_ids"], trained, *wanted, tokenizer)
    note = "ids and labels, except for the newline after an answer, which ms-swift trains"
    return [Row("messages in ms-swift", "train.jsonl", len(ROWS), equal, 0, note)]


def _logger(*_: Any, **__: Any) -> logging.Logger:
    """Return a logger with the handler that ms-swift changes."""
    logger = logging.getLogger("modelscope")
    logger.addHandler(logging.NullHandler())
    return logger
