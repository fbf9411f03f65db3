"""Files whose content does not match their name."""

import io

import pyarrow as pa
import pyarrow.parquet as pq

TEXTS = ["first", "second, with é and 狐", "third\nline", "", "last " * 40]
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4" * 64 + b"\nsize 123456\n"
PAGE = b"<!DOCTYPE html>\n<html><head><title>404</title></head></html>\n"


def columnar(kind: str) -> bytes:
    """Return the texts as `parquet`, an `arrow file` or an `arrow stream`."""
    out, table = io.BytesIO(), pa.table({"text": TEXTS})
    if kind == "parquet":
        pq.write_table(table, out)
    else:
        make = pa.ipc.new_file if kind == "arrow file" else pa.ipc.new_stream
        with make(out, table.schema) as writer:
            writer.write_table(table)
    return out.getvalue()
