"""Kubeconfig files."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from cluster.certificates import Pair, write_file


def write_kubeconfig(path: Path, server: str, authority: bytes, user: Pair, *, name: str = "batchgrowth") -> Path:
    """Write one cluster, user and context with embedded certificates, so that the file can be copied anywhere."""
    text = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": _base64(authority)}}],
        "users": [
            {
                "name": name,
                "user": {
                    "client-certificate-data": _base64(user.certificate),
                    "client-key-data": _base64(user.key),
                },
            }
        ],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    return write_file(path, yaml.safe_dump(text, sort_keys=False).encode())


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
