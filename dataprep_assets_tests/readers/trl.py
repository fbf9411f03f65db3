"""TRL's trainers over views of conversations and over pairs, and over its own preparation of the same rows.

Models are tiny, random and on the CPU, so that a training takes a second.
"""

import copy
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dataprep_assets_tests.readers.families import TRL
from dataprep_assets_tests.readers.process import in_process_of

Rows = Sequence[dict[str, Any]]
STEPS = 4
"""Steps of each training."""


@in_process_of(TRL)
def own_rows(tokenizer: Path, template: str, rows: Rows) -> list[dict[str, list[int]]]:
    """Return `input_ids` and `labels` of conversations as TRL prepares them, with `assistant_only_loss`."""
    prepared = _trainer(tokenizer, template, _conversations(rows), assistant_only_loss=True).train_dataset
    return [{name: list(row[name]) for name in ("input_ids", "labels")} for row in prepared]


@in_process_of(TRL)
def prepared_rows(
    tokenizer: Path, template: str, folder: Path, *, without: Sequence[str] = (), **settings: Any
) -> list[dict[str, Any]]:
    """Return the rows that TRL prepares from Parquet files of token ids, except for some of their columns."""
    from datasets import load_dataset

    with tempfile.TemporaryDirectory() as cache:
        rows = load_dataset("parquet", data_dir=str(folder), cache_dir=cache, split="train")
        prepared = _trainer(tokenizer, template, rows.remove_columns(list(without)), **settings).train_dataset
        return [{name: list(row[name]) for name in ("input_ids", "labels", "seq_lengths")} for row in prepared]


@in_process_of(TRL)
def collate(batches: Sequence[Rows], *, padding_free: bool) -> list[dict[str, Any]]:
    """Return the batches that TRL's collator makes of rows with `input_ids` and `labels`."""
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    collator = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=padding_free)
    return [
        {name: value.tolist() if hasattr(value, "tolist") else value for name, value in collator(list(rows)).items()}
        for rows in batches
    ]


@in_process_of(TRL)
def view_rows(folder: Path, split: str) -> list[dict[str, Any]]:
    """Return the rows of a split as `load_from_disk` gives them to a trainer."""
    from datasets import load_from_disk

    return list(load_from_disk(str(folder))[split])


@in_process_of(TRL)
def view_losses(folder: Path, split: str, tokenizer: Path, template: str, **settings: Any) -> list[float]:
    """Train on a view as its trainer line says; return the loss of each step."""
    from datasets import load_from_disk

    skip = {"dataset_kwargs": {"skip_prepare_dataset": True}}
    return _losses(_trainer(tokenizer, template, load_from_disk(str(folder))[split], **skip, **settings))


@in_process_of(TRL)
def own_losses(
    tokenizer: Path, template: str, rows: Rows, batches: Sequence[Sequence[int]], **settings: Any
) -> list[float]:
    """Train on conversations as TRL prepares them, in `batches` of row numbers; return the loss of each step."""
    from torch.utils.data import DataLoader

    trainer = _trainer(tokenizer, template, _conversations(rows), assistant_only_loss=True, **settings)
    prepared = trainer.train_dataset.select_columns(["input_ids", "labels"])
    loader = DataLoader(prepared, batch_sampler=list(batches), collate_fn=trainer.data_collator)
    trainer.get_train_dataloader = lambda: loader
    return _losses(trainer)


def _conversations(rows: Rows) -> Any:
    from datasets import Dataset

    # Pass tools as JSON text, because Arrow would give the schemas of each row the keys of all other rows.
    return Dataset.from_list([{"messages": row["messages"], "tools": json.dumps(row.get("tools"))} for row in rows])


@in_process_of(TRL)
def own_pairs(tokenizer: Path, template: str, rows: Rows) -> list[dict[str, list[int]]]:
    """Return the ids of prompt, chosen and rejected as `DPOTrainer` prepares them from messages."""
    return _ids(_preference_trainer("DPO", tokenizer, template, _pairs(rows)).train_dataset, _DPO_IDS)


@in_process_of(TRL)
def own_pairs_of_parquet(tokenizer: Path, template: str, folder: Path) -> list[dict[str, list[int]]]:
    """Return the ids as `DPOTrainer` prepares them from the Parquet files of a run, as its trainer line says."""
    with tempfile.TemporaryDirectory() as cache:
        return _ids(_preference_trainer("DPO", tokenizer, template, _parquet(folder, cache)).train_dataset, _DPO_IDS)


@in_process_of(TRL)
def stored_pairs(folder: Path) -> list[dict[str, list[int]]]:
    """Return the ids of the Parquet files of a run, as `datasets` reads them."""
    with tempfile.TemporaryDirectory() as cache:
        return _ids(_parquet(folder, cache), _DPO_IDS)


