{{/* The name of the release's objects: the release's, with the chart's unless it contains that. */}}
{{- define "batchgrowth.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* The name of cluster-scoped objects, which differs between releases of one name in two namespaces. */}}
{{- define "batchgrowth.clusterName" -}}
{{- printf "%s-%s" (include "batchgrowth.fullname" .) .Release.Namespace -}}
{{- end }}

{{- define "batchgrowth.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "batchgrowth.labels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: batchgrowth
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "batchgrowth.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "batchgrowth.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{/* An image reference; takes a dict of image, its key in the values, and chart. */}}
{{- define "batchgrowth.image" -}}
{{- if not .image.repository }}
{{- fail (printf "%s.repository: empty; build the images, push them to your registry, and name them, such as registry.example.com/batchgrowth-operator; docs/kubernetes.md shows how" .key) }}
{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end }}

{{/* The Pod Security profile "restricted": of the pod, and of its container. */}}
{{- define "batchgrowth.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "batchgrowth.containerSecurity" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
readOnlyRootFilesystem: true
{{- end }}

{{/* Fails if another release serves the same jobs: two operators of one job would undo each other's work. */}}
{{- define "batchgrowth.alone" -}}
{{- range (lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "").items }}
{{- $given := .metadata.annotations | default dict }}
{{- $theirs := without (splitList "," (get $given "batchgrowth.dev/namespaces")) "" }}
{{- $own := $.Values.watch.namespaces }}
{{- $shared := list }}
{{- range $theirs }}{{ if has . $own }}{{ $shared = append $shared . }}{{ end }}{{ end }}
{{- if and
  (hasKey $given "batchgrowth.dev/operator-class")
  (eq (get $given "batchgrowth.dev/operator-class") $.Values.operatorClass)
  (ne .metadata.name (include "batchgrowth.clusterName" $))
  (or (empty $own) (empty $theirs) $shared) }}
{{- $release := printf "%s in namespace %s" (get $given "meta.helm.sh/release-name") (get $given "meta.helm.sh/release-namespace") }}
{{- fail (printf "operatorClass: the release %s already serves jobs of class %q %s; give another class, and jobs for this operator the same spec.operatorClass, or give namespaces that no other release watches" $release $.Values.operatorClass (empty $shared | ternary "that this one would serve" (printf "in %s" (join ", " $shared)))) }}
{{- end }}
{{- end }}
{{- end }}
