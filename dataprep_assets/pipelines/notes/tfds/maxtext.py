"""MaxText options for training on a directory of packed rows, with their explanation."""

from collections.abc import Sequence
from typing import Literal

from dataprep_assets.engine.checks.check import join_first
from dataprep_assets.integrity.artifacts import Artifact, ArtifactStore
from dataprep_assets.packing.stock_maxtext import Pipeline, StockRule
from dataprep_assets.pipelines.notes.cohorts.packed_files import PACKED_COHORTS, build_split_path
from dataprep_assets.pipelines.notes.declaration import TOKENS, FileFormat, NotesDeclaration
from dataprep_assets.pipelines.notes.replay.replay_declaration import MixtureDeclaration
from dataprep_assets.pipelines.notes.tfds.linked_directory import DIRECTORIES, DirectoryFacts, convert_version
from dataprep_assets.pipelines.notes.tfds.virtual_mixture import BUILDER_DIRECTORIES, GRAIN_MIXTURE, is_for_hf
from dataprep_assets.tokenization.bundle import TokenizerBundle

_LOADER = (
    "MaxText, after dataprep_assets.serving.sampler.maxtext.install(); without it, MaxText treats a row as one "
    "document and trains across notes:"
)
# Set `packing`, because without it some attention kernels (`layers/attention_op.py`) ignore segments.
_PREPACKED = {"packing": "True"}
# This dictionary maps the formats to the names that MaxText's `grain_file_type` accepts.
_GRAIN_TYPES: dict[FileFormat, str] = {"tfrecord": "tfrecord", "array_record": "arrayrecord"}


def build_stock_rule(notes: NotesDeclaration, bundle: TokenizerBundle) -> StockRule:
    """Return the rule by which the declared pipeline of unmodified MaxText pads and masks rows of ``notes``.

    ``bundle`` is the declared tokenizer.
    """

    def find_id(name: str) -> int | None:
        content = bundle.find_configured(name)
        return None if content is None else bundle.find_token(content, key=name).id

    return StockRule(
        pipeline=notes.pipeline,
        row_length=notes.row_length,
        pad_id=find_id("pad_token"),
        unk_id=find_id("unk_token"),
        bos_id=find_id("bos_token"),
    )


def build_maxtext_settings(
    notes: NotesDeclaration, store: ArtifactStore, format: FileFormat = "tfrecord"
) -> dict[str, str]:
    """Return the MaxText options for training on ``notes`` in ``store``: name → value.

    Prepacked rows have the options of the loader in `serving.sampler.maxtext`, for the directory in ``format``.
    Unpacked rows have the options of the declared pipeline of unmodified MaxText. `hf` reads the JSON Lines files of
    the packed cohorts. MaxText trains on the first split. If there is a second split and `eval_interval` is set, it
    evaluates on that split.
    """
    splits = tuple(notes.splits)
    length = {"max_target_length": str(notes.row_length)}
    if notes.layout == "unpacked" and notes.pipeline == "hf":
        location = store.location(Artifact(dataset=notes.dataset, name=PACKED_COHORTS))
        # The hyphen excludes `quarantine.jsonl`, the only other file of a month with this suffix.
        files = [f"{location}/*/{build_split_path(splits, split, '*-*.jsonl')}" for split in splits]
        # Use `train` for both splits, because `datasets` gives this name to the split of explicitly listed files.
        settings = {
            "dataset_type": "hf",
            "hf_path": "json",
            "hf_train_files": files[0],
            "train_split": "train",
            **({"hf_eval_files": files[1], "hf_eval_split": "train"} if splits[1:] else {}),
        }
    else:
        location = store.location(notes.artifact(DIRECTORIES[format]))
        stock = notes.pipeline if notes.layout == "unpacked" else None
        settings = _build_file_options(location, notes.dataset, notes.tfds_version, splits, format, stock)
    if notes.layout == "prepacked":
        return settings | length | _PREPACKED
    # Derive the pipeline from the type of the dataset, because ArrayRecord files need grain even if the declared
    # pipeline is tfds.
    pipeline: Pipeline = "grain" if settings["dataset_type"] == "grain" else notes.pipeline
    tokenizer = str(notes.tokenizer.path or notes.tokenizer.repo)
    return settings | length | _build_unpacked_options(tokenizer, pipeline, notes.rows, evaluates=len(splits) > 1)


def _build_unpacked_options(
    tokenizer: str, pipeline: Pipeline, rows: Literal["notes", "stream"] | None, *, evaluates: bool
) -> dict[str, str]:
    """Return the options for unpacked rows; MaxText loads the tokenizer only for its pad token.

    The tfds pipeline keeps the notes of a packed row separate. With packing in grain and hf, a note's last token would
    predict the next note's first token, so these pipelines do not pack.
    """
    packs = pipeline == "tfds" and rows == "notes"
    return {
        "train_data_columns": f"['{TOKENS}']",
        "tokenize_train_data": "False",
        **({"eval_data_columns": f"['{TOKENS}']", "tokenize_eval_data": "False"} if evaluates else {}),
        "packing": str(packs),
        "tokenizer_type": "huggingface",
        "tokenizer_path": tokenizer,
    }


