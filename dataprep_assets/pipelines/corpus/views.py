"""Builds the views: what each trainer expects to find, over the very bytes of the combined bins.

A view links the token files (one inode, no second copy) and adds its sidecars, so it costs seconds and no
tokenization: nanoGPT reads uint16 or uint32 ids, Megatron the same bytes as uint16 or int32, datatrove and OLMo as
they are (FORMATS 0.1). The views `COPIED` are formats of their own, MDS and Parquet: they copy the ids, one pass over
the stream in blocks, by as many threads as there are workers; files that a killed run finished are kept.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep_assets.errors import ConfigError, IntegrityError
from dataprep_assets.formats import datatrove, document_ends, flat_bins, hf_parquet, mds, megatron, meta, olmo
from dataprep_assets.graph.build import Written, ensure
from dataprep_assets.integrity.artifact import Artifact
from dataprep_assets.integrity.artifacts import ArtifactStore, Joined, Part
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.corpus.declaration import CorpusDeclaration, View
from dataprep_assets.pipelines.corpus.token_bins import ENDS

VERSION, COPIED_VERSION = 1, 2  # 1 left torn files in its staging directories, which 2 would have taken for whole
COPIED: frozenset[View] = frozenset({"mds", "hf_parquet"})
"""Views that hold the ids in another layout, and not the token files."""


@dataclass(frozen=True, kw_only=True)
class CombinedSplit:
    """A split's combined bins as a view uses them."""

    split: str
    artifact: Artifact
    receipt: Receipt

    @property
    def tokens(self) -> Part:
        """The token file."""
        return Part(self.artifact, self.receipt.file(f"{self.split}.bin"))

    @property
    def token_count(self) -> int:
        """Tokens in the split."""
        return self.receipt.ledger.tokens if self.receipt.ledger else 0

    def open_tokens(self, store: ArtifactStore) -> npt.NDArray[Any]:
        """The ids, shape ``(tokens,)``, mapped; a bucket's are downloaded first."""
        name = self.tokens.record.path
        return flat_bins.open_tokens(store.local(self.artifact, [name]) / name, self.receipt.facts["dtype"])

    def open_ends(self, store: ArtifactStore) -> npt.NDArray[np.uint64]:
        """The document ends, shape ``(documents,)``, mapped."""
        return document_ends.open_ends(store.local(self.artifact, [ENDS]) / ENDS)


@dataclass(frozen=True, kw_only=True)
class _View:
    """A view under construction."""

    corpus: CorpusDeclaration
    store: ArtifactStore
    target: Path
    threads: int
    joined: list[Joined] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)

    def link(self, split: CombinedSplit, name: str) -> None:
        """The split's tokens under the trainer's name: the same bytes, which need no second reading."""
        self.joined.append(self.store.join(self.target, name, [split.tokens], verify=False))

    def local(self, split: CombinedSplit, name: str) -> Path:
        """A small file of the combined bins."""
        return self.store.local(split.artifact, [name]) / name


def _nanogpt(splits: Sequence[CombinedSplit], view: _View) -> None:
    for split in splits:
        view.link(split, f"{split.split}.bin")
    meta.write_meta(view.target, meta.read_meta(view.store.local(splits[0].artifact, ["meta.json"])))


def _megatron(splits: Sequence[CombinedSplit], view: _View) -> None:
    for split in splits:
        view.link(split, f"{split.split}.bin")
        ends = split.open_ends(view.store)
        megatron.write_idx(view.target / f"{split.split}.idx", ends, dtype=split.receipt.facts["dtype"])


def _datatrove(splits: Sequence[CombinedSplit], view: _View) -> None:
    for split in splits:
        view.link(split, f"{split.split}/{split.split}.ds")
        facts = split.receipt.facts
        tokens = view.target / split.split / f"{split.split}.ds"
        tokens.parent.mkdir(exist_ok=True)
        datatrove.write_sidecars(
            tokens,
            view.local(split, ENDS),
            tokens=split.token_count,
            dtype=facts["dtype"],
            tokenizer=facts["tokenizer"],
        )


def _olmo(splits: Sequence[CombinedSplit], view: _View) -> None:
    for split in splits:
        name = f"{split.split}.npy"
        view.link(split, name)
        facts = split.receipt.facts
        index = olmo.build_index(
            [(name, split.split, split.token_count)],
            view.corpus.olmo_sequence_length,
            facts["dtype"],
            facts["tokenizer"],
        )
        olmo.write_index(view.target / f"{split.split}_index.json", index)


