"""What every part of the manifest is made of: models, rules, string patterns, choices, and the Kubernetes schema."""
