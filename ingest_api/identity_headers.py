"""The identity of a produce request: the headers of idempotent producers, and ``Idempotency-Key``.

They are read as strictly as query parameters: InvalidProducerRequestError (400) says what to change.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from ingest_api.parameters import shown
from logstore.errors import InvalidProducerRequestError
from logstore.limits import IDEMPOTENCY_KEY_LENGTH_MAX, PARTITIONS_PER_TOPIC_MAX, PRODUCER_EPOCH_MAX
from logstore.records.batch_identity import SEQUENCE_MAX, IdempotencyKey, ProducerIdentity

Identity = ProducerIdentity | IdempotencyKey

PRODUCER_ID: Final = "Logstore-Producer-Id"
PRODUCER_EPOCH: Final = "Logstore-Producer-Epoch"
BASE_SEQUENCES: Final = "Logstore-Base-Sequences"
IDEMPOTENCY_KEY: Final = "Idempotency-Key"
#: The response header of a repeated request: all of it was stored before.
REPLAYED: Final = {"Idempotent-Replayed": "true"}

_NAMES = {name.lower().encode(): name for name in (PRODUCER_ID, PRODUCER_EPOCH, BASE_SEQUENCES, IDEMPOTENCY_KEY)}
IDENTITY_HEADERS: Final = frozenset(_NAMES)
_OF_PRODUCERS = (PRODUCER_ID, PRODUCER_EPOCH, BASE_SEQUENCES)
_INTEGER = re.compile(r"0|[1-9][0-9]{0,18}")
_PRINTABLE = re.compile(rf"[!-~]([ -~]{{0,{IDEMPOTENCY_KEY_LENGTH_MAX - 2}}}[!-~])?")
_INT64_MAX = 2**63 - 1

HEADER_PARAMETERS: Final[list[dict[str, Any]]] = [
    {
        "name": PRODUCER_ID,
        "in": "header",
        "description": "An id of POST /producers: batches that are sent again are not stored again. It needs the "
        "two headers below, and a partition for every record.",
        "schema": {"type": "integer", "format": "int64", "minimum": 0},
    },
    {
        "name": PRODUCER_EPOCH,
        "in": "header",
        "description": "The epoch that came with the id; a lower epoch than the newest one is fenced.",
        "schema": {"type": "integer", "minimum": 0, "maximum": PRODUCER_EPOCH_MAX},
    },
    {
        "name": BASE_SEQUENCES,
        "in": "header",
        "description": "For each partition of the request, the sequence number of its first record there, as "
        "`0=5,3=17`. Each record adds one; 0 follows 2147483647.",
        "schema": {"type": "string", "pattern": "^[0-9]+=[0-9]+(,[0-9]+=[0-9]+)*$"},
    },
    {
        "name": IDEMPOTENCY_KEY,
        "in": "header",
        "description": "A name for this request, for clients without a producer id: within idempotency.window.ms, "
        "the same request with the same key is stored once and gets the same response.",
        "schema": {"type": "string", "minLength": 1, "maxLength": IDEMPOTENCY_KEY_LENGTH_MAX},
    },
]


def identity_of(headers: Iterable[tuple[bytes, bytes]], secret: bytes, form: str) -> Callable[[bytes], Identity] | None:
    """Return a function that makes the identity from the (inflated) body, given the request's headers as ASGI has them;
    None if they name none.

    ``secret`` is the store's. ``form`` is the way in which the body is read: the same bytes in another form are another
    request. Raises InvalidProducerRequestError.
    """
    found: dict[str, str] = {}
    for raw_name, raw_value in headers:
        if raw_name in _NAMES:
            name = _NAMES[raw_name]
            if name in found:
                raise InvalidProducerRequestError(f"The header {name} is given twice: send it once.")
            found[name] = raw_value.decode("latin-1")
    if not found:
        return None
    if IDEMPOTENCY_KEY in found:
        if len(found) > 1:
            raise InvalidProducerRequestError(
                f"{IDEMPOTENCY_KEY} and {PRODUCER_ID} do the same in two ways: send one of them."
            )
        key = found[IDEMPOTENCY_KEY]
        if not _PRINTABLE.fullmatch(key):
            raise InvalidProducerRequestError(
                f"{IDEMPOTENCY_KEY} cannot be {shown(key)}: send 1 to {IDEMPOTENCY_KEY_LENGTH_MAX} printable ASCII "
                "characters, a UUID for example."
            )
        return lambda body: IdempotencyKey.of(key, body, secret, form)
    identity = _producer(found)
    return lambda _: identity


def _producer(found: dict[str, str]) -> ProducerIdentity:
    missing = [name for name in _OF_PRODUCERS if name not in found]
    if missing:
        raise InvalidProducerRequestError(
            f"The headers {', '.join(_OF_PRODUCERS)} belong together: {', '.join(missing)} is missing."
        )
    return ProducerIdentity(
        _integer(PRODUCER_ID, found[PRODUCER_ID], _INT64_MAX),
        _integer(PRODUCER_EPOCH, found[PRODUCER_EPOCH], PRODUCER_EPOCH_MAX),
        _base_sequences(found[BASE_SEQUENCES]),
    )


def _base_sequences(text: str) -> dict[int, int]:
    sequences: dict[int, int] = {}
    for pair in text.split(","):
        partition_text, separator, sequence = pair.partition("=")
        if not separator:
            raise InvalidProducerRequestError(
                f"{BASE_SEQUENCES} cannot be {shown(text)}: send partition=sequence pairs, as 0=5,3=17."
            )
        partition = _integer(BASE_SEQUENCES, partition_text, PARTITIONS_PER_TOPIC_MAX - 1)
        if partition in sequences:
            raise InvalidProducerRequestError(f"{BASE_SEQUENCES} names partition {partition} twice: once is enough.")
        sequences[partition] = _integer(BASE_SEQUENCES, sequence, SEQUENCE_MAX)
    return sequences


def _integer(name: str, text: str, maximum: int) -> int:
    if not _INTEGER.fullmatch(text) or int(text) > maximum:
        raise InvalidProducerRequestError(
            f"{name} cannot hold {shown(text)}: send whole numbers from 0 to {maximum} there, in decimal digits."
        )
    return int(text)
