{{/*
The agents' configuration. Written as YAML, then merged with the operator's own, which goes last.
*/}}

{{/* Mebibytes of a quantity such as 512Mi or 2Gi. */}}
{{- define "tracecore.mebibytes" -}}
{{- if hasSuffix "Gi" . }}{{ mul (trimSuffix "Gi" . | int64) 1024 }}{{ else }}{{ trimSuffix "Mi" . | int64 }}{{ end }}
{{- end }}

{{/* Batches are refused well before the kernel would kill the container. */}}
{{- define "tracecore.config.memory" -}}
{{- $most := include "tracecore.mebibytes" . | int64 -}}
check_interval: 1s
limit_mib: {{ div (mul $most 80) 100 }}
spike_limit_mib: {{ div (mul $most 20) 100 }}
{{- end }}

{{- define "tracecore.config.extensions" -}}
file_storage:
  directory: /var/lib/tracecore/state
  create_directory: true
  compaction:
    on_start: true
    on_rebound: true
health_check:
  endpoint: {{ printf "%s:13133" (include "tracecore.listen" .) | quote }}
{{- end }}

{{- define "tracecore.config.telemetry" -}}
logs:
  level: {{ .Values.logLevel }}
metrics:
  readers:
    - pull:
        exporter:
          prometheus:
            host: {{ .Values.listenAddress | quote }}
            port: 8888
{{- end }}

{{/* Exporters of verdicts. */}}
{{- define "tracecore.config.outputs" -}}
{{- with .Values.outputs }}
{{- if .log.enabled }}
debug:
  verbosity: basic
{{- end }}
{{- if .alertmanager.enabled }}
webhook/alertmanager:
  url: {{ .alertmanager.url | quote }}
  format: alertmanager
  {{- with .alertmanager.labels }}
  labels:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .alertmanager.tls }}
  tls:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  sending_queue:
    storage: file_storage
{{- end }}
{{- if .webhook.enabled }}
webhook:
  url: {{ .webhook.url | quote }}
  {{- with .webhook.tls }}
  tls:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  sending_queue:
    storage: file_storage
{{- end }}
{{- if .otlphttp.enabled }}
otlphttp:
  endpoint: {{ .otlphttp.endpoint | quote }}
  {{- with .otlphttp.headers }}
  headers:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .otlphttp.tls }}
  tls:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  sending_queue:
    storage: file_storage
{{- end }}
{{- end }}
{{- end }}

{{- define "tracecore.config.detector" -}}
forward: verdicts
tell: {{ .Values.detection.tell }}
storage: file_storage
partial_verdicts: {{ .Values.detection.partialVerdicts }}
{{- if ne .Values.detection.gpuByOrdinal "never" }}
gpu_by_ordinal: {{ .Values.detection.gpuByOrdinal }}
{{- end }}
{{- with .Values.detection.patterns }}
patterns:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
Maps key by key; everything else of the second (lists, plain values, null) replaces that of the first. The same as a second
--config. The first one is changed.
*/}}
{{- define "tracecore.merge" -}}
{{- $base := index . 0 }}
{{- range $key, $value := index . 1 }}
{{- if and (kindIs "map" $value) (kindIs "map" (get $base $key)) }}
{{- include "tracecore.merge" (list (get $base $key) $value) }}
{{- else }}
{{- $_ := set $base $key $value }}
{{- end }}
{{- end }}
{{- end }}

{{/* As YAML. A value that is a variable alone is text, also where a node or a key is called 1234. */}}
{{- define "tracecore.config.text" -}}
{{- regexReplaceAll "(?m)(: |- )(\\$\\{env:[^{}]*\\})$" (toYaml .) "${1}\"${2}\"" }}
{{- end }}

