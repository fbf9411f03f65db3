"""Tests of dataprep_assets.sources."""

import pytest

pytest.register_assert_rewrite("dataprep_assets_tests.sources.hub_mirror")