@in_process_of(TRL)
def own_answers(tokenizer: Path, template: str, rows: Rows) -> list[dict[str, list[int]]]:
    """Return the ids of prompts and completions as `KTOTrainer` prepares them from messages."""
    from datasets import Dataset

    answers = Dataset.from_list([{**row, "tools": json.dumps(row.get("tools"))} for row in rows])
    return _ids(_preference_trainer("KTO", tokenizer, template, answers).train_dataset, _KTO_IDS)


@in_process_of(TRL)
def own_answers_of_view(tokenizer: Path, template: str, folder: Path, split: str) -> list[dict[str, list[int]]]:
    """Return the ids and labels as `KTOTrainer` prepares them from a view, as its trainer line says."""
    from datasets import load_dataset

    with tempfile.TemporaryDirectory() as cache:
        rows = load_dataset(str(folder), split=split, cache_dir=cache)
        return _ids(_preference_trainer("KTO", tokenizer, template, rows).train_dataset, _KTO_IDS)


@in_process_of(TRL)
def pair_losses(tokenizer: Path, template: str, rows: Rows) -> list[float]:
    """Train on pairs of messages as TRL prepares them; return the loss of each step."""
    return _losses(_preference_trainer("DPO", tokenizer, template, _pairs(rows)))


@in_process_of(TRL)
def parquet_losses(tokenizer: Path, template: str, folder: Path, *, use_ids: bool) -> list[float]:
    """Train on the Parquet files of a run; return the loss of each step.

    With `use_ids`, the stored ids are trained, and otherwise the ids that TRL makes of the messages.
    """
    with tempfile.TemporaryDirectory() as cache:
        rows = _parquet(folder, cache)
        return _losses(_preference_trainer("DPO", tokenizer, template, rows, use_ids=use_ids))


_DPO_IDS = ("prompt_ids", "chosen_ids", "rejected_ids")
_KTO_IDS = ("prompt_ids", "completion_ids", "label")


def _ids(rows: Any, names: Sequence[str]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in names} for row in rows]


def _parquet(folder: Path, cache: str) -> Any:
    from datasets import load_dataset

    return load_dataset("parquet", data_dir=str(folder), cache_dir=cache, split="train")


def _pairs(rows: Rows) -> Any:
    from datasets import Dataset
    from trl import extract_prompt

    pairs = [row if "prompt" in row else extract_prompt(row) for row in rows]
    names = ("prompt", "chosen", "rejected")
    return Dataset.from_list(
        [
            {**{name: pair[name] for name in names}, "tools": json.dumps(row.get("tools"))}
            for row, pair in zip(rows, pairs, strict=True)
        ]
    )


def _preference_trainer(kind: str, tokenizer: Path, template: str, rows: Any, *, use_ids: bool = False) -> Any:
    import trl

    loaded, model = _tokenizer_and_model(tokenizer, template)
    config = getattr(trl, f"{kind}Config")(
        **_SETTINGS, max_steps=STEPS, max_length=None, per_device_train_batch_size=4, output_dir=tempfile.gettempdir()
    )
    trainer_class = getattr(trl, f"{kind}Trainer")
    if use_ids:

        class Trainer(trainer_class):  # type: ignore[misc,valid-type]
            def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
                return dataset

        trainer_class = Trainer
    # Pass a copy of the model, because TRL would otherwise load the reference model by its name, which this model does
    # not have.
    reference = copy.deepcopy(model)
    return trainer_class(model=model, ref_model=reference, args=config, train_dataset=rows, processing_class=loaded)


_SETTINGS: dict[str, Any] = {
    "use_cpu": True,
    "bf16": False,
    "logging_steps": 1,
    "learning_rate": 1e-3,
    "report_to": "none",
    "save_strategy": "no",
    "gradient_checkpointing": False,
    "train_sampling_strategy": "sequential",
    "disable_tqdm": True,
}


def _trainer(tokenizer: Path, template: str, rows: Any, **settings: Any) -> Any:
    from trl import SFTConfig, SFTTrainer

    loaded, model = _tokenizer_and_model(tokenizer, template)
    config = SFTConfig(
        **_SETTINGS, output_dir=tempfile.gettempdir(), max_steps=STEPS, **{"max_length": None, **settings}
    )
    return SFTTrainer(model=model, args=config, train_dataset=rows, processing_class=loaded)


def _tokenizer_and_model(tokenizer: Path, template: str) -> tuple[Any, Any]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    loaded = PreTrainedTokenizerFast.from_pretrained(str(tokenizer), pad_token="<|endoftext|>")
    loaded.chat_template = template
    torch.set_num_threads(1)  # on a busy core, several waiting threads are slower than a single thread
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(loaded),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=2048,
            pad_token_id=loaded.pad_token_id,
            attn_implementation="eager",
        )
    )
    return loaded, model


def _losses(trainer: Any) -> list[float]:
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
