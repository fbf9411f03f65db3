"""Progress that can be reverted."""

from concurrent.futures import ThreadPoolExecutor

from dataprep_assets.stores.store import ReversibleProgress


def test_progress_of_many_threads_is_reverted_once() -> None:
    reported: list[int] = []
    given = ReversibleProgress(reported.append)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(given, [3] * 1000))
    assert sum(reported) == 3000
    given.revert_progress()
    given.revert_progress()
    assert reported[-1] == -3000
    assert len(reported) == 1001


def test_a_listener_is_optional() -> None:
    given = ReversibleProgress(None)
    given(3)
    given.revert_progress()
