"""Settings of Nemotron's data_prep recipes that have other names here, or no equivalent."""

from collections.abc import Mapping

_RATIOS = (
    "`held_out: {valid: N, test: N}` in shards of each dataset, the rest is trained on: with `num_shards: 100`, a "
    "ratio of 0.01 is 1"
)
_IN_A_BLOCK = {
    "pretrain": ("add_bos", "add_eos", "min_doc_chars"),
    "sft": (
        "pack_size",
        "algorithm",
        "seed",
        "chat_template",
        "messages_field",
        "tools_field",
        "used_in_filter",
        "used_in_field",
    ),
}
ELSEWHERE: Mapping[str, str] = {
    "blend_path": "`blend:` with the path of the JSON file",
    "output_dir": "`storage:`, below which everything is in a folder named after the dataset",
    "train_ratio": _RATIOS,
    "valid_ratio": _RATIOS,
    "test_ratio": _RATIOS,
    "valid_shards": "`held_out: {valid: N}`, of each dataset",
    "test_shards": "`held_out: {test: N}`, of each dataset",
    "val_holdout": "`held_out: {valid: N}`, in shards of each dataset and not in rows of the end",
    "model": "`tokenizer: {repo: organization/model, revision: <commit>}`",
    "text_field": "`text_field` of each dataset of the blend",
    "max_doc_tokens": "`max_doc_tokens` in the block `pretrain` or `sft`",
    "parquet_row_group_size": "`sft: {row_group_size: …}`",
    "parquet_compression": "`sft: {compression: …}`",
    "num_shards_per_split": "`num_shards`, of each dataset",
    "resolve_hf_placeholders": "`rl: {transforms: [resolve_hf_placeholders: {sources: …}]}`",
    "sample_seed": "`sample: {count: …, seed: …}`",
    "config_name": "not needed: the dataset has a name",
    "tokenization": "`workers:`, how many processes",
    "download": "not needed: what fails is fetched again",
    "plan": "not needed: the plan is made by itself",
    "observability": "`wandb: {project: …}`, or not needed",
    **{key: f"in the block `{block}`" for block, keys in _IN_A_BLOCK.items() for key in keys},
}
"""Key in Nemotron → the equivalent here."""
