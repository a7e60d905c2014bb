#!/bin/sh
# Print the output of ansible_inventory.tf, in the Terraform configuration of directory TERRAFORM_DIR: see docs/how-to/dynamic-inventory.md.
: "${TERRAFORM_DIR:?is not set; terraform.sh needs the directory of a Terraform configuration. Run export TERRAFORM_DIR=DIRECTORY.}"
exec terraform -chdir="$TERRAFORM_DIR" output -json ansible_inventory
