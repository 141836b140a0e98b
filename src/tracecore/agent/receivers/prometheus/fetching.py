"""One GET of a target, within its time and its size, over a connection that is kept."""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import threading
import time
import zlib
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlencode, urljoin, urlsplit

from tracecore.agent.http_client import connection_to, hang_up, limited, target_of
from tracecore.agent.receivers.prometheus.options import ScrapeConfig

#: Bytes of one answer, where a configuration does not say less.
MOST_BYTES: Final = 64 << 20
PIECE: Final = 1 << 18
REDIRECTS: Final = 5
_FORMATS: Final = {
    "OpenMetricsText1.0.0": "application/openmetrics-text;version=1.0.0",
    "OpenMetricsText0.0.1": "application/openmetrics-text;version=0.0.1",
    "PrometheusText1.0.0": "text/plain;version=1.0.0",
    "PrometheusText0.0.4": "text/plain;version=0.0.4",
}
_USUAL: Final = ("OpenMetricsText1.0.0", "OpenMetricsText0.0.1", "PrometheusText0.0.4")


class ScrapeError(Exception):
    """The reason for a missing answer."""


class TargetAnswer(NamedTuple):
    """The answer of a target.

    Args:
        text: decompressed.
        open_metrics: it is OpenMetrics, and not Prometheus' own text format.
        size: of the text in bytes.
    """

    text: str
    open_metrics: bool
    size: int


