"""Reading and writing manifests: YAML, overrides, keyword arguments, faults, the CRD, and limits on pods."""