{{- define "tracecore.config.agent.receivers" -}}
{{- $v := .Values }}
{{- if $v.logs.enabled }}
filelog/pods:
  include:
    {{- range $v.logs.namespaces }}
    - {{ printf "%s/%s_*/*/*.log" $v.logs.hostPath . | quote }}
    {{- else }}
    - {{ printf "%s/*/*/*.log" $v.logs.hostPath | quote }}
    {{- end }}
  exclude:
    - {{ printf "%s/*/tracecore/*.log" $v.logs.hostPath | quote }}
    {{- range $v.logs.exclude }}
    - {{ . | quote }}
    {{- end }}
  start_at: {{ $v.logs.startAt }}
  include_file_path: true
  include_file_name: false
  rotation_stalled: {{ $v.logs.containerLogMaxSize | quote }}
  storage: file_storage
  retry_on_failure:
    enabled: true
    max_elapsed_time: 0s
  operators:
    - id: container-parser
      type: container
      add_metadata_from_filepath: true
{{- end }}
{{- if $v.otlp.enabled }}
otlp:
  protocols:
    grpc:
      endpoint: {{ printf "%s:4317" (include "tracecore.listen" .) | quote }}
    http:
      endpoint: {{ printf "%s:4318" (include "tracecore.listen" .) | quote }}
{{- end }}
{{- end }}

{{- define "tracecore.config.agent.kernel" -}}
{{- $v := .Values }}
{{- if $v.kernel.enabled }}
{{- if eq $v.kernel.source "journald" }}
journald:
  directory: {{ $v.kernel.journald.hostPath | quote }}
  matches:
    - _TRANSPORT: kernel
    {{- range $v.kernel.journald.units }}
    - _SYSTEMD_UNIT: {{ . | quote }}
    {{- end }}
  storage: file_storage
{{- else if eq $v.kernel.source "file" }}
filelog/kernel:
  include:
    - {{ printf "/host/kernel/%s" (base $v.kernel.file.hostPath) | quote }}
  storage: file_storage
  retry_on_failure:
    enabled: true
    max_elapsed_time: 0s
  resource:
    tracecore.layer: kernel
  operators:
    # 2026-01-02T03:04:05.678901+01:00 gpu-7 kernel: ...
    - type: regex_parser
      if: 'body matches "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.,]+(Z|[+-][0-9:]{5,6}) "'
      regex: '^(?P<time>\S+) '
      timestamp: {parse_from: attributes.time, layout_type: gotime, layout: "2006-01-02T15:04:05Z07:00"}
    {{- with $v.kernel.file.location }}
    # Jan  2 03:04:05 gpu-7 kernel: ...
    - type: regex_parser
      if: 'body matches "^[A-Z][a-z]{2} [ 0-3][0-9] [0-9:]{8} "'
      regex: '^(?P<time>\w+ +\d+ [0-9:]+) '
      timestamp: {parse_from: attributes.time, layout_type: gotime, layout: "Jan _2 15:04:05", location: {{ . | quote }}}
    {{- end }}
    - type: remove
      if: 'attributes.time != nil'
      field: attributes.time
{{- else }}
kmsg:
  storage: file_storage
{{- end }}
{{- end }}
{{- end }}

{{- define "tracecore.config.agent.dumps" -}}
directory: {{ .Values.dumps.hostPath | quote }}
include: ["*", "*/*"]
max_dump_size: 32MiB
storage: file_storage
{{- end }}

{{- define "tracecore.config.agent.metrics" -}}
{{- $v := .Values }}
{{- if $v.metrics.scrape.enabled }}
prometheus:
  config:
    scrape_configs:
      {{- range $v.metrics.scrape.jobs }}
      - job_name: {{ .name }}
        scrape_interval: {{ $v.metrics.scrape.interval }}
        metrics_path: {{ .path }}
        kubernetes_sd_configs:
          - role: pod
            {{- with .namespaces }}
            namespaces:
              names: {{ toJson . }}
            {{- end }}
            selectors:
              - role: pod
                field: "spec.nodeName=${env:K8S_NODE_NAME}"
                {{- with .labels }}
                label: {{ include "tracecore.selection" . | quote }}
                {{- end }}
        relabel_configs:
          - source_labels: [__meta_kubernetes_pod_ip]
            regex: ([0-9.]+)
            target_label: __address__
            replacement: "$$1:{{ .port }}"
          - source_labels: [__meta_kubernetes_pod_ip]
            regex: (.*:.*)
            target_label: __address__
            replacement: "[$$1]:{{ .port }}"
      {{- end }}
{{- end }}
{{- if $v.metrics.nvml.enabled }}
gpu:
  collection_interval: {{ $v.metrics.nvml.interval }}
  nvml: required
  host_name: "${env:K8S_NODE_NAME}"
{{- end }}
{{- end }}

