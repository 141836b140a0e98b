"""Options of the `prometheus` receiver: Prometheus' own configuration, as far as it is understood here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec
import re2

from tracecore.agent import elsewhere
from tracecore.agent.options import SECOND, Count, Duration, Interval, Secret, Size, Written
from tracecore.agent.receivers.prometheus.relabel import Relabel
from tracecore.agent.tls import ClientTls, Version, missing_files

_LABEL = re2.compile(r"^[a-zA-Z_][a-zA-Z0-9_]*$")
Format = Literal["OpenMetricsText1.0.0", "OpenMetricsText0.0.1", "PrometheusText1.0.0", "PrometheusText0.0.4"]
Problems = Iterator[tuple[tuple[str | int, ...], str]]
_VERSIONS: dict[str, Version] = {"TLS12": "1.2", "TLS13": "1.3"}


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        ca_file: who signs the target's certificate; the system's authorities when not given.
        ca: the same, written here.
        cert_file: our own certificate, for targets that ask for one.
        key_file: its key.
        server_name: the name that the target's certificate must have.
        insecure_skip_verify: believe any certificate.
        min_version: the oldest TLS accepted.
    """

    ca_file: str | None = None
    ca: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    server_name: str | None = None
    insecure_skip_verify: bool = False
    min_version: Literal["TLS12", "TLS13"] = "TLS12"

    @staticmethod
    def elsewhere(name: str) -> str:
        """Return what to do about a setting that is not here on purpose."""
        wanted = f'"{name}" is not supported here; write it to a file and name that: {name}_file'
        return wanted if name in ("cert", "key") else ""

    def check(self) -> Problems:
        if self.ca is not None and self.ca_file is not None:
            yield ("ca",), "give ca_file or ca, not both"
        if (self.cert_file is None) != (self.key_file is None):
            yield ("cert_file" if self.key_file is None else "key_file",), "cert_file and key_file belong together"

    def warn(self) -> Problems:
        return missing_files(self, "ca_file", "cert_file", "key_file")

    def client(self) -> ClientTls:
        """The same in the Collector's words."""
        return ClientTls(
            ca_file=self.ca_file,
            ca_pem=self.ca,
            cert_file=self.cert_file,
            key_file=self.key_file,
            server_name_override=self.server_name,
            insecure_skip_verify=self.insecure_skip_verify,
            min_version=_VERSIONS[self.min_version],
        )


