"""View for TRL with packing: a `datasets` folder of packed rows, with the lengths of their sequences."""

from collections.abc import Iterator

from dataprep_assets.formats.conversations import sft_rows
from dataprep_assets.pipelines.blend.sft.view import ConversationViewFacts
from dataprep_assets.pipelines.blend.sft.views.sft_rows import build_rows_view

_ABOUT = "Token ids and labels of conversations, several per row. `seq_lengths` has the length of each sequence."


def _format_trainer_lines(where: str, facts: ConversationViewFacts) -> Iterator[str]:
    split = sft_rows.split_name(next(iter(facts.rows)))
    # Omit `packing=True`, which would pack the rows again, and set `padding_free`, because otherwise the sequences of a
    # row would attend to each other.
    settings = "padding_free=True, per_device_train_batch_size=1, dataset_kwargs={'skip_prepare_dataset': True}"
    yield f"TRL, unsloth: train_dataset=load_from_disk({where!r})[{split!r}], args=SFTConfig({settings})"


VIEW = build_rows_view(
    "sft_rows_packed",
    "A `datasets` folder of packed rows with labels and sequence lengths, for TRL with `padding_free`.",
    about=_ABOUT,
    is_packed=True,
    trainer=_format_trainer_lines,
)
