"""`tracecore detect` and brokers that ask for certificates and passwords."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bench.kafka_brokers import Brokers, NoKafka, running

from tracecore.agent.kafka.client import Connection
from tracecore.agent.kafka.partitions import PartitionGroups

sys.path.insert(0, str(Path(__file__).resolve().parent))
from recorded import RECORDED, assert_same
from test_kafka import alone, sent_by
from workers import Sender, Workers

pytestmark = pytest.mark.integration

PASSWORD = "a-password-of-the-tests"
SOME = tuple(RECORDED[3::40])


def certificates(folder: Path) -> None:
    """An authority, and a key and certificate of the broker (in one file) and of a client."""

    def run(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    run("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=tests", "-keyout", "ca.key",
        "-out", "ca.pem", "-addext", "keyUsage=critical,keyCertSign")  # fmt: skip
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for name in ("broker", "client"):
        run("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key",
            "-out", f"{name}.csr")  # fmt: skip
        run("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2",
            "-CAcreateserial", "-extfile", "names", "-out", f"{name}.pem")  # fmt: skip
    (folder / "broker-both.pem").write_text((folder / "broker.key").read_text() + (folder / "broker.pem").read_text())


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Brokers, dict[str, Any]]]:
    """A broker with mutual TLS and passwords, and the options of a client that it lets in."""
    folder = tmp_path_factory.mktemp("secured")
    certificates(folder)
    options = {
        "tls": {
            "ca_file": str(folder / "ca.pem"),
            "cert_file": str(folder / "client.pem"),
            "key_file": str(folder / "client.key"),
        },
        "auth": {"sasl": {"username": "tracecore", "password": PASSWORD, "mechanism": "PLAIN"}},
    }
    settings = msgspec.convert({"brokers": ["localhost:1"], **options}, Connection).settings()
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    with ExitStack() as stack:
        try:
            brokers = stack.enter_context(
                running(
                    client={name: value for name, value in settings.items() if name.partition(".")[0] in _CLIENT},
                    listener_security_protocol_map="PLAINTEXT:SASL_SSL,CONTROLLER:PLAINTEXT",
                    ssl_keystore_type="PEM", ssl_keystore_location=folder / "broker-both.pem",
                    ssl_truststore_type="PEM", ssl_truststore_location=folder / "ca.pem", ssl_client_auth="required",
                    sasl_enabled_mechanisms="PLAIN", sasl_mechanism_inter_broker_protocol="PLAIN",
                    listener_name_plaintext_plain_sasl_jaas_config=f'{module} username="tracecore" '
                    f'password="{PASSWORD}" user_tracecore="{PASSWORD}";',
                )
            )  # fmt: skip
        except NoKafka as error:
            pytest.skip(f"NO KAFKA, so TLS and passwords are not tested against a broker: {error}")
        yield brokers, options


_CLIENT = ("security", "sasl", "ssl", "enable")


def test_workers_read_from_brokers_that_ask_for_a_certificate_and_a_password(
    secured: tuple[Brokers, dict[str, Any]], workers: Workers
) -> None:
    brokers, options = secured
    topic = brokers.topic("secured", 2)
    connection = msgspec.convert({"brokers": brokers.addresses, **options}, Connection)
    sender = Sender(brokers, topic, connection)
    workers.start(brokers, topic, **options)
    sender.send(sent_by(SOME, PartitionGroups(2)))
    workers.wait(sender.flush())
    assert_same(workers.found(), alone(SOME))
    assert PASSWORD not in workers.said()


@pytest.mark.parametrize("change", ["password", "authority", "plain"])
def test_a_worker_that_is_not_let_in_says_so_and_ends(
    secured: tuple[Brokers, dict[str, Any]], workers: Workers, change: str
) -> None:
    brokers, options = secured
    topic = brokers.topic(f"closed-{change}", 1)
    tried: dict[str, Any] = {
        "password": {**options, "auth": {"sasl": {**options["auth"]["sasl"], "password": "not-the-password"}}},
        "authority": {**options, "tls": {}},
        "plain": {},
    }[change]
    process = workers.start(brokers, topic, **tried)
    assert process.wait(60) == 1
    workers.processes.remove(process)
    said = workers.said()
    assert "Traceback" not in said
    assert "not-the-password" not in said
    assert brokers.addresses[0] in said
    assert {"password": "uthentication", "authority": "certificate", "plain": "tls is not set"}[change] in said
