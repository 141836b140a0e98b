{{/* Of every container: nothing that the restricted Pod Security Standard forbids. */}}
{{- define "tracecore.confined" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* The container of an agent: .root, .part (its values), .file (of its configuration). */}}
{{- define "tracecore.container" -}}
name: tracecore
image: {{ include "tracecore.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
args: [run, --config, {{ .file }}, --drain, {{ .root.Values.drainSeconds | quote }}]
env:
  - name: K8S_NODE_NAME
    valueFrom:
      fieldRef:
        fieldPath: spec.nodeName
  # The root file system is read-only: compiled expressions are kept here.
  - name: XDG_CACHE_HOME
    value: /tmp
  {{- if .nvml }}
  # Sees the GPUs, through the runtime class, without having one.
  - name: NVIDIA_VISIBLE_DEVICES
    value: all
  - name: NVIDIA_DRIVER_CAPABILITIES
    value: utility
  {{- end }}
  {{- with .part.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .part.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
ports:
  - {name: metrics, containerPort: 8888, protocol: TCP}
  - {name: health, containerPort: 13133, protocol: TCP}
  {{- if .otlp }}
  - {name: otlp-grpc, containerPort: 4317, protocol: TCP}
  {{- end }}
  {{- if .otlphttp }}
  - {name: otlp-http, containerPort: 4318, protocol: TCP}
  {{- end }}
# Alive is the process; ready is every component. A backend that is away must not restart agents.
startupProbe:
  httpGet: {path: /healthz, port: health}
  {{- toYaml .root.Values.probes.startup | nindent 2 }}
livenessProbe:
  httpGet: {path: /healthz, port: health}
  {{- toYaml .root.Values.probes.liveness | nindent 2 }}
readinessProbe:
  httpGet: {path: /readyz, port: health}
  {{- toYaml .root.Values.probes.readiness | nindent 2 }}
resources:
  {{- toYaml .resources | nindent 2 }}
terminationMessagePolicy: FallbackToLogsOnError
{{- end }}
