"""`tracecore detect`: incidents from a Kafka topic with facts."""

from __future__ import annotations

import logging
import signal
from pathlib import Path

import click

from tracecore.cli.output import needs_extra


@click.command(
    "detect",
    help="""Find incidents in a Kafka topic with facts. Start as many workers as you like: they share the partitions.

Agents write facts to the topic with the `kafka` exporter. Incidents go to the store of `tracecore serve` and to a topic
of their own. docs/scale-out.md says how to set it up, and what happens when something dies.

\b
Example: tracecore detect --config detect.yaml

\b
    brokers: [kafka-0:9092, kafka-1:9092, kafka-2:9092]
    topic: tracecore-facts
    database: postgresql://tracecore@db/tracecore
""",
)
@click.option("--config", "path", type=click.Path(path_type=Path), required=True, help="The configuration file.")
def command(path: Path) -> int:
    """Read the file, join the group, work until told to stop."""
    from tracecore.agent.configuration import ConfigurationError
    from tracecore.cli.run import log_to_stderr

    with needs_extra("kafka,server"):
        from tracecore.agent.kafka.client import KafkaError
        from tracecore.store.database import StoreError
        from tracecore.stream.config import read
        from tracecore.stream.running import running
    try:
        options, warnings = read(path)
    except ConfigurationError as error:
        for problem in error.problems:
            click.echo(str(problem), err=True)
        return 2
    log_to_stderr("info", "console")
    for warning in warnings:
        logging.getLogger("tracecore.stream").warning("%s", warning)
    try:
        with running(options) as worker:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: worker.stop())
            worker.run()
    except (KafkaError, StoreError) as error:
        raise click.ClickException(str(error)) from None
    return 0
