{{- define "proxy.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "proxy.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "proxy.labels" -}}
{{ include "proxy.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "proxy.secret" -}}
{{ .Values.secret.existing | default (include "proxy.name" .) }}
{{- end }}

{{/* Not empty where tokens of an issuer are accepted: then the replicas need no token of their own. */}}
{{- define "proxy.issuer" -}}
{{- if regexMatch "(?m)^[^#\n]*\\bmode[\"']?\\s*=\\s*[\"']jwt[\"']" .Values.config }}jwt{{ end -}}
{{- end }}

{{- define "proxy.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
{{- end }}

{{/* Further keys of a table. Numbers, texts and lists are written in TOML as in JSON. */}}
{{- define "proxy.keys" -}}
{{- range $name, $value := . }}
    {{ $name }} = {{ toJson $value }}
{{- end }}
{{- end }}

{{/* Rights and files of a container: the image's user, no capability, and nothing that can be written but two volumes. */}}
{{- define "proxy.security" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - {name: config, mountPath: /config, readOnly: true}
  - {name: data, mountPath: /data}
  - {name: tmp, mountPath: /tmp}
{{- with .Values.volumeMounts }}
{{ toYaml . | indent 2 }}
{{- end }}
{{- end }}

{{- define "proxy.podSecurity" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
volumes:
  - name: config
    configMap: {name: {{ include "proxy.name" . }}}
  - name: data
    emptyDir: {}
  - name: tmp
    emptyDir: {}
{{- with .Values.volumes }}
{{ toYaml . | indent 2 }}
{{- end }}
{{- end }}

{{- define "proxy.env" -}}
- name: REPLICA
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: DATABASE_URL
  valueFrom: {secretKeyRef: {name: {{ include "proxy.secret" . }}, key: database-url}}
- name: CLUSTER_KEY
  valueFrom: {secretKeyRef: {name: {{ include "proxy.secret" . }}, key: cluster-key}}
- name: MCP_CONTEXT_PROXY_TOKEN
  valueFrom: {secretKeyRef: {name: {{ include "proxy.secret" . }}, key: token{{ if include "proxy.issuer" . }}, optional: true{{ end }}}}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end }}
