"""The components there are: this visible, ordered tuple."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final, get_type_hints

from tracecore.agent.batch import Signal
from tracecore.agent.component import Factory, Kind

LOGS: Final[tuple[Signal, ...]] = ("logs",)
METRICS: Final[tuple[Signal, ...]] = ("metrics",)


def _factory(kind: Kind, type: str, create: Callable[[Any, Any], Any], summary: str, **more: Any) -> Factory:
    """A type of component; its options are those that it is created with."""
    options = get_type_hints(create.__init__)["options"]
    return Factory(kind=kind, type=type, create=create, summary=summary, options=options, **more)


@cache
def factories() -> tuple[Factory, ...]:
    """Every type of component that works."""
    from tracecore.agent import nop
    from tracecore.agent.exporters import debug, file, otlp_grpc, otlp_http, webhook
    from tracecore.agent.exporters import kafka as to_kafka
    from tracecore.agent.extensions import basicauth, bearertokenauth, file_storage, health_check
    from tracecore.agent.processors import (
        attributes,
        batch,
        filter,
        jobattributes,
        k8sattributes,
        memory_limiter,
        patterndetector,
        rankjoin,
        resourcedetection,
        transform,
    )
    from tracecore.agent.processors.patterndetector import options as detector_options
    from tracecore.agent.receivers import filelog, journald, k8sobjects, kafka, kmsg, ncclfr, otlp
    from tracecore.agent.receivers.gpu import receiver as gpu
    from tracecore.agent.receivers.prometheus import receiver as prometheus

    receiver, processor, exporter, extension = (
        partial(_factory, kind) for kind in ("receiver", "processor", "exporter", "extension")
    )
    return (
        receiver("otlp", otlp.Otlp, "Receives OTLP over gRPC and HTTP, protobuf and JSON, gzip and zstd."),
        receiver(
            "filelog",
            filelog.FileLogReceiver,
            "Follows log files through every kind of rotation.",
            signals=LOGS,
            aliases=("file_log",),
        ),
        receiver("kmsg", kmsg.Kmsg, "The kernel's messages, from /dev/kmsg.", signals=LOGS),
        receiver("journald", journald.Journald, "The systemd journal, through journalctl.", signals=LOGS),
        receiver(
            "ncclfr",
            ncclfr.NcclFr,
            "PyTorch Flight Recorder dumps, as failing ranks leave them in a directory.",
            signals=LOGS,
        ),
        receiver(
            "k8sobjects",
            k8sobjects.K8sObjects,
            "Objects of the Kubernetes API: events, pods, nodes, pulled or watched.",
            signals=LOGS,
            aliases=("k8s_objects",),
        ),
        receiver(
            "prometheus",
            prometheus.Prometheus,
            "Scrapes targets in Prometheus' text format and OpenMetrics; static targets and pods of Kubernetes.",
            signals=METRICS,
        ),
        receiver(
            "gpu",
            gpu.GpuReceiver,
            "GPUs by NVML and InfiniBand ports by sysfs, for machines without exporters.",
            signals=METRICS,
        ),
        receiver("kafka", kafka.KafkaReceiver, "Reads OTLP log records from a Kafka topic.", signals=LOGS),
        receiver("nop", nop.Nothing, "Receives nothing, for pipelines that must name one."),
        processor(
            "memory_limiter",
            memory_limiter.MemoryLimiter,
            "Refuses batches while the agent holds too much memory; sources wait.",
        ),
        processor("batch", batch.BatchProcessor, "Collects records into fewer, larger batches."),
        processor(
            "k8sattributes",
            k8sattributes.K8sAttributes,
            "Adds pod, workload, job, rank and node of each resource, by the Kubernetes API.",
            check=k8sattributes.check,
            aliases=("k8s_attributes",),
        ),
        processor(
            "resource", attributes.ResourceAttributes, "Sets, deletes, hashes and converts attributes of resources."
        ),
        processor(
            "resourcedetection",
            resourcedetection.ResourceDetection,
            "Adds what the environment, the machine and the node say about where the agent runs.",
            check=resourcedetection.check,
            aliases=("resource_detection",),
        ),
        processor(
            "attributes", attributes.RecordAttributes, "Sets, deletes, hashes and converts attributes of records."
        ),
        processor(
            "filter", filter.FilterProcessor, "Drops records for which an OTTL condition holds.", check=filter.check
        ),
        processor(
            "transform", transform.Transform, "Runs OTTL statements on logs, metrics and traces.", check=transform.check
        ),
        processor(
            "jobattributes",
            jobattributes.JobAttributes,
            "Names job, rank and attempt of log files by the process that writes them (Slurm, torchrun, mpirun).",
            signals=LOGS,
        ),
        processor(
            "rankjoin",
            rankjoin.RankJoin,
            "Stamps rank and job on all streams of a pod, once one of them says them.",
            signals=LOGS,
        ),
        processor(
            "patterndetector",
            patterndetector.PatternDetector,
            "Says by name what breaks: recipes, facts and detectors over the logs, metrics and dumps that pass.",
            signals=("logs", "metrics"),
            speaks="logs",
            check=detector_options.check,
        ),
        exporter("debug", debug.Debug, "Prints what passes, on standard error."),
        exporter("file", file.FileExporter, "Writes OTLP as JSON lines or protobuf into a file, with rotation."),
        exporter(
            "otlphttp", otlp_http.OtlpHttp, "Sends OTLP over HTTP, with retries and a queue.", aliases=("otlp_http",)
        ),
        exporter(
            "otlp",
            otlp_grpc.OtlpGrpc,
            "Sends OTLP over gRPC, with retries and a queue.",
            check=otlp_grpc.check,
            aliases=("otlp_grpc",),
        ),
        exporter(
            "webhook",
            webhook.WebhookExporter,
            "Posts verdicts and incidents to Alertmanager or any HTTP endpoint.",
            signals=LOGS,
        ),
        exporter(
            "kafka",
            to_kafka.KafkaExporter,
            "Sends log records to a Kafka topic; facts to the partitions whose detector needs them.",
            signals=LOGS,
        ),
        exporter("nop", nop.Discard, "Lets everything go, for pipelines that must name one."),
        extension(
            "file_storage",
            file_storage.FileStorageExtension,
            "Keeps what must survive a restart: read positions, unsent batches.",
            provides="storage",
        ),
        extension("health_check", health_check.HealthCheck, "A page that says whether everything runs."),
        extension(
            "basicauth",
            basicauth.BasicAuthExtension,
            "A user and password that clients send, or those that servers believe.",
            provides="auth",
            aliases=("basic_auth",),
        ),
        extension(
            "bearertokenauth",
            bearertokenauth.BearerTokenAuth,
            "A token that clients send, and that servers ask for.",
            provides="auth",
            aliases=("bearer_token_auth", "bearertoken"),
        ),
    )
