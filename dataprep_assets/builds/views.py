"""Builds the views: what each trainer expects to find, over the very bytes of the combined bins.

A view links the token files (one inode, no second copy) and adds its sidecars, so it costs seconds and no
tokenization: nanoGPT reads uint16 or uint32 ids, Megatron the same bytes as uint16 or int32, datatrove and OLMo as
they are (FORMATS 0.1).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dataprep_assets.builds.artifact import Written, have
from dataprep_assets.builds.corpus import CorpusDeclaration, View
from dataprep_assets.builds.token_bins import ENDS
from dataprep_assets.errors import IntegrityError
from dataprep_assets.formats import datatrove, document_ends, flat_bins, megatron, meta, olmo
from dataprep_assets.integrity.digest import digest_value
from dataprep_assets.integrity.ledger import Ledger
from dataprep_assets.integrity.receipt import Receipt, require_receipt

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class CombinedSplit:
    """A split's combined bins as a view uses them."""

    split: str
    tokens: Path
    ends: Path
    receipt: Receipt

    @property
    def token_count(self) -> int:
        """Tokens in the split."""
        return self.receipt.ledger.tokens if self.receipt.ledger else 0


def _nanogpt(splits: Sequence[CombinedSplit], target: Path, corpus: CorpusDeclaration) -> None:
    for split in splits:
        flat_bins.concatenate([split.tokens], target / f"{split.split}.bin")
    values = meta.read_meta(splits[0].tokens.parent)
    meta.write_meta(target, values)


def _megatron(splits: Sequence[CombinedSplit], target: Path, corpus: CorpusDeclaration) -> None:
    for split in splits:
        flat_bins.concatenate([split.tokens], target / f"{split.split}.bin")
        megatron.write_idx(
            target / f"{split.split}.idx", document_ends.open_ends(split.ends), dtype=split.receipt.facts["dtype"]
        )


def _datatrove(splits: Sequence[CombinedSplit], target: Path, corpus: CorpusDeclaration) -> None:
    for split in splits:
        tokens = target / split.split / f"{split.split}.ds"
        tokens.parent.mkdir()
        flat_bins.concatenate([split.tokens], tokens)
        facts = split.receipt.facts
        datatrove.write_sidecars(tokens, split.ends, dtype=facts["dtype"], tokenizer=facts["tokenizer"])


def _olmo(splits: Sequence[CombinedSplit], target: Path, corpus: CorpusDeclaration) -> None:
    for split in splits:
        name = f"{split.split}.npy"
        flat_bins.concatenate([split.tokens], target / name)
        facts = split.receipt.facts
        index = olmo.build_index(
            [(name, split.split, split.token_count)], corpus.olmo_sequence_length, facts["dtype"], facts["tokenizer"]
        )
        olmo.write_index(target / f"{split.split}_index.json", index)


_WRITERS: Mapping[View, Callable[[Sequence[CombinedSplit], Path, CorpusDeclaration], None]] = {
    "nanogpt": _nanogpt,
    "megatron": _megatron,
    "datatrove": _datatrove,
    "olmo": _olmo,
}


def artifact_name(view: View) -> str:
    """The artifact, and asset, of a view: `nanogpt_bins`."""
    return f"{view}_bins"


def combined_splits(corpus: CorpusDeclaration, root: Path) -> list[CombinedSplit]:
    """All splits' combined bins; MissingArtifactError naming the first that is not there."""
    found = []
    for split in corpus.splits:
        directory = corpus.artifact("combined_bins", split).directory(root)
        found.append(
            CombinedSplit(
                split=split,
                tokens=directory / f"{split}.bin",
                ends=directory / ENDS,
                receipt=require_receipt(directory),
            )
        )
    if len({(s.receipt.facts["dtype"], s.receipt.facts["tokenizer_sha256"]) for s in found}) > 1:
        raise IntegrityError(
            f"{corpus.dataset}: its splits differ in tokenizer or dtype. Materialize combined_bins again"
        )
    return found


def view_key(corpus: CorpusDeclaration, view: View, splits: Sequence[CombinedSplit]) -> str:
    """The key of a view of these combined bins."""
    settings = corpus.olmo_sequence_length if view == "olmo" else None
    return digest_value(["view", VERSION, view, settings, [[s.split, s.receipt.content] for s in splits]])


def build_view(corpus: CorpusDeclaration, root: Path, view: View) -> tuple[Receipt, bool]:
    """Link the combined bins of every split into a view's layout and write its sidecars.

    Returns the receipt, and whether the view that was there is current.
    """
    splits = combined_splits(corpus, root)

    def write(staged: Path) -> Written:
        _WRITERS[view](splits, staged, corpus)
        return Written(
            inputs={s.split: s.receipt.content for s in splits},
            facts={"view": view, "splits": {s.split: s.token_count for s in splits}, **_stream_facts(splits)},
            ledger=Ledger.total(s.receipt.ledger or Ledger() for s in splits),
            digests=_digests_of_links(staged, splits),
        )

    artifact = corpus.artifact(artifact_name(view))
    return have(artifact, root, view_key(corpus, view, splits), write, corpus.verify)


def _stream_facts(splits: Sequence[CombinedSplit]) -> dict[str, object]:
    return {name: splits[0].receipt.facts[name] for name in ("dtype", "tokenizer", "vocab_size", "eos_token_id")}


def _digests_of_links(staged: Path, splits: Sequence[CombinedSplit]) -> dict[str, str]:
    """Digests of staged files that are links to a token file: the same inode needs no second read."""
    inodes = {s.tokens.stat().st_ino: s.receipt.file(s.tokens.name).sha256 for s in splits}
    found = {}
    for path in staged.rglob("*"):
        if path.is_file() and (digest := inodes.get(path.stat().st_ino)):
            found[path.relative_to(staged).as_posix()] = digest
    return found
