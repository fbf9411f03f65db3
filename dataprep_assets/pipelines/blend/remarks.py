"""What is said of a blend before it is built: by `dataprep check`, and by `dataprep run` when it begins.

As for a corpus, only what costs little is looked at: a tokenizer and sources that are on this machine.
"""

from collections.abc import Iterator

from dataprep_assets.errors import ConfigError, SourceError, TokenizerError
from dataprep_assets.graph.remark import Remark
from dataprep_assets.pipelines.blend.data_blend import BlendDataset, DataBlend
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.discovery import list_meant, open_place
from dataprep_assets.pipelines.blend.fields import asked_field, fault_of_files
from dataprep_assets.pipelines.blend.sft.template_remarks import template_remarks
from dataprep_assets.pipelines.blend.stream import blend_bos
from dataprep_assets.pipelines.corpus.remarks import bundle_at_hand, separator_remarks
from dataprep_assets.planning.blend import SPLITS
from dataprep_assets.planning.manifest import natural_key
from dataprep_assets.sources.access import LocalTree

__all__ = ["blend_remarks"]


def blend_remarks(blend: BlendDeclaration) -> Iterator[Remark]:
    """Of its file, its tokenizer, the token that ends a document, and its sources."""
    try:
        data = blend.data_blend()
    except ConfigError as error:
        yield Remark(keys=("blend",), sentence=str(error))
        return
    yield from _tokenizer_remarks(blend)
    for keys, dataset in _placed(data):
        yield from _source_remarks(blend, dataset, keys)


def _tokenizer_remarks(blend: BlendDeclaration) -> Iterator[Remark]:
    if blend.tokenizer is None:
        return
    try:
        bundle = bundle_at_hand(blend.tokenizer)
    except TokenizerError as error:
        yield Remark(keys=("tokenizer",), sentence=str(error))
        return
    if bundle is None:
        return
    if blend.stage == "sft":
        yield from template_remarks(blend.sft_options, blend.tokenizer, bundle)
        return
    if blend.pretrain_options.add_eos:
        yield from separator_remarks(bundle, blend.pretrain_options.separator, ("pretrain", "separator"))
    try:
        blend_bos(blend, bundle)
    except TokenizerError as error:
        yield Remark(keys=("pretrain", "add_bos"), sentence=str(error))


def _placed(data: DataBlend) -> Iterator[tuple[tuple[str | int, ...], BlendDataset]]:
    """Each dataset that is read, with its keys in the YAML."""
    for key in ("datasets", *SPLITS):
        for index, dataset in enumerate(getattr(data, key) or ()):
            if dataset.weight > 0:
                yield ("blend", key, index), dataset


def _source_remarks(blend: BlendDeclaration, dataset: BlendDataset, keys: tuple[str | int, ...]) -> Iterator[Remark]:
    """A dataset that gives nothing; one that is not there is told, and left to the run: it may be made already."""
    try:
        place = open_place(dataset, blend.sources)
        if not isinstance(place.access, LocalTree):
            return
        _, files = list_meant(place, dataset)
    except ConfigError as error:
        yield Remark(keys=keys, sentence=str(error))
        return
    except SourceError as error:
        yield Remark(keys=("source",), sentence=str(error))
        return
    paths = [place.access.root / file.relpath for file in sorted(files, key=lambda file: natural_key(file.relpath))]
    fault = fault_of_files(blend, dataset, paths)
    if fault is not None:
        asked = asked_field(blend, dataset)
        yield Remark(keys=(*keys, asked[0]) if asked else keys, sentence=fault)
