"""Options of a connection to Kafka, with the Collector's names, and the clients that are made of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from tracecore.agent.kafka.availability import LOOK_MS, BrokerAvailability, is_news
from tracecore.agent.options import SECOND, Duration, Secret
from tracecore.agent.tls import ClientTls

#: The client library writes its lines here.
log = logging.getLogger("tracecore.kafka.client")
log.addFilter(is_news)

#: Seconds to wait for the first answer of a broker.
FIRST_ANSWER: Final = 10.0

NotEmpty = Annotated[str, msgspec.Meta(min_length=1)]


class LogsTopic(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        topic: where log records go or come from. It has to exist.
        encoding: how messages are written.
    """

    topic: NotEmpty = "otlp_logs"
    encoding: Literal["otlp_proto"] = "otlp_proto"


class KafkaError(Exception):
    """Kafka cannot be used; the message says why and what to do."""


class Sasl(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        username: who we are.
        password: never printed.
        mechanism: how the password is proved.
        version: accepted for the Collector's sake.
    """

    username: NotEmpty
    password: Secret
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    version: int = 1


class KafkaAuth(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        sasl: a user and a password.
    """

    sasl: Sasl | None = None

    @staticmethod
    def elsewhere(name: str) -> str:
        """Return what to do about a setting of the Collector that is not here."""
        known = {
            "plain_text": "write sasl: {mechanism: PLAIN, username: …, password: …}",
            "tls": "write tls beside auth, not within it",
            "kerberos": "Kerberos is not supported here; use sasl or a client certificate in tls",
        }
        return known.get(name, "")


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        brokers: `host:port` of some brokers; the others are learned from them.
        client_id: under which brokers log us.
        tls: how to speak to brokers; without it in plain text.
        auth: who we are.
    """

    IGNORED: ClassVar[tuple[str, ...]] = (
        "protocol_version",
        "resolve_canonical_bootstrap_servers_only",
        "metadata",
        "conn_idle_timeout",
    )

    brokers: list[NotEmpty] = msgspec.field(default_factory=lambda: ["localhost:9092"])
    client_id: NotEmpty = "tracecore"
    tls: ClientTls | None = None
    auth: KafkaAuth = KafkaAuth()

    PRESENT: ClassVar[tuple[str, ...]] = ("tls",)

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if not self.brokers:
            yield ("brokers",), "name at least one broker"
        for number, broker in enumerate(self.brokers):
            host, _, port = broker.rpartition(":")
            if not host or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 1 << 16:
                yield ("brokers", number), "write it like kafka-0.example.com:9092"

    def settings(self) -> dict[str, Any]:
        """Return the settings of the client library that these options mean."""
        encrypted = self.tls is not None and not self.tls.insecure
        sasl = self.auth.sasl
        servers = ",".join(self.brokers)
        heard = BrokerAvailability(servers)
        found: dict[str, Any] = {
            "bootstrap.servers": servers,
            "client.id": self.client_id,
            "security.protocol": ("SASL_" if sasl else "") + ("SSL" if encrypted else "PLAINTEXT"),
            "logger": log,
            "error_cb": heard,
            "stats_cb": heard.statistics,
            "statistics.interval.ms": LOOK_MS,
            # A broker that comes back is found soon: the default waits up to 10 s between two attempts.
            "reconnect.backoff.max.ms": 2000,
        }
        if sasl is not None:
            found |= {
                "sasl.mechanism": sasl.mechanism,
                "sasl.username": sasl.username,
                "sasl.password": sasl.password,
            }
        if encrypted:
            assert self.tls is not None
            found |= _tls(self.tls)
        return found


def _tls(tls: ClientTls) -> dict[str, Any]:
    cert, key = tls.certificate()
    found: dict[str, Any] = {"enable.ssl.certificate.verification": not tls.insecure_skip_verify}
    if (authorities := tls.authorities()) is not None:
        found["ssl.ca.pem"] = authorities.decode()
    if cert is not None and key is not None:
        found |= {"ssl.certificate.pem": cert.decode(), "ssl.key.pem": key.decode()}
    if tls.insecure_skip_verify:
        found["ssl.endpoint.identification.algorithm"] = "none"
    return found


class ProducerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        max_message_bytes: a larger message is cut into several.
        required_acks: -1 waits for all replicas in sync; 1 and 0 may lose facts when a broker dies.
        compression: how messages are compressed.
        linger: how long a message waits for others to travel with.
    """

    IGNORED: ClassVar[tuple[str, ...]] = ("compression_params", "flush_max_messages", "allow_auto_topic_creation")

    max_message_bytes: Annotated[int, msgspec.Meta(ge=10_000, le=100_000_000)] = 1_000_000
    required_acks: Literal[-1, 0, 1, "all"] = -1
    compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "zstd"
    linger: Duration = SECOND // 100

    def settings(self, timeout: int) -> dict[str, Any]:
        """Return the settings of the client library.

        Args:
            timeout: nanoseconds within which a message is delivered or given back.
        """
        safe = self.required_acks in (-1, "all")
        return {
            "acks": "all" if safe else str(self.required_acks),
            "enable.idempotence": safe,
            "compression.type": self.compression,
            "linger.ms": self.linger / 1_000_000,
            # The client measures messages with what it adds to them.
            "message.max.bytes": self.max_message_bytes + 10_000,
            "delivery.timeout.ms": max(timeout // 1_000_000, 1000),
            "queue.buffering.max.kbytes": 64 << 10,
        }


def library() -> Any:
    """Return the client library.

    Raises:
        KafkaError: it is not installed.
    """
    try:
        import confluent_kafka
    except ModuleNotFoundError:
        raise KafkaError("confluent-kafka is not installed: pip install 'tracecore-diagnosis[kafka]'") from None
    return confluent_kafka


def partitions_of(client: Any, settings: Mapping[str, Any], topic: str, timeout: float | None = None) -> int:
    """Ask the brokers for the number of partitions of a topic.

    Args:
        settings: of the client.

    Raises:
        KafkaError: no broker answers, or there is no such topic.
    """
    kafka = library()
    try:
        answer = client.list_topics(topic, timeout=FIRST_ANSWER if timeout is None else timeout)
    except kafka.KafkaException as error:
        settings["error_cb"].hold()
        client.poll(0)  # hands over what was heard meanwhile
        plain = settings["security.protocol"].endswith("PLAINTEXT")
        hint = " (it speaks another protocol? tls is not set)" if plain else ""
        reason = settings["error_cb"].last or said(error) + hint
        raise KafkaError(f"no broker answers at {settings['bootstrap.servers']}: {reason}") from None
    found = answer.topics.get(topic)
    if found is None or found.error is not None or not found.partitions:
        raise KafkaError(f"there is no topic {topic!r}: make it first, with as many partitions as it is to have")
    return len(found.partitions)


def said(error: Any) -> str:
    """Return the words of an error of the client library."""
    inner = error.args[0] if getattr(error, "args", None) else error
    return str(inner.str()) if hasattr(inner, "str") else str(inner)
