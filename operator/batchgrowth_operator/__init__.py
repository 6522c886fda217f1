"""Make the cluster match the plan. kopf and the Kubernetes API live here."""
