#!/usr/bin/env bash
# Gives a user of the broker the rights of one role; docs/rabbitmq.md tells what they are.
# Usage: deploy/rabbitmq/rights.sh session USER [VHOST]
#        deploy/rabbitmq/rights.sh channels USER CHANNEL[,CHANNEL…] [VHOST]
#        deploy/rabbitmq/rights.sh program USER CHANNEL [VHOST]
# RABBITMQCTL (rabbitmqctl) is the program that is asked, NAME (chat) the broker.name of the gateway.
set -euo pipefail
role=$1 user=$2
name=${NAME:-chat}
name=${name//./\\.}
ctl=${RABBITMQCTL:-rabbitmqctl}
case $role in
  session)
    # Makes everything, and takes and puts everything that is the gateway's.
    vhost=${3:-/}
    configure="^($name\\..*|amq\\.gen.*)\$"
    write="^($name\\..*|amq\\.gen.*|amq\\.default)\$"
    read="^($name\\..*|amq\\.gen.*)\$"
    ;;
  channels)
    # Puts inbound letters, takes the replies of its own platforms, and sets aside what those refuse for good.
    vhost=${4:-/}
    own=${3//,/|}
    configure="^$name\\.outbound\\.($own)\$"
    write="^$name\\.(inbound|parked)\$"
    # Nothing of the exchange: who may read that could bind a queue of its own to all replies.
    read="^$name\\.outbound\\.($own)\$"
    ;;
  program)
    # One of somebody else's: puts inbound letters and takes its replies.
    vhost=${4:-/}
    configure='^$'
    write="^$name\\.inbound\$"
    read="^$name\\.outbound\\.$3\$"
    ;;
  *)
    sed -n '3,6s/^# //p' "$0" >&2
    exit 2
    ;;
esac
$ctl set_permissions -p "$vhost" "$user" "$configure" "$write" "$read"
