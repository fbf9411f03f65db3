"""Remarks on a blend before it is built, for `dataprep check` and the beginning of `dataprep run`.

Only inputs that are cheap to read are examined: the JSON file, a local tokenizer, the template, the transforms, and the
listing and first rows of local sources.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from dataprep_assets.curation.declaration import find_tagger_remarks
from dataprep_assets.curation.rewriters.declaration import find_rewriter_remarks
from dataprep_assets.engine.yaml.remark import Remark, format_examples, parse_error_keys
from dataprep_assets.errors import (
    ConfigError,
    CorruptSourceError,
    DataprepError,
    OutOfMemoryError,
    SourceError,
    TokenizerError,
    count_of,
    os_error_reason,
)
from dataprep_assets.fields import value_at
from dataprep_assets.pipelines.blend.data_blend import BlendDataset, DataBlend
from dataprep_assets.pipelines.blend.declaration import BlendDeclaration
from dataprep_assets.pipelines.blend.plan.declared_fields import LocalDataset, extend_keys, find_absent_field_remarks
from dataprep_assets.pipelines.blend.plan.discovery import list_dataset_files, list_left_out_data, open_place
from dataprep_assets.pipelines.blend.plan.fields import find_fault, find_field_option
from dataprep_assets.pipelines.blend.rl.transforms import compose_steps, list_declared_sources
from dataprep_assets.pipelines.blend.screening.row_screen import load_row_screen
from dataprep_assets.pipelines.blend.sft.declared_template import has_local_template, load_declared_template
from dataprep_assets.pipelines.blend.sft.row_remarks import find_rows_remark
from dataprep_assets.pipelines.blend.sft.template_remarks import (
    find_lost_rows_remark,
    find_template_remarks,
    load_template_text,
)
from dataprep_assets.pipelines.blend.stream import choose_dtype, find_bos
from dataprep_assets.planning.blend import SPLITS
from dataprep_assets.planning.manifest import file_format, natural_key
from dataprep_assets.sources.access import LocalTree
from dataprep_assets.sources.readers.csv_rows import describe_merged_rows
from dataprep_assets.sources.readers.first_rows import read_first_rows, sample_files, summarize_first_rows
from dataprep_assets.sources.readers.rows import count_rows
from dataprep_assets.sources.upstream import UpstreamPartitions
from dataprep_assets.stream.declaration import TokenizerDeclaration
from dataprep_assets.stream.token_stream import SourcePart, explain_refusal
from dataprep_assets.stream.tokenizer import find_local_tokenizer, find_rendered_remarks, find_separator_remarks
from dataprep_assets.tokenization.bundle import TokenizerBundle

_FOOTERS = 256
"""Maximum number of Parquet files to open per dataset."""
_FEW = 100
"""Number of rows per file whose fields are compared with the fields of the other files."""


def find_blend_remarks(blend: BlendDeclaration) -> Iterator[Remark]:
    """Yield remarks on the blend's file, tokenizer, template, transforms, taggers, benchmarks and datasets."""
    try:
        data = blend.load_data_blend()
    except ConfigError as error:
        yield Remark(keys=("blend",), sentence=str(error))
        return
    if blend.publish is not None:
        sentence = (
            "publish: the run's files, such as plan.json, contain paths of this machine. Publish only to readers who "
            "may see them"
        )
        yield Remark(keys=("publish",), sentence=sentence, hint=True)
    if blend.tokenizer is not None:
        yield from _find_tokenizer_remarks(blend, blend.tokenizer)
    if blend.stage == "rl":
        yield from _find_transform_remarks(blend)
    yield from find_tagger_remarks(blend.taggers)
    if (rewriting := blend.rewriting) is not None:
        yield from find_rewriter_remarks(rewriting)
    if (screen := load_row_screen(blend)) is not None:
        from dataprep_assets.curation.benchmarks.coverage import find_benchmark_remarks

        yield from find_benchmark_remarks(screen.tagger, screen.declaration)
    local_datasets, is_whole = list[LocalDataset](), True
    for own_keys, dataset in list_datasets_with_keys(data):
        # For a blend in a separate file, point to the key `blend`, because no other key of the YAML is about the
        # datasets.
        keys = own_keys if isinstance(blend.blend, DataBlend) else ("blend",)
        files = list_local_files(blend, dataset, extend_keys(keys, "path"))
        if isinstance(files, Remark):
            yield files
        elif files is not None:
            yield from _find_dataset_remarks(blend, dataset, keys, files)
            local_datasets.append(LocalDataset(keys=keys, split=str(own_keys[1]), dataset=dataset, files=files))
        is_whole &= isinstance(files, list)
        yield from _find_ineffective_keys(blend, dataset, keys)
    yield from _find_shared_files(blend, local_datasets)
    yield from find_absent_field_remarks(blend, local_datasets, is_whole=is_whole)


