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
    # kind: object_store              # S3, R2, MinIO or GCS; credentials from the environment (README, storage)
    # url: s3://bucket/prefix         # or gs://bucket/prefix; with R2 also endpoint_url: https://ACCOUNT.r2.cloudflarestorage.com
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
  views: [nanogpt]                    # nanogpt, megatron, datatrove, olmo, mds, hf_parquet
  # storage: /path/to/artifacts       # default: DATAPREP_ROOT
  # verify: full                      # full | size
  # sample_rate: 0.0005               # share of documents re-encoded by the reference engine
  # workers: 8                        # default: one a core
  # run_on: ray                       # processes | ray
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
      # versions_in: mezo_gpt         # folder below the task's that holds the versions; "." is the task's own
      # old_folder: COPA              # the task's folder in the old project, if it has another name there
  # contracts:                        # contracts of further tasks: a few lines each
  #   CopaEasy: {{like: Copa}}          # name exactly the files, keys and labels that differ
  # overwrite: false                  # true: a differing file is replaced, and kept in the artifact
  # storage: /path/to/artifacts       # default: DATAPREP_ROOT
  # verify: full                      # full | size: how finished artifacts are re-read
  # sensitive: false                  # true: no label in any message
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
    # expected_repeats: 0.001         # share of samples that may repeat another before a check reports it
    # publish: s3://bucket/tokenized  # a folder, s3:// or gs://; default: not published
"""
)

_PACKED_COHORTS = """\
# Clinical notes, one file a birth month, as packed rows. Every key, with its default where it has one.
type: dataprep_assets.components.PackedCohorts
attributes:
  dataset: {name}
  description: Whose notes these are, and under which approval they may be used.
  # owners: [you@example.org]
  # sensitive: true                   # no text and no identifier in any log, event, metadata or plot

  source:
    kind: local                       # a folder of cohort files
    path: ./data                      # relative to this file
    # kind: object_store              # S3, R2, MinIO or GCS; credentials from the environment (README, storage)
    # url: s3://bucket/prefix
    # cache_dir: ./objects            # where the files are mirrored: as protected as the bucket
  cohorts:
    pattern: '(?P<year>[0-9]{{4}})-(?P<month>[0-9]{{2}})\\.json'   # of a file's path in the source
    format: json_array                # json_array | json_object (of patients) | jsonl
    fields:                           # where things are in a record; a path is keys joined by a dot
      patient_id: patient_id          # $key: the key of the JSON object
      notes: notes                    # null: each record is one note
      text: text
      date: date
      # date_format: "%m/%d/%Y"       # default: ISO 8601
      # birth_date: birth_date        # if given, its month must be the cohort's
      patient: {{}}                     # name in the template: path in the patient's record
      note: {{kind: type, when: date}}  # name in the template: path in the note
  months:
    first: "2000-01"
    last: "2000-12"
    # allow_missing: ["2000-03"]      # months without a file
    # allow_empty: ["2000-04"]        # months whose file may have no note

  template:
    header: "{{kind}}, {{when}}\\n"       # put before each note
    # engine: format                  # format: one brace | jinja: two
    # missing: fail                   # fail | drop: a field that is missing or null
    # defaults: {{kind: note}}
  tokenizer:
    path: ./tokenizer                 # folder with tokenizer.json; or repo: + revision:
  document:
    separator: auto                   # token after each note; auto refuses chat-turn tokens
    bos: none                         # none | auto | a token, before each header
  row_length: 8192                    # max_target_length
  long_notes:
    rule: repeat_header               # repeat_header | header_once | truncate
    # overlap: 0
  # order: date                       # date | source: order of a patient's notes
  packing:
    algorithm: first_fit_decreasing   # concatenative | first_fit | first_fit_shuffle | best_fit | concat_then_split …
  pad:
    token: "<|pad|>"                  # a token that no note holds; or id:
  patient_key:
    env: {name}_patient_key           # environment variable: openssl rand -hex 32
  # splits: {{train: 0.98, val: 0.02}}  # shares of the patients
  # layout: prepacked                 # unpacked: one column, for stock MaxText
  # pipeline: tfds                    # of unpacked rows: tfds | grain | hf
  # targets: false                    # the sixth column
  formats: [tfrecord]                 # array_record beside it for grain
  # rows_per_shard: 256
  # tfds_version: 1.0.0
  # bad_records: {{policy: drop, budget: 0.001}}   # default: fail
  # duplicate_patients: fail          # allow: a patient may be in several cohorts
  # storage: /path/to/artifacts       # default: DATAPREP_ROOT
  # verify: full                      # full | size
  # sample_rate: 0.0005               # share of notes re-encoded by the reference engine
  # workers: 8                        # default: one a core
