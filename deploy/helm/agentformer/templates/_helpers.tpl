{{- define "agentformer.labels" -}}
app.kubernetes.io/name: agentformer
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "agentformer.selector" -}}
app.kubernetes.io/name: agentformer
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- /* The names under which the server is asked: those of its Service, and `hosts`. */ -}}
{{- define "agentformer.hosts" -}}
{{- $name := printf "%s-agentformer" .root.Release.Name -}}
{{- $space := .root.Release.Namespace -}}
{{- $own := list $name (printf "%s.%s" $name $space) (printf "%s.%s.svc" $name $space) (printf "%s.%s.svc.cluster.local" $name $space) -}}
{{- join " " (concat $own .root.Values.hosts) -}}
{{- end }}

{{- /* What all containers share: the image, the settings and the volumes. */ -}}
{{- define "agentformer.container" -}}
image: "{{ .root.Values.image.repository }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}"
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
env:
  - name: AGENTFORMER_ALLOWED_HOSTS
    value: {{ include "agentformer.hosts" . | quote }}
  {{- if .root.Values.postgres.urlSecret }}
  - name: AGENTFORMER_BACKEND
    value: postgres
  - name: AGENTFORMER_ORIGINALS
    value: database
  - name: AGENTFORMER_POSTGRES_URL
    valueFrom:
      secretKeyRef:
        name: {{ .root.Values.postgres.urlSecret }}
        key: url
  {{- end }}
  {{- range $name, $value := .root.Values.settings }}
  - name: {{ $name }}
    value: {{ $value | quote }}
  {{- end }}
{{- if .root.Values.secrets }}
envFrom:
  - secretRef:
      name: {{ .root.Values.secrets }}
{{- end }}
resources:
  {{- toYaml .root.Values.resources | nindent 2 }}
volumeMounts:
  - name: data
    mountPath: /data
  - name: tmp
    mountPath: /tmp
{{- end }}

{{- /* The pod of a server or a worker. Parameters: root, component, args. */ -}}
{{- define "agentformer.pod" -}}
metadata:
  labels:
    {{- include "agentformer.selector" . | nindent 4 }}
spec:
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 45
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  {{- if eq .component "server" }}
  initContainers:
    - name: first-key  # waits, because a server that other machines can reach starts only if a key exists
      {{- include "agentformer.container" . | nindent 6 }}
      command: [sh, -c, "until agentformer keys list --json | grep -q '\"id\"'; do sleep 2; done"]
  {{- end }}
  containers:
    - name: agentformer
      {{- include "agentformer.container" . | nindent 6 }}
      args: {{ .args | toJson }}
      {{- if eq .component "server" }}
      ports:
        - name: http
          containerPort: 8808
      startupProbe:
        httpGet:
          path: /healthz
          port: http
        failureThreshold: 60
        periodSeconds: 2
      livenessProbe:
        httpGet:
          path: /healthz
          port: http
        timeoutSeconds: 5
      readinessProbe:
        httpGet:
          path: /readyz
          port: http
        timeoutSeconds: 5
      {{- end }}
  volumes:
    - name: tmp
      emptyDir: {}
    {{- if .root.Values.postgres.urlSecret }}
    - name: data
      emptyDir: {}
    {{- end }}
{{- end }}
