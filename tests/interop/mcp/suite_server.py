"""`tracecore serve` with the tools, prompts and resources that the published suite wants for its own sake.

Everything else is the real server: its application, authentication, limits, transport and own tools.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Callable
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.types import (
    AudioContent,
    EmbeddedResource,
    EmptyResult,
    ImageContent,
    SamplingMessage,
    SetLevelRequestParams,
    TextContent,
    TextResourceContents,
)

from tracecore.cli.main import main
from tracecore.server.mcp import http
from tracecore.server.mcp.tools import make_mcp
from tracecore.store.store import Store

#: A picture of one pixel and a sound without samples.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA="


def embedded(uri: str, kind: str, text: str) -> EmbeddedResource:
    return EmbeddedResource(type="resource", resource=TextResourceContents(uri=uri, mime_type=kind, text=text))


def image() -> ImageContent:
    return ImageContent(type="image", data=PNG, mime_type="image/png")


def add_tools(server: MCPServer) -> None:
    @server.tool()
    def test_simple_text() -> str:
        """Return a text."""
        return "This is a simple text response for testing."

    @server.tool()
    def test_image_content() -> ImageContent:
        """Return a picture."""
        return image()

    @server.tool()
    def test_audio_content() -> AudioContent:
        """Return a sound."""
        return AudioContent(type="audio", data=WAV, mime_type="audio/wav")

    @server.tool()
    def test_embedded_resource() -> EmbeddedResource:
        """Return a resource within the answer."""
        return embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")

    @server.tool(structured_output=False)
    def test_multiple_content_types() -> list[Any]:
        """Return several kinds at once."""
        found = embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
        return [TextContent(type="text", text="Multiple content types test:"), image(), found]

    @server.tool()
    def test_error_handling() -> str:
        """Fail."""
        raise ToolError("This tool intentionally returns an error for testing")


def add_resources(server: MCPServer) -> None:
    @server.resource("test://static-text", mime_type="text/plain")
    def static_text() -> str:
        """A text."""
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", mime_type="image/png")
    def static_binary() -> bytes:
        """Bytes."""
        return base64.b64decode(PNG)

    @server.resource("test://template/{id}/data", mime_type="application/json")
    def template(id: str) -> str:
        """A text with a name in it."""
        return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


def add_what_needs_a_session(server: MCPServer) -> None:
    """Tools that tell or ask something while they work, and what goes with them."""

    @server.tool()
    async def test_tool_with_logging(context: Context[Any, Any]) -> str:
        """Log three lines."""
        for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            await context.session.send_log_message("info", text, related_request_id=context.request_id)
            await asyncio.sleep(0.05)
        return "done"

    @server.tool()
    async def test_tool_with_progress(context: Context[Any, Any]) -> str:
        """Tell how far it is."""
        for done in (0, 50, 100):
            await context.report_progress(done, 100)
            await asyncio.sleep(0.05)
        return "done"

    @server.tool()
    async def test_sampling(prompt: str, context: Context[Any, Any]) -> str:
        """Ask the client's model."""
        asked = [SamplingMessage(role="user", content=TextContent(type="text", text=prompt))]
        said = await context.session.create_message(asked, max_tokens=100, related_request_id=context.request_id)
        return f"LLM response: {said.content}"

    async def ask(context: Context[Any, Any], message: str, properties: dict[str, Any], *required: str) -> str:
        schema = {"type": "object", "properties": properties, "required": list(required)}
        said = await context.session.elicit_form(message, schema, related_request_id=context.request_id)
        return f"action={said.action}, content={json.dumps(said.content)}"

    @server.tool()
    async def test_elicitation(message: str, context: Context[Any, Any]) -> str:
        """Ask the person."""
        asked = {name: {"type": "string", "description": f"the {name}"} for name in ("username", "email")}
        return "User response: " + await ask(context, message, asked, "username", "email")

    @server.tool()
    async def test_elicitation_sep1034_defaults(context: Context[Any, Any]) -> str:
        """Ask with defaults."""
        asked = {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "default": True},
        }
        return "Elicitation completed: " + await ask(context, "Who?", asked)

    @server.tool()
    async def test_elicitation_sep1330_enums(context: Context[Any, Any]) -> str:
        """Ask for one of several."""
        plain = ["option1", "option2", "option3"]
        titled = [{"const": f"value{n}", "title": f"{name} Option"} for n, name in enumerate(("First", "Second"), 1)]
        old = {"enum": ["opt1", "opt2", "opt3"], "enumNames": ["Option One", "Option Two", "Option Three"]}
        asked = {
            "untitledSingle": {"type": "string", "enum": plain},
            "titledSingle": {"type": "string", "oneOf": titled},
            "legacyEnum": {"type": "string", **old},
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": plain}},
            "titledMulti": {"type": "array", "items": {"anyOf": titled}},
        }
        return "Elicitation completed: " + await ask(context, "Which?", asked)

    @server.resource("test://watched-resource", mime_type="text/plain")
    def watched() -> str:
        """A text that somebody follows."""
        return "watched"

    async def set_level(_: Any, wanted: SetLevelRequestParams) -> EmptyResult:
        return EmptyResult()

    server._lowlevel_server.add_request_handler("logging/setLevel", SetLevelRequestParams, set_level)


def add_prompts(server: MCPServer) -> None:
    @server.prompt()
    def test_simple_prompt() -> str:
        """A text."""
        return "This is a simple prompt for testing."

    @server.prompt()
    def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
        """A text with arguments."""
        return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"

    @server.prompt()
    def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:
        """A resource and a text."""
        found = embedded(resourceUri, "text/plain", "Embedded resource content for testing.")
        return [UserMessage(found), UserMessage("Please process the embedded resource above.")]

    @server.prompt()
    def test_prompt_with_image() -> list[UserMessage]:
        """A picture and a text."""
        return [UserMessage(image()), UserMessage("Please analyze the image above.")]


def make_with_the_suite_s(store: Store, clock: Callable[[], int], *, local: bool) -> MCPServer:
    server = make_mcp(store, clock, local=local)
    add_tools(server)
    add_resources(server)
    add_prompts(server)
    add_what_needs_a_session(server)
    return server


if __name__ == "__main__":
    http.make_mcp = make_with_the_suite_s
    sys.exit(main())
