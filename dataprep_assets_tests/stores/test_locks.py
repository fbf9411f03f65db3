"""Non-blocking file locks, on a real file."""

from pathlib import Path

import pytest

from dataprep_assets.stores.locks import try_lock


@pytest.mark.parametrize("required", [True, False])
def test_a_lock_of_another_holder_is_refused_until_its_release(tmp_path: Path, required: bool) -> None:
    path = tmp_path / "lock"
    with path.open("a") as second:
        with path.open("a") as first:
            assert try_lock(first, required=required)
            assert not try_lock(second.fileno(), required=required)
        assert try_lock(second, required=required)