def _build_file_options(
    location: str, dataset: str, version: str, splits: Sequence[str], format: FileFormat, stock: Pipeline | None
) -> dict[str, str]:
    """Return the options that select a directory's files: by dataset name for tfds, by pattern for grain."""
    if format == "tfrecord" and stock != "grain":
        name = f"{dataset}:{convert_version(version)}"
        return {
            "dataset_type": "tfds",
            "dataset_path": location,
            "dataset_name": name,
            "train_split": splits[0],
            **({"eval_dataset_name": name, "eval_split": splits[1]} if splits[1:] else {}),
        }
    files = [f"{location}/{dataset}/{version}/{dataset}-{split}.{format}-*" for split in splits]
    return {
        "dataset_type": "grain",
        "grain_file_type": _GRAIN_TYPES[format],
        "grain_train_files": files[0],
        **({"grain_eval_files": files[1]} if splits[1:] else {}),
    }


def format_maxtext_line(notes: NotesDeclaration, store: ArtifactStore, format: FileFormat = "tfrecord") -> str:
    """Return the options of `build_maxtext_settings` as one line, with the loader that prepacked rows require."""
    options = _format_settings(build_maxtext_settings(notes, store, format))
    if notes.layout == "prepacked":
        return f"{_LOADER} {options}"
    return f"MaxText: {options}"


def format_maxtext_lines(notes: NotesDeclaration, store: ArtifactStore) -> list[str]:
    """Return the options of `build_maxtext_settings`, one line per declared format.

    For prepacked rows, the first line names the required loader, because no other line is safe without it.
    """
    # Remove duplicates, because the line for `hf` is the same for every format: `hf` does not read shards.
    lines = list(dict.fromkeys(format_maxtext_line(notes, store, format) for format in notes.formats))
    if notes.layout != "prepacked":
        return lines
    return [_LOADER, *(f"MaxText: {line.removeprefix(_LOADER).strip()}" for line in lines)]


def warn_of_undeclared(notes: NotesDeclaration, store: ArtifactStore) -> list[str]:
    """Return a warning if the options' pattern also reads months in ``store`` that are no longer declared."""
    if notes.layout != "unpacked" or notes.pipeline != "hf":
        return []
    months = sorted(set(store.partitions(notes.dataset, PACKED_COHORTS)) - set(notes.months.expected_keys))
    sentence = (
        f"hf also reads months that are no longer declared: {join_first(months, 8)}. Run `dataprep prune "
        f"{notes.dataset}` first"
    )
    return [sentence] if months else []


def format_evaluation_line(splits: Sequence[str]) -> list[str]:
    """Return the additional options for evaluation on the second split; empty if there is no second split."""
    if not splits[1:]:
        return []
    return [
        (
            f"to evaluate on {splits[1]}, add, e.g., {'eval_interval=1000 eval_steps=10'} (steps between "
            "evaluations; batches per evaluation, at most as many as the split has)"
        )
    ]


def can_evaluate(replay: MixtureDeclaration, facts: DirectoryFacts) -> bool:
    """Return whether MaxText can evaluate on a mixture's second split; ``facts`` are the facts of its receipt."""
    return len(replay.splits) > 1 and (replay.mode != "virtual" or is_for_hf(replay, facts.pipeline))


def format_combined_line(
    replay: MixtureDeclaration, store: ArtifactStore, facts: DirectoryFacts, tokenizer: str | None = None
) -> str:
    """Return the options for training on a mixture in ``store``, as one line.

    ``facts`` are the facts of its receipt. ``tokenizer`` is the folder of the sources' tokenizer, or its name on the
    Hugging Face Hub; None if unknown. hf reads the JSON Lines files of a virtual mixture instead of shards.
    """
    location, split = store.location(replay.artifact(DIRECTORIES[replay.format])), replay.splits[0]
    evaluated = can_evaluate(replay, facts)
    if is_for_hf(replay, facts.pipeline):
        settings = {"dataset_type": "hf", "hf_path": location, "train_split": split}
        settings |= {"hf_eval_split": replay.splits[1]} if evaluated else {}
    elif replay.mode == "virtual" and replay.format == "tfrecord":
        return (
            "MaxText has no pipeline for several directories. In Python: "
            f"tfds.builder_from_directories(json.load(open('{location}/{BUILDER_DIRECTORIES}'))).as_dataset('{split}')"
        )
    elif replay.mode == "virtual":
        settings = {
            "dataset_type": "grain",
            "grain_file_type": _GRAIN_TYPES[replay.format],
            "grain_train_mixture_config_path": f"{location}/{GRAIN_MIXTURE}",
        }
    else:
        settings = _build_file_options(
            location, replay.dataset, replay.tfds_version, replay.splits, replay.format, facts.pipeline
        )
    if facts.layout == "prepacked":
        options = _format_settings(settings | {"max_target_length": str(facts.row_length)} | _PREPACKED)
        return f"{_LOADER} {options}"
    # Subtract the extra token for tfds: rows for tfds are stored one token longer, because tfds shifts the labels by
    # one.
    length = {"max_target_length": str(facts.row_length - (facts.pipeline == "tfds"))}
    tokenizer = tokenizer or f"<folder of {facts.tokenizer}, the tokenizer of {replay.sources[0].dataset}>"
    # Use grain's options for hf too, because neither pipeline packs.
    pipeline: Pipeline = "tfds" if settings["dataset_type"] == "tfds" else "grain"
    options = _format_settings(
        settings | length | _build_unpacked_options(tokenizer, pipeline, facts.rows, evaluates=evaluated)
    )
    return f"MaxText: {options}"


def _format_settings(settings: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())
