"""The options of MaxText that train on a directory of packed rows."""

from dataprep_assets.integrity.artifacts import ArtifactStore
from dataprep_assets.pipelines.notes.declaration import FileFormat, NotesDeclaration
from dataprep_assets.pipelines.notes.linked_directory import DIRECTORIES, version_in_metadata

__all__ = ["maxtext_line", "maxtext_settings"]


def maxtext_settings(notes: NotesDeclaration, store: ArtifactStore, format: FileFormat = "tfrecord") -> dict[str, str]:
    """The options of MaxText that train on the directory of ``notes`` in ``format`` in ``store``: name → value.

    Prepacked rows need a loader that passes the stored columns through: stock pipelines take one column and compute the
    rest again, as one segment a row. For these, only the settings that such a loader shares are given.
    """
    location = store.location(notes.artifact(DIRECTORIES[format]))
    shards = f"{location}/{notes.dataset}/{notes.tfds_version}"
    common = {"max_target_length": str(notes.row_length), "tokenize_train_data": "False", "packing": "False"}
    if format == "array_record":
        found = {
            "dataset_type": "grain",
            "grain_file_type": "arrayrecord",
            "grain_train_files": f"{shards}/{notes.dataset}-train.array_record-*",
        }
    else:
        version = version_in_metadata(notes.tfds_version)
        found = {
            "dataset_type": "tfds",
            "dataset_path": location,
            "dataset_name": f"{notes.dataset}:{version}",
            "train_split": "train",
        }
    column = "tokens" if notes.layout == "unpacked" else "inputs"
    return found | common | {"train_data_columns": f"['{column}']"}


def maxtext_line(notes: NotesDeclaration, store: ArtifactStore, format: FileFormat = "tfrecord") -> str:
    """The same options in a line for people, which says what prepacked rows need beside them."""
    options = " ".join(f"{name}={value}" for name, value in maxtext_settings(notes, store, format).items())
    if notes.layout == "unpacked":
        return f"MaxText: {options}"
    return (
        "MaxText, only with a loader that passes the stored segments through: a stock pipeline takes a row for one "
        f"document and trains from note to note: {options}"
    )