def _find_tokenizer_remarks(blend: BlendDeclaration, tokenizer: TokenizerDeclaration) -> Iterator[Remark]:
    try:
        reading = blend.pretrain_options.special_tokens if blend.stage == "pretrain" else "text"
        bundle = find_local_tokenizer(tokenizer, reading)
    except TokenizerError as error:
        yield Remark(keys=("tokenizer",), sentence=str(error))
        return
    if blend.stage in ("sft", "pairs"):
        if bundle is not None:
            yield from find_template_remarks(blend.chat_options, tokenizer, blend.stage)
        else:
            yield from _find_template_remarks_without_tokenizer(blend, tokenizer)
    elif bundle is not None:
        yield from _find_stream_remarks(blend, bundle)


def _find_template_remarks_without_tokenizer(
    blend: BlendDeclaration, tokenizer: TokenizerDeclaration
) -> Iterator[Remark]:
    """Yield remarks on a template whose tokenizer is not on this machine."""
    try:
        if has_local_template(blend.chat_options, tokenizer):
            load_declared_template(blend.chat_options, tokenizer)
    except ConfigError as error:
        yield Remark(keys=(blend.stage, "chat_template"), sentence=str(error))


def _find_stream_remarks(blend: BlendDeclaration, bundle: TokenizerBundle) -> Iterator[Remark]:
    """Yield remarks on pretraining settings: the tokens around a document, and the dtype of the ids."""
    if blend.pretrain_options.add_eos:
        options = blend.pretrain_options
        yield from find_separator_remarks(bundle, options.separator, options.special_tokens, ("pretrain", "separator"))
    try:
        find_bos(blend, bundle)
    except TokenizerError as error:
        yield Remark(keys=("pretrain", "add_bos"), sentence=str(error))
    try:
        choose_dtype(blend)
    except ConfigError as error:
        yield Remark(keys=("pretrain", "dtype"), sentence=str(error))


def _find_transform_remarks(blend: BlendDeclaration) -> Iterator[Remark]:
    transforms, keys = blend.rl_options.transforms, ("rl", "transforms")
    try:
        sources = list_declared_sources(transforms)
        compose_steps(transforms)
    except ConfigError as error:
        yield Remark(keys=keys, sentence=str(error))
        return
    for name, source in sources.items():
        # Skip validation, because the names of placeholder sources may be invalid as dataset names.
        dataset = BlendDataset.model_construct(name=name, path=source.path, split=source.split, subset=None)
        files = list_local_files(blend, dataset, keys)
        if isinstance(files, Remark):
            yield files


def list_datasets_with_keys(data: DataBlend) -> Iterator[tuple[tuple[str | int, ...], BlendDataset]]:
    """Yield each dataset with a positive weight, with the path of its YAML key."""
    for key in ("datasets", *SPLITS):
        for index, dataset in enumerate(getattr(data, key) or ()):
            if dataset.weight > 0:
                yield ("blend", key, index), dataset


