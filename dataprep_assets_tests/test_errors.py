"""Errors that replace others without containing any part of them."""

import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest
from huggingface_hub.errors import HfHubHTTPError

from dataprep_assets.errors import DataprepError
from dataprep_assets.pipelines.notes.privacy import hide_quoted_data, hide_source_names
from dataprep_assets.sources.hub import translate_errors
from dataprep_assets.stores.retry import RetryableError

SECRET = "X-Amz-Signature=5ec2e7"


def _refused() -> Exception:
    request = httpx.Request("GET", f"https://storage.example.org/file?{SECRET}")
    return HfHubHTTPError(f"403 for {request.url}", response=httpx.Response(503, request=request))


@pytest.mark.parametrize(
    ("inside", "raised"),
    [
        (translate_errors, _refused),
        (hide_quoted_data, lambda: ValueError(SECRET)),
        (hide_quoted_data, lambda: _quoting(SECRET)),
        (hide_source_names, lambda: OSError(2, "not there", SECRET)),
    ],
)
def test_an_error_that_may_contain_a_secret_is_in_no_part_of_its_replacement(
    inside: Callable[[str], AbstractContextManager[Any]], raised: Callable[[], Exception]
) -> None:
    with pytest.raises((DataprepError, RetryableError)) as caught, inside("somewhere"):
        raise raised()
    error: BaseException = caught.value
    assert (error.__cause__, error.__context__) == (None, None)
    assert SECRET not in "".join(traceback.format_exception(error))


def _quoting(text: str) -> DataprepError:
    """Raise one of our errors, whose cause quotes the text."""
    error = DataprepError("a record is not one")
    error.__cause__ = ValueError(text)
    return error
