"""The mailbox on RabbitMQ, behind the few files that name the AMQP client."""