def _find_dataset_remarks(
    blend: BlendDeclaration, dataset: BlendDataset, keys: tuple[str | int, ...], files: Sequence[Path]
) -> Iterator[Remark]:
    """Yield remarks on a local dataset's excluded or damaged files, and on its first rows."""
    refusals = (_find_refusal(blend, dataset, path) for path in sample_files(files))
    yield from _find_excluded_file_remarks(blend, dataset, extend_keys(keys, "path"))
    damaged = _find_damaged_footer(files) or next(filter(None, refusals), None)
    if damaged is not None:
        yield Remark(keys=extend_keys(keys, "path"), sentence=damaged, of_source=True)
    for path in sample_files([path for path in files if path.suffix == ".csv"]):
        if sentence := describe_merged_rows(
            open_local_part(blend, dataset, path).read_rows(), "a file" if blend.sensitive else path.name
        ):
            yield Remark(keys=extend_keys(keys, "csv_quotes"), sentence=sentence, hint=True)
            break
    if (fault := find_fault(blend, dataset, files)) is not None:
        field_option = find_field_option(blend, dataset)
        yield Remark(keys=extend_keys(keys, field_option[0]) if field_option else keys, sentence=fault)
    elif blend.stage == "pretrain":
        yield from _find_rendered_text_remarks(blend, dataset, files)
    elif blend.stage in ("sft", "pairs"):
        template = load_template_text(blend)
        remarks = (
            find_rows_remark(blend, dataset, files, extend_keys(keys, "path"), template),
            find_lost_rows_remark(blend, dataset, files),
        )
        yield from filter(None, remarks)
    elif blend.stage == "rl":
        yield from _find_stray_remarks(blend, dataset, files, extend_keys(keys, "path"))


def _find_ineffective_keys(
    blend: BlendDeclaration, dataset: BlendDataset, keys: tuple[str | int, ...]
) -> Iterator[Remark]:
    """Yield a remark on each key of a dataset that only other stages read, if it differs from its default."""
    chat_keys = ("messages_field", "tools_field", "format")
    own_keys: Mapping[str, Sequence[str]] = {"pretrain": ("text_field",), "sft": chat_keys, "pairs": chat_keys}
    for key in ("text_field", *chat_keys):
        if key in own_keys.get(blend.stage, ()) or getattr(dataset, key) == BlendDataset.model_fields[key].default:
            continue
        yield Remark(
            keys=extend_keys(keys, key),
            sentence=f"dataset {dataset.name}: `{key}` has no effect with `stage: {blend.stage}`. Remove it",
            # Blends of other stages may read the same file.
            hint=keys == ("blend",),
        )


def _find_shared_files(blend: BlendDeclaration, datasets: Sequence[LocalDataset]) -> Iterator[Remark]:
    """Yield a remark on each dataset that reads files of an earlier one: a mistake for two splits, else a hint."""
    first_readers: dict[tuple[int, int], dict[str, int]] = {}
    shared: dict[tuple[int, int], list[str]] = {}
    for number, local in enumerate(datasets):
        for path in local.files:
            with suppress(OSError):  # a different remark reports the file
                status = path.stat()
                if not status.st_size:  # skip empty files, which share no rows
                    continue
                readers = first_readers.setdefault((status.st_dev, status.st_ino), {})
                for reader in readers.values():
                    if reader != number:
                        shared.setdefault((reader, number), []).append(path.name)
                readers.setdefault(local.split, number)
    for (reader, number), names in shared.items():
        earlier_dataset, local = datasets[reader], datasets[number]
        is_leak = earlier_dataset.split != local.split and "train" in (earlier_dataset.split, local.split)
        example = "" if blend.sensitive else format_examples(names, 1)
        sentence = (
            f"{local.dataset.name}.path: {count_of(len(names), 'file is', 'files are')} also read by the dataset "
            f"{earlier_dataset.dataset.name} of `{earlier_dataset.split}`{example}"
        )
        yield Remark(
            keys=local.find_keys("path"),
            sentence=f"{sentence}. Give each split its own files"
            if is_leak
            else f"{sentence}, so the rows are read twice. Exclude them from one of the two, if this is not intended",
            # A sample may contain different shards of the same file.
            hint=not is_leak or blend.sample is not None,
        )


def _find_excluded_file_remarks(
    blend: BlendDeclaration, dataset: BlendDataset, keys: tuple[str | int, ...]
) -> Iterator[Remark]:
    """Yield remarks on data files that are left out, with the reason."""
    for reason, names in list_left_out_data(open_place(dataset, blend.sources), dataset).items():
        example = "" if blend.sensitive else format_examples(names, 1)
        sentence = f"{dataset.name}.path: {count_of(len(names), 'file')} excluded{example}: {reason}"
        yield Remark(keys=keys, sentence=sentence, hint=True)