class BasicAuth(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        username: who asks.
        username_file: a file that has it.
        password: never printed.
        password_file: a file that has it, read before each scrape.
    """

    username: str = ""
    username_file: str | None = None
    password: Secret = ""
    password_file: str | None = None

    def check(self) -> Problems:
        if bool(self.username) == bool(self.username_file):
            yield (), "one of username and username_file is needed"
        if self.password and self.password_file:
            yield ("password_file",), "give password or password_file, not both"


class Authorization(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        type: the scheme.
        credentials: never printed.
        credentials_file: a file that has them, read before each scrape.
    """

    type: str = "Bearer"
    credentials: Secret = ""
    credentials_file: str | None = None

    def check(self) -> Problems:
        if bool(self.credentials) == bool(self.credentials_file):
            yield (), "one of credentials and credentials_file is needed"
        if self.type.lower() == "basic":
            yield ("type",), "use basic_auth for this"


class StaticConfig(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        targets: `host:port`.
        labels: what their series have.
    """

    targets: list[str]
    labels: dict[str, Written] = {}

    def check(self) -> Problems:
        for number, target in enumerate(self.targets):
            if not target or "/" in target:
                yield ("targets", number), f'"{target}" is no target; write it like localhost:9400'
        for name in self.labels:
            if not _LABEL.match(name):
                yield ("labels", name), f'"{name}" is no label'

    def addresses(self) -> Iterator[dict[str, str]]:
        """Labels of each target, its address among them."""
        return ({**self.labels, "__address__": address} for address in self.targets)


class Namespaces(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        names: which; all when none is given.
        own_namespace: the one this runs in as well.
    """

    names: list[str] = []
    own_namespace: bool = False


class AttachMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        node: labels and annotations of the node; not supported here.
        namespace: those of the namespace; not supported here.
    """

    node: bool = False
    namespace: bool = False

    def check(self) -> Problems:
        for name in ("node", "namespace"):
            if getattr(self, name):
                yield (name,), f'"attach_metadata: {{{name}: true}}" {elsewhere.HERE}'


class RoleSelector(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        role: what is selected.
        label: a label selector.
        field: a field selector, such as `spec.nodeName=node-7`.
    """

    role: str
    label: str = ""
    field: str = ""


#: Settings for a cluster that is not the one the agent runs in.
_OTHER_CLUSTER: Final = (
    *("api_server", "kubeconfig_file", "authorization", "basic_auth", "bearer_token", "bearer_token_file"),
    *("oauth2", "tls_config"),
)
_PROXY: Final = ("proxy_url", "no_proxy", "proxy_from_environment", "proxy_connect_header")


class KubernetesSd(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        role: `pod`: each port of each pod is a target.
        namespaces: where.
        selectors: which. An agent that scrapes its own node wants `field: spec.nodeName=${env:K8S_NODE_NAME}`.
        attach_metadata: accepted where it asks for nothing.
        follow_redirects: accepted and without effect.
        enable_http2: accepted and without effect.
    """

    role: str
    namespaces: Namespaces = Namespaces()
    selectors: list[RoleSelector] = []
    attach_metadata: AttachMetadata = AttachMetadata()
    follow_redirects: bool = True
    enable_http2: bool = True

    def check(self) -> Problems:
        if self.role != "pod":
            yield ("role",), f'the role "{self.role}" {elsewhere.HERE}'
        if len(self.selectors) > 1:
            yield ("selectors", 1), "one selector is enough: its label and field are both applied"

    @staticmethod
    def elsewhere(name: str) -> str:
        """Return what to do about a setting that is not here on purpose."""
        return f'"{name}" {elsewhere.HERE}' if name in _OTHER_CLUSTER or name in _PROXY else ""


class ScrapeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        job_name: becomes `service.name`.
        scrape_interval: how often; that of `global` when not given.
        scrape_timeout: for how long; that of `global` when not given, and never more than the interval.
        metrics_path: where.
        scheme: how.
        params: of the URL.
        honor_labels: a target's own labels win over those of its configuration.
        honor_timestamps: a target's own times win over that of the scrape.
        track_timestamps_staleness: series with times of their own end as others do.
        scrape_protocols: formats asked for, the most wanted first.
        fallback_scrape_protocol: what an answer is that does not say.
        follow_redirects: go where a target says.
        enable_compression: ask for gzip.
        enable_http2: accepted and without effect.
        static_configs: targets by name.
        kubernetes_sd_configs: pods the Kubernetes API knows.
        relabel_configs: rules for targets.
        metric_relabel_configs: rules for series.
        tls_config: for https.
        basic_auth: user and password.
        authorization: a token.
        bearer_token: the same, as older configurations have it; never printed.
        bearer_token_file: a file that has it, read before each scrape.
        sample_limit: a scrape with more samples fails; 0 for the most that is taken.
        label_limit: a scrape with a series of more labels fails.
        label_name_length_limit: one of a longer name fails.
        label_value_length_limit: one of a longer value fails.
        body_size_limit: a larger answer fails; 0 for the most that is taken.
        target_limit: more targets than this, and none is scraped.
    """

    IGNORED: ClassVar[tuple[str, ...]] = (
        "scrape_classic_histograms",
        "always_scrape_classic_histograms",
        "scrape_native_histograms",
        "convert_classic_histograms_to_nhcb",
        "native_histogram_bucket_limit",
        "native_histogram_min_bucket_factor",
        "keep_dropped_targets",
        "metric_name_validation_scheme",
        "metric_name_escaping_scheme",
        "scrape_failure_log_file",
    )

    job_name: Annotated[str, msgspec.Meta(min_length=1)]
    scrape_interval: Interval | None = None
    scrape_timeout: Interval | None = None
    metrics_path: str = "/metrics"
    scheme: Literal["http", "https"] = "http"
    params: dict[str, list[str]] = {}
    honor_labels: bool = False
    honor_timestamps: bool = True
    track_timestamps_staleness: bool = False
    scrape_protocols: list[Format] = []
    fallback_scrape_protocol: Format = "PrometheusText0.0.4"
    follow_redirects: bool = True
    enable_compression: bool = True
    enable_http2: bool = True
    static_configs: list[StaticConfig] = []
    kubernetes_sd_configs: list[KubernetesSd] = []
    relabel_configs: list[Relabel] = []
    metric_relabel_configs: list[Relabel] = []
    tls_config: TlsConfig = TlsConfig()
    basic_auth: BasicAuth | None = None
    authorization: Authorization | None = None
    bearer_token: Secret = ""
    bearer_token_file: str = ""
    sample_limit: Count = 0
    label_limit: Count = 0
    label_name_length_limit: Count = 0
    label_value_length_limit: Count = 0
    body_size_limit: Size = 0
    target_limit: Count = 0

    def check(self) -> Problems:
        if self.basic_auth is not None and self.authorization is not None:
            yield ("authorization",), "give basic_auth or authorization, not both"
        given = bool(self.bearer_token) + bool(self.bearer_token_file) + (self.authorization is not None)
        if given > 1 or (given and self.basic_auth is not None and self.authorization is None):
            yield (), "one of basic_auth, authorization, bearer_token and bearer_token_file is enough"
        if self.scrape_interval and self.scrape_timeout and self.scrape_timeout > self.scrape_interval:
            yield ("scrape_timeout",), "may not be longer than scrape_interval"
        if not self.metrics_path.startswith("/"):
            yield ("metrics_path",), "begins with /"

    @staticmethod
    def elsewhere(name: str) -> str:
        """Return what to do about a setting that is not here on purpose."""
        if name.endswith("_sd_configs"):
            return f'the discovery "{name}" {elsewhere.HERE}'
        return f'"{name}" {elsewhere.HERE}' if name in (*_PROXY, "oauth2", "http_headers") else ""


class Global(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        scrape_interval: how often.
        scrape_timeout: for how long.
        evaluation_interval: of rules, which are not evaluated here.
        external_labels: what all series have.
    """

    IGNORED: ClassVar[tuple[str, ...]] = (
        "scrape_protocols",
        "query_log_file",
        "scrape_failure_log_file",
        "body_size_limit",
        "keep_dropped_targets",
        "metric_name_validation_scheme",
        "metric_name_escaping_scheme",
        "scrape_native_histograms",
        "always_scrape_classic_histograms",
        "convert_classic_histograms_to_nhcb",
    )

    scrape_interval: Interval = 60 * SECOND
    scrape_timeout: Interval = 10 * SECOND
    evaluation_interval: Duration = 60 * SECOND
    external_labels: dict[str, Written] = {}


class PrometheusConfig(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        global_: what all jobs share.
        scrape_configs: the jobs.
    """

    global_: Global = msgspec.field(default=Global(), name="global")
    scrape_configs: list[ScrapeConfig] = []

    def check(self) -> Problems:
        seen: set[str] = set()
        for number, job in enumerate(self.scrape_configs):
            if job.job_name in seen:
                yield ("scrape_configs", number, "job_name"), f'there is a job "{job.job_name}" already'
            seen.add(job.job_name)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        config: Prometheus' configuration.
        trim_metric_suffixes: names without `_total` and unit.
        report_extra_scrape_metrics: also tell the size of the answer, the limit and the timeout.
    """

    IGNORED: ClassVar[tuple[str, ...]] = (
        "use_start_time_metric",
        "start_time_metric_regex",
        "api_server",
    )

    config: PrometheusConfig = PrometheusConfig(scrape_configs=[])
    trim_metric_suffixes: bool = False
    report_extra_scrape_metrics: bool = False

    @staticmethod
    def elsewhere(name: str) -> str:
        """Return what to do about a setting that is not here on purpose."""
        return f"a target allocator {elsewhere.HERE}" if name == "target_allocator" else ""

    def jobs(self) -> list[Any]:
        """The jobs, with what they take from `global`."""
        shared = self.config.global_
        made = []
        for job in self.config.scrape_configs:
            interval = job.scrape_interval or shared.scrape_interval
            timeout = job.scrape_timeout or min(shared.scrape_timeout, interval)
            token = job.authorization
            if job.bearer_token or job.bearer_token_file:
                token = Authorization(credentials=job.bearer_token, credentials_file=job.bearer_token_file or None)
            made.append(
                msgspec.structs.replace(job, scrape_interval=interval, scrape_timeout=timeout, authorization=token)
            )
        return made
