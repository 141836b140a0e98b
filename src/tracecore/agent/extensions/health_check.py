"""The `health_check` extension: one page for probes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

import msgspec

from tracecore.agent.component import Extension, Setting
from tracecore.agent.options import address
from tracecore.agent.web import OwnServer


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        endpoint: where to listen; port 0 takes a free one.
        path: the page that is 200 while everything runs, else 503.
    """

    IGNORED: ClassVar[tuple[str, ...]] = (
        "response_body",
        "check_collector_pipeline",
        "response_headers",
    )

    endpoint: Annotated[str, msgspec.Meta(extra={"address": "localhost:13133"})] = "localhost:13133"
    path: str = "/"

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if not self.path.startswith("/"):
            yield ("path",), "begins with /"


class HealthCheck(Extension):
    """Listens as long as the agent runs."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._options = options
        self._setting = setting
        self._server: OwnServer | None = None

    def start(self) -> None:
        where = address(self._options.endpoint)
        assert where is not None
        self._server = OwnServer(where, None, self._setting.health, self._options.path)
        self._server.start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None