"""

_COMBINED_COHORTS = """\
# Several datasets of packed rows as one, shard by shard. Every key, with its default where it has one.
type: dataprep_assets.components.CombinedCohorts
attributes:
  dataset: {name}
  description: What is trained on this mixture.
  # owners: [you@example.org]
  sources:                            # datasets of the same storage, built with the same settings
    - dataset: finetune
    - dataset: replay
      # weight: 1.0                   # modes weighted and virtual: all sources have one
  mode: interleave                    # concat | interleave | weighted | virtual
  # splits: [train]
  # seed: 0
  # tolerance: 0.01                   # weighted: of a source's share
  # format: tfrecord                  # tfrecord | array_record
  # tfds_version: 1.0.0
  # storage: /path/to/artifacts       # that of the sources
  # verify: full                      # full | size
  # workers: 8                        # not used: links are made by one process
  # sensitive: true
"""

_TRAINING_BLEND = """\
# A training blend. Every key, with its default where it has one; the README's page explains them.
type: dataprep_assets.components.TrainingBlend
attributes:
  dataset: {name}
  description: Which model is trained on it, at which stage.
  # owners: [you@example.org]
  stage: pretrain                     # pretrain: bin/idx | sft: packed Parquet | rl: JSON lines
  blend:                              # or the path of a blend's JSON file: ./blend.json
    datasets:                         # or one or more of train, valid, test instead of datasets
      - name: code
        path: ./data/code             # file, folder, glob, hf://organization/name@commit, s3://… or gs://…
        # weight: 1.0                 # share of the blend, relative (rl: how often it is read); 0 leaves it out
        # split: train                # only files with this as a whole part of their path, or the beginning of one
        # subset: python              # the same, before `split`
        # text_field: text            # pretrain
        # messages_field: messages    # sft: instead of the stage's
        # tools_field: tools          # sft: instead of the stage's

  tokenizer:                          # not with stage rl
    path: ./tokenizer                 # folder with tokenizer.json; or repo: + revision:
    # repo: organization/model
    # revision: 40-digit-commit
    # engine: auto                    # auto | fastokens | tokenizers
  pretrain:                           # options of the stage
    add_eos: true                     # the separator after every document
    # add_bos: false
    # separator: auto
    # dtype: auto                     # auto | int32 | uint16
    # special_tokens: text            # text | match
    # min_doc_chars: 16
    # max_doc_tokens: 131072
    # sequence_length: 4096           # for the preview
  # sft:
  #   pack_size: 4096
  #   chat_template: nano3            # a bundled name, a path, or Jinja itself
  #   algorithm: first_fit_shuffle    # first_fit_decreasing | concatenative | best_fit …
  #   turns: reasoning                # when each user turn is a sequence of its own
  #   used_in_filter: [nano_v3]       # only rows whose `used_in` names one of these
  #   too_long: truncate              # truncate | drop
  # rl:
  #   transforms: [nemotron_rl]       # sft openai_chat sharegpt nemotron_rl passthrough select rename module:function
  #   compression: none               # none | zstd

  # num_shards: 128                   # of each dataset; default: one for every 256 MiB of source
  # held_out: {{valid: 1, test: 1}}     # shards of each dataset that are not trained on
  # sample: {{count: 1}}                # or {{percent: 10}}: a trial run on some of the shards
  # max_rows: 1000                    # of each shard, the first ones
  # train_tokens: 1000000000          # tokens to train on; default: all there are, once
  # max_epochs: 4                     # a dataset that must be read more often fails a check
  # tolerance: 0.01                   # largest difference of a realised share from its request
  # bad_records: {{policy: drop, budget: 0.001}}   # default: fail
  # sources: {{object_cache: ./objects}}   # s3_endpoint, s3_region, hub_endpoint, hub_cache
  # execution_mode: auto              # auto | streaming | batch: how `dataprep run` launches the shards
  # wandb: {{project: blends}}          # the finished run's tables there too; also entity, mode: online | offline
  # trainer_root: /lustre/artifacts   # where the trainer finds the storage, if elsewhere
  # force: again                      # any text: another one makes everything again
  # storage: /path/to/artifacts       # default: DATAPREP_ROOT
  # verify: full                      # full | size
  # workers: 8                        # default: one a core
  # sensitive: false
"""


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


class PackedCohortsScaffolder(_Scaffolder):
    """Writes the declaration of a dataset of packed notes."""

    template = _PACKED_COHORTS


class CombinedCohortsScaffolder(_Scaffolder):
    """Writes the declaration of a combination of such datasets."""

    template = _COMBINED_COHORTS


class TrainingBlendScaffolder(_Scaffolder):
    """Writes the declaration of a training blend."""

    template = _TRAINING_BLEND