def _mds(splits: Sequence[CombinedSplit], view: _View) -> None:
    length = view.corpus.mds_sequence_length
    for split in splits:
        if split.token_count < length:
            raise ConfigError(
                f"{split.split}: {split.token_count} tokens are less than one sample of {length}, and StreamingDataset "
                "opens no dataset without one. Set `mds_sequence_length`, or leave the view mds out"
            )
    left_out = {}
    for split in splits:
        tokens = split.open_tokens(view.store)
        written = mds.write_mds(view.target / split.split, tokens, length=length, threads=view.threads, resume=True)
        view.digests.update({f"{split.split}/{name}": digest for name, digest in written.digests.items()})
        left_out[split.split] = written.tokens_left_out
    view.facts.update(sequence_length=length, tokens_left_out=left_out)


def _hf_parquet(splits: Sequence[CombinedSplit], view: _View) -> None:
    written = {}
    for split in splits:
        tokens, ends = split.open_tokens(view.store), split.open_ends(view.store)
        written[split.split] = hf_parquet.write_split(
            view.target, split.split, tokens, ends, threads=view.threads, resume=True
        )
        view.digests.update(written[split.split].digests)
    about = f"Tokenizer: `{splits[0].receipt.facts['tokenizer']}`. Separators are kept, as in the token bins."
    hf_parquet.write_card(view.target, view.corpus.dataset, written, about)


_WRITERS: Mapping[View, Callable[[Sequence[CombinedSplit], _View], None]] = {
    "nanogpt": _nanogpt,
    "megatron": _megatron,
    "datatrove": _datatrove,
    "olmo": _olmo,
    "mds": _mds,
    "hf_parquet": _hf_parquet,
}
_SETTINGS: Mapping[View, str] = {"olmo": "olmo_sequence_length", "mds": "mds_sequence_length"}
"""What of the declaration decides a view's bytes."""


def artifact_name(view: View) -> str:
    """The artifact, and asset, of a view: `nanogpt_bins`."""
    return f"{view}_bins"


def combined_splits(corpus: CorpusDeclaration, store: ArtifactStore) -> list[CombinedSplit]:
    """All splits' combined bins; MissingArtifactError naming the first that is not there."""
    artifacts = [corpus.artifact("combined_bins", split) for split in corpus.splits]
    found = [
        CombinedSplit(split=split, artifact=artifact, receipt=store.require(artifact))
        for split, artifact in zip(corpus.splits, artifacts, strict=True)
    ]
    if len({(s.receipt.facts["dtype"], s.receipt.facts["tokenizer_sha256"]) for s in found}) > 1:
        raise IntegrityError(
            f"{corpus.dataset}: its splits differ in tokenizer or dtype. Materialize combined_bins again"
        )
    return found


def view_key(corpus: CorpusDeclaration, view: View, splits: Sequence[CombinedSplit]) -> str:
    """The key of a view of these combined bins."""
    settings = getattr(corpus, _SETTINGS[view]) if view in _SETTINGS else None
    version = COPIED_VERSION if view in COPIED else VERSION
    return digest_value(["view", version, view, settings, [[s.split, s.receipt.content] for s in splits]])


def build_view(
    corpus: CorpusDeclaration, store: ArtifactStore, view: View, *, threads: int = 1
) -> tuple[Receipt, bool]:
    """Link the combined bins of every split into a view's layout and write its sidecars, or copy their ids into it.

    Returns the receipt, and whether the view that was there is current.
    """
    splits = combined_splits(corpus, store)

    def write(staged: Path) -> Written:
        made = _View(corpus=corpus, store=store, target=staged, threads=threads)
        _WRITERS[view](splits, made)
        return Written(
            inputs={s.split: s.receipt.content for s in splits},
            facts={
                "view": view,
                "splits": {s.split: s.token_count for s in splits},
                **_stream_facts(splits),
                **made.facts,
            },
            ledger=Ledger.total(s.receipt.ledger or Ledger() for s in splits),
            digests=made.digests,
            joined=tuple(made.joined),
        )

    artifact = corpus.artifact(artifact_name(view))
    return ensure(artifact, store, view_key(corpus, view, splits), write, corpus.verify, resumes=view in COPIED)


def _stream_facts(splits: Sequence[CombinedSplit]) -> dict[str, object]:
    return {name: splits[0].receipt.facts[name] for name in ("dtype", "tokenizer", "vocab_size", "eos_token_id")}
