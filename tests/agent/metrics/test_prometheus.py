"""The prometheus receiver against targets that are well, slow, huge, broken or gone."""

from __future__ import annotations

import gzip
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tracecore.agent.batch import Batch, Refused
from tracecore.agent.component import Setting
from tracecore.agent.configuration import ConfigurationError, read
from tracecore.agent.receivers.prometheus.options import Options, PrometheusConfig, ScrapeConfig, StaticConfig
from tracecore.agent.receivers.prometheus.receiver import Prometheus as Receiver
from tracecore.agent.receivers.prometheus.target import Scraper, target
from tracecore.agent.telemetry import Meter

SECOND = 1_000_000_000


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError(f"not within {seconds} s")


class Exporter:
    """A target that answers as it is told."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        #: Status, headers and body; or what does all of it.
        self.answer: Any = (200, {"Content-Type": "text/plain; version=0.0.4"}, b"up_since 5\n")
        self.requests: list[dict[str, str]] = []
        self.paths: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.requests.append({name.lower(): value for name, value in self.headers.items()})
                outer.paths.append(self.path)
                if callable(outer.answer):
                    outer.answer(self)
                    return
                status, headers, body = outer.answer
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    one = Exporter()
    yield one
    one.close()


class Taken:
    """What scrapes have given."""

    def __init__(self) -> None:
        self.payloads: list[dict[str, Any]] = []
        self.refuse = False

    def __call__(self, batch: Batch) -> None:
        if self.refuse:
            raise Refused("full")
        self.payloads.append(batch.payload)

    def values(self, payload: dict[str, Any]) -> dict[str, Any]:
        """By name, of series without labels; None where the series has ended."""
        return {
            metric["name"]: None if point.get("flags") else point["as_double"]
            for entry in payload["resource_metrics"]
            for scope in entry["scope_metrics"]
            for metric in scope["metrics"]
            for kind in ("gauge", "sum")
            for point in metric.get(kind, {}).get("data_points", ())
        }

    @property
    def last(self) -> dict[str, Any]:
        return self.values(self.payloads[-1])


def config(address: str, **more: Any) -> ScrapeConfig:
    more = {"scrape_interval": SECOND, "scrape_timeout": SECOND, **more}
    return ScrapeConfig(job_name="gpus", static_configs=[StaticConfig(targets=[address])], **more)


Make = Callable[..., Scraper]


@pytest.fixture
def scraper() -> Iterator[Make]:
    made: list[Scraper] = []

    def make(address: str, taken: Taken, meter: Meter | None = None, **more: Any) -> Scraper:
        one = target(config(address, **more), {"__address__": address})
        assert one is not None
        made.append(Scraper(one, {}, taken, meter or Meter("receiver", "prometheus"), time.time_ns))
        return made[-1]

    yield make
    for one in made:
        one.hang_up()


def test_a_scrape(exporter: Exporter, scraper: Make) -> None:
    taken = Taken()
    one = scraper(exporter.address, taken, params={"collect[]": ["gpu", "ib"]}, metrics_path="/m")
    one.scrape()
    one.scrape()
    assert taken.last["up_since"] == 5.0
    assert taken.last["up"] == 1.0
    assert taken.last["scrape_samples_scraped"] == 1.0
    assert 0 < taken.last["scrape_duration_seconds"] < 60
    assert [taken.values(p)["scrape_series_added"] for p in taken.payloads] == [1.0, 0.0]
    assert exporter.paths == ["/m?collect%5B%5D=gpu&collect%5B%5D=ib"] * 2
    assert "openmetrics" in exporter.requests[0]["accept"]
    assert exporter.requests[0]["x-prometheus-scrape-timeout-seconds"] == "1"


def test_a_target_does_not_say_whether_it_is_up(exporter: Exporter, scraper: Make) -> None:
    exporter.answer = (200, {}, b'up 7\nup{of="another"} 3\nscrape_samples_scraped 9\n')
    taken = Taken()
    scraper(exporter.address, taken).scrape()
    points = [
        point
        for metric in taken.payloads[0]["resource_metrics"][0]["scope_metrics"][0]["metrics"]
        if metric["name"] == "up"
        for point in metric["gauge"]["data_points"]
    ]
    assert sorted((len(point["attributes"]), point["as_double"]) for point in points) == [(0, 1.0), (1, 3.0)]
    assert taken.last["scrape_samples_scraped"] == 3.0


def test_gzip_and_open_metrics(exporter: Exporter, scraper: Make) -> None:
    body = gzip.compress(b"# TYPE a counter\na_total 1\n") + gzip.compress(b"# EOF\n")
    exporter.answer = (200, {"Content-Encoding": "gzip", "Content-Type": "application/openmetrics-text"}, body)
    taken = Taken()
    scraper(exporter.address, taken).scrape()
    assert taken.last["a_total"] == 1.0


def chunked(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    for piece in (b"a 1\n", b"b", b" 2\n"):
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
    handler.wfile.write(b"0\r\n\r\n")


def test_chunks(exporter: Exporter, scraper: Make) -> None:
    exporter.answer = chunked
    taken = Taken()
    scraper(exporter.address, taken).scrape()
    assert (taken.last["a"], taken.last["b"]) == (1.0, 2.0)


def drip(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(600):
        handler.wfile.write(b"#")
        handler.wfile.flush()
        time.sleep(0.1)


def drip_headers(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
    for _ in range(600):
        handler.wfile.write(b"x")
        handler.wfile.flush()
        time.sleep(0.1)


def cut_off(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b"a 1\n")
    handler.close_connection = True


BOMB = gzip.compress(b"#" * (80 << 20), 1)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((500, {}, b"a 1\n"), "it answers 500"),
        ((404, {}, b""), "it answers 404"),
        ((200, {}, b"<!doctype html>\n<html>"), "no series"),
        ((200, {}, b"a \xff\n"), "not UTF-8"),
        ((200, {"Content-Encoding": "gzip"}, BOMB), "more than"),
        ((200, {"Content-Encoding": "gzip"}, b"a 1\n"), "no gzip"),
        ((200, {"Content-Encoding": "gzip"}, gzip.compress(b"a 1\n" * 1000)[:30]), "cut off"),
        ((200, {"Content-Encoding": "br"}, b"a 1\n"), "an encoding that was not asked for"),
        ((200, {"Content-Type": "application/openmetrics-text"}, b"a 1\n"), "cut off"),
        ((302, {"Location": "file:///etc/passwd"}, b""), "without a place to go"),
        ((302, {"Location": "/again"}, b""), "redirects"),
        (cut_off, "cut off"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_answers_that_are_none(exporter: Exporter, answer: Any, reason: str, scraper: Make) -> None:
    taken, meter = Taken(), Meter("receiver", "prometheus")
    one = scraper(exporter.address, taken, meter, scrape_timeout=30 * SECOND, scrape_interval=30 * SECOND)
    one.scrape()
    exporter.answer = answer
    one.scrape()
    assert reason in str(one.wrong)
    assert taken.last["up"] == 0.0
    assert taken.last["up_since"] is None, "its series have ended"
    assert meter.failures == 1
    exporter.answer = (200, {}, b"up_since 6\n")
    one.scrape()
    assert (one.wrong, taken.last["up"], taken.last["up_since"]) == ("", 1.0, 6.0)


@pytest.mark.parametrize("slow", [drip, drip_headers])
def test_an_answer_that_never_ends(exporter: Exporter, slow: Any, scraper: Make) -> None:
    exporter.answer = slow
    taken = Taken()
    one = scraper(exporter.address, taken)
    begin = time.monotonic()
    one.scrape()
    assert time.monotonic() - begin < 30
    assert "within 1 s" in str(one.wrong)


def test_nobody_there(scraper: Make) -> None:
    with socket.socket() as taken_port:
        taken_port.bind(("127.0.0.1", 0))
        taken = Taken()
        one = scraper(f"127.0.0.1:{taken_port.getsockname()[1]}", taken)
        one.scrape()
    assert "refused" in str(one.wrong)
    assert taken.last["up"] == 0.0


def test_a_connection_is_kept_and_may_be_closed_meanwhile(exporter: Exporter, scraper: Make) -> None:
    def closing(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "4")
        handler.end_headers()
        handler.wfile.write(b"a 1\n")
        handler.close_connection = True  # without having said so

    exporter.answer = closing
    taken = Taken()
    one = scraper(exporter.address, taken)
    for _ in range(3):
        one.scrape()
        time.sleep(0.05)
    assert [taken.values(p)["up"] for p in taken.payloads] == [1.0] * 3


def test_limits_of_a_job(exporter: Exporter, scraper: Make) -> None:
    exporter.answer = (200, {}, b"a 1\nb 2\nc 3\n")
    for limit in ({"sample_limit": 2}, {"body_size_limit": 8}, {"label_limit": 1}):
        one = scraper(exporter.address, Taken(), None, **limit)
        one.scrape()
        assert "more than" in str(one.wrong)


def test_targets_behind_a_target_are_bounded_and_forgotten(
    exporter: Exporter, scraper: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracecore.agent.receivers.prometheus.series.MOST_PLACES", 10)
    taken = Taken()
    one = scraper(exporter.address, taken, honor_labels=True, scrape_timeout=30 * SECOND, scrape_interval=30 * SECOND)
    for turn in range(6):
        exporter.answer = (200, {}, "".join(f'a{{instance="n{turn}-{n}"}} 1\n' for n in range(3)).encode())
        one.scrape()
        assert one.wrong == ""
    exporter.answer = (200, {}, "".join(f'a{{instance="m{n}"}} 1\n' for n in range(12)).encode())
    one.scrape()
    assert "more than 10 targets" in str(one.wrong)
    assert taken.last["up"] == 0.0
    exporter.answer = (200, {}, b'a{instance="z"} 1\n')
    one.scrape()
    assert one.wrong == ""


def test_secrets(exporter: Exporter, tmp_path: Path, scraper: Make) -> None:
    from tracecore.agent.receivers.prometheus.options import Authorization, BasicAuth

    token = tmp_path / "token"
    token.write_text("one\n")
    by_file = Authorization(credentials_file=str(token))
    one = scraper(exporter.address, Taken(), authorization=by_file)
    one.scrape()
    token.write_text("two\n")
    one.scrape()
    scraper(exporter.address, Taken(), basic_auth=BasicAuth(username="u", password="p")).scrape()
    assert [request.get("authorization") for request in exporter.requests] == ["Bearer one", "Bearer two", "Basic dTpw"]
    token.unlink()
    one.scrape()
    assert "cannot read" in str(one.wrong)


def test_a_redirect_takes_no_secret_along(exporter: Exporter, scraper: Make) -> None:
    from tracecore.agent.receivers.prometheus.options import Authorization

    other = Exporter()
    try:
        exporter.answer = (302, {"Location": f"http://{other.address}/metrics"}, b"")
        one = scraper(exporter.address, Taken(), authorization=Authorization(credentials="secret"))
        one.scrape()
        assert one.wrong == ""
        assert "authorization" in exporter.requests[0]
        assert "authorization" not in other.requests[0]
    finally:
        other.close()


def test_tls(tmp_path: Path, scraper: Make) -> None:
    from tracecore.agent.receivers.prometheus.options import TlsConfig

    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "1",
         "-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=gpu.example",
         "-addext", "subjectAltName=DNS:gpu.example", "-keyout", str(key), "-out", str(cert)],
        capture_output=True,
        check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("openssl cannot make a certificate here")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    exporter = Exporter(context)
    try:
        options = {"scheme": "https", "scrape_timeout": 30 * SECOND, "scrape_interval": 30 * SECOND}
        good = TlsConfig(ca_file=str(cert), server_name="gpu.example")
        for tls, wrong in (
            (good, ""),
            (TlsConfig(insecure_skip_verify=True), ""),
            (TlsConfig(ca_file=str(cert)), "certificate"),
            (TlsConfig(), "certificate"),
        ):
            one = scraper(exporter.address, Taken(), tls_config=tls, **options)
            one.scrape()
            assert wrong in str(one.wrong)
            assert bool(one.wrong) is bool(wrong)
    finally:
        exporter.close()


# -- the receiver as a whole -------------------------------------------------------------------------------------------


class Running:
    def __init__(self, configs: list[ScrapeConfig], base: Path = Path(), **more: Any) -> None:
        self.meter = Meter("receiver", "prometheus")
        setting = Setting("prometheus", self.meter, time.time_ns, {}.__getitem__, base, lambda: (True, {}))
        self.taken = Taken()
        self.stop = threading.Event()
        self.receiver = Receiver(Options(config=PrometheusConfig(scrape_configs=configs), **more), setting)
        self.thread = threading.Thread(target=self.receiver.run, args=(self.taken, self.stop))
        self.thread.start()

    def close(self) -> None:
        self.stop.set()
        self.thread.join(30)
        assert not self.thread.is_alive()

    def of(self, address: str) -> list[dict[str, Any]]:
        return [
            self.taken.values(payload)
            for payload in list(self.taken.payloads)
            if payload["resource_metrics"][0]["resource"]["attributes"]["service.instance.id"] == address
        ]


@pytest.fixture
def running() -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(*configs: ScrapeConfig, **more: Any) -> Running:
        started.append(Running(list(configs), **more))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_a_slow_target_delays_no_other(exporter: Exporter, running: Callable[..., Running]) -> None:
    slow = Exporter()
    slow.answer = drip
    try:
        job = config(exporter.address, scrape_interval=SECOND // 5, scrape_timeout=SECOND // 5)
        hostile = config(slow.address, scrape_interval=SECOND // 2, scrape_timeout=SECOND // 2)
        one = running(job, msgspec.structs.replace(hostile, job_name="slow"))
        until(lambda: len(one.of(slow.address)) >= 2)
        assert all(values["up"] == 0.0 for values in one.of(slow.address))
        until(lambda: len(one.of(exporter.address)) >= 5)
        assert one.meter.degraded_reason == "", "one target that is down is what `up` is for"
    finally:
        slow.close()


def test_a_receiver_without_targets_that_answer_is_degraded(
    running: Callable[..., Running], exporter: Exporter
) -> None:
    exporter.answer = (503, {}, b"")
    one = running(config(exporter.address, scrape_interval=SECOND // 10, scrape_timeout=SECOND // 10))
    until(lambda: "none of 1 targets answers" in one.meter.degraded_reason)
    exporter.answer = (200, {}, b"a 1\n")
    until(lambda: not one.meter.degraded)


def test_a_scrape_that_nobody_takes_is_dropped_and_counted(exporter: Exporter, running: Callable[..., Running]) -> None:
    one = running(config(exporter.address, scrape_interval=SECOND // 5, scrape_timeout=SECOND // 5))
    one.taken.refuse = True
    until(lambda: one.meter.dropped.get("refused_scrape"))
    one.taken.refuse = False
    until(lambda: one.of(exporter.address))


def test_too_many_targets_for_a_job(exporter: Exporter, running: Callable[..., Running]) -> None:
    job = ScrapeConfig(
        job_name="gpus",
        scrape_interval=SECOND // 5,
        scrape_timeout=SECOND // 5,
        target_limit=1,
        static_configs=[StaticConfig(targets=[exporter.address, "127.0.0.1:1"])],
    )
    fine = msgspec.structs.replace(job, job_name="fine", target_limit=2)
    one = running(job, fine)
    until(lambda: one.taken.payloads)
    jobs = {p["resource_metrics"][0]["resource"]["attributes"]["service.name"] for p in one.taken.payloads}
    assert jobs == {"fine"}


# -- configuration -----------------------------------------------------------------------------------------------------

AGENT = """
receivers:
  prometheus:
    config:
      scrape_configs:
        - job_name: gpus
          scrape_interval: 15s
          static_configs: [{targets: ["localhost:9400"]}]
          %s
