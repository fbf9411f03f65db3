"""All checks of a shard of token bins, and edits that they must detect."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.engine.checks.check import Finding, files_intact
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.stream.eye_test import looks_like_text
from dataprep_assets.stream.reencoding import engine_certified, round_trip
from dataprep_assets.stream.separators import separators_match_documents
from dataprep_assets.stream.token_bins_checks import ids_in_vocabulary, ledger_balances, size_matches
from dataprep_assets.stream.token_shard import ENDS, TOKENS
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets_tests.pipelines.corpus.sample_shards import Shard

SEPARATOR, PAD = 4094, 4095


def check_shard(shard: Shard, bundle: TokenizerBundle, mode: str = "text") -> dict[str, Finding]:
    """Return the finding of every check of a shard, by name."""
    directory, receipt = shard.directory, shard.receipt
    dtype = receipt.facts["dtype"]
    return {
        "files_intact": files_intact(directory, receipt),
        "ledger_balances": ledger_balances(directory, receipt),
        "size_matches": size_matches(directory, receipt),
        "ids_in_vocabulary": ids_in_vocabulary(directory, receipt, bundle.vocab_size),
        "separators_match_documents": separators_match_documents(directory, receipt),
        "engine_certified": engine_certified(receipt, bundle, mode),  # type: ignore[arg-type]
        "round_trip": round_trip(directory, receipt, shard.sources, bundle),
        "looks_like_text": looks_like_text(directory / TOKENS, directory / ENDS, dtype, bundle, seed=1),
    }


def find_failing(findings: dict[str, Finding]) -> dict[str, str]:
    """Return the messages of the failed checks, by name."""
    return {name: f.summary for name, f in findings.items() if not f.passed}


def edit(path: Path, dtype: str, change: Callable[[NDArray[Any]], NDArray[Any] | None]) -> None:
    """Rewrite a file of numbers with the change in place or the returned replacement."""
    values = np.fromfile(path, dtype)
    changed = change(values)
    (values if changed is None else changed).astype(dtype).tofile(path)


def put(offset: int, value: int) -> Callable[[NDArray[Any]], None]:
    """Return an edit that sets one number."""

    def change(values: NDArray[Any]) -> None:
        values[offset] = value

    return change


def with_ledger(receipt: Receipt, **changes: Any) -> Receipt:
    """Return the receipt with other counts."""
    assert receipt.ledger is not None
    return replace(receipt, ledger=replace(receipt.ledger, **changes))
