"""Topics that the controller makes for other brokers: those that are produced to (``auto.create.topics.enable``)."""

from typing import Final

import msgspec

from logstore.broker.context import RequestContext
from logstore.broker.forwarding import Router, Target
from logstore.broker.remote_fetches import error_of_answer
from logstore.errors import PeerUnavailableError
from logstore.replication.peer_http import PeerHttp

_CREATED: Final = range(200, 300)


class RemoteTopics:
    def __init__(self, router: Router, http: PeerHttp, cluster_id: str) -> None:
        self._router = router
        self._http = http
        self._path = f"/v3/clusters/{cluster_id}/topics"

    async def create(self, context: RequestContext, name: str) -> None:
        """A topic with the defaults of the controller. NotControllerError, and its own errors."""
        controller = self._router.controller()
        body = msgspec.json.encode({"topic_name": name})
        try:
            answer = await self._http.ask(controller, "POST", self._path, context.encode(), body=body)
        except PeerUnavailableError as error:
            raise self._router.unreachable(Target.CONTROLLER, controller, error.message) from error
        if answer.status not in _CREATED:
            raise error_of_answer(answer.body)
