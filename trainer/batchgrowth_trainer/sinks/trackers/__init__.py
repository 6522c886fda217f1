"""Trackers: sinks that record a run with TensorBoard, MLflow or Weights & Biases; each needs an extra."""
