"""The inventories of inventory/dynamic: the real plugins, with scripted APIs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest
import yaml

from ansible_collections.trtllm.fleet.tests.unit import scripted_cloud
from ansible_collections.trtllm.fleet.tests.unit.paths import ROOT
from ansible_collections.trtllm.fleet.tests.unit.scripted_cloud import ANSWERS, Api, served

SOURCES = ROOT / "inventory/dynamic"
PAGE = " ".join((ROOT / "docs/how-to/dynamic-inventory.md").read_text().split())
TERRAFORM = ANSWERS / "terraform"
# Hosts that run, with a group; gpu3 is stopped and database1 has no group.
PLAYBOOK_GROUPS = {"gpu_hosts": {"gpu1", "gpu2"}, "gateway": {"gateway1"}}
ADDRESSES = {"gpu1": "192.0.2.11", "gpu2": "192.0.2.12", "gateway1": "192.0.2.21"}


# Azure's plugin has no option to rename these variables.
RESERVED = {f"Found variable using reserved name '{name}'." for name in ("name", "tags")}


class Source(NamedTuple):
    """Inventory source.

    ``groups``: some of its groups beside those of playbooks. ``missing``: the error without its packages. ``packages``:
    the folder of these below .cache.
    """

    name: str
    api: Api
    environment: dict[str, str]
    groups: dict[str, set[str]]
    missing: str
    packages: str = "inventories"


CLOUDS = [
    Source(
        "aws_ec2.yml",
        scripted_cloud.ec2,
        {"AWS_URL": "http://{address}", "AWS_ACCESS_KEY_ID": "scripted", "AWS_SECRET_ACCESS_KEY": "scripted"},
        {"type_p5en_48xlarge": {"gpu1", "gpu2"}, "zone_us_east_1a": {"gpu1", "gateway1"}},
        "Failed to import the required Python library (botocore and boto3)",
    ),
    Source(
        "gcp_compute.yml",
        scripted_cloud.compute_engine,
        {"GCP_AUTH_KIND": "accesstoken", "GCP_ACCESS_TOKEN": "scripted"},
        {"type_a3_ultragpu_8g": {"gpu1", "gpu2"}, "zone_us_central1_a": {"gpu1", "gateway1"}},
        "Failed to import the required Python library (google-auth)",
    ),
    Source(
        "openstack.yml",
        scripted_cloud.openstack,
        {
            "OS_AUTH_URL": "http://{address}/identity/v3",
            "OS_USERNAME": "ops",
            "OS_PASSWORD": "scripted",
            "OS_PROJECT_NAME": "fleet",
            "OS_USER_DOMAIN_NAME": "Default",
            "OS_PROJECT_DOMAIN_NAME": "Default",
        },
        {"type_h200_8": {"gpu1", "gpu2"}, "zone_az2": {"gpu2"}},
        "Could not import Python library openstacksdk",
    ),
    Source(
        "netbox.yml",
        scripted_cloud.netbox,
        {"NETBOX_API": "http://{address}", "NETBOX_TOKEN": "scripted"},
        {"device_type_xe9680": {"gpu1", "gpu2"}, "rack_r1": {"gpu1"}, "site_ams1": {"gpu1", "gpu2", "gateway1"}},
        "pytz must be installed to use this plugin",
    ),
    Source(
        "azure_rm.yml",
        scripted_cloud.azure,
        {
            "AZURE_SUBSCRIPTION_ID": "00000000-0000-4000-8000-000000000001",
            "AZURE_TENANT": "00000000-0000-4000-8000-000000000002",
            "AZURE_CLIENT_ID": "scripted",
            "AZURE_SECRET": "scripted",
        },
        {"type_Standard_ND96isr_H200_v5": {"gpu1", "gpu2"}, "zone_westeurope": {"gpu1", "gpu2", "gateway1"}},
        "name 'azure_cloud' is not defined",
        packages="inventories-azure",
    ),
]
# 800 MB, which only `make inventories` installs.
without_azure = pytest.mark.skipif(
    not (ROOT / ".cache/inventories-azure").is_dir(), reason="make inventories installs the packages"
)


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program of Ansible without the user's settings and credentials. A source that fails ends it."""
    return subprocess.run(
        [str(Path(sys.executable).with_name(command[0])), *command[1:]],
        cwd=ROOT,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / "collections"),
            "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
            # Those of the plugins, about later releases of Ansible.
            "ANSIBLE_DEPRECATION_WARNINGS": "false",
            **environment,
        },
        text=True,
        capture_output=True,
        check=False,
    )


