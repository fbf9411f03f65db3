"""Tests of the stores."""

import pytest

pytest.register_assert_rewrite("dataprep_assets_tests.stores.contract")
