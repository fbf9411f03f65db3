"""Read a template in this process: as the product does, and by only its generation prompt.

Entry points: `read_template`, `TemplateReadings`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial

from dataprep_assets.errors import ConfigError, TokenizerError
from dataprep_assets.pipelines.blend.sft.chat_plan import ChatPlan, chat_plan, load_conversation_renderer
from dataprep_assets.tokenization.bundle import TokenizerBundle
from dataprep_assets.tokenization.certificate import refuse_engine
from dataprep_assets.tokenization.chat.choices import OURS
from dataprep_assets.tokenization.chat.messages import ConversationFields, Refusal, read_conversation
from dataprep_assets.tokenization.chat.rendering import ConversationRenderer, RenderedConversation, keep_used_part
from dataprep_assets.tokenization.chat.template import ChatTemplate, compile_template, get_template_variables
from dataprep_assets_tests.tools.atlas.cells import REFUSED, Cell, judge, written_by
from dataprep_assets_tests.tools.atlas.kinds import KINDS, ROLES, Kind

DATE = date(2026, 1, 31)
_CHOICES = replace(OURS, roles=ROLES)


@dataclass(frozen=True)
class TemplateReadings:
    """The results of a template for each kind of conversation.

    Attributes:
        name: The name of the template.
        cells: Kind → its cell, as the product reads the template.
        prompted: Kind → its cell by only the generation prompt, for a template with `{% generation %}`.
        writable: The kinds that the bare template writes.
        refusal: The reason for refusing the template as a whole.
        plan: The plan; None if it is refused.
    """

    name: str
    cells: Mapping[str, Cell] = field(default_factory=dict)
    prompted: Mapping[str, Cell] = field(default_factory=dict)
    writable: frozenset[str] = frozenset()
    refusal: str = ""
    plan: ChatPlan | None = None


def read_template(bundle: TokenizerBundle) -> TemplateReadings:
    """Return the results of a tokenizer's template for each kind of conversation."""
    certificate = refuse_engine(bundle, "text", "tokenizers", "the atlas")
    template = ChatTemplate.load_from_tokenizer(bundle)
    writes = partial(written_by, compile_template(template, get_template_variables(bundle), DATE))
    writable = frozenset(kind.name for kind in KINDS if writes(kind))
    try:
        plan = chat_plan(bundle, certificate, template, pack_size=8192, template_date=DATE, choices=_CHOICES)
    except (ConfigError, TokenizerError) as error:
        return TemplateReadings(bundle.name, writable=writable, refusal=str(error))
    cells = _cells(load_conversation_renderer(plan, bundle), bundle)
    prompted = (
        _cells(load_conversation_renderer(plan, bundle, is_marked=False), bundle) if template.marks_answers else {}
    )
    return TemplateReadings(bundle.name, cells, prompted, writable, plan=plan)


def _cells(renderer: ConversationRenderer, bundle: TokenizerBundle) -> dict[str, Cell]:
    return {kind.name: _cell(kind, renderer, bundle) for kind in KINDS}


def _cell(kind: Kind, renderer: ConversationRenderer, bundle: TokenizerBundle) -> Cell:
    conversation = read_conversation(kind.row, ConversationFields(), _CHOICES)
    if isinstance(conversation, Refusal):
        return Cell(REFUSED, conversation.reason)
    rendered = renderer.render(conversation)
    used = keep_used_part(rendered)
    if not isinstance(used, RenderedConversation):
        return judge(kind, [], [used.reason])
    sequences = [[(chunk.text, chunk.trained) for chunk in chunks] for chunks in used.sequences]
    return judge(kind, sequences, used.cuts)
