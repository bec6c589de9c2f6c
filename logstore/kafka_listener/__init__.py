"""Kafka's protocol over TCP: the listener beside HTTP, for any Kafka client. One module for each API or family of APIs.

``listener`` has the socket and all connections, ``connection`` one of them: bytes to requests, answers in the order of
requests. ``dispatch`` has the table of handlers, ``idle_fetch`` the waits of idle consumers. A handler is an async
function::

    async def list_groups(store: KafkaStore, context: RequestContext, request: ListGroupsRequest, version: int)
        -> ListGroupsResponse | None

None stands for no answer. A handler turns the errors of the rooms below into Kafka's numbers itself
(``kafka_protocol.error_numbers``), for each topic, partition or group where the API has a place for it. An exception
that leaves a handler ends the connection, with one line in the log.
"""