{{/* a=b,c=d */}}
{{- define "tracecore.selection" -}}
{{- $parts := list }}
{{- range $key, $value := . }}{{ $parts = append $parts (printf "%s=%s" $key $value) }}{{ end }}
{{- join "," $parts }}
{{- end }}

{{- define "tracecore.config.identity" -}}
auth_type: serviceAccount
filter:
  node_from_env_var: K8S_NODE_NAME
extract:
  metadata:
    - k8s.namespace.name
    - k8s.pod.name
    - k8s.pod.uid
    - k8s.node.name
    - k8s.container.name
    - k8s.deployment.name
    - k8s.statefulset.name
    - k8s.daemonset.name
    - k8s.job.name
  {{- with .Values.identity.labels }}
  labels:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.identity.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
pod_association:
  - sources:
      - {from: resource_attribute, name: k8s.pod.uid}
  - sources:
      - {from: resource_attribute, name: k8s.namespace.name}
      - {from: resource_attribute, name: k8s.pod.name}
  - sources:
      - {from: connection}
{{- end }}

{{/* The whole configuration of the agents of nodes, as YAML. */}}
{{- define "tracecore.config.agent" -}}
{{- $v := .Values }}
{{- $gathers := include "tracecore.gathers" . }}
{{- $sources := include "tracecore.config.agent.receivers" . | fromYaml }}
{{- $kernel := include "tracecore.config.agent.kernel" . | fromYaml }}
{{- $meters := include "tracecore.config.agent.metrics" . | fromYaml }}
{{- $outputs := include "tracecore.config.outputs" . | fromYaml }}
{{- $first := list "memory_limiter" }}
{{- if $v.identity.enabled }}{{ $first = append $first "k8sattributes" }}{{ end }}
{{- $first = append $first "resource/node" }}
{{- $all := and $v.outputs.otlphttp.enabled (eq $v.outputs.otlphttp.send "all") }}
{{- /* Lines are read here and stay here: where the cluster's agent judges, facts leave. */}}
{{- $detectors := ternary (list "patterndetector" "batch") (list "patterndetector") (not (empty $gathers)) }}
{{- $exporters := ternary (list "otlp/cluster") (keys $outputs | sortAlpha) (not (empty $gathers)) }}
{{- $logs := keys $sources | sortAlpha }}
{{- $points := keys $meters | sortAlpha }}
{{- if $v.otlp.enabled }}{{ $points = append $points "otlp" }}{{ end }}
{{- $pipelines := dict }}
{{- if $logs }}
{{- $_ := set $pipelines "logs" (dict "receivers" $logs "processors" (concat $first (list "rankjoin") $detectors) "exporters" $exporters) }}
{{- end }}
{{- if $kernel }}
{{- /* Of its own: a pod whose rank is waited for does not hold the kernel back. */}}
{{- $_ := set $pipelines "logs/kernel" (dict "receivers" (keys $kernel) "processors" (concat (list "memory_limiter" "resource/node") $detectors) "exporters" $exporters) }}
{{- end }}
{{- if $v.dumps.enabled }}
{{- /* A dump is one large record: not collected with others, so that it fits into one message. */}}
{{- $_ := set $pipelines "logs/dumps" (dict "receivers" (list "ncclfr") "processors" (concat (list "memory_limiter" "resource/node") (ternary (list) (list "patterndetector") (not (empty $gathers)))) "exporters" $exporters) }}
{{- end }}
{{- if $points }}
{{- $_ := set $pipelines "metrics" (dict "receivers" $points "processors" (append $first "patterndetector") "exporters" (list "debug/metrics")) }}
{{- end }}
{{- if and (not $logs) (not $kernel) (or $gathers (not $v.dumps.enabled)) }}
{{- /* What is found leaves by a pipeline of logs: where there is none otherwise, one that nobody sends to. */}}
{{- $_ := set $sources "otlp/none" (dict "protocols" (dict "http" (dict "endpoint" "127.0.0.1:0"))) }}
{{- $_ := set $pipelines "logs" (dict "receivers" (list "otlp/none") "processors" (list "memory_limiter" "patterndetector") "exporters" $exporters) }}
{{- end }}
{{- if $all }}
{{- if or $logs $kernel }}{{ $_ := set $pipelines "logs/records" (dict "receivers" (concat $logs (keys $kernel)) "processors" (concat $first (list "batch")) "exporters" (list "otlphttp")) }}{{ end }}
{{- if $points }}{{ $_ := set $pipelines "metrics/records" (dict "receivers" $points "processors" (concat $first (list "batch")) "exporters" (list "otlphttp")) }}{{ end }}
{{- end }}
{{- $config := dict }}
{{- $receivers := merge (deepCopy $sources) $kernel $meters }}
{{- if $v.dumps.enabled }}{{ $_ := set $receivers "ncclfr" (include "tracecore.config.agent.dumps" . | fromYaml) }}{{ end }}
{{- $_ := set $config "receivers" $receivers }}
{{- $processors := dict "memory_limiter" (include "tracecore.config.memory" $v.agent.resources.limits.memory | fromYaml) }}
{{- if $v.identity.enabled }}{{ $_ := set $processors "k8sattributes" (include "tracecore.config.identity" . | fromYaml) }}{{ end }}
{{- $stamps := list (dict "key" "k8s.node.name" "action" "upsert" "value" "${env:K8S_NODE_NAME}") }}
{{- with $v.clusterName }}{{ $stamps = append $stamps (dict "key" "k8s.cluster.name" "action" "upsert" "value" .) }}{{ end }}
{{- $_ := set $processors "resource/node" (dict "attributes" $stamps) }}
{{- if $logs }}{{ $_ := set $processors "rankjoin" dict }}{{ end }}
{{- if or $gathers $all }}{{ $_ := set $processors "batch" (dict "timeout" "200ms" "send_batch_size" 4096 "send_batch_max_size" 8192) }}{{ end }}
{{- $_ := set $processors "patterndetector" (ternary (dict "forward" "facts") (include "tracecore.config.detector" . | fromYaml) (not (empty $gathers))) }}
{{- $_ := set $config "processors" $processors }}
{{- $sinks := dict }}
{{- if $gathers }}
{{- $queue := dict "storage" "file_storage" "num_consumers" 4 }}
{{- $never := dict "max_elapsed_time" "0s" "initial_interval" "1s" }}
{{- $where := printf "%s-cluster:4317" (include "tracecore.fullname" .) }}
{{- $tls := dict "insecure" true }}
{{- if $v.tls.secretName }}{{ $tls = dict "ca_file" "/etc/tracecore-tls/ca.crt" "cert_file" "/etc/tracecore-tls/tls.crt" "key_file" "/etc/tracecore-tls/tls.key" }}{{ end }}
{{- $_ := set $sinks "otlp/cluster" (dict "endpoint" $where "tls" $tls "sending_queue" $queue "retry_on_failure" $never) }}
{{- if $all }}{{ $_ := set $sinks "otlphttp" (get $outputs "otlphttp") }}{{ end }}
{{- else }}
{{- $sinks = $outputs }}
{{- end }}
{{- if $points }}{{ $_ := set $sinks "debug/metrics" dict }}{{ end }}
{{- $_ := set $config "exporters" $sinks }}
{{- $_ := set $config "extensions" (include "tracecore.config.extensions" . | fromYaml) }}
{{- $_ := set $config "service" (dict "extensions" (list "file_storage" "health_check") "telemetry" (include "tracecore.config.telemetry" . | fromYaml) "pipelines" $pipelines) }}
{{- include "tracecore.merge" (list $config $v.agent.config) }}
{{- include "tracecore.config.text" $config }}
{{- end }}

