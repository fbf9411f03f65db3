"""Every stream is cut without losing a token, and a release that no reader could load is refused with the remedy."""

import shutil
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dataprep_assets.errors import ConfigError, MissingArtifactError
from dataprep_assets.integrity.artifacts import LocalArtifacts
from dataprep_assets.pipelines.release.layout import compute_release_layout, cut_stream
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.pipelines.release.conftest import Bins


@given(
    st.integers(0, 4000),
    st.integers(1, 40),
    st.integers(1, 12),
    st.sampled_from(["drop", "pad"]),
)
def test_cuts_account_for_every_token_of_any_stream(tokens: int, length: int, sequences: int, tail: Any) -> None:
    cuts = cut_stream(tokens, sequence_length=length, tokens_per_shard=length * sequences, tail=tail)
    assert all(cut.tokens % length == 0 and cut.tokens > 0 for cut in cuts)
    assert all(cut.tokens == length * sequences for cut in cuts[:-1])
    assert [cut.index for cut in cuts] == list(range(len(cuts)))
    held = sum(cut.tokens - cut.padding + cut.dropped for cut in cuts)
    assert held == tokens or (tail == "drop" and tokens < length and not cuts)


def test_a_shard_size_of_partial_sequences_is_refused(bins: Bins) -> None:
    """Upstream saves shards that its reader cannot load (docs/formats/npy-shards.md#layout)."""
    with raises(ValidationError, 128):
        bins.declare(tokens_per_shard=150)


def test_a_split_shorter_than_a_sequence_is_refused_with_the_remedy(bins: Bins) -> None:
    declared = bins.declare(sequence_length=1 << 20, tokens_per_shard=1 << 20)
    with raises(ConfigError, 1048576, "`tail: pad`"):
        bins.layout(declared)


def test_missing_token_bins_are_named(bins: Bins, tmp_path: Path) -> None:
    own = bins.copied(tmp_path)
    declared = own.declare()
    shutil.rmtree(own.store.directory(declared.artifact("token_bins", "train-00001")))
    with raises(MissingArtifactError, "train-00001"):
        compute_release_layout(declared, LocalArtifacts(own.root))


def test_an_unknown_partition_is_refused(bins: Bins) -> None:
    with raises(ConfigError, "'train_000999'", "train_000000"):
        bins.layout(bins.declare()).find_shard("train_000999")
