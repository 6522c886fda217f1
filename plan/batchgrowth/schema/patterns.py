"""Patterns of the manifest's strings, each with a description for error messages."""

from typing import Annotated

from pydantic import StringConstraints

DECIMAL = r"^(0|[1-9][0-9]{0,8})(\.[0-9]{1,12})?$"
ENTRYPOINT = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$"
JOB_NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
OBJECT_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
NAMESPACE = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
IMAGE = r"^[a-zA-Z0-9][a-zA-Z0-9._:/@-]*$"
STORE_URI = r"^(s3|gs|abfs)://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[A-Za-z0-9_][A-Za-z0-9._=-]*)*/?$"
MOUNT_PATH = r"^(/\.?[A-Za-z0-9_-][A-Za-z0-9._=@+-]*)+$"
FILE_PATH = r"^(\.?[A-Za-z0-9_-][A-Za-z0-9._=@+-]*/)*\.?[A-Za-z0-9_-][A-Za-z0-9._=@+-]*$"
CONFIG_KEY = r"^\.?[A-Za-z0-9_-][A-Za-z0-9._-]*$"
QUANTITY = r"^([0-9]+(\.[0-9]{1,9})?)([mk]|[KMGTPE]i?|[eE][0-9]{1,2})?$"
STORAGE_SIZE = r"^[1-9][0-9]{0,5}[MGTP]i?$"
VARIABLE = r"^[A-Za-z_.-][A-Za-z0-9_.-]*$"
VOLUME_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

WORDS = {
    DECIMAL: 'a decimal number in quotes, such as "0.05", without sign or exponent, at most 12 digits after the point',
    ENTRYPOINT: 'a function as "package.module:function"',
    JOB_NAME: "lower-case letters, digits and dashes, beginning with a letter and ending with a letter or digit",
    OBJECT_NAME: "the name of a Kubernetes object: lower-case letters, digits, dashes and dots",
    NAMESPACE: "the name of a namespace: lower-case letters, digits and dashes",
    STORE_URI: "an object store that outlives the pods, as s3://, gs:// or abfs://BUCKET/PREFIX, without credentials; "
    "what file:// and memory:// name is lost with the trainer's pod",
    MOUNT_PATH: "the absolute path of a folder, without a slash at its end, such as /data",
    FILE_PATH: "a path below the folder of the code, such as package/module.py",
    CONFIG_KEY: "a key of the ConfigMap: letters, digits, dashes, underscores and dots",
    QUANTITY: 'an amount in quotes, such as "500m", "2" or "4Gi"',
    STORAGE_SIZE: "a whole number with a unit from M to Pi, such as 10Gi",
    VARIABLE: "the name of an environment variable",
    VOLUME_NAME: "lower-case letters, digits and dashes",
    IMAGE: 'a container image, such as "registry.example/team/trainer:1.0"',
}

DecimalText = Annotated[str, StringConstraints(pattern=DECIMAL, min_length=1, max_length=22)]
"""A number without rounding: floats do not survive a round trip through Kubernetes. `exact` gives its value."""
ObjectName = Annotated[str, StringConstraints(pattern=OBJECT_NAME, min_length=1, max_length=253)]
StoreUri = Annotated[str, StringConstraints(pattern=STORE_URI, min_length=8, max_length=512)]
"""A bucket, or a container of Azure, and a prefix below which nothing else is."""
