#!/usr/bin/python
# Copyright (c) 2026, trtllm.fleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: etcd_member
short_description: Replace a lost member of an etcd cluster
version_added: 1.0.0
description:
  - Removes a member that is lost for good and adds one that has no data yet. Runs on the host of another member.
  - Start the new member afterwards, with C(initial-cluster-state) V(existing). Until then the cluster works as before,
    if most of its members run.
  - Run it only while the new member has never started. A member with the name of the new one that has started counts as
    lost.
extends_documentation_fragment:
  - trtllm.fleet.attributes
attributes:
  check_mode:
    support: full
    details: Reads the members.
  diff_mode:
    support: full
    details: Shows the members.
  idempotent:
    support: full
options:
  lost:
    description: Name of the lost member.
    type: str
    required: true
  name:
    description: Name of the new member; may be that of the lost one.
    type: str
    required: true
  peer_url:
    description: URL at which the other members reach the new one.
    type: str
    required: true
  container:
    description: Container of a running member, with C(etcdctl).
    type: str
    required: true
  endpoints:
    description: URLs of members that run, for clients.
    type: list
    elements: str
    required: true
  tls_directory:
    description: Directory in the container with the files C(ca), C(certificate) and C(key). Empty for etcd without TLS.
    type: str
    default: ''
author:
  - trtllm.fleet contributors (@trtllm-fleet)
"""

EXAMPLES = r"""
- name: Replace the member of control3 by one on control4
  trtllm.fleet.etcd_member:
    lost: control3
    name: control4
    peer_url: http://192.0.2.14:2380
    container: trtllm-dynamo-etcd
    endpoints: [http://192.0.2.11:2379, http://192.0.2.12:2379]
  delegate_to: control1
"""

RETURN = r"""
members:
  description: The members afterwards, as NAME (URL). In check mode the expected ones.
  returned: success
  type: list
  elements: str
  sample: ["control1 (http://192.0.2.11:2380)", "not started (http://192.0.2.14:2380)"]
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.trtllm.fleet.plugins.module_utils.command import run
from ansible_collections.trtllm.fleet.plugins.module_utils.etcd_members import Etcdctl, EtcdError, replace


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            lost=dict(type="str", required=True),
            name=dict(type="str", required=True),
            peer_url=dict(type="str", required=True),
            container=dict(type="str", required=True),
            endpoints=dict(type="list", elements="str", required=True),
            tls_directory=dict(type="str", default=""),
        ),
        supports_check_mode=True,
    )
    given = module.params
    etcdctl = Etcdctl(given["container"], given["endpoints"], given["tls_directory"], run)
    try:
        before = [str(member) for member in etcdctl.members()]
        changed, members = replace(etcdctl, given["lost"], given["name"], given["peer_url"], module.check_mode)
    except EtcdError as error:
        module.fail_json(msg=str(error))
    after = [str(member) for member in members]
    shown = {"before": "\n".join(before) + "\n", "after": "\n".join(after) + "\n"}
    module.exit_json(changed=changed, members=after, diff=shown)


if __name__ == "__main__":
    main()
