"""Use datatrove on token files: its writer and its dataset."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep_assets_tests.readers.families import DATATROVE
from dataprep_assets_tests.readers.process import in_process_of


@in_process_of(DATATROVE)
def write_tokenized_file(
    folder: Path, name: str, documents: list[list[int]], *, tokenizer: str, token_size: int
) -> None:
    """Write documents as datatrove does.

    Args:
        folder: The folder for the file and its sidecars.
        name: The name of the token file.
        documents: The ids of each document.
        tokenizer: The tokenizer's name in the metadata.
        token_size: Bytes per id, 2 or 4.
    """
    from datatrove.pipeline.tokens.tokenizer import TokenizedFile

    file = TokenizedFile(
        str(folder), name, tokenizer_name_or_path=tokenizer, save_final_metadata=True, token_size=token_size
    )
    for document in documents:
        file.write(document, None)
    file.close()


@in_process_of(DATATROVE)
def windows(tokens: Path, *, length: int, token_size: int) -> list[dict[str, npt.NDArray[Any]]]:
    """Return `input_ids` and `positions` of every window of a `DatatroveFileDataset`, `length + 1` ids each."""
    from datatrove.utils.dataset import DatatroveFileDataset

    reader = DatatroveFileDataset(str(tokens), seq_len=length, token_size=token_size, return_positions=True)
    names = ("input_ids", "positions")
    return [{name: np.array(reader[at][name].numpy()) for name in names} for at in range(len(reader))]
