"""The declared tokenizer of a dataset, loaded once a process."""

from functools import lru_cache
from pathlib import Path

from dataprep_assets.errors import TokenizerError
from dataprep_assets.pipelines.corpus.declaration import TokenizerDeclaration
from dataprep_assets.tokenization.bundle import TokenizerBundle

__all__ = ["load_bundle"]


@lru_cache(maxsize=8)
def load_bundle(declared: TokenizerDeclaration) -> TokenizerBundle:
    """The declared tokenizer; one named by hub repository is fetched into the cache once, at its pinned revision."""
    if declared.path is not None:
        return TokenizerBundle.load(declared.path, name=declared.name)
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

    assert declared.repo is not None
    assert declared.revision is not None
    try:
        found = Path(hf_hub_download(declared.repo, "tokenizer.json", revision=declared.revision))
        try:
            hf_hub_download(declared.repo, "tokenizer_config.json", revision=declared.revision)
        except LocalEntryNotFoundError:
            raise
        except EntryNotFoundError:
            pass  # a repository without one: no declared EOS or BOS
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise TokenizerError(
            f"tokenizer.repo: {declared.repo}@{declared.revision} cannot be fetched: {error}. "
            "Check the names and the network, or point `tokenizer.path` to a local copy"
        ) from error
    return TokenizerBundle.load(
        found.parent, name=declared.name or declared.repo.rpartition("/")[2], revision=declared.revision
    )
