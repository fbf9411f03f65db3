"""The view `olmo_sft` next to ids and labels by open-instruct's own tokenization of the same conversations.

Its conversion for OLMo-core (`numpy_dataset_conversion.py`) writes what `sft_tulu_tokenize_and_truncate_v1` returns.
Entry point: `compare`.
"""

import copy
import importlib
import tempfile
from pathlib import Path

from dataprep_assets_tests.tools.parity.absent import bare_package, empty_module
from dataprep_assets_tests.tools.parity.sft_views import ROWS, sequences, their_tokenizer, views
from dataprep_assets_tests.tools.parity.table import Row

TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') }}"
    "{% for call in m.tool_calls or [] %}{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Without a newline after a turn, which open-instruct trains and this project does not."""


def compare(folder: Path) -> list[Row]:
    """A row for the conversations. `folder` is a clone of allenai/open-instruct."""
    bare_package("open_instruct", folder / "open_instruct")
    for name in ("launch_utils", "logger_utils", "utils"):
        empty_module(f"open_instruct.{name}")
    importlib.import_module("open_instruct.logger_utils").setup_logger = lambda *_: importlib.import_module("logging")
    theirs = importlib.import_module("open_instruct.dataset_transformation")
    with (
        tempfile.TemporaryDirectory() as scratch,
        views(Path(scratch), "olmo_sft", "sft_rows", template=TEMPLATE) as made,
    ):
        ours, tokenizer = sequences(made), their_tokenizer(made, TEMPLATE)
        equal = 0
        for number, row in enumerate(ROWS):
            taken = theirs.sft_tulu_tokenize_and_truncate_v1(copy.deepcopy(row), tokenizer, 2048)
            equal += (taken["input_ids"].tolist(), taken["labels"].tolist()) == ours[number]
    note = "ids and labels by sft_tulu_tokenize_and_truncate_v1"
    return [Row("conversations in open-instruct", "olmo_sft", len(ROWS), equal, 0, note)]
