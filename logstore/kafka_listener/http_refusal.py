"""The response to an HTTP client that uses the port of Kafka's clients; the body is that of every error over HTTP."""

import json
from typing import Final

_MESSAGE: Final = (
    "This port speaks Kafka's protocol. HTTP has another one: 8082, unless port is set; logstore serve prints it."
)
_BODY: Final = json.dumps({"error_code": 400, "message": _MESSAGE}).encode()
HTTP_REFUSAL: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)
