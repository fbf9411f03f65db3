"""A window's events, and callbacks that raise errors."""

from pathlib import Path

from dataprep_assets.serving import ShardWindow, WindowEvent
from dataprep_assets_tests.serving.releases import (
    published,
)
from dataprep_assets_tests.serving.watched import assert_is


def test_a_failing_user_callback_does_not_stop_the_window(tmp_path: Path) -> None:
    def raises(event: WindowEvent) -> None:
        raise RuntimeError("not our bug")

    with ShardWindow(published(tmp_path), tmp_path / "cache", 1, on_event=raises) as window:
        assert_is(window.swap(0), 0)
        assert_is(window.swap(1), 1)
