"""Use TensorFlow on Examples and TFRecord files."""

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
    """Return each row as TensorFlow serializes it: an Example with one integer list per column."""
    return _payloads(rows)


@in_process_of(TENSORFLOW)
def write_examples(path: Path, rows: Rows) -> None:
    """Write the rows as a TFRecord file with `TFRecordWriter`."""
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for payload in _payloads(rows):
            writer.write(payload)


@in_process_of(TENSORFLOW)
def read_records(path: Path) -> list[bytes]:
    """Return every record of a TFRecord file, read by `TFRecordDataset`."""
    import tensorflow as tf

    return [record.numpy() for record in tf.data.TFRecordDataset(str(path))]


@in_process_of(TENSORFLOW)
def parsed_examples(payloads: list[bytes], names: list[str], length: int) -> list[Rows]:
    """Parse each Example with `parse_single_example`, with columns of this many integers."""
    import tensorflow as tf

    features = {name: tf.io.FixedLenFeature([length], tf.int64) for name in names}
    parsed = [tf.io.parse_single_example(payload, features) for payload in payloads]
    return [{name: values.numpy() for name, values in one.items()} for one in parsed]


@in_process_of(TENSORFLOW)
def int64_values(payload: bytes, name: str) -> list[int]:
    """Return the integers of a column of an Example, as TensorFlow's protobuf decodes it."""
    import tensorflow as tf

    return list(tf.train.Example.FromString(payload).features.feature[name].int64_list.value)


@in_process_of(TENSORFLOW)
def run_bench(arguments: list[str]) -> tuple[int, str]:
    """Run the benchmark of TFRecord writers, and return its exit code and output."""
    from dataprep_assets_tests.tools.bench.tfrecord import main

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = main(arguments)
    return code, printed.getvalue()