def plain(value: dict[str, Any]) -> Any:
    """Return the text of a value that Ansible marks as no template, and other values as they are."""
    return value.get("__ansible_unsafe", value)


def hosts_of_plays(listed: str) -> set[str]:
    """Return the hosts in the output of ansible-playbook --list-hosts."""
    return set(re.findall(r"^      (\S+)$", listed, re.MULTILINE))


def selects_the_running_hosts(folder: Path, source: str, groups: dict[str, set[str]], **environment: str) -> Path:
    """Return a new inventory with the source. Asserts that its running hosts are in their groups, and in playbooks."""
    # As the page says.
    mine = folder / "mine"
    mine.mkdir()
    shutil.copy(SOURCES / source, mine)
    shutil.copytree(SOURCES / "group_vars", mine / "group_vars")
    listed = run(folder, "ansible-inventory", "--inventory", str(mine), "--list", **environment)
    warnings = set(re.findall(r"^\[WARNING\]: (.*)", listed.stderr, re.MULTILINE))
    assert (listed.returncode, warnings) == (0, RESERVED if source == "azure_rm.yml" else set()), listed.stderr
    inventory: dict[str, Any] = json.loads(listed.stdout, object_hook=plain)
    wanted = {**PLAYBOOK_GROUPS, **groups}
    assert {group: set(inventory[group]["hosts"]) for group in wanted} == wanted
    variables = inventory["_meta"]["hostvars"]
    members = set().union(*(inventory[group]["hosts"] for group in PLAYBOOK_GROUPS))
    assert {host: variables[host]["ansible_host"] for host in members} == ADDRESSES
    # Nova has no filter for properties. Its other servers are in no group of a playbook.
    assert variables.keys() - members <= ({"database1"} if source == "openstack.yml" else set())
    # Of group_vars beside the source.
    assert {variables[host]["ansible_user"] for host in members} == {"fleet"}

    selected = run(
        folder, "ansible-playbook", "playbooks/plan.yml", "--inventory", str(mine), "--list-hosts", **environment
    )
    assert (selected.returncode, hosts_of_plays(selected.stdout)) == (0, PLAYBOOK_GROUPS["gpu_hosts"])
    return mine


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(one, id=one.name, marks=[without_azure] if one.packages == "inventories-azure" else [])
        for one in CLOUDS
    ],
)
def test_source_selects_the_running_hosts(tmp_path: Path, source: Source) -> None:
    (tmp_path / "sitecustomize.py").write_text(scripted_cloud.REDIRECT)
    with served(source.api) as (address, unknown):
        environment = {name: value.format(address=address) for name, value in source.environment.items()}
        path = f"{tmp_path}:{ROOT / '.cache' / source.packages}"
        selects_the_running_hosts(
            tmp_path, source.name, source.groups, PYTHONPATH=path, SCRIPTED_CLOUD=address, **environment
        )
    assert unknown == []


@pytest.mark.parametrize("source", CLOUDS, ids=lambda source: source.name)
def test_source_names_missing_packages_as_the_page_does(tmp_path: Path, source: Source) -> None:
    environment = {name: value.format(address="127.0.0.1:9") for name, value in source.environment.items()}
    done = run(tmp_path, "ansible-inventory", "--inventory", str(SOURCES / source.name), "--list", **environment)
    assert done.returncode != 0
    assert source.missing in done.stderr
    assert source.missing in PAGE


def test_execution_environment_limits_the_same_packages() -> None:
    page = (ROOT / "docs/how-to/automation-controller.md").read_text()
    (limit,) = {*re.findall(r"openstacksdk<[\d.]+", PAGE)}
    assert f"    - {limit}\n" in page


def outputs(state: Path) -> Any:
    """Return the output ansible_inventory of a Terraform state."""
    return json.loads(state.read_text())["outputs"]["ansible_inventory"]["value"]


