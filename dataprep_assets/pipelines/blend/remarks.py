"""What is said of a blend before it is built: by `dataprep check`, and by `dataprep run` when it begins.

Only what costs little is looked at: its JSON, a tokenizer that is on this machine, its template, its transforms, and
the listing of what is in folders.
"""

from collections.abc import Iterator, Sequence

from dataprep_assets.errors import ConfigError, DataprepError, SourceError, TokenizerError
from dataprep_assets.graph.remark import Remark
from dataprep_assets.pipelines.blend.declaration import BlendDataset, BlendDeclaration, DataBlend
from dataprep_assets.pipelines.blend.discovery import list_meant, open_place
from dataprep_assets.pipelines.blend.rl.transforms import compose, declared_sources
from dataprep_assets.pipelines.blend.stream import blend_dtype
from dataprep_assets.pipelines.corpus.remarks import bundle_at_hand, separator_remarks
from dataprep_assets.sources.access import LocalTree
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.chat.rendering import stop_token
from dataprep_assets.tokenization.chat.template import ChatTemplate, compile_template, template_variables

__all__ = ["blend_remarks"]


def blend_remarks(blend: BlendDeclaration) -> Iterator[Remark]:
    """Of its tokenizer and what is done with it, of its transforms, and of its datasets."""
    if blend.tokenizer is not None:
        try:
            bundle = bundle_at_hand(blend.tokenizer)
        except TokenizerError as error:
            yield Remark(keys=("tokenizer",), sentence=str(error))
            bundle = None
        if blend.stage == "sft":
            yield from _template_remarks(blend, bundle)
        elif bundle is not None:
            yield from _stream_remarks(blend, bundle)
    if blend.stage == "rl":
        yield from _transform_remarks(blend)
    try:
        data = blend.data_blend()
    except ConfigError as error:
        yield Remark(keys=("blend",), sentence=str(error))
        return
    for key in ("datasets", "train", "valid", "test"):
        for number, dataset in enumerate(getattr(data, key) or ()):
            if dataset.weight > 0:
                inside = (key, number, "path") if isinstance(blend.blend, DataBlend) else ()
                yield from _dataset_remarks(blend, dataset, ("blend", *inside))


def _stream_remarks(blend: BlendDeclaration, bundle: TokenizerBundle) -> Iterator[Remark]:
    """Of pretraining: the tokens around a document, and the width of the ids."""
    options = blend.pretrain_options
    if options.add_eos:
        yield from separator_remarks(bundle, options.separator, ("pretrain", "separator"))
    if options.add_bos:
        try:
            bundle.bos("auto")
        except TokenizerError as error:
            yield Remark(keys=("pretrain", "add_bos"), sentence=str(error))
    try:
        blend_dtype(blend)
    except ConfigError as error:
        yield Remark(keys=("pretrain", "dtype"), sentence=str(error))


def _template_remarks(blend: BlendDeclaration, bundle: TokenizerBundle | None) -> Iterator[Remark]:
    """Of chat data: the template by itself, and with the tokenizer where that is at hand."""
    options = blend.sft_options
    try:
        template = ChatTemplate.load(options.chat_template)
        renderer = compile_template(template, template_variables(bundle) if bundle else None, options.template_date)
    except ConfigError as error:
        yield Remark(keys=("sft", "chat_template"), sentence=str(error))
        return
    if bundle is not None:
        try:
            stop_token(renderer, bundle.special_tokens, options.stop)
        except ConfigError as error:
            keys = ("sft", "chat_template") if options.stop == "auto" else ("sft", "stop")
            yield Remark(keys=keys, sentence=str(error))


def _transform_remarks(blend: BlendDeclaration) -> Iterator[Remark]:
    transforms, keys = blend.rl_options.transforms, ("rl", "transforms")
    try:
        sources = declared_sources(transforms)
        compose(transforms)
    except ConfigError as error:
        yield Remark(keys=keys, sentence=str(error))
        return
    for name, source in sources.items():
        dataset = BlendDataset.model_construct(name=name, path=source.path, split=source.split, subset=None)
        yield from _dataset_remarks(blend, dataset, keys)


def _dataset_remarks(blend: BlendDeclaration, dataset: BlendDataset, keys: Sequence[str | int]) -> Iterator[Remark]:
    """Of a dataset's path, and of the files there where it is a folder: of `keys`, where the declaration has it."""
    try:
        place = open_place(dataset, blend.sources)
        if isinstance(place.access, LocalTree):
            list_meant(place, dataset)
    except SourceError as error:
        yield Remark(keys=tuple(keys), sentence=str(error), of_source=True)
    except DataprepError as error:
        yield Remark(keys=tuple(keys), sentence=str(error))
