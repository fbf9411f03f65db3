"""Loader that lets MaxText train on prepacked rows as stored, with their segments and positions.

No unmodified pipeline of MaxText accepts stored segments (docs/formats/packed-rows.md#maxtext). `install` replaces its
tfds and grain pipelines with this loader. MaxText's own `get_datasets` finds the files and distributes them across the
hosts. This module passes on the five stored columns and derives `targets`; a stored `targets` column is passed on
unchanged. MaxText's `MultiHostDataLoadIterator` then puts the batches on devices.

Importing this module does not import Dagster, TensorFlow, JAX, grain or MaxText.

Entry points: `install`; `six_columns`, `tfds_batches` and `grain_batches` for your own training loop.
"""

import importlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataprep_assets.errors import ConfigError, FormatError, count_of
from dataprep_assets.formats.tensorflow import example
from dataprep_assets.formats.tensorflow.example import FeatureColumn
from dataprep_assets.packing.rows import COLUMNS, TARGETS

__all__ = ["grain_batches", "install", "six_columns", "tfds_batches"]

_SHUFFLE_BUFFER = 1024
"""Rows in `tf.data`'s shuffle buffer, as in MaxText's tfds pipeline."""
_PIPELINES = "maxtext.input_pipeline"


def _require_columns(names: Iterable[str]) -> None:
    """Raise ConfigError, naming the missing columns, unless `names` has all columns of prepacked rows."""
    if missing := sorted(set(COLUMNS).difference(names)):
        raise ConfigError(
            f"columns {', '.join(missing)} are missing. Use a dataset of prepacked rows (`layout: prepacked`)"
        )


def six_columns(stored_columns: Mapping[str, Any]) -> dict[str, NDArray[np.int32]]:
    """Return the columns of MaxText's train step for the stored columns of a row or a batch.

    ``stored_columns`` maps names to integers of shape ``(L,)`` or ``(rows, L)``. A label is the next input where
    ``targets_segmentation`` is not 0. Elsewhere it is 0 and not counted in the loss. Raises ConfigError naming missing
    columns, and FormatError for columns of different shapes.
    """
    _require_columns(stored_columns.keys())
    columns = {name: np.asarray(stored_columns[name], np.int32) for name in COLUMNS}
    if len(shapes := {values.shape for values in columns.values()}) > 1:
        raise FormatError(f"the columns of a row must have equal shapes, not {', '.join(map(str, sorted(shapes)))}")
    if TARGETS in stored_columns:
        return columns | {TARGETS: np.asarray(stored_columns[TARGETS], np.int32)}
    next_inputs = np.zeros_like(columns["inputs"])
    next_inputs[..., :-1] = columns["inputs"][..., 1:]
    return columns | {TARGETS: np.where(columns["targets_segmentation"] != 0, next_inputs, 0).astype(np.int32)}


