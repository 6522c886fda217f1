{{/* The operator's rights in a watched namespace. Garbage collection deletes most children of a job. */}}
{{- define "batchgrowth.rules" -}}
# Jobs: read, given a status, and deleted when their time to live expires.
- apiGroups: [batchgrowth.dev]
  resources: [batchgrowthjobs]
  verbs: [list, watch, delete]
- apiGroups: [batchgrowth.dev]
  resources: [batchgrowthjobs/status]
  verbs: [patch]
# The children of a job.
- apiGroups: [""]
  resources: [configmaps, serviceaccounts, persistentvolumeclaims]
  verbs: [get, list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
# RBAC refuses to grant rights that the grantor lacks; the trainer's, to one ConfigMap, are among those above.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch]
# Children that the operator also deletes or recreates.
- apiGroups: [kubernetes.dask.org]
  resources: [daskclusters]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
# A job's certificates, by name: the operator cannot list Secrets.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, patch]
# The reasons why workers do not start.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [events]
  verbs: [list, create, patch]
# To notice missing parts of the scheduler that the Dask operator created.
- apiGroups: [""]
  resources: [services]
  verbs: [list, watch]
{{- end }}