def test_terraform_source_selects_the_running_hosts(tmp_path: Path) -> None:
    # In place of Terraform: the output of a state that Terraform 1.11.4 wrote.
    program = tmp_path / "bin/terraform"
    program.parent.mkdir()
    (tmp_path / "output.json").write_text(json.dumps(outputs(TERRAFORM / "terraform.tfstate")))
    program.write_text(f"""#!/bin/sh
[ "$*" = "-chdir={TERRAFORM} output -json ansible_inventory" ] && exec cat {tmp_path}/output.json
echo "$*" >&2; exit 1
""")
    program.chmod(0o755)
    environment = {"PATH": f"{program.parent}:{os.environ['PATH']}", "TERRAFORM_DIR": str(TERRAFORM)}
    groups = {"type_p5en_48xlarge": {"gpu1", "gpu2"}, "zone_us_east_1a": {"gpu1", "gateway1"}}
    mine = selects_the_running_hosts(tmp_path, "terraform.sh", groups, **environment)

    # A new host joins by --limit, and no other host changes.
    joins = ["ansible-playbook", "site.yml", "--inventory", str(mine), "--limit", "gpu2", "--list-hosts"]
    assert hosts_of_plays(run(tmp_path, *joins, **environment).stdout) == {"gpu2"}


def test_terraform_source_needs_its_directory(tmp_path: Path) -> None:
    done = run(tmp_path, "ansible-inventory", "--inventory", str(SOURCES / "terraform.sh"), "--list")
    assert done.returncode != 0
    assert "TERRAFORM_DIR: is not set" in done.stderr


@pytest.mark.skipif(not shutil.which("terraform"), reason="Terraform is not installed")
def test_terraform_configuration_writes_the_recorded_output(tmp_path: Path) -> None:
    for file in (SOURCES / "ansible_inventory.tf", TERRAFORM / "main.tf", TERRAFORM / "terraform.tfvars.json"):
        shutil.copy(file, tmp_path)
    for command in (["init", "-input=false"], ["fmt", "-check"], ["apply", "-auto-approve", "-input=false"]):
        done = subprocess.run(
            ["terraform", f"-chdir={tmp_path}", *command], text=True, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert outputs(tmp_path / "terraform.tfstate") == outputs(TERRAFORM / "terraform.tfstate")


def test_variables_are_those_of_the_other_inventories() -> None:
    dynamic = yaml.safe_load((SOURCES / "group_vars/all.yml").read_text())
    other = yaml.safe_load((ROOT / "inventory/b200/group_vars/all.yml").read_text())
    # Machine types differ in GPUs, which are detected or set for a group.
    detected = {"serving_recipe_gpu_type", "serving_recipe_gpu_count"}
    assert dynamic.keys() == other.keys() - detected
    different = {"ansible_user"}
    assert {name: dynamic[name] for name in dynamic.keys() - different} == {
        name: other[name] for name in dynamic.keys() - different
    }


def cloud_init_problems(text: str) -> list[str]:
    """Return the problems of user data by the schema of cloud-init."""
    [file] = (ROOT / ".cache/cloud-init").rglob("schema-cloud-config-v1.json")
    schema = json.loads(file.read_text())
    return [error.message for error in jsonschema.Draft4Validator(schema).iter_errors(yaml.safe_load(text))]


def test_user_data_follows_the_schema_of_cloud_init() -> None:
    text = (SOURCES / "cloud-init.cfg").read_text()
    assert text.startswith("#cloud-config\n"), "cloud-init ignores other user data"
    assert cloud_init_problems(text) == []
    assert cloud_init_problems(text.replace("overwrite: false", "overwrite: maybe")) != []


def test_user_data_prepares_the_login_and_the_disk_of_the_inventory() -> None:
    data = yaml.safe_load((SOURCES / "cloud-init.cfg").read_text())
    variables = yaml.safe_load((SOURCES / "group_vars/all.yml").read_text())
    [user] = [user for user in data["users"] if user != "default"]
    assert user["name"] == variables["ansible_user"]
    weights = yaml.safe_load((ROOT / "roles/model_weights/defaults/main.yml").read_text())["model_weights_dir"]
    device, directory = data["mounts"][0][:2]
    assert (directory, device) == (weights, data["fs_setup"][0]["device"])
