"""Build a blend of 500 pairs of texts with its views, for comparisons with trainers that are not packages."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from dataprep_assets_tests.pipelines.blend.dagster_blend import Blend, open_blend
from dataprep_assets_tests.pipelines.blend.pairs.preference_rows import declare_pairs, make_pair
from dataprep_assets_tests.project import failure_of

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ROWS = list(islice((row for row in map(make_pair, count()) if "tools" not in row), 500))
"""Pairs with system texts and several turns, but without tools, which the views for these trainers refuse."""


@contextmanager
def pair_views(home: Path, *names: str) -> Iterator[Blend]:
    """Build the views of the pairs in a folder."""
    home.mkdir(exist_ok=True)
    options = {"max_length": 1024, "chat_template": TEMPLATE}
    with open_blend(declare_pairs(home, {"pairs": ROWS}, pairs=options, views=list(names)), home / "artifacts") as made:
        outcomes = made.run_all()
        assert all(outcome.success for outcome in outcomes), failure_of(outcomes[-1])
        yield made


def stored_ids(made: Blend) -> list[dict[str, Any]]:
    """Return ids and masks of the run's rows, whose order the views have."""
    files = sorted((made.run_directory / "splits" / "train").glob("*.parquet"))
    columns = ["prompt_ids", "chosen_ids", "chosen_mask", "rejected_ids", "rejected_mask"]
    return [row for file in files for row in pq.read_table(file, columns=columns).to_pylist()]
