"""Kafka's protocol over TCP: the listener beside HTTP, for any Kafka client. One module for each API or family of APIs.

``listener`` has the socket and all connections. A ``connection`` turns bytes into requests and sends the responses in
the order of the requests. ``dispatch`` has the table of handlers, ``idle_fetch`` the waits of idle consumers. A handler
is an async function::

    async def list_groups(store: KafkaStore, context: RequestContext, request: ListGroupsRequest, version: int)
        -> ListGroupsResponse | None

None means no response. A handler itself turns the errors of the packages below into Kafka's numbers
(``kafka_protocol.error_numbers``), for each topic, partition or group where the API has a place for it. An exception
that leaves a handler ends the connection, with one line in the log.
"""