exporters: {debug: {}}
service: {pipelines: {metrics: {receivers: [prometheus], exporters: [debug]}}}
"""


@pytest.mark.parametrize(
    "line",
    [
        "honor_labels: true",
        "relabel_configs: [{source_labels: [__address__], regex: '(.*):.*', target_label: node, replacement: $$1}]",
        "metric_relabel_configs: [{source_labels: [__name__], regex: 'go_.*', action: drop}]",
        "kubernetes_sd_configs: [{role: pod, selectors: [{role: pod, field: spec.nodeName=n}]}]",
        'params: {"collect[]": [a]}',
        "tls_config: {insecure_skip_verify: true}",
        "authorization: {credentials: x}",
        "body_size_limit: 10MB",
    ],
)
def test_good_configurations(tmp_path: Path, line: str) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(AGENT % line)
    made, _ = read([path])
    assert made.of("receiver")["prometheus"].options.config.scrape_configs[0].job_name == "gpus"


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("honour_labels: true", "honor_labels"),
        ("scrape_timeout: 20s", "longer"),
        ("relabel_configs: [{action: keep, regex: '('}]", "regular expression"),
        ("relabel_configs: [{action: hashmod, target_label: a}]", "modulus"),
        ("relabel_configs: [{source_labels: [a], replacement: x}]", "target_label"),
        ("consul_sd_configs: []", "is not supported here"),
        ("metrics_path: metrics", "begins with /"),
        ("tls_config: {cert_file: /no/such/file}", "belong together"),
        ("basic_auth: {username: a}\n          authorization: {credentials: b}", "not both"),
        ("file_sd_configs: [{files: [a.json]}]", "run it in a Collector in front and send OTLP"),
        ("kubernetes_sd_configs: [{role: endpoints}]", "run it in a Collector in front and send OTLP"),
        (
            "kubernetes_sd_configs: [{role: pod, api_server: 'http://x'}]",
            "run it in a Collector in front and send OTLP",
        ),
    ],
)
def test_bad_configurations(tmp_path: Path, line: str, wrong: str) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(AGENT % line)
    with pytest.raises(ConfigurationError) as caught:
        read([path])
    (problem,) = caught.value.problems
    assert wrong in problem.message
    assert problem.line >= 8
