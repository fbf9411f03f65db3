"""Chat templates for these tests: a plain one, and one with the difficulties of published ones."""

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Turns between two tokens, with a newline after the second one."""
TRAP = """\
{%- set given = chat_template_kwargs if chat_template_kwargs is defined else {} %}
{%- set thinking = given.enable_thinking if given.enable_thinking is defined else true %}
{%- for m in messages %}
    {{- '<|im_start|>' ~ m.role ~ '\\n' }}
    {%- if m.role == 'assistant' %}
        {%- if m.reasoning_content is string and m.reasoning_content | trim %}
            {{- '<think>\\n' ~ m.reasoning_content ~ '\\n</think>\\n' }}
        {%- elif '<think>' not in m.content | default('') %}
            {{- '<think></think>' }}
        {%- endif %}
    {%- endif %}
    {{- m.content | default('') | string }}
    {%- for call in m.tool_calls or [] %}
        {{- '<tool_call>' ~ (call.function or call) | tojson ~ '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' ~ ('<think>\\n' if thinking else '<think></think>') }}
{%- endif %}
"""
"""The prompt ends in `<think>` and a newline unless `chat_template_kwargs` disables it; a newline ends each turn."""
NO_KWARGS = TRAP.replace("chat_template_kwargs", "never_given")
"""The same template without that switch: an answer without reasoning never follows its prompt."""
BROKEN_THOUGHTS = TRAP.replace(
    "elif '<think>' not in m.content | default('')",
    "elif m.content is string and '<think>' not in m.content and '</think>' not in m.content",
)
"""The same template, which keeps a text with half a thought, and content that is not text, unchanged, like nano3."""
LLAMA = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
"""Llama 3's headers, with the BOS that its tokenizer would add."""
HERMES = """\
{%- if tools %}
    {{- '<|im_start|>system\\nTools, one a line:\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson ~ '\\n' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}
    {{- '<|im_start|>' ~ m.role ~ '\\n' ~ (m.content if m.content is not none else '') }}
    {%- for call in m.tool_calls or [] %}
        {{- '\\n<tool_call>\\n' ~ (call.function or call) | tojson ~ '\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
"""Turns between two tokens, calls as JSON between tags, no reasoning, like Hermes."""
HEADERS = """\
{%- for m in messages %}
    {{- '[' ~ m.role ~ ']\\n\\n' ~ m.content | default('') | string | trim }}
    {%- for call in m.tool_calls or [] %}
        {{- (call.function or call) | tojson }}
    {%- endfor %}
    {{- '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '[assistant]\\n\\n' }}
{%- endif %}
"""
"""Plain text headers, a blank line, and trimmed text directly followed by the end of the turn, like Llama 3."""
QWEN = """\
{%- set ns = namespace(question=-1) %}
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {%- set ns.question = loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for m in messages %}
    {{- '<|im_start|>' ~ m.role ~ '\\n' }}
    {%- if m.role == 'assistant' and loop.index0 > ns.question and (loop.last or m.reasoning_content) %}
        {{- '<think>\\n' ~ m.reasoning_content | default('') ~ '\\n</think>\\n\\n' }}
    {%- endif %}
    {{- m.content }}
    {%- for call in m.tool_calls or [] %}
        {{- '<tool_call>' ~ (call.function or call) | tojson ~ '</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' ~ ('<think>\\n\\n</think>\\n\\n' if enable_thinking is false else '') }}
{%- endif %}
"""
"""Thoughts only after the last question, and empty ones only in the last answer, like Qwen3."""
