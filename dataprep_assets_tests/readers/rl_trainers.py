"""RL trainers over views of RL records: verl's dataset, TRL's `GRPOTrainer`, and NeMo-Gym's validation."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dataprep_assets_tests.readers.families import NEMO_GYM, TRL, VERL
from dataprep_assets_tests.readers.process import in_process_of

_LONGEST = 4096


@in_process_of(VERL)
def verl_rows(files: Sequence[Path], tokenizer: Path, template: str) -> list[dict[str, Any]]:
    """Return the rows that verl's `RLHFDataset` and its collator give, with the ids of each prompt."""
    from omegaconf import OmegaConf
    from transformers import PreTrainedTokenizerFast
    from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

    loaded = PreTrainedTokenizerFast.from_pretrained(str(tokenizer), pad_token="<|endoftext|>")
    loaded.chat_template = template
    with tempfile.TemporaryDirectory() as cache:
        config = OmegaConf.create(
            {
                "cache_dir": cache,
                "prompt_key": "prompt",
                "max_prompt_length": _LONGEST,
                "filter_overlong_prompts": True,
                "filter_overlong_prompts_workers": 1,
                "return_raw_chat": True,
            }
        )
        dataset = RLHFDataset([str(path) for path in files], loaded, config)
        batch = collate_fn([dataset[number] for number in range(len(dataset))])
        names = ("data_source", "raw_prompt", "reward_model", "extra_info", "index", "tools_kwargs")
        rows = [{name: batch[name][number] for name in names} for number in range(len(dataset))]
    for row in rows:
        row["ids"] = _ids(loaded, row["raw_prompt"])
    return rows


@in_process_of(VERL)
def verl_score(data_source: str, answer: str, truth: Any, extra_info: dict[str, Any]) -> float:
    """Return the score of an answer by verl's own reward function of a data source."""
    from verl.utils.reward_score import default_compute_score

    return float(default_compute_score(data_source, answer, truth, extra_info))


@in_process_of(TRL)
def grpo_rewarded(folder: Path, split: str, tokenizer: Path, template: str, steps: int) -> list[dict[str, Any]]:
    """Train with `GRPOTrainer` on a view; return what the reward function got, per prompt in order, once each.

    Completions of one token, so that a step takes a second.
    """
    import torch
    from datasets import load_dataset
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    loaded = PreTrainedTokenizerFast.from_pretrained(str(tokenizer), pad_token="<|endoftext|>")
    loaded.chat_template = template
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(loaded),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=_LONGEST,
            pad_token_id=loaded.pad_token_id,
            eos_token_id=loaded.pad_token_id,
        )
    )
    rewarded: list[dict[str, Any]] = []

    def reward(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float]:
        names = ("solution", "solution_format", "data_source", "record", "tools")
        for number, prompt in enumerate(prompts):
            row = {name: columns[name][number] for name in names if name in columns}
            rewarded.append({"prompt": prompt, "ids": _ids(loaded, prompt), **row})
        return [float(len(completion[0]["content"])) for completion in completions]

    with tempfile.TemporaryDirectory() as home:
        rows = load_dataset(str(folder), cache_dir=home)[split]
        config = GRPOConfig(
            output_dir=home,
            use_cpu=True,
            bf16=False,
            max_steps=steps,
            num_generations=2,
            per_device_train_batch_size=100,
            max_completion_length=1,
            report_to="none",
            save_strategy="no",
            gradient_checkpointing=False,
            shuffle_dataset=False,
            disable_tqdm=True,
        )
        GRPOTrainer(model, reward, args=config, train_dataset=rows, processing_class=loaded).train()
    return rewarded[::2]


@in_process_of(NEMO_GYM)
def gym_rows(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """Return NeMo-Gym's reading of each valid line, and the numbers of the lines that it would skip."""
    from nemo_gym.base_resources_server import BaseRunRequest
    from nemo_gym.train_data_utils import compute_sample_metrics

    rows, offending = [], []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file):
            if compute_sample_metrics(line)[1]:
                offending.append(number)
                continue
            value = json.loads(line)
            params = BaseRunRequest.model_validate(value).responses_create_params
            rows.append({**value, "responses_create_params": params.model_dump(exclude_unset=True)})
    return rows, offending


def _ids(tokenizer: Any, messages: list[dict[str, Any]]) -> list[int]:
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
