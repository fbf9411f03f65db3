"""Tests of the options with which Megatron finds a schedule's index files."""

import shlex

import pytest

from dataprep_assets.formats.megatron_indices import TrainBlend


@pytest.mark.parametrize(
    ("prefixes", "paths"),
    [
        (("/my data/books/train",), ["/my data/books/train"]),
        (("/my data/books/train", "/web/train"), ["1", "/my data/books/train", "2", "/web/train"]),
    ],
)
def test_paths_with_blanks_are_quoted_for_a_shell(prefixes: tuple[str, ...], paths: list[str]) -> None:
    weights = (1, 2)[: len(prefixes)]
    blend = TrainBlend(
        prefixes=prefixes, weights=weights, samples=10, sequence_length=8, random_seed=1, tokenizer={"class": "tests"}
    )
    words = shlex.split(blend.arguments)
    assert words[1 : words.index("--train-samples")] == paths
    assert f'"dataset_path": "{prefixes[0]}"' in blend.build_description(0)
