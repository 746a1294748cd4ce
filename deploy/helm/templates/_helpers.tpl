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
