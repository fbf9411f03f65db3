"""The form in which a template reads a message: the key of reasoning, arguments as objects or text, content as parts.

Templates differ in these points, and silently drop a message in a different form. `find_form` tries the forms on
invented messages, so that every row is passed to a template in the form that the template reads.
"""

import json
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from dataprep_assets.tokenization.chat.messages import REASONING_KEYS
from dataprep_assets.tokenization.chat.template import Renderer, TemplateRenderError

TOOL = {
    "type": "function",
    "function": {
        "name": "look_up_word",
        "description": "Finds a word.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string", "description": "A word."}}},
    },
}
"""The tool of invented conversations."""
USER = {"role": "user", "content": "A question."}


def build_tool_call(word: str, id: str = "abcdefgh1") -> dict[str, Any]:
    """Return a call of `TOOL`. The id has nine characters, because Mistral's templates refuse others."""
    return {"id": id, "type": "function", "function": {"name": "look_up_word", "arguments": {"word": word}}}


def build_tool_result(text: str, id: str = "abcdefgh1") -> dict[str, Any]:
    """Return a result of `TOOL`."""
    return {"role": "tool", "content": text, "tool_call_id": id, "name": "look_up_word"}


@dataclass(frozen=True, slots=True)
class MessageForm:
    """The form in which a template reads a message.

    Attributes:
        reasoning: The key under which it reads reasoning; `content` if it reads only `<think>` tags in the content.
        text_arguments: Whether the arguments of a call are JSON text instead of an object.
        null_content: Whether the content of a call without text is null instead of an empty string.
        parts: Whether content is a list of parts instead of a text, as in templates for images.
    """

    reasoning: str = "reasoning_content"
    text_arguments: bool = False
    null_content: bool = False
    parts: bool = False

    def apply_form(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the messages in this form. Messages that need no change are not copied."""
        return messages if self == _DEFAULT else [self._convert_message(message) for message in messages]

    def _convert_message(self, message: dict[str, Any]) -> dict[str, Any]:
        if self.reasoning == "content" and isinstance(thought := message.get("reasoning_content"), str):
            content = f"<think>\n{thought.strip()}\n</think>\n\n{message.get('content') or ''}"
            message = {
                key: value for key, value in (message | {"content": content}).items() if key != "reasoning_content"
            }
        elif "reasoning_content" in message and self.reasoning != "reasoning_content":
            message = {(self.reasoning if key == "reasoning_content" else key): v for key, v in message.items()}
        if calls := message.get("tool_calls"):
            if self.text_arguments:
                message = {**message, "tool_calls": [_convert_arguments_to_text(call) for call in calls]}
            if self.null_content and not message.get("content"):
                return {**message, "content": None}
        if self.parts and isinstance(text := message.get("content"), str):
            message = {**message, "content": [{"type": "text", "text": text}]}
        return message


_DEFAULT = MessageForm()


def _convert_arguments_to_text(call: dict[str, Any]) -> dict[str, Any]:
    inner = call.get("function", call)
    inner = {**inner, "arguments": json.dumps(inner["arguments"], ensure_ascii=False)}
    return {**call, "function": inner} if "function" in call else inner


def find_form(renderer: Renderer) -> MessageForm:
    """Return the form in which a template reads messages. Attributes that cannot be determined keep their defaults."""
    form = MessageForm()
    plain = [{**USER, "content": "Qquestionq"}, {"role": "assistant", "content": "Qquestionq"}]
    if not _writes(renderer, form, plain, "Qquestionq", 2) and _writes(
        renderer, MessageForm(parts=True), plain, "Qquestionq", 2
    ):
        form = MessageForm(parts=True)
    for key in REASONING_KEYS:
        candidate = replace(form, reasoning=key)
        thought = {"role": "assistant", "content": "An answer.", "reasoning_content": "Qthoughtq"}
        acting = {**thought, "content": "", "tool_calls": [build_tool_call("buoy")]}
        if _writes(renderer, candidate, [USER, thought], "Qthoughtq") or _writes(
            renderer, candidate, [USER, acting], "Qthoughtq"
        ):
            form = candidate
            break
    else:
        form = _find_inline_form(renderer, form)
    call = {"role": "assistant", "content": "", "tool_calls": [build_tool_call("Qbuoyq")]}
    for null_content, text_arguments in product((False, True), repeat=2):
        candidate = replace(form, text_arguments=text_arguments, null_content=null_content)
        if _writes(renderer, candidate, [USER, call], "Qbuoyq"):
            return candidate
    return form


def _find_inline_form(renderer: Renderer, form: MessageForm) -> MessageForm:
    """Return the form with inline reasoning if the prompt opens a thought and the template keeps thoughts in content.

    Otherwise, return `form`.
    """
    inline = replace(form, reasoning="content")
    thought = {"role": "assistant", "content": "An answer.", "reasoning_content": "Qthoughtq"}
    try:
        prompt = renderer.render(form.apply_form([USER]), None, prompt=True, thinking=True)
    except TemplateRenderError:
        return form
    is_inline = prompt.rstrip().endswith("<think>") and _writes(renderer, inline, [USER, thought], "Qthoughtq")
    return inline if is_inline else form


def _writes(renderer: Renderer, form: MessageForm, messages: list[dict[str, Any]], text: str, count: int = 1) -> bool:
    tools = [TOOL] if "tool_calls" in messages[-1] else None
    try:
        return renderer.render(form.apply_form(messages), tools, prompt=False, thinking=True).count(text) >= count
    except TemplateRenderError:
        return False
