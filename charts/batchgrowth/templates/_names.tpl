{{/* The name of the release's objects: the release's, with the chart's unless it contains that.

A Service's name is a DNS label that begins with a letter; a release's may have dots and begin with a digit. */}}
{{- define "batchgrowth.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $release := replace "." "-" .Release.Name -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if regexMatch "^[0-9]" $release -}}
{{- printf "%s-%s" $name $release | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name $release -}}
{{- $release | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" $release $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* The name of cluster-scoped objects, which differs between releases of one name in two namespaces. */}}
{{- define "batchgrowth.clusterName" -}}
{{- printf "%s-%s" (include "batchgrowth.fullname" .) .Release.Namespace -}}
{{- end }}

{{/* The name of a role beside it, also in a namespace whose name is the role's; takes a list of the scope and the role. */}}
{{- define "batchgrowth.role" -}}
{{- $scope := index . 0 }}
{{- printf "%s%s%s" (include "batchgrowth.fullname" $scope) (eq $scope.Release.Namespace (index . 1) | ternary "." "-") (index . 1) -}}
{{- end }}

{{- define "batchgrowth.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "batchgrowth.labels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: batchgrowth
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Labels or annotations, those of the values over ours; takes a list of ours, as YAML, and theirs. */}}
{{- define "batchgrowth.over" -}}
{{- merge (dict) (index . 1 | default dict) (index . 0 | fromYaml) | toYaml }}
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
{{- $ours := dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault") }}
{{- if .Values.fixedUser }}
{{- $ours = merge $ours (dict "runAsUser" 65532 "runAsGroup" 65532) }}
{{- end }}
{{- mergeOverwrite $ours (deepCopy (.Values.podSecurityContext | default dict)) | toYaml }}
{{- end }}

{{- define "batchgrowth.containerSecurity" -}}
{{- $ours := dict "allowPrivilegeEscalation" false "capabilities" (dict "drop" (list "ALL")) "readOnlyRootFilesystem" true }}
{{- mergeOverwrite $ours (deepCopy (.Values.securityContext | default dict)) | toYaml }}
{{- end }}

{{/* The namespaces whose jobs the operator serves, as JSON; none for the whole cluster. */}}
{{- define "batchgrowth.namespaces" -}}
{{- $given := .Values.watch.namespaces }}
{{- if .Values.rbac.namespaced }}
{{- $own := list .Release.Namespace }}
{{- if and $given (ne (join "," $given) .Release.Namespace) }}
{{- fail (printf "watch.namespaces: with rbac.namespaced, the operator has rights in the release's own namespace only; leave it empty, or give %q" .Release.Namespace) }}
{{- end }}
{{- $dask := index .Values "dask-kubernetes-operator" }}
{{- if and $dask.enabled (or $dask.rbac.cluster (has "--all-namespaces" $dask.kopfArgs)) }}
{{- fail (printf "dask-kubernetes-operator.rbac.cluster: the Dask operator asks for rights in the whole cluster, which rbac.namespaced excludes; set dask-kubernetes-operator.enabled=false if the cluster has one, or dask-kubernetes-operator.rbac.cluster=false and dask-kubernetes-operator.kopfArgs={--namespace=%s}" .Release.Namespace) }}
{{- end }}
{{- toJson $own }}
{{- else }}
{{- toJson $given }}
{{- end }}
{{- end }}

{{/* Fails if another release serves the same jobs: two operators of one job would undo each other's work. */}}
{{- define "batchgrowth.alone" -}}
{{- range (lookup "rbac.authorization.k8s.io/v1" "ClusterRole" "" "").items }}
{{- $given := .metadata.annotations | default dict }}
{{- $theirs := without (splitList "," (get $given "batchgrowth.dev/namespaces")) "" }}
{{- $own := include "batchgrowth.namespaces" $ | fromJsonArray }}
{{- $shared := list }}
{{- range $theirs }}{{ if has . $own }}{{ $shared = append $shared . }}{{ end }}{{ end }}
{{- if and
  (hasKey $given "batchgrowth.dev/operator-class")
  (eq (get $given "batchgrowth.dev/operator-class") ($.Values.operatorClass | default ""))
  (ne .metadata.name (include "batchgrowth.clusterName" $))
  (or (empty $own) (empty $theirs) $shared) }}
{{- if and (eq (get $given "meta.helm.sh/release-name") $.Release.Name) (eq (get $given "meta.helm.sh/release-namespace") $.Release.Namespace) }}
{{- fail (printf "fullnameOverride: Helm would start the operator %s before it ends the one of this release that has another name; keep nameOverride and fullnameOverride, or uninstall the release first, while its jobs train on" (include "batchgrowth.fullname" $)) }}
{{- end }}
{{- $release := printf "%s in namespace %s" (get $given "meta.helm.sh/release-name") (get $given "meta.helm.sh/release-namespace") }}
{{- fail (printf "operatorClass: the release %s already serves jobs of class %q %s; give another class, and jobs for this operator the same spec.operatorClass, or give namespaces that no other release watches" $release ($.Values.operatorClass | default "") (empty $shared | ternary "that this one would serve" (printf "in %s" (join ", " $shared)))) }}
{{- end }}
{{- end }}
{{- end }}
