"""Messages as clients send them become ``Message``; what no engine understands is refused."""

from __future__ import annotations

from actors.bodies import ChatMessage
from runtime.errors import RequestError, UnsupportedParameter
from runtime.types import Message, ToolCall

_ROLES = {"developer": "system"}


def split(messages: list[ChatMessage], direct: bool) -> tuple[tuple[Message, ...], Message]:
    """History and the last message, which must be the user's, or answer a tool call.

    ``direct`` says that one pool model gets them as they are. A plan of several agents takes no
    tool calls and tells no names.

    Raises:
        RequestError: names the message at fault.
    """
    if not messages:
        raise RequestError("messages must not be empty", "messages")
    given = [_message(f"messages.{i}", m, direct) for i, m in enumerate(messages)]
    last = given[-1]
    if last.role not in ("user", "tool"):
        raise RequestError("the last message must be the user's, or a tool's answer", "messages")
    if last.role == "user" and not last.content.strip():
        raise RequestError("the last message is empty", "messages")
    return tuple(given[:-1]), last


def _message(where: str, given: ChatMessage, direct: bool) -> Message:
    role = _ROLES.get(given.role, given.role)
    if not direct and (given.tool_calls or role == "tool"):
        message = "tool messages are served for a pool model called by name, not for inframind"
        raise UnsupportedParameter(message, where)
    if given.content is None and not given.tool_calls:
        raise RequestError(f"{where} has no content", f"{where}.content")
    if given.tool_calls and role != "assistant":
        raise RequestError(f"{where}: tool_calls are an assistant's", f"{where}.tool_calls")
    if (role == "tool") != (given.tool_call_id is not None):
        message = f"{where}: tool_call_id belongs to role tool, which needs it"
        raise RequestError(message, f"{where}.tool_call_id")
    calls = tuple(
        ToolCall(call.id, call.function.name, call.function.arguments)
        for call in given.tool_calls or ()
    )
    return Message(role, given.text, given.name if direct else None, calls, given.tool_call_id)
