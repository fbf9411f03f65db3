"""What `dg scaffold defs dataprep_assets.components.<Component> <name>` writes: a commented declaration."""

from pathlib import Path
from typing import Any, ClassVar

from dagster.components.scaffold.scaffold import Scaffolder, ScaffoldRequest

_TOKENIZED_CORPUS = """\
# A tokenized corpus. Every key, with its default where it has one; the README's YAML reference explains them.
type: dataprep_assets.components.TokenizedCorpus
attributes:
  dataset: {name}
  description: What this corpus is and who asked for it.
  # owners: [you@example.org]

  # Where the documents come from; one of:
  source:
    kind: local                       # a folder, used in place
    path: ./data                      # relative to this file
    # kind: hub                       # a dataset repository, mirrored into the Hugging Face cache
    # repo: organization/name
    # revision: 40-digit-commit       # a branch works; a commit cannot move under you
    # kind: hf_cache                  # an already mirrored cache, used offline
    # path: /path/to/hub/datasets--organization--name
    # kind: object_store              # S3, R2 or MinIO; credentials: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY
    # url: s3://bucket/prefix         # with R2 also endpoint_url: https://ACCOUNT.r2.cloudflarestorage.com
    # cache_dir: ./objects            # where the objects are mirrored, relative to this file
  include: ["**/*.jsonl.zst"]         # also .jsonl, .jsonl.gz, .parquet
  splits:                             # split name: globs of its files
    train: ["train/**"]
    val: ["validation/**"]
    test: ["test/**"]
  text_field: text

  tokenizer:
    path: ./tokenizer                 # folder with tokenizer.json; or repo: + revision:
    # repo: organization/model
    # revision: 40-digit-commit
    # engine: auto                    # auto | fastokens | tokenizers
  document:
    separator: auto                   # token appended to each document; auto refuses chat-turn tokens
    bos: none                         # none | auto | a token
    special_tokens: text              # literal special tokens in documents: text | match
  dtype: auto                         # auto | uint16 | uint32

  # shards: {{target_bytes: 1073741824}}  # or {{count: 8}}
  bad_records:
    policy: fail                      # fail | drop
    # budget: 0.001                   # with drop: largest share of dropped rows in a shard
  views: [nanogpt]                    # nanogpt, megatron, datatrove, olmo
  # storage: /path/to/artifacts       # default: DATAPREP_ROOT
  # verify: full                      # full | size
  # sample_rate: 0.0005               # share of documents re-encoded by the reference engine
  # workers: 8                        # default: one a core
  # sensitive: false
"""

_TASK_MIGRATION = """\
# A migration of task folders. Every key, with its default where it has one; the README's page explains them.
type: dataprep_assets.components.TaskMigration
attributes:
  dataset: {name}
  description: Where the data came from and which experiment wants it.
  # owners: [you@example.org]
  old_root: ./old                     # the old project; relative to this file
  new_root: ./new                     # the new project: the trainer's
  # layout: Data/rejection_sampling/0_data   # where both keep <Task>/
  # original: ./originals             # folder with the original <Task>/ folders, to compare rewrites with
  tasks:                              # Copa, BOOLQ, CB, RTE, ArcC_Cloze, ArcC_MC have contracts
    Copa:
      version: base                   # base | latest | all | a version's name
      # mode: copy                    # copy | symlink
      # inherit: [validation, test]   # splits taken from the base folder when a version has no file
      # versions_in: mezo_gpt         # folder below the task's that holds the versions
  # contracts:                        # contracts of further tasks: a few lines each
  #   CopaEasy: {{like: Copa}}
  # overwrite: false                  # true: a differing file is replaced, and kept in the artifact
  # storage: /path/to/artifacts       # default: DATAPREP_ROOT
"""


_SHARD_RELEASE = (
    _TOKENIZED_CORPUS.replace("# A tokenized corpus. Every key", "# A release of shared shards. Every key")
    .replace("dataprep_assets.components.TokenizedCorpus", "dataprep_assets.components.ShardRelease")
    .replace("  views: [nanogpt]  ", "  # views: [nanogpt]")
    + """
  release:
    sequence_length: 2048             # tokens of one training sample
    tokens_per_shard: 1073741824      # a multiple of sequence_length
    shuffle_seed: 0                   # null keeps the order of the source
    # mix: 8                          # source shards whose documents are shuffled together
    # tail: drop                      # drop | pad: tokens after a split's last whole sequence
    # publish: s3://bucket/tokenized  # a folder, s3:// or gs://; default: not published
"""
)


class _Scaffolder(Scaffolder[Any]):
    """Writes a commented `defs.yaml` from a template."""

    template: ClassVar[str]

    def scaffold(self, request: ScaffoldRequest[Any]) -> None:
        target = Path(request.target_path)
        target.mkdir(parents=True, exist_ok=True)
        name = "".join(c if c.isalnum() else "_" for c in target.name)
        (target / "defs.yaml").write_text(self.template.format(name=name), encoding="utf-8")


class TokenizedCorpusScaffolder(_Scaffolder):
    """Writes the declaration of a tokenized corpus."""

    template = _TOKENIZED_CORPUS


class TaskMigrationScaffolder(_Scaffolder):
    """Writes the declaration of a migration of task folders."""

    template = _TASK_MIGRATION


class ShardReleaseScaffolder(_Scaffolder):
    """Writes the declaration of a release of shared shards."""

    template = _SHARD_RELEASE
