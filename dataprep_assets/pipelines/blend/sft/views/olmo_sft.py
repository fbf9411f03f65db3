"""View for OLMo-core: flat files of token ids and label masks, one document per sequence."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dataprep_assets.bounds import load_untrusted_json
from dataprep_assets.formats.conversations import olmo_sft
from dataprep_assets.formats.conversations.labeled_tokens import LabeledTokens
from dataprep_assets.integrity.receipt import Receipt
from dataprep_assets.pipelines.blend.sft.view import (
    ConversationView,
    ConversationViewFacts,
    FlatTokens,
    PackedSplit,
)
from dataprep_assets.pipelines.blend.view import BlendViewWriter
from dataprep_assets.stores.files import canonical_json, sha256_file
from dataprep_assets.stream.tokenizer import load_declared_tokenizer
from dataprep_assets.tokenization.bundle import TokenizerBundle

_SETTINGS = "olmo_sft.json"
"""File with the settings that OLMo-core needs to read the other files, as a JSON object."""


def _list_part_paths(directory: Path, split: PackedSplit, number: int) -> list[Path]:
    return [directory / name for name in olmo_sft.build_part_names(split.split, number)]


def _list_special_ids(bundle: TokenizerBundle) -> list[int]:
    """Return the ids of the special tokens: EOS first, then padding, then all others in the tokenizer's order."""
    ids = {token.content: token.id for token in bundle.special_tokens}
    own_ids = [ids[name] for key in ("eos_token", "pad_token") if (name := bundle.find_configured(key)) in ids]
    return list(dict.fromkeys([*own_ids, *ids.values()]))


def _choose_settings(splits: Sequence[PackedSplit], view: BlendViewWriter) -> dict[str, int]:
    """Read all sequences; return the settings, including a boundary token that fits them."""
    bundle = load_declared_tokenizer(view.blend.required_tokenizer)
    ids = _list_special_ids(bundle)
    scan = olmo_sft.BoundaryScan(ids)
    for split in splits:
        for number in range(len(split.shards)):
            for block in split.open(view.store, number):
                scan.add(block)
    boundary = scan.boundary
    pad_id = {token.content: token.id for token in bundle.special_tokens}.get(bundle.find_configured("pad_token") or "")
    # Never pad with the boundary, because each padding token would then become a document. Any other id is possible,
    # because padding is not trained.
    pad = next(pad for pad in (pad_id, *ids, 0, 1) if pad not in (None, boundary.id))
    return {
        "vocab_size": bundle.vocab_size,
        "eos_token_id": boundary.id,
        "pad_token_id": int(pad or 0),
        "is_appended": int(boundary.is_appended),
        "longest": scan.longest + boundary.is_appended,
        "sequence_length": max(shard.facts.pack_size for split in splits for shard in split.shards),
    }


def _read_boundary(settings: Mapping[str, int]) -> olmo_sft.Boundary:
    return olmo_sft.Boundary(settings["eos_token_id"], bool(settings["is_appended"]))


def _write_view(splits: Sequence[PackedSplit], view: BlendViewWriter) -> None:
    settings = _choose_settings(splits, view)
    boundary, vocab_size = _read_boundary(settings), settings["vocab_size"]

    def write(split: PackedSplit, number: int) -> list[str]:
        paths = _list_part_paths(view.target, split, number)
        # Reuse the files of a killed run with the same key, because equal keys imply equal sequences and therefore
        # equal settings.
        if not all(path.exists() for path in paths):
            olmo_sft.write_part(paths, split.open(view.store, number), boundary, vocab_size)
        return [sha256_file(path) for path in paths]

    parts = [(split, number) for split in splits for number in range(len(split.shards))]
    with ThreadPoolExecutor(view.threads) as pool:
        for (split, number), digests in zip(parts, pool.map(lambda part: write(*part), parts), strict=True):
            view.digests.update(zip(olmo_sft.build_part_names(split.split, number), digests, strict=True))
    (view.target / _SETTINGS).write_bytes(canonical_json(settings) + b"\n")
    view.facts["settings"] = settings


def _read_split(directory: Path, split: PackedSplit) -> Iterator[LabeledTokens]:
    settings = load_untrusted_json((directory / _SETTINGS).read_bytes())
    for number in range(len(split.shards)):
        yield from olmo_sft.read_part(
            _list_part_paths(directory, split, number), _read_boundary(settings), settings["vocab_size"]
        )


def _find_defects(directory: Path, receipt: Receipt, splits: Sequence[PackedSplit]) -> Iterator[str]:
    settings = load_untrusted_json((directory / _SETTINGS).read_bytes())
    if settings != ConversationViewFacts.from_receipt(receipt).settings:
        yield f"{directory / _SETTINGS}: differs from the receipt"
        return
    if settings["pad_token_id"] == settings["eos_token_id"]:
        yield f"{directory / _SETTINGS}: the padding token would end documents, because it is the end-of-document token"
    names = {_SETTINGS}
    for split in splits:
        for number in range(len(split.shards)):
            names.update(olmo_sft.build_part_names(split.split, number))
            yield from olmo_sft.find_part_defects(
                _list_part_paths(directory, split, number),
                _read_boundary(settings),
                settings["vocab_size"],
                settings["longest"],
            )
    for record in receipt.files:
        if record.path not in names:
            yield f"{directory / record.path}: belongs to no split"


def _format_trainer_lines(where: str, facts: ConversationViewFacts) -> Iterator[str]:
    folder, settings = f"{where}/{next(iter(facts.rows))}", facts.settings
    ids = ", ".join(f"{name}={settings[name]}" for name in ("vocab_size", "eos_token_id", "pad_token_id"))
    files = f"paths=['{folder}/token_ids_part_*.npy'], label_mask_paths=['{folder}/labels_mask_part_*.npy']"
    yield (
        f"OLMo-core: NumpyPackedFSLDatasetConfig({files}, expand_glob=True, generate_doc_lengths=True, "
        f"sequence_length={settings['sequence_length']}, tokenizer=TokenizerConfig({ids}))"
    )
    # Set no ids, because the scripts choose the tokenizer themselves. The EOS of that tokenizer must be the boundary.
    yield f"OLMo-core's SFT scripts: --dataset_path={folder} --seq_len={settings['sequence_length']}"


VIEW = ConversationView(
    name="olmo_sft",
    description="Flat token ids and label masks, one document per sequence, for OLMo-core.",
    kinds=frozenset({"numpy"}),
    is_packed=False,
    file=lambda split, number, _: olmo_sft.build_part_names(split, number)[0],
    flat=lambda facts: FlatTokens(
        olmo_sft.choose_token_dtype(facts.settings["vocab_size"]).itemsize, facts.settings["is_appended"]
    ),
    identity=lambda shard: shard.facts.tokenizer_digest,
    write=_write_view,
    read=_read_split,
    defects=_find_defects,
    trainer=_format_trainer_lines,
)