def tfds_batches(rows: Any, batch_size: int, *, epochs: int | None = 1, seed: int | None = None) -> Any:
    """Return a `tf.data.Dataset` of batches for MaxText from a `tfds` dataset of prepacked rows.

    Args:
        rows: Dataset whose elements are dictionaries of the stored columns.
        batch_size: Rows per batch. An incomplete last batch is dropped, as in MaxText.
        epochs: Number of passes over all rows; None repeats them forever.
        seed: Seed for the shuffle; None keeps the order of `rows`.

    Raises ConfigError naming missing stored columns.
    """
    import tensorflow as tf

    def build_columns(row: Mapping[str, Any]) -> dict[str, Any]:
        columns = {name: tf.cast(row[name], tf.int32) for name in COLUMNS}
        if TARGETS in row:
            return columns | {TARGETS: tf.cast(row[TARGETS], tf.int32)}
        labels = tf.concat([columns["inputs"][1:], [0]], 0)
        return columns | {TARGETS: tf.where(columns["targets_segmentation"] != 0, labels, 0)}

    _require_columns(rows.element_spec.keys())
    if seed is not None:
        rows = rows.shuffle(_SHUFFLE_BUFFER, seed=seed)
    # Set `deterministic`, because rows that are mapped in parallel could otherwise change their order.
    rows = rows.repeat(epochs).map(build_columns, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return rows.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def grain_batches(payloads: Any, batch_size: int, row_length: int) -> Any:
    """Return a `grain.IterDataset` of batches for MaxText from a dataset of records, as grain's readers yield them.

    Args:
        payloads: Dataset whose elements are payloads of a TFRecord or ArrayRecord (a `tf.train.Example`).
        batch_size: Rows per batch. An incomplete last batch is filled with rows without labels, as in MaxText.
        row_length: Number of values in each stored column. Reading a batch raises FormatError for a different number.
    """
    import grain.python as grain

    rows = payloads.map(partial(_decode_row, row_length=row_length))
    return rows.batch(
        batch_size, batch_fn=partial(grain.experimental.batch_and_pad, batch_size=batch_size, pad_value=0)
    )


def _decode_row(payload: bytes, row_length: int) -> dict[str, NDArray[np.int32]]:
    """Return the six columns of one record. This is a module-level function, because grain's workers import it."""
    # Look for the targets in the record, because stored targets are optional.
    names: Sequence[str] = (*COLUMNS, TARGETS) if TARGETS in example.read_column_names(payload) else COLUMNS
    rows = example.decode_rows([payload], [FeatureColumn(name=name, length=row_length) for name in names])
    return six_columns({name: values[0] for name, values in rows.items()})


def install() -> None:
    """Make MaxText's `create_data_iterator` read prepacked rows for `dataset_type=tfds` and `dataset_type=grain`.

    Call it once before training starts, in every process. Raises ImportError if MaxText is not installed.
    """
    interface = importlib.import_module(f"{_PIPELINES}.input_pipeline_interface")
    interface.make_grain_train_iterator = partial(_build_grain_iterator, train=True)  # type: ignore[attr-defined]
    interface.make_grain_eval_iterator = partial(_build_grain_iterator, train=False)  # type: ignore[attr-defined]
    tfds = importlib.import_module(f"{_PIPELINES}.tfds_data_processing")
    # Replace these two functions in their own module, because the interface imports them at every call.
    tfds.make_tfds_train_iterator = partial(_build_tfds_iterator, train=True)  # type: ignore[attr-defined]
    tfds.make_tfds_eval_iterator = partial(_build_tfds_iterator, train=False)  # type: ignore[attr-defined]


def _build_tfds_iterator(config: Any, global_mesh: Any, processes: Sequence[int], *, train: bool) -> Any:
    """Return an iterator over batches, as MaxText's `make_tfds_train_iterator` and `make_tfds_eval_iterator` do."""
    import jax

    _require_supported_settings(config)
    pipeline = importlib.import_module(f"{_PIPELINES}.tfds_data_processing")
    rows = pipeline.get_datasets(
        dataset_name=config.dataset_name if train else config.eval_dataset_name,
        data_split=config.train_split if train else config.eval_split,
        shuffle_files=train and config.enable_data_shuffling,
        shuffle_seed=config.data_shuffle_seed,
        dataloading_host_index=processes.index(jax.process_index()),
        dataloading_host_count=len(processes),
        dataset_path=config.dataset_path,
    )
    inputs = rows.element_spec.get("inputs")
    if inputs is not None and inputs.shape != (config.max_target_length,):
        raise ConfigError(
            f"max_target_length={config.max_target_length}: the rows have {count_of(inputs.shape[0], 'token')}. Set "
            f"max_target_length={inputs.shape[0]}"
        )
    loaded = config.global_batch_size_to_load if train else config.global_batch_size_to_load_eval
    batches = tfds_batches(
        rows,
        loaded // jax.process_count(),
        epochs=config.num_epoch if train else 1,
        seed=config.data_shuffle_seed if train and config.enable_data_shuffling else None,
    )
    return _load_on_devices(config, batches, global_mesh, train=train)


def _build_grain_iterator(config: Any, global_mesh: Any, processes: Sequence[int], *, train: bool) -> Any:
    """Return an iterator over batches, as MaxText's `make_grain_train_iterator` and `make_grain_eval_iterator` do."""
    import jax

    _require_supported_settings(config)
    pipeline = importlib.import_module(f"{_PIPELINES}.grain_data_processing")
    utils = importlib.import_module(f"{_PIPELINES}.data_processing_utils")
    worker_count = config.grain_worker_count if train else config.grain_worker_count_eval
    payloads = pipeline.get_datasets(
        config.grain_train_files if train else config.grain_eval_files,
        config.grain_file_type,
        shuffle=train and config.enable_data_shuffling,
        shuffle_seed=config.data_shuffle_seed,
        shuffle_buffer_size=config.grain_shuffle_buffer_size,
        num_epoch=config.num_epoch if train else 1,
        dataloading_host_index=processes.index(jax.process_index()),
        dataloading_host_count=len(processes),
        grain_worker_count=worker_count,
        grain_num_threads=config.grain_num_threads if train else config.grain_num_threads_eval,
        grain_prefetch_buffer_size=(
            config.grain_prefetch_buffer_size if train else config.grain_prefetch_buffer_size_eval
        ),
        grain_data_source_max_workers=config.grain_data_source_max_workers,
        mixture_config_path=config.grain_train_mixture_config_path if train else None,
        grain_index_storage_option=config.grain_index_storage_option,
    )
    loaded = config.global_batch_size_to_load if train else config.global_batch_size_to_load_eval
    batches = grain_batches(payloads, loaded // jax.process_count(), config.max_target_length)
    buffered = config.grain_per_worker_buffer_size if train else config.grain_per_worker_buffer_size_eval
    batches = utils.apply_multiprocessing_and_prefetch(batches, config, worker_count, buffered)
    return _load_on_devices(config, batches, global_mesh, train=train)


def _load_on_devices(config: Any, batches: Any, global_mesh: Any, *, train: bool) -> Any:
    loading = importlib.import_module(f"{_PIPELINES}.multihost_dataloading")
    fills = config.generate_padding_batch_train if train else config.generate_padding_batch_eval
    return loading.MultiHostDataLoadIterator(batches, global_mesh, fills)


def _require_supported_settings(config: Any) -> None:
    """Raise ConfigError for settings of MaxText that this loader does not support."""
    refused_settings = {
        "colocated_python_data_input": bool(config.colocated_python_data_input),
        "grain_use_elastic_iterator": bool(config.grain_use_elastic_iterator),
        "expansion_factor_real_data": config.expansion_factor_real_data not in (-1, 1),
    }
    if wrong_names := [name for name, is_set in refused_settings.items() if is_set]:
        raise ConfigError(
            f"{', '.join(wrong_names)}: the loader of prepacked rows supports only MaxText's default value. Remove "
            "the setting"
        )
