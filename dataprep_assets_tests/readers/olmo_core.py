"""Use OLMo-core's own dataset over a view of conversations, as its trainer line declares it."""

from pathlib import Path
from typing import Any

from dataprep_assets_tests.readers.families import OLMO_CORE
from dataprep_assets_tests.readers.process import in_process_of

Labeled = tuple[list[int], list[int]]


@in_process_of(OLMO_CORE)
def documents(line: str, work_dir: Path, **changes: Any) -> list[list[Labeled]]:
    """Return the documents of each instance: ids, and labels at their own position.

    Args:
        line: The trainer's line, which is Python.
        work_dir: The folder in which OLMo-core packs documents into instances.
        changes: Values of the configuration that replace those of the line.
    """
    from olmo_core.data.numpy_dataset import NumpyPackedFSLDatasetConfig
    from olmo_core.data.tokenizer import TokenizerConfig
    from olmo_core.data.utils import get_labels

    names = {"NumpyPackedFSLDatasetConfig": NumpyPackedFSLDatasetConfig, "TokenizerConfig": TokenizerConfig}
    config = eval(line, names)
    config.work_dir = str(work_dir)
    for name, value in changes.items():
        setattr(config, name, value)
    dataset = config.build()
    dataset.prepare()
    instances = []
    for number in range(len(dataset)):
        item = dataset[number]
        batch = {name: item[name].unsqueeze(0) for name in ("input_ids", "label_mask")}
        # Shift the labels back to their tokens, because the model's labels are shifted to the left. The first token of
        # an instance is never a label.
        labels = [-100, *get_labels(batch)[0].tolist()[:-1]]
        start, found = 0, []
        for length in item["doc_lens"].tolist():
            found.append((item["input_ids"][start : start + length].tolist(), labels[start : start + length]))
            start += length
        instances.append(found)
    return instances