{{- define "tracecore.config.objects" -}}
auth_type: serviceAccount
storage: file_storage
objects:
  {{- $namespaces := .Values.objects.namespaces }}
  {{- if .Values.objects.events }}
  - name: events
    mode: watch
    {{- with $namespaces }}
    namespaces: {{ toJson . }}
    {{- end }}
  {{- end }}
  {{- if .Values.objects.pods }}
  - name: pods
    mode: watch
    include_initial_state: true
    {{- with $namespaces }}
    namespaces: {{ toJson . }}
    {{- end }}
  {{- end }}
  {{- if .Values.objects.nodes }}
  - name: nodes
    mode: watch
    include_initial_state: true
  {{- end }}
{{- end }}

{{/* The whole configuration of the cluster's agent, as YAML. */}}
{{- define "tracecore.config.cluster" -}}
{{- $v := .Values }}
{{- $gathers := include "tracecore.gathers" . }}
{{- $outputs := include "tracecore.config.outputs" . | fromYaml }}
{{- $all := and $v.outputs.otlphttp.enabled (eq $v.outputs.otlphttp.send "all") $v.objects.enabled }}
{{- $receivers := dict }}
{{- $own := list }}
{{- if $v.objects.enabled }}
{{- $own = list "k8sobjects" }}
{{- $_ := set $receivers "k8sobjects" (include "tracecore.config.objects" . | fromYaml) }}
{{- end }}
{{- $sources := $own }}
{{- if $gathers }}
{{- $sources = append $own "otlp" }}
{{- $grpc := dict "endpoint" (printf "%s:4317" (include "tracecore.listen" .)) "max_recv_msg_size_mib" 48 }}
{{- if $v.tls.secretName }}{{ $_ := set $grpc "tls" (dict "cert_file" "/etc/tracecore-tls/tls.crt" "key_file" "/etc/tracecore-tls/tls.key" "client_ca_file" "/etc/tracecore-tls/ca.crt") }}{{ end }}
{{- $_ := set $receivers "otlp" (dict "protocols" (dict "grpc" $grpc)) }}
{{- end }}
{{- $first := list "memory_limiter" }}
{{- $processors := dict "memory_limiter" (include "tracecore.config.memory" $v.cluster.resources.limits.memory | fromYaml) }}
{{- with $v.clusterName }}
{{- $first = append $first "resource/cluster" }}
{{- $_ := set $processors "resource/cluster" (dict "attributes" (list (dict "key" "k8s.cluster.name" "action" "upsert" "value" .))) }}
{{- end }}
{{- $_ := set $processors "patterndetector" (include "tracecore.config.detector" . | fromYaml) }}
{{- $pipelines := dict "logs" (dict "receivers" $sources "processors" (append $first "patterndetector") "exporters" (keys $outputs | sortAlpha)) }}
{{- if and $gathers (or $v.metrics.scrape.enabled $v.metrics.nvml.enabled $v.otlp.enabled) }}
{{- /* Judged, not sent on: verdicts leave by the pipeline of logs. */}}
{{- $_ := set $outputs "debug/metrics" dict }}
{{- $_ := set $pipelines "metrics" (dict "receivers" (list "otlp") "processors" (append $first "patterndetector") "exporters" (list "debug/metrics")) }}
{{- end }}
{{- if $all }}
{{- $_ := set $processors "batch" dict }}
{{- $_ := set $pipelines "logs/records" (dict "receivers" $own "processors" (append $first "batch") "exporters" (list "otlphttp")) }}
{{- end }}
{{- $config := dict "receivers" $receivers "processors" $processors "exporters" $outputs }}
{{- $_ := set $config "extensions" (include "tracecore.config.extensions" . | fromYaml) }}
{{- $_ := set $config "service" (dict "extensions" (list "file_storage" "health_check") "telemetry" (include "tracecore.config.telemetry" . | fromYaml) "pipelines" $pipelines) }}
{{- include "tracecore.merge" (list $config $v.cluster.config) }}
{{- include "tracecore.config.text" $config }}
{{- end }}
