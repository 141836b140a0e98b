"""`tracecore serve` with the tools, prompts and resources that the published suite wants for its own sake.

Everything else is the real server: its application, authentication, limits, transport and own tools.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.types import AudioContent, EmbeddedResource, ImageContent, TextContent, TextResourceContents

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
    return server


if __name__ == "__main__":
    http.make_mcp = make_with_the_suite_s
    sys.exit(main())
