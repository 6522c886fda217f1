"""The CRD as a template of the chart: the text of crds/, with the chart's metadata."""

from __future__ import annotations

from batchgrowth.crd import HEADER as SOURCE
from batchgrowth.crd import crd_yaml

HEAD = """\
{{- /* Made by `python -m charts generate`; a test fails where it differs. */ -}}
{{- if .Values.crds.enabled }}
"""
METADATA = """\
metadata:
  labels:
    {{- include "batchgrowth.labels" . | nindent 4 }}
  {{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
"""


def crd_template() -> str:
    """The text of templates/crd.yaml."""
    text = crd_yaml().removeprefix(SOURCE)
    assert text.count("\nmetadata:\n") == 1
    escaped = text.replace("{{", '{{ "{{" }}')
    return HEAD + escaped.replace("\nmetadata:\n", "\n" + METADATA) + "{{- end }}\n"
