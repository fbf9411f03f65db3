"""What is said of a blend before it is built: by `dataprep check`, and by `dataprep run` when it begins.

As for a corpus, only what costs little is looked at: a tokenizer and sources that are on this machine.
"""

from collections.abc import Iterator

from dataprep_assets.errors import ConfigError, SourceError, TokenizerError
from dataprep_assets.graph.remark import Remark
from dataprep_assets.pipelines.blend.declaration import BlendDataset, BlendDeclaration, DataBlend
from dataprep_assets.pipelines.blend.discovery import list_meant, open_place
from dataprep_assets.pipelines.blend.rl.transform_remarks import transform_remarks
from dataprep_assets.pipelines.blend.sft.template_remarks import template_remarks
from dataprep_assets.pipelines.blend.stream import blend_dtype
from dataprep_assets.pipelines.corpus.remarks import bundle_at_hand, separator_remarks
from dataprep_assets.planning.blend import SPLITS
from dataprep_assets.sources.access import LocalTree

__all__ = ["blend_remarks"]


def blend_remarks(blend: BlendDeclaration) -> Iterator[Remark]:
    """Of its file, its tokenizer with what is done with it, its transforms, and its sources."""
    try:
        data = blend.data_blend()
    except ConfigError as error:
        yield Remark(keys=("blend",), sentence=str(error))
        return
    yield from _tokenizer_remarks(blend)
    if blend.stage == "rl":
        yield from transform_remarks(blend.rl_options)
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
        yield from template_remarks(blend.sft_options, bundle)
        return
    if blend.pretrain_options.add_eos:
        yield from separator_remarks(bundle, blend.pretrain_options.separator, ("pretrain", "separator"))
    try:
        blend_dtype(blend)
    except ConfigError as error:
        yield Remark(keys=("pretrain", "dtype"), sentence=str(error))


def _placed(data: DataBlend) -> Iterator[tuple[tuple[str | int, ...], BlendDataset]]:
    """Each dataset that is read, with its keys in the YAML."""
    for key in ("datasets", *SPLITS):
        for index, dataset in enumerate(getattr(data, key) or ()):
            if dataset.weight > 0:
                yield ("blend", key, index), dataset


def _source_remarks(blend: BlendDeclaration, dataset: BlendDataset, keys: tuple[str | int, ...]) -> Iterator[Remark]:
    """A path that cannot be one; and a dataset that is not there, which a run may not need: it may be made already."""
    try:
        place = open_place(dataset, blend.sources)
        if isinstance(place.access, LocalTree):
            list_meant(place, dataset)
    except ConfigError as error:
        yield Remark(keys=keys, sentence=str(error))
    except SourceError as error:
        yield Remark(keys=keys, sentence=str(error), of_source=True)
