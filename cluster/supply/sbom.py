"""The SBOM of an image: its Python distributions in CycloneDX, the same bytes for the same lock."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.markers import default_environment

from cluster.errors import HarnessError
from cluster.supply.closure import Needed, closure
from cluster.supply.licences import Metadata, installed_metadata, licence_of
from cluster.supply.lock import read_lock
from cluster.supply.settings import Licences, read_settings

NAMESPACE = UUID("6d1b9a7e-5f0c-5b61-8c53-0d3d1c0a9f42")
"""Of the serial numbers, which follow from the content."""
PLATFORM = ("implementation_name", "platform_machine", "python_version", "sys_platform")


def sbom(project: Path, extra: str) -> str:
    """Returns the SBOM of the image with an extra of the project, for the Python and the platform that run this.

    Raises HarnessError if it is not valid CycloneDX, or if what is installed here differs from the lock.
    """
    lock, pyproject = ((project / name).read_text() for name in ("requirements.lock", "pyproject.toml"))
    table = tomllib.loads(pyproject)["project"]
    environment: dict[str, str] = {key: str(value) for key, value in default_environment().items()}
    wanted = [*table["dependencies"], *table["optional-dependencies"][extra]]
    roots, needed = closure(wanted, read_lock(lock), environment)
    bom = Bom(metadata=BomMetaData(component=_application(f"{table['name']}-{extra}", table["version"])))
    facts = {"lock:sha256": hashlib.sha256(lock.encode()).hexdigest()} | {name: environment[name] for name in PLATFORM}
    bom.metadata.properties = [Property(name=f"batchgrowth:{key}", value=facts[key]) for key in sorted(facts)]
    _fill(bom, roots, needed, read_settings(pyproject).licences)
    return _checked(_text(bom))


def _application(name: str, version: str) -> Component:
    licence = LicenseFactory().make_from_string("Apache-2.0")
    return Component(name=name, version=version, type=ComponentType.APPLICATION, bom_ref=name, licenses=[licence])


def _fill(bom: Bom, roots: tuple[str, ...], needed: Mapping[str, Needed], rules: Licences) -> None:
    """Adds the components and who needs which."""
    components = {name: _library(each, rules) for name, each in needed.items()}
    for name, each in needed.items():
        bom.components.add(components[name])
        bom.register_dependency(components[name], [components[other] for other in each.requires])
    assert bom.metadata.component is not None
    bom.register_dependency(bom.metadata.component, [components[name] for name in roots])


def _library(needed: Needed, rules: Licences, metadata: Metadata = installed_metadata) -> Component:
    name, version = needed.locked.name, needed.locked.version
    url = PackageURL("pypi", name=name, version=version)
    licence = licence_of(name, metadata, rules)
    licences = [LicenseFactory().make_from_string(licence)] if licence else []
    return Component(name=name, version=version, purl=url, bom_ref=url.to_string(), licenses=licences)


def _text(bom: Bom) -> str:
    """The text in sorted order, without a time, and with a serial number that only the content determines."""
    bom.serial_number = NAMESPACE
    content = json.loads(JsonV1Dot6(bom).output_as_string())
    content["metadata"].pop("timestamp", None)
    content["serialNumber"] = uuid5(NAMESPACE, json.dumps(content, sort_keys=True)).urn
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def _checked(text: str) -> str:
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if fault is not None:
        raise HarnessError(f"the SBOM is not valid CycloneDX 1.6: {str(fault).splitlines()[0]}")
    return text
