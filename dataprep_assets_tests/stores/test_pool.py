"""Claims of a group of transfers."""

import threading

import pytest

from dataprep_assets.stores.pool import run_all


def test_no_item_of_a_group_is_begun_after_its_first_error() -> None:
    begun: list[int] = []

    def fetch(item: int) -> None:
        begun.append(item)
        raise KeyError("broken")

    stop = threading.Event()
    with pytest.raises(KeyError, match="broken"):
        run_all(fetch, range(1000), 1, stop)
    assert begun == [0]
    assert stop.is_set()
