"""Build a shard of chat data over the files of a folder, as a command to kill.

`python -m dataprep_assets_tests.pipelines.blend.sft.command SOURCES TOKENIZER ROOT WORKERS`.
"""

import sys
from pathlib import Path

from dataprep_assets.pipelines.blend.sft.chat_plan import chat_plan
from dataprep_assets.pipelines.blend.sft.packed_sft import build_packed_sft
from dataprep_assets.pipelines.blend.sft.shard import SftShard
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import refuse_engine
from dataprep_assets.tokenization.chat.template import ChatTemplate
from dataprep_assets_tests.pipelines.blend.sft.conversations import describe_source, work


def make_shard(sources: Path, tokenizer: Path, root: Path) -> SftShard:
    """Return one shard of all files of the folder, encoded by the reference engine, which needs no certificate."""
    bundle = TokenizerBundle.load(tokenizer)
    refused = refuse_engine(bundle, "text", "tokenizers", "a test")
    plan = chat_plan(bundle, refused, ChatTemplate.load("chatml_reasoning"), pack_size=1024)
    return work(root, [describe_source(path, i) for i, path in enumerate(sorted(sources.iterdir()))], plan)


def main(arguments: list[str]) -> int:
    """Build the shard; the exit code is 1 when it failed."""
    sources, tokenizer, root, workers = arguments
    shard = make_shard(Path(sources), Path(tokenizer), Path(root))
    return int(any(result.error for result in build_packed_sft([shard], workers=int(workers))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
