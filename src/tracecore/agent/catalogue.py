"""The components there are: this visible, ordered tuple."""

from __future__ import annotations

from functools import cache

from tracecore.agent.component import Factory


@cache
def factories() -> tuple[Factory, ...]:
    """Every type of component that works."""
    from tracecore.agent.exporters import debug, file, nop, otlp_grpc, otlp_http, webhook
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
        resource,
        resourcedetection,
        transform,
    )
    from tracecore.agent.receivers import filelog, gpu, journald, k8sobjects, kafka, kmsg, ncclfr, otlp, prometheus
    from tracecore.agent.receivers import nop as nothing

    return (
        otlp.FACTORY,
        filelog.FACTORY,
        kmsg.FACTORY,
        journald.FACTORY,
        ncclfr.FACTORY,
        k8sobjects.FACTORY,
        prometheus.FACTORY,
        gpu.FACTORY,
        kafka.FACTORY,
        nothing.FACTORY,
        memory_limiter.FACTORY,
        batch.FACTORY,
        k8sattributes.FACTORY,
        resource.FACTORY,
        resourcedetection.FACTORY,
        attributes.FACTORY,
        filter.FACTORY,
        transform.FACTORY,
        jobattributes.FACTORY,
        rankjoin.FACTORY,
        patterndetector.FACTORY,
        debug.FACTORY,
        file.FACTORY,
        otlp_http.FACTORY,
        otlp_grpc.FACTORY,
        webhook.FACTORY,
        to_kafka.FACTORY,
        nop.FACTORY,
        file_storage.FACTORY,
        health_check.FACTORY,
        basicauth.FACTORY,
        bearertokenauth.FACTORY,
    )
