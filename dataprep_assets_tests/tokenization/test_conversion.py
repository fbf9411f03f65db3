"""Tokenizers in other formats, converted by transformers, give equal ids or are refused."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dataprep_assets.errors import TokenizerError
from dataprep_assets.stream.declaration import TokenizerDeclaration
from dataprep_assets.stream.tokenizer import load_declared_tokenizer
from dataprep_assets.tokenization import conversion
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.conversion import compare_with_original, read_conversion, require_equal
from dataprep_assets_tests.messages import raises
from dataprep_assets_tests.tokenization.other_forms import (
    GEMMA,
    LLAMA,
    PATTERN,
    SENTENCES,
    T5,
    write_merges,
    write_sentencepiece,
    write_tekken,
    write_tiktoken,
    write_words,
)

pytestmark = pytest.mark.slow

FORMS: dict[str, Callable[[Path], Path]] = {
    "llama": lambda folder: write_sentencepiece(folder, "bpe", {"tokenizer_class": "LlamaTokenizer"}, **LLAMA),
    "no class": lambda folder: write_sentencepiece(folder, "bpe", **LLAMA),
    "gemma": lambda folder: write_sentencepiece(folder, "bpe", {"tokenizer_class": "GemmaTokenizer"}, **GEMMA),
    "t5": lambda folder: write_sentencepiece(folder, "unigram", {"tokenizer_class": "T5Tokenizer"}, **T5),
    "tiktoken": lambda folder: write_tiktoken(folder, code=f'PAT_STR = r"""{PATTERN}"""'),
    "tekken": write_tekken,
    "gpt2": lambda folder: write_merges(folder, "GPT2Tokenizer"),
    "qwen2": write_merges,
}


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use one cache for all tests, because a conversion takes seconds."""
    for library in ("transformers", "sentencepiece", "tiktoken"):
        if not conversion_library(library):
            pytest.skip(f"{library} is not installed")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def conversion_library(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


@pytest.mark.parametrize("form", FORMS)
def test_a_converted_tokenizer_gives_the_ids_of_its_original(tmp_path: Path, form: str) -> None:
    folder = FORMS[form](tmp_path / "t")
    bundle = load_declared_tokenizer(TokenizerDeclaration(path=folder, name=form))
    assert bundle.name == form
    texts = [*SENTENCES[:5], "  Two  blanks ", "New\n\n\tlines 🙂"]
    found = compare_with_original(bundle, texts)
    assert (found.documents, found.differing) == (len(texts), 0)
    description = require_equal(bundle, texts)
    assert description is not None
    assert "converted by transformers" in description


def test_words_have_the_ids_of_transformers_own_tokenizer(tmp_path: Path) -> None:
    folder, texts = write_words(tmp_path / "t"), [*SENTENCES[:5], "  Two  blanks ", "New\n\n\tlines"]
    # Use a separate process, because the comparison with `vocab.txt` imports transformers, which no test process may
    # import.
    code = (
        "import json, sys\n"
        "sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from dataprep_assets.stream.declaration import TokenizerDeclaration\n"
        "from dataprep_assets.stream.tokenizer import load_declared_tokenizer\n"
        "from dataprep_assets.tokenization.conversion import compare_with_original\n"
        "bundle = load_declared_tokenizer(TokenizerDeclaration(path=Path(sys.argv[1])))\n"
        "found = compare_with_original(bundle, json.loads(sys.argv[2]))\n"
        "print(json.dumps([found.documents, found.differing]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder), json.dumps(texts)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [len(texts), 0]


def test_equal_files_are_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tekken(tmp_path / "t")
    (folder / "chat_template.jinja").write_text("{{ 1 }}")
    first = conversion.convert_folder(folder)
    assert first is not None
    assert (first / "chat_template.jinja").read_text() == "{{ 1 }}"
    monkeypatch.setattr(conversion, "_convert", lambda *_: pytest.fail("converted again"))
    assert conversion.convert_folder(Path(shutil.copytree(folder, tmp_path / "copy"))) == first
    record = read_conversion(first)
    assert record is not None
    assert record["form"] == "tekken"


def test_added_tokens_keep_their_ids_and_gaps_have_placeholders(tmp_path: Path) -> None:
    folder = FORMS["tiktoken"](tmp_path / "t")
    bundle = load_declared_tokenizer(TokenizerDeclaration(path=folder))
    decoder = json.loads((folder / "tokenizer_config.json").read_bytes())["added_tokens_decoder"]
    assert {number: bundle.find_token(token["content"], key="k").id for number, token in decoder.items()} == {
        number: int(number) for number in decoder
    }
    assert bundle.find_configured("eos_token") == "<|endoftext|>"


def test_a_conversion_with_other_ids_than_the_original_is_refused(tmp_path: Path) -> None:
    bundle = load_declared_tokenizer(TokenizerDeclaration(path=write_tekken(tmp_path / "t")))
    folder = Path(shutil.copytree(bundle.directory, tmp_path / "changed"))
    other = folder / "original" / "tekken.json"
    value = json.loads(other.read_bytes())
    value["config"]["pattern"] = r"\p{L}+|[^\p{L}]+"
    other.write_text(json.dumps(value))
    with raises(TokenizerError, "(tekken.json)"):
        require_equal(TokenizerBundle.load(folder), SENTENCES[:5])


def test_a_file_that_transformers_cannot_read_is_refused_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "tokenizer.model").write_bytes(b"\n\x00no model")
    with raises(TokenizerError, "tokenizer.model", "transformers"):
        conversion.convert_folder(tmp_path / "t")
