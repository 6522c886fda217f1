"""What should happen: the manifest, the plan and the words both sides use. Pure."""
