{{- define "warmlog.labels" -}}
app.kubernetes.io/name: warmlog
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "warmlog.protocol" -}}
{{- if and .Values.tls.secret .Values.firstUser.secret }}sasl_ssl
{{- else if .Values.tls.secret }}ssl
{{- else if .Values.firstUser.secret }}sasl_plaintext
{{- else }}plaintext
{{- end }}
{{- end }}

{{- define "warmlog.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end }}

{{- define "warmlog.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "warmlog.etcd" -}}
- {name: WARMLOG_CLUSTER_ETCD, value: {{ .Values.cluster.etcd | quote }}}
- {name: WARMLOG_CLUSTER_ID, value: {{ .Values.cluster.id | default (printf "%s-%s" .Release.Namespace .Release.Name) | quote }}}
{{- end }}

{{- define "warmlog.settings" -}}
{{- range $name, $value := .Values.settings }}
- {name: {{ printf "WARMLOG_%s" ($name | upper | replace "." "_") }}, value: {{ ternary $value (toJson $value) (kindIs "string" $value) | quote }}}
{{- end }}
{{- end }}
