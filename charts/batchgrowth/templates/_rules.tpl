{{/* What the operator does in a namespace that it watches. The API server itself collects what belongs to a job. */}}
{{- define "batchgrowth.rules" -}}
# The jobs: read, answered, and removed when their time to live is over.
- apiGroups: [batchgrowth.dev]
  resources: [batchgrowthjobs]
  verbs: [list, watch, delete]
- apiGroups: [batchgrowth.dev]
  resources: [batchgrowthjobs/status]
  verbs: [patch]
# The children of a job.
- apiGroups: [""]
  resources: [configmaps, serviceaccounts]
  verbs: [get, list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
# Nobody can give a right that they do not hold: the trainer's, to one ConfigMap, is among those above.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch]
# Those that are released, or made anew.
- apiGroups: [kubernetes.dask.org]
  resources: [daskclusters]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
# The certificates of a job, by name: the Secrets of others cannot be listed.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch]
# Why workers do not come.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [list, create]
# Whether the scheduler that the Dask operator made is still all there.
- apiGroups: [""]
  resources: [services]
  verbs: [list, watch]
{{- end }}
