"""Components of the OpenTelemetry Collector that are not here on purpose: tracecore is not a second Collector."""

from __future__ import annotations

from typing import Final


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_RECEIVERS: Final = _names(
    """
    activedirectoryds aerospike apache apachespark awscloudwatch awscontainerinsight awscontainerinsightreceiver
    awsecscontainermetrics awsfirehose awslambda awss3 awsxray azureblob azureeventhub azurefunctions azuremonitor
    bigip carbon chrony ciscoos cloudflare cloudfoundry collectd couchdb datadog dockerstats elasticsearch
    envoyals expvar faro filestats flinkmetrics fluentforward foundationdb github gitlab googlecloudmonitoring
    googlecloudpubsub googlecloudpubsubpush googlecloudspanner haproxy hostmetrics httpcheck huaweicloudces
    icmpcheck iis influxdb jaeger jmx kafkametrics k8scluster k8sevents k8slog kubeletstats libhoneyevent
    loki memcached mongodb mongodbatlas mysql namedpipe netflow nginx nsxt ntp opencensus oracledb osquery
    otelarrow otlpjsonfile podman podmanstats postgresql pprof profiling prometheusexec prometheusremotewrite
    prometheussimple pulsar purefa purefb rabbitmq receivercreator redfish redis riak saphana sapm signalfx
    simpleprometheus skywalking snmp snowflake solace splunkenterprise splunkhec sqlquery sqlserver sshcheck
    statsd stef syslog systemd systemdreceiver tcpcheck tcplog tlscheck udplog vcenter vcr wavefront webhookevent
    windowseventlog windowsperfcounters windowsservice yanggrpc zipkin zookeeper
    """
)
_PROCESSORS: Final = _names(
    """
    coralogix cumulativetodelta datadogsemantics deltatocumulative deltatorate dnslookup
    experimentalmetricsgeneration geoip groupbyattrs groupbytrace interval isolationforest logdedup logstransform
    lookup metricsgeneration metricstarttime metricstransform probabilisticsampler redaction remotetap routing
    schema servicegraph span spanmetrics spanpruning sumologic tailsampling unroll
    """
)
_EXPORTERS: Final = _names(
    """
    alertmanager alibabacloudlogservice awscloudwatchlogs awsemf awskinesis awss3 awsxray azureblob
    azuredataexplorer azuremonitor bmchelix carbon cassandra clickhouse coralogix datadog dataset doris dynatrace
    elasticsearch f5cloud faro googlecloud googlecloudpubsub googlecloudstorage googlemanagedprometheus
    honeycombmarker influxdb instana jaeger jaegerthrift kinetica loadbalancing logging logicmonitor logzio
    loki mezmo opencensus opensearch otelarrow parquet prometheus prometheusremotewrite pulsar rabbitmq sapm
    sematext sentry signalfx skywalking splunkhec stef sumologic syslog tencentcloudlogservice tinybird zipkin
    """
)
_EXTENSIONS: Final = _names(
    """
    ack asapclient avrologencoding awscloudwatchmetricstreamsencoding awslogsencoding awsproxy azureauth
    azureencoding cfgardenobserver cgroupruntime datadog dbstorage dockerobserver ecsobserver ecstaskobserver
    fileobserver googleclientauth googlecloudlogentryencoding headerssetter healthcheckv2 hostobserver
    httpforwarder jaegerencoding jaegerremotesampling jsonlogencoding k8sleaderelector k8sobserver
    kafkatopicsobserver memoryballast memorylimiter oauth2client oidc opamp otlpencoding pprof redisstorage
    remotetap sigv4auth skywalkingencoding solarwindsapmsettings sumologic textencoding zipkinencoding zpages
    """
)
_CONNECTORS: Final = _names(
    """
    count datadog exceptions failover forward grafanacloud metricsaslogs otlpjson roundrobin routing servicegraph
    signaltometrics slowsql spanmetrics sum
    """
)

_KNOWN: Final = {
    "receiver": _RECEIVERS,
    "processor": _PROCESSORS,
    "exporter": _EXPORTERS,
    "extension": _EXTENSIONS,
    "connector": _CONNECTORS,
}
#: Of settings.
HERE: Final = "is not supported here; run it in a Collector in front and send OTLP"
_REMEDY: Final = {
    "receiver": "run it in a Collector in front and send OTLP",
    "processor": "run it in a Collector in front and send OTLP",
    "exporter": "send OTLP (otlp, otlphttp) to a Collector that has it",
    "extension": "leave it out, or run what needs it in a Collector in front and send OTLP",
    "connector": "run it in a Collector in front and send OTLP",
}

PROFILES: Final = "pipelines of profiles are not supported here; run them in a Collector"


def remedy(kind: str, type: str) -> str:
    """Return advice for a component of the Collector that is missing here; empty for an unknown name."""
    known = type.replace("_", "").removesuffix(kind) in _KNOWN[kind] or kind == "connector"
    return f'the {kind} "{type}" is not supported here; {_REMEDY[kind]}' if known else ""
