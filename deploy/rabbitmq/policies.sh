#!/usr/bin/env bash
# Sets the policies of a cluster; docs/rabbitmq.md tells what they are for.
# Usage: deploy/rabbitmq/policies.sh [VHOST]
# RABBITMQCTL (rabbitmqctl) is the program that is asked, NAME (chat) the broker.name of the gateway.
set -euo pipefail
vhost=${1:-/}
name=${NAME:-chat}
pattern="^${name//./\\.}\\."
# The leaders of the queues over all nodes, not all of them on the one that was asked first. A policy that drops
# letters (max-length, message-ttl, expires, a dead-letter exchange) may not match these names.
${RABBITMQCTL:-rabbitmqctl} set_policy -p "$vhost" --apply-to queues --priority 10 \
  "$name-balanced" "$pattern" '{"queue-leader-locator": "balanced"}'
