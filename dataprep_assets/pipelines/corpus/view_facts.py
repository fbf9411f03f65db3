"""What the receipt of a view tells."""

from pydantic import ConfigDict

from dataprep_assets.graph.facts import Facts

__all__ = ["ViewFacts"]


class ViewFacts(Facts):
    """Facts of a view's receipt: the stream's, tokens by split, and whatever the view itself has to tell."""

    model_config = ConfigDict(extra="allow", frozen=True)

    view: str
    splits: dict[str, int]
    dtype: str
    tokenizer: str
    vocab_size: int
    eos_token_id: int
