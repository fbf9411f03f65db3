"""View for Hugging Face trainers: a `datasets` folder with one row per sequence, and labels."""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from dataprep_assets.formats.conversations import sft_rows
from dataprep_assets.formats.conversations.labeled_tokens import LabeledTokens
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.sft.view import (
    ConversationView,
    ConversationViewFacts,
    PackedSplit,
)
from dataprep_assets.pipelines.blend.view import BlendViewWriter
from dataprep_assets.stores.files import sha256_file

_ABOUT = "Token ids and labels of conversations, one sequence per row. The label of an untrained token is -100."
_SKIP = "dataset_kwargs={'skip_prepare_dataset': True}"


def list_files(split: PackedSplit) -> list[str]:
    """Return the paths of a split's files, one per shard."""
    return [sft_rows.build_file_name(split.split, n, len(split.shards)) for n in range(len(split.shards))]


def write_rows(splits: Sequence[PackedSplit], view: BlendViewWriter, *, is_packed: bool, about: str) -> None:
    """Write the files of every split, and the sidecars. Files that a killed run has finished are kept."""

    def write(split: PackedSplit, number: int, name: str) -> str:
        # Keep an existing file, because a file gets its final name only when it is complete, and its content depends
        # only on its own shard.
        if not (path := view.target / name).exists():
            sft_rows.write_file(path, split.open(view.store, number), is_packed=is_packed)
        return sha256_file(path)

    files = [(split, number, name) for split in splits for number, name in enumerate(list_files(split))]
    with ThreadPoolExecutor(view.threads) as pool:
        digests = pool.map(lambda file: write(*file), files)
        view.digests.update({name: digest for (*_, name), digest in zip(files, digests, strict=True)})
    by_split = {split.split: {name: view.digests[name] for name in list_files(split)} for split in splits}
    sft_rows.write_sidecars(view.target, by_split, view.blend.dataset, about)


def find_defects(
    directory: Path, receipt: Receipt, splits: Sequence[PackedSplit], *, is_packed: bool, about: str
) -> Iterator[str]:
    """Yield a sentence for each defect of the sidecars, and of the columns that the labels determine."""
    digests = {record.path: record.sha256 for record in receipt.files}
    by_split = {split.split: {name: digests[name] for name in list_files(split)} for split in splits}
    yield from sft_rows.find_sidecar_defects(directory, by_split, receipt.dataset, about, list(digests))
    for names in by_split.values():
        for name in names:
            yield from sft_rows.find_row_defects(directory / name, is_packed=is_packed)


def read_rows(directory: Path, split: PackedSplit, *, is_packed: bool) -> Iterator[LabeledTokens]:
    """Yield the sequences of a split, in order."""
    for name in list_files(split):
        yield from sft_rows.read_sequences(directory / name, is_packed=is_packed)


def _format_trainer_lines(where: str, facts: ConversationViewFacts) -> Iterator[str]:
    split = sft_rows.split_name(next(iter(facts.rows)))
    train_folder = json.dumps(f"{where}/{split}", ensure_ascii=False)
    yield f"TRL, unsloth: train_dataset=load_from_disk({where!r})[{split!r}], args=SFTConfig({_SKIP})"
    yield f"axolotl: datasets: [{{path: {train_folder}, type: null}}]"
    # Select three columns, because LLaMA-Factory's collator refuses the others.
    selected = "select_columns(['input_ids', 'labels', 'attention_mask'])"
    yield f"LLaMA-Factory: load_from_disk({where!r}).{selected}.save_to_disk('rows'), tokenized_path: rows"
    yield f"SkyRL: pretokenized_dataset_paths: [{train_folder}]"


def build_rows_view(
    name: str, description: str, *, about: str, is_packed: bool, trainer: Callable[..., Iterator[str]]
) -> ConversationView:
    """Return a view that writes a `datasets` folder of sequences or packed rows; `about` is a text for its card."""
    return ConversationView(
        name=name,
        description=description,
        kinds=frozenset({"arrow", "huggingface"}),
        columns=sft_rows.PACKED_COLUMNS if is_packed else sft_rows.SEQUENCE_COLUMNS,
        column_descriptions=sft_rows.COLUMN_DESCRIPTIONS,
        is_packed=is_packed,
        file=sft_rows.build_file_name,
        write=partial(write_rows, is_packed=is_packed, about=about),
        read=partial(read_rows, is_packed=is_packed),
        defects=partial(find_defects, is_packed=is_packed, about=about),
        trainer=trainer,
    )


VIEW = build_rows_view(
    "sft_rows",
    "A `datasets` folder, one sequence per row, with labels, for Hugging Face trainers such as TRL.",
    about=_ABOUT,
    is_packed=False,
    trainer=_format_trainer_lines,
)
