"""TensorFlow on Examples and TFRecord files."""

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy.typing as npt

from dataprep_assets_tests.readers.families import TENSORFLOW
from dataprep_assets_tests.readers.process import in_process_of

Rows = dict[str, npt.NDArray[Any]]


def _payloads(rows: Rows) -> list[bytes]:
    import tensorflow as tf

    payloads = []
    for row in range(len(next(iter(rows.values())))):
        features = {
            name: tf.train.Feature(int64_list=tf.train.Int64List(value=values[row].tolist()))
            for name, values in rows.items()
        }
        made = tf.train.Example(features=tf.train.Features(feature=features))
        payloads.append(made.SerializeToString(deterministic=True))
    return payloads


@in_process_of(TENSORFLOW)
def example_payloads(rows: Rows) -> list[bytes]:
    """Each row as TensorFlow serializes it: an Example of one integer list a column."""
    return _payloads(rows)


@in_process_of(TENSORFLOW)
def write_examples(path: Path, rows: Rows) -> None:
    """The rows as a TFRecord file of `TFRecordWriter`."""
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in _payloads(rows):
            writer.write(payload)


@in_process_of(TENSORFLOW)
def read_records(path: Path) -> list[bytes]:
    """Every record of a TFRecord file, by `TFRecordDataset`."""
    import tensorflow as tf

    return [record.numpy() for record in tf.data.TFRecordDataset(str(path))]


@in_process_of(TENSORFLOW)
def parsed_examples(payloads: list[bytes], names: list[str], length: int) -> list[Rows]:
    """Each Example by `parse_single_example`, with columns of so many integers."""
    import tensorflow as tf

    features = {name: tf.io.FixedLenFeature([length], tf.int64) for name in names}
    parsed = [tf.io.parse_single_example(payload, features) for payload in payloads]
    return [{name: values.numpy() for name, values in one.items()} for one in parsed]


@in_process_of(TENSORFLOW)
def int64_values(payload: bytes, name: str) -> list[int]:
    """The integers of a column of an Example, as TensorFlow's protobuf decodes it."""
    import tensorflow as tf

    return list(tf.train.Example.FromString(payload).features.feature[name].int64_list.value)


@in_process_of(TENSORFLOW)
def run_bench(arguments: list[str]) -> tuple[int, str]:
    """Run the bench of TFRecord writers; its exit code and what it printed."""
    from dataprep_assets_tests.tools.bench.tfrecord import main

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = main(arguments)
    return code, printed.getvalue()
