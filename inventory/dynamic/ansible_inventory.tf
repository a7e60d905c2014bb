# Copy this file into your Terraform configuration, set local.fleet from your resources, and run terraform apply. terraform.sh reads the output.
#
# locals {
#   fleet = {
#     for instance in concat(aws_instance.gpu, aws_instance.gateway) : instance.tags.Name => {
#       group   = instance.tags.trtllm_group    # gpu_hosts or gateway
#       address = instance.private_ip
#       type    = instance.instance_type
#       zone    = instance.availability_zone
#     } if instance.instance_state == "running"
#   }
# }

output "ansible_inventory" {
  description = "Hosts and groups in the form of Ansible's inventory scripts."
  value = merge(
    { _meta = { hostvars = { for name, host in local.fleet : name => { ansible_host = host.address } } } },
    { for group, names in local.ansible_groups : replace(group, "/[^A-Za-z0-9_]/", "_") => { hosts = names } },
  )
}

locals {
  ansible_groups = merge(
    { for name, host in local.fleet : host.group => name... },
    { for name, host in local.fleet : "type_${host.type}" => name... },
    { for name, host in local.fleet : "zone_${host.zone}" => name... },
  )
}
