{{- define "tracecore.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{/* Short enough that "-cluster-12345678-12345" still fits into a label. */}}
{{- define "tracecore.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- $name := include "tracecore.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{/* Cluster-wide objects of two releases must not share a name. */}}
{{- define "tracecore.globalname" -}}
{{- printf "%s-%s" .Release.Namespace (include "tracecore.fullname" .) | trunc 100 | trimSuffix "-" }}
{{- end }}

{{- define "tracecore.labels" -}}
{{- with .Values.commonLabels }}
{{- toYaml . }}
{{ end -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ include "tracecore.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: tracecore
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "tracecore.selector" -}}
app.kubernetes.io/name: {{ include "tracecore.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "tracecore.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{- define "tracecore.account.agent" -}}
{{- .Values.serviceAccount.agentName | default (printf "%s-agent" (include "tracecore.fullname" .)) }}
{{- end }}

{{- define "tracecore.account.cluster" -}}
{{- .Values.serviceAccount.clusterName | default (printf "%s-cluster" (include "tracecore.fullname" .)) }}
{{- end }}

{{- define "tracecore.priority" -}}
{{- if .Values.priorityClass.create }}{{ include "tracecore.globalname" . }}{{ else }}{{ .Values.priorityClass.name }}{{ end }}
{{- end }}

{{/* What runs, said once: "true" or empty. */}}
{{- define "tracecore.runs.agent" -}}
{{- $v := .Values }}
{{- if or $v.logs.enabled $v.kernel.enabled $v.dumps.enabled $v.metrics.scrape.enabled $v.metrics.nvml.enabled $v.otlp.enabled }}true{{ end }}
{{- end }}

{{- define "tracecore.runs.cluster" -}}
{{- if or .Values.objects.enabled (and (eq .Values.detection.scope "cluster") (include "tracecore.runs.agent" .)) }}true{{ end }}
{{- end }}

{{/* The agents of nodes hand over to the cluster's. */}}
{{- define "tracecore.gathers" -}}
{{- if and (eq .Values.detection.scope "cluster") (include "tracecore.runs.agent" .) }}true{{ end }}
{{- end }}

{{/* Agents of nodes ask the API only for identity and for exporters to scrape. */}}
{{- define "tracecore.asks" -}}
{{- if or .Values.identity.enabled .Values.metrics.scrape.enabled }}true{{ end }}
{{- end }}

{{- define "tracecore.listen" -}}
{{- if contains ":" .Values.listenAddress }}[{{ .Values.listenAddress }}]{{ else }}{{ .Values.listenAddress }}{{ end }}
{{- end }}

{{/* What is mounted of the node for its journal. */}}
{{- define "tracecore.journal" -}}
{{- $path := .Values.kernel.journald.hostPath }}
{{- if .Values.kernel.journald.mayBeAbsent }}{{ dir $path }}{{ else }}{{ $path }}{{ end }}
{{- end }}

{{/* Whether the cluster's agent has a claim of the chart's own. */}}
{{- define "tracecore.claims" -}}
{{- if and (include "tracecore.runs.cluster" .) .Values.cluster.persistence.enabled (not .Values.cluster.existingClaim) }}true{{ end }}
{{- end }}
