"""Tasks of `test_watch` that take memory or time at a row of a file and report progress."""

import time

from dataprep_assets.bounds import must_read_single_rows, report_position, report_progress


def hold_memory(mebibytes: int, row: int) -> str:
    """Hold this much memory at a row, and return whether this is the second attempt."""
    report_position("hungry.jsonl", row, 100)
    held = [bytearray(1 << 20) for _ in range(mebibytes)]
    time.sleep(1 if mebibytes > 256 else 0)  # longer than the interval between two memory samples
    return f"{len(held)} MiB, {'closely' if must_read_single_rows() else 'at once'}"


def spin(seconds: float, *, getting_on: bool) -> str:
    """Use this much CPU time."""
    report_position("endless.jsonl", 7)
    until = time.process_time() + seconds
    while time.process_time() < until:
        if getting_on:
            report_progress()
    return "done"