class Fetcher:
    """Asks one target again and again.

    Args:
        config: of its job.
        url: where it is.
        timeout: seconds that one answer may take, and its interval, which the target is told.
    """

    def __init__(self, config: ScrapeConfig, url: str, timeout: float) -> None:
        self._config = config
        self._url = url
        self._timeout = timeout
        self._most = min(config.body_size_limit or MOST_BYTES, MOST_BYTES)
        wanted = config.scrape_protocols or list(_USUAL)
        accept = [f"{_FORMATS[one]};q=0.{9 - place}" for place, one in enumerate(wanted)]
        self._headers = {
            "Accept": ",".join([*accept, "*/*;q=0.1"]),
            "Accept-Encoding": "gzip" if config.enable_compression else "identity",
            "User-Agent": "tracecore",
            "X-Prometheus-Scrape-Timeout-Seconds": f"{timeout:g}",
        }
        self._connection: http.client.HTTPConnection | None = None
        self._where: tuple[str, str] = ("", "")
        self._lock = threading.Lock()

    def get(self) -> TargetAnswer:
        """Its answer.

        Raises:
            ScrapeError: there is none.
        """
        deadline = time.monotonic() + self._timeout
        url: str | None = self._url
        try:
            for _ in range(REDIRECTS + 1):
                assert url is not None
                answer, url = self._ask(url, deadline)
                if answer is not None:
                    return answer
            raise ScrapeError(f"more than {REDIRECTS} redirects")
        except ScrapeError:
            self.close()
            raise
        except TimeoutError:
            self.close()
            raise ScrapeError(f"no whole answer within {self._timeout:g} s") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            raise ScrapeError(_words(error)) from None

    def cut(self) -> None:
        """Hang up, from another thread: whoever reads finds the end."""
        with self._lock:
            connection = self._connection
        if connection is not None:
            hang_up(connection)

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _ask(self, url: str, deadline: float) -> tuple[TargetAnswer | None, str | None]:
        """The answer of a URL, or the URL that it redirects to."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        parts = urlsplit(url)
        where = (parts.scheme, parts.netloc)
        headers = dict(self._headers)
        # The secret is for the target, not for a server that it redirects to.
        if parts.netloc == urlsplit(self._url).netloc:
            headers |= _authorization(self._config)
        kept = self._connection is not None and self._where == where
        if not kept:
            self.close()
            made = connection_to(parts, left, self._config.tls_config.client())
            with self._lock:
                self._connection, self._where = made, where
        connection = self._connection
        if connection is None:
            raise OSError("the connection was cut")
        try:
            with limited(connection, left):
                connection.request("GET", target_of(parts), headers=headers)
                with closing(connection.getresponse()) as answer:
                    return self._judged(url, answer, deadline)
        except (http.client.RemoteDisconnected, ConnectionError, http.client.CannotSendRequest):
            if not kept:
                raise
            # A connection that was kept may have been closed by the other side meanwhile.
            self.close()
            return self._ask(url, deadline)

    def _judged(
        self, url: str, answer: http.client.HTTPResponse, deadline: float
    ) -> tuple[TargetAnswer | None, str | None]:
        if answer.status == 200:
            return self._read(answer, deadline), None
        self.close()
        if answer.status not in (301, 302, 303, 307, 308) or not self._config.follow_redirects:
            raise ScrapeError(f"it answers {answer.status} {answer.reason}"[:200].rstrip())
        place = answer.headers.get("Location", "")
        target = urljoin(url, place)
        if not place or urlsplit(target).scheme not in ("http", "https"):
            raise ScrapeError(f"it answers {answer.status} without a place to go")
        return None, target

    def _read(self, answer: http.client.HTTPResponse, deadline: float) -> TargetAnswer:
        encoding = answer.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in ("", "identity", "gzip"):
            raise ScrapeError(f"an encoding that was not asked for: {encoding[:40]}")
        unzip = zlib.decompressobj(31) if encoding == "gzip" else None
        pieces: list[bytes] = []
        size = 0
        while piece := answer.read1(PIECE):
            if time.monotonic() > deadline:
                # A connection that the other side will close is the answer's alone: nobody can hang up on it.
                raise TimeoutError
            while piece:
                data, piece = piece, b""
                if unzip is not None:
                    if unzip.eof:  # a gzip file may be several
                        unzip = zlib.decompressobj(31)
                    try:
                        data = unzip.decompress(data, PIECE)
                    except zlib.error as error:
                        raise ScrapeError(f"no gzip: {error}") from None
                    piece = unzip.unconsumed_tail or unzip.unused_data
                size += len(data)
                if size > self._most:
                    raise ScrapeError(f"an answer of more than {self._most} bytes")
                pieces.append(data)
        if answer.length or (unzip is not None and not unzip.eof):
            raise http.client.IncompleteRead(b"")
        answer.close()
        if answer.will_close:
            self.close()
        try:
            text = b"".join(pieces).decode("utf-8")
        except UnicodeDecodeError:
            raise ScrapeError("the answer is not UTF-8") from None
        return TargetAnswer(text, self._open_metrics(answer.headers.get("Content-Type", "")), size)

    def _open_metrics(self, kind: str) -> bool:
        media = kind.partition(";")[0].strip().lower()
        if media in ("application/openmetrics-text", "text/plain"):
            return media != "text/plain"
        return self._config.fallback_scrape_protocol.startswith("OpenMetrics")


def target_url(scheme: str, address: str, path: str, params: dict[str, list[str]]) -> str:
    """The URL of a target."""
    query = urlencode(params, doseq=True)
    return f"{scheme}://{address}{path}" + (f"?{query}" if query else "")


def _authorization(config: ScrapeConfig) -> dict[str, str]:
    """Secrets in files are read each time: they are renewed there."""
    if (basic := config.basic_auth) is not None:
        user = basic.username or _secret(basic.username_file)
        password = basic.password or _secret(basic.password_file)
        return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}
    if (given := config.authorization) is not None:
        return {"Authorization": f"{given.type} {given.credentials or _secret(given.credentials_file)}"}
    return {}


def _secret(path: str | None) -> str:
    if path is None:
        return ""
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise ScrapeError(f"cannot read {path}: {error.strerror}") from None


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not believed: {error.verify_message}"
    if isinstance(error, http.client.IncompleteRead):
        return "the answer is cut off"
    if isinstance(error, socket.gaierror):
        return f"its name is not known: {error.strerror}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return f"{type(error).__name__}: {error}"[:200]
