"""Tests of a group of transfers."""

import threading

from dataprep_assets.stores.pool import run_all
from dataprep_assets_tests.messages import raises


def test_after_the_first_error_no_item_of_a_group_is_started() -> None:
    begun: list[int] = []

    def fetch(item: int) -> None:
        begun.append(item)
        raise KeyError("broken")

    stop = threading.Event()
    with raises(KeyError, "broken"):
        run_all(fetch, range(1000), 1, stop)
    assert begun == [0]
    assert stop.is_set()