def _find_stray_remarks(
    blend: BlendDeclaration, dataset: BlendDataset, paths: Sequence[Path], keys: tuple[str | int, ...]
) -> Iterator[Remark]:
    """Yield a remark on a file whose records share no field with the other files. RL accepts any JSON object."""
    fields_of_files = list[tuple[int, Path, frozenset[str]]]()
    with suppress(DataprepError, OSError):  # a different remark reports damaged files
        for path in sample_files(paths):
            rows = list(itertools.islice(read_first_rows([path], dataset.reading), _FEW))
            fields_of_files.append((len(rows), path, frozenset(itertools.chain.from_iterable(rows))))
    # Begin with the file with the fewest rows, which is probably the stray file: a file that has all records under one
    # key is read as a single row.
    for _, path, own_fields in sorted(fields_of_files):
        other_fields = frozenset().union(*(fields for _, other_path, fields in fields_of_files if other_path != path))
        if own_fields and other_fields and not own_fields & other_fields:
            field_names = "" if blend.sensitive else f" (`{min(own_fields)}`, not `{min(other_fields)}`)"
            sentence = (
                f"{open_local_part(blend, dataset, path).label}: the first rows have no field in common with the other "
                f"files{field_names}"
            )
            yield Remark(
                keys=keys,
                sentence=f"{dataset.name}.path: {sentence}. Exclude the file if it contains no records",
                hint=True,
            )
            return


def _find_rendered_text_remarks(
    blend: BlendDeclaration, dataset: BlendDataset, paths: Sequence[Path]
) -> Iterator[Remark]:
    """Yield remarks on texts that a chat template seems to have rendered already."""
    reading = blend.pretrain_options.special_tokens
    # Suppress errors about an unusable tokenizer or file, which other remarks report.
    with suppress(DataprepError, OSError):
        if (bundle := find_local_tokenizer(blend.required_tokenizer, reading)) is not None:
            rows = read_first_rows(paths, dataset.reading)
            texts = [text for row in rows if isinstance(text := value_at(row, dataset.text_field), str)]
            yield from find_rendered_remarks(texts, bundle, reading, ("pretrain", "special_tokens"))


def _find_damaged_footer(paths: Sequence[Path]) -> str | None:
    """Return the error of the first Parquet file with an unreadable footer; None if all footers are readable."""
    for path in itertools.islice((path for path in paths if path.suffix == ".parquet"), _FOOTERS):
        try:
            count_rows(path, format="parquet", compression=None, label=path.name)
        except CorruptSourceError as error:
            return str(error)
    return None


def open_local_part(blend: BlendDeclaration, dataset: BlendDataset, path: Path) -> SourcePart:
    """Return a local file of a dataset, ready to read some of its rows; it has no digest."""
    kind, compression = file_format(path.name)
    return SourcePart(
        label="a file" if blend.sensitive else path.name,
        path=path,
        format=kind,
        compression=compression,
        sha256="",
        ordinal=0,
        max_record_bytes=blend.bad_records.max_record_bytes,
        reading=dataset.reading,
    )


def _find_refusal(blend: BlendDeclaration, dataset: BlendDataset, path: Path) -> str | None:
    """Return the reason why a run would reject a file after its first rows; None if it would not reject the file."""
    part = open_local_part(blend, dataset, path)
    try:
        top_rows = summarize_first_rows((len(block.rows), block.bad) for block in part.read_rows())
    except (SourceError, OutOfMemoryError) as error:
        return str(error)
    except OSError as error:
        return f"{part.label}: {os_error_reason(error)}"
    return explain_refusal(part, top_rows, policy=blend.bad_records.policy) or None


def list_local_files(
    blend: BlendDeclaration, dataset: BlendDataset, keys: tuple[str | int, ...]
) -> list[Path] | Remark | None:
    """Return the paths of a dataset's files, in order; None if they are not local.

    If the path or the files are invalid, a remark at `keys` is returned instead.
    """
    try:
        source = open_place(dataset, blend.sources)
        if not isinstance(access := source.access, LocalTree | UpstreamPartitions) or access.mirrored:
            return None
        _, files = list_dataset_files(source, dataset)
    except SourceError as error:
        return Remark(keys=keys, sentence=str(error), of_source=True)
    except DataprepError as error:
        error_keys = parse_error_keys(error)
        is_declared = error_keys[0] == "sources" and bool(blend.sources.model_fields_set)
        return Remark(keys=error_keys if is_declared else keys, sentence=str(error))
    return [access.path(file) for file in sorted(files, key=lambda file: natural_key(file.relpath))]
