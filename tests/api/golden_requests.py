"""Requests to every route that models describe, good and bad, and a store with content for them."""

import gzip
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx

from tests.api.api_client import ApiClient

JSON = {"Content-Type": "application/json"}
Given = tuple[str, str, dict[str, str], bytes]

V3 = "/v3/clusters/{cluster}"
INSTANCE = "/consumers/rest/instances/c"
READING = "/consumers/rest/instances/reading"
#: Every route that models describe, with a good body if it takes one. The requests are sent in this order.
ROUTES: list[tuple[str, str, Any]] = [
    ("GET", "/topics", None),
    ("GET", "/metadata", None),
    ("GET", "/topics/t", None),
    ("GET", "/topics/t/partitions", None),
    ("GET", "/topics/t/partitions/1", None),
    ("GET", "/topics/t/partitions/0/offsets", None),
    ("POST", "/topics/t/offsets-for-times", {"partitions": [{"partition": 0, "timestamp": 0}]}),
    ("POST", "/topics/t/partitions/0/delete-records", {"before_offset": 1}),
    ("POST", "/producers", {"producer_id": 7, "producer_epoch": 0}),
    ("POST", "/topics/t/roll", {}),
    ("POST", "/topics/t/refresh", {}),
    ("GET", "/topics/t/keyless-records", None),
    ("POST", "/topics/t/drop-foreign-files", {}),
    ("GET", "/groups", None),
    ("POST", "/groups/g/offsets", {"offsets": [{"topic": "t", "partition": 0, "offset": 2, "metadata": "é"}]}),
    ("GET", "/groups/g/offsets", None),
    ("GET", "/groups/g/lag", None),
    ("POST", "/groups/g/reset-offsets", {"to": "earliest", "dry_run": True, "topics": [{"topic": "t"}]}),
    ("GET", "/group-listings", None),
    ("POST", "/delete-groups", {"groups": ["absent"]}),
    ("DELETE", "/groups/other", None),
    ("GET", "/v3/clusters", None),
    ("GET", V3, None),
    ("GET", f"{V3}/topics", None),
    ("POST", f"{V3}/topics", {"topic_name": "made", "partitions_count": 2, "configs": [{"name": "segment.ms"}]}),
    ("GET", f"{V3}/topics/t", None),
    ("PATCH", f"{V3}/topics/t", {"partitions_count": 3}),
    ("DELETE", f"{V3}/topics/other", None),
    ("GET", f"{V3}/topics/t/configs", None),
    ("GET", f"{V3}/topics/t/partitions/0/offset", None),
    ("GET", f"{V3}/topics/-/partitions/-/reassignment", None),
    ("GET", "/cluster", None),
    ("GET", "/cluster/partitions", None),
    ("POST", "/cluster/elect-leaders", {"election_type": "preferred", "partitions": [{"topic": "t", "partition": 0}]}),
    ("PUT", f"{V3}/topics/t/partitions/0/reassignment", {"replicas": [0]}),
    ("DELETE", f"{V3}/topics/t/partitions/0/reassignment", None),
    ("GET", f"{V3}/consumer-groups", None),
    ("GET", f"{V3}/consumer-groups/g", None),
    ("GET", f"{V3}/consumer-groups/g/consumers", None),
    ("GET", f"{V3}/consumer-groups/g/lags", None),
    ("GET", f"{V3}/consumer-groups/g/lags/t/partitions/0", None),
    ("GET", f"{V3}/consumer-groups/g/lag-summary", None),
    ("POST", f"{V3}/topics/t/configs:alter", {"data": [{"name": "segment.ms", "value": "9"}], "validate_only": True}),
    ("GET", f"{V3}/topics/t/configs/max.message.bytes", None),
    ("PUT", f"{V3}/topics/t/configs/segment.ms", {"value": "60000"}),
    ("DELETE", f"{V3}/topics/t/configs/segment.ms", None),
    ("GET", "/health/live", None),
    ("GET", "/health/ready", None),
    ("GET", "/status", None),
    # These come last, because a member writes records when it has joined, and the status counts them.
    ("POST", "/consumers/rest", {"name": "c", "format": "json"}),
    ("GET", f"{INSTANCE}/subscription", None),
    ("POST", f"{INSTANCE}/assignments", {"partitions": [{"topic": "t", "partition": 0}]}),
    ("GET", f"{INSTANCE}/assignments", None),
    ("POST", f"{READING}/positions", {"offsets": [{"topic": "t", "partition": 0, "offset": 3}]}),
    ("POST", f"{READING}/positions/beginning", {"partitions": [{"topic": "t", "partition": 0}]}),
    ("POST", f"{READING}/positions/end", {"partitions": [{"topic": "t", "partition": 0}]}),
    ("POST", f"{READING}/offsets", {"offsets": [{"topic": "t", "partition": 0, "offset": 1, "metadata": "é"}]}),
    ("GET", f"{READING}/offsets", {"partitions": [{"topic": "t", "partition": 0}]}),
    ("DELETE", f"{INSTANCE}/subscription", None),
    ("POST", f"{INSTANCE}/subscription", {"topics": ["t"]}),
    ("DELETE", INSTANCE, None),
]
QUERIES = ("x=1", "topic=t&topic=t", "topic=", "Topic=t", "&".join(f"k{n}=1" for n in range(101)))
ACCEPTS = (
    "application/json",
    "application/vnd.kafka+json, */*;q=0.1",
    "*/*",
    "text/html",
    "application/json;q=0",
    "nonsense",
)
#: Bodies that no route takes.
BODIES: dict[str, bytes] = {
    "empty": b"",
    "space": b" ",
    "cut short": b'{"a":',
    "null": b"null",
    "array": b"[]",
    "text": b'"x"',
    "NaN": b"NaN",
    "two documents": b"{}{}",
    "byte order mark": b"\xef\xbb\xbf{}",
    "not UTF-8": b'{"\xff":1}',
    "half a surrogate": b'{"\\ud800":1}',
    "deep": b"[" * 10_000,
    "unknown field": b'{"unknown":1}',
    "four unknown fields": b'{"d":1,"c":1,"b":1,"a":1}',
}
DECLARED: dict[str, dict[str, str]] = {
    "no type": {},
    "text": {"Content-Type": "text/plain"},
    "form": {"Content-Type": "application/x-www-form-urlencoded"},
    "not a type": {"Content-Type": "json"},
    "UTF-16": {"Content-Type": "application/json; charset=utf-16"},
    "records": {"Content-Type": "application/vnd.kafka.json.v2+json"},
    "v2": {"Content-Type": "application/vnd.kafka.v2+json; charset=UTF-8"},
    "br": {**JSON, "Content-Encoding": "br"},
    "no gzip": {**JSON, "Content-Encoding": "gzip"},
}
#: Values, as JSON texts, that take the place of each field's value.
VALUES = ('"1"', "1.5", "true", "null", "-1", "1e400", "NaN", "[]", "{}", "9223372036854775808", "1" + "0" * 5000)
MORE: list[Given] = [
    ("GET", "/topics/absent", {}, b""),
    ("GET", "/topics/%D9%A1%00", {}, b""),
    ("POST", "/topics/absent/roll", JSON, b"nonsense"),
    ("GET", "/topics/t/partitions/3", {}, b""),
    ("GET", "/topics/t/partitions/01", {}, b""),
    ("GET", "/topics/t/partitions/%D9%A1", {}, b""),
    ("GET", "/topics/t/partitions/" + "1" * 400, {}, b""),
    ("GET", "/topics/t/partitions/9/offsets", {}, b""),
    ("GET", "/topics/t/partitions/0/offsets?timestamp=0", {}, b""),
    ("GET", "/topics/t/partitions/0/offsets?timestamp=2999-01-01", {}, b""),
    ("GET", "/topics/t/partitions/0/offsets?timestamp=soon", {}, b""),
    ("GET", "/topics/t/partitions/0/offsets?timestamp=-0", {}, b""),
    ("GET", "/topics/t/partitions/0/offsets?timestam=1", {}, b""),
    ("GET", "/topics/t/partitions/0/offsets", {"Logstore-Topic-Id": "0"}, b""),
    ("POST", "/topics/t/partitions/0/delete-records", JSON, b'{"before_offset":99}'),
    ("POST", "/topics/t/partitions/0/delete-records", JSON, b'{"before_offset":-2}'),
    ("POST", "/topics/t/partitions/0/delete-records", {**JSON, "Logstore-Topic-Id": "0"}, b'{"before_offset":0}'),
    ("POST", "/topics/t/partitions/9/delete-records", JSON, b"{"),
    ("POST", "/producers", {}, b""),
    ("POST", "/producers", JSON, b'{"producer_id":7}'),
    ("GET", "/groups/absent/offsets", {}, b""),
    ("GET", "/groups/absent/lag", {}, b""),
    ("DELETE", "/groups/absent", {}, b""),
    ("GET", "/groups/%20/lag", {}, b""),
    ("GET", "/groups/g/offsets?topic=t", {}, b""),
    ("GET", "/groups/g/offsets?topic=absent", {}, b""),
    ("GET", "/groups/g/offsets?topics=t", {}, b""),
    ("GET", "/groups/g/offsets?topic=a%20b%00", {}, b""),
    ("POST", "/groups/%20/offsets", JSON, b'{"offsets":[{"topic":"t","partition":0,"offset":0}]}'),
    ("POST", "/groups/g/offsets", JSON, b'{"offsets":[{"topic":"absent","partition":0,"offset":0}]}'),
    ("POST", "/groups/g/offsets", JSON, b'{"offsets":[{"topic":"t","partition":9,"offset":0}]}'),
    ("POST", "/groups/g/offsets", JSON, b'{"offsets":[{"topic":"t","partition":0,"offset":99}]}'),
    ("POST", "/groups/g/offsets", JSON, b'{"offsets":[{"topic":"t","partition":0,"offset":0,"topic_id":"0"}]}'),
    ("POST", "/groups/g/offsets", JSON, b'{"offsets":[]}'),
    ("POST", "/groups/g/offsets", JSON, b'{"offsets":[{},{}]}'),
    ("POST", "/groups/g/offsets", {**JSON, "Content-Encoding": "gzip"}, gzip.compress(b'{"offsets":[]}', mtime=0)),
    ("POST", "/groups/g/offsets", JSON, b'{"offsets":[{"topic":"t","partition":0,"offset":0,"offset":0}]}'),
    ("GET", "/v3/clusters/absent", {}, b""),
    ("GET", "/v3/clusters/absent?x=1", {"Accept": "text/html"}, b""),
    ("GET", "/v3/clusters/absent/topics/absent", {}, b""),
    ("POST", "/v3/clusters/absent/topics", JSON, b'{"topic_name":"made"}'),
    ("GET", f"{V3}/topics/absent", {}, b""),
    ("PATCH", f"{V3}/topics/absent", JSON, b'{"partitions_count":3}'),
    ("PATCH", f"{V3}/topics/t", JSON, b'{"partitions_count":1}'),
    ("PATCH", f"{V3}/topics/t", JSON, b'{"partitions_count":0}'),
    ("DELETE", f"{V3}/topics/absent", {}, b""),
    ("POST", f"{V3}/topics", JSON, b'{"topic_name":"t"}'),
    ("POST", f"{V3}/topics", JSON, b'{"topic_name":"a b"}'),
    ("POST", f"{V3}/topics", JSON, b'{"topic_name":"new","replication_factor":2}'),
    ("POST", f"{V3}/topics", JSON, b'{"topic_name":"new","validate_only":true}'),
    ("POST", f"{V3}/topics", JSON, b'{"topic_name":"new","partitions_count":0,"validate_only":true}'),
    ("POST", f"{V3}/topics", JSON, b'{"topic_name":"new","topic_name":"new"}'),
    ("POST", f"{V3}/topics", JSON, b'{"topic_name":"new","configs":[{"name":"a","value":"1"}]}'),
    ("POST", f"{V3}/topics", JSON, b'{"topic_name":"new","configs":[{"name":"segment.ms","value":"x"}]}'),
    ("POST", f"{V3}/topics", JSON, b'{"topic_name":"new","configs":[{"name":"a"},{"name":"a"}]}'),
    ("POST", f"{V3}/topics", JSON, b'{"topic_name":"new","configs":[{"name":"a","value":1,"b":2}]}'),
    ("POST", f"{V3}/topics", {**JSON, "Host": "127.0.0.1:80"}, b'{"topic_name":"new","validate_only":true}'),
    ("GET", "/cluster/partitions?state=under-replicated", {}, b""),
    ("GET", "/cluster/partitions?state=odd", {}, b""),
    ("GET", "/cluster/partitions?page_size=1", {}, b""),
    ("POST", "/cluster/elect-leaders", JSON, b'{"election_type":"unclean"}'),
    ("POST", "/cluster/elect-leaders", JSON, b'{"election_type":"clean"}'),
    ("POST", "/cluster/elect-leaders", JSON, b'{"election_type":"preferred","partitions":[{"topic":"t"}]}'),
    ("PUT", f"{V3}/topics/t/partitions/0/reassignment", JSON, b'{"replicas":[0,1]}'),
    ("PUT", f"{V3}/topics/t/partitions/9/reassignment", JSON, b'{"replicas":[0]}'),
    ("GET", f"{V3}/topics/absent/configs", {}, b""),
    ("GET", f"{V3}/topics/t/configs/absent", {}, b""),
    ("GET", f"{V3}/topics/absent/configs/absent", {}, b""),
    ("PUT", f"{V3}/topics/t/configs/absent", JSON, b"{"),
    ("PUT", f"{V3}/topics/t/configs/segment.ms", JSON, b'{"value":"x"}'),
    ("PUT", f"{V3}/topics/t/configs/segment.ms", JSON, b'{"value":null}'),
    ("POST", f"{V3}/topics/t/configs:alter", JSON, b'{"data":[]}'),
    ("POST", f"{V3}/topics/t/configs:alter", JSON, b'{"data":[{"name":"segment.ms","operation":"APPEND"}]}'),
    ("POST", f"{V3}/topics/t/configs:alter", JSON, b'{"data":[{"name":"absent","value":"1"}]}'),
    ("POST", f"{V3}/topics/t/configs:alter", JSON, b'{"data":[{"name":"a"},{"name":"a"}]}'),
    ("POST", f"{V3}/topics", JSON, b" " * (1 << 20) + b"{}"),
    ("POST", f"{V3}/topics", {**JSON, "Content-Encoding": "gzip"}, gzip.compress(b" " * (2 << 20), mtime=0)),
    ("DELETE", "/topics", {}, b""),
    ("OPTIONS", f"{V3}/topics", {}, b""),
    ("GET", "/topics", {"Host": "elsewhere"}, b""),
    ("POST", "/topics/t/roll", {"Origin": "http://elsewhere"}, b""),
    ("HEAD", "/topics/t", {}, b""),
    ("GET", "/nowhere", {}, b""),
]


def requests() -> list[tuple[str, Given]]:
    """Return every request, by a name that says what is special about it."""
    found: list[tuple[str, Given]] = []
    for method, path, body in ROUTES:
        data = b"" if body is None else json.dumps(body, ensure_ascii=False).encode()
        headers = {} if body is None else JSON
        where = f"{method} {path}"
        found.append((where, (method, path, headers, data)))
        if method == "DELETE":
            found.append((f"{where} again", (method, path, headers, data)))
        found += [(f"{where}?{query[:20]}", (method, f"{path}?{query}", headers, data)) for query in QUERIES]
        found += [
            (f"{where} Accept: {accept}", (method, path, {**headers, "Accept": accept}, data)) for accept in ACCEPTS
        ]
        if body is None:
            continue
        found += [(f"{where}, body: {name}", (method, path, JSON, bad)) for name, bad in BODIES.items()]
        found += [(f"{where}, called: {name}", (method, path, called, data)) for name, called in DECLARED.items()]
        for field in body:
            for value in VALUES:
                text = json.dumps(body | {field: 0}).replace(f'"{field}": 0', f'"{field}": {value}').encode()
                found.append((f"{where}, {field}: {value[:20]}", (method, path, JSON, text)))
            left = json.dumps({name: value for name, value in body.items() if name != field}).encode()
            found.append((f"{where} without {field}", (method, path, JSON, left)))
            twice = data[:-1] + f', "{field}": 1}}'.encode()
            found.append((f"{where}, {field} twice", (method, path, JSON, twice)))
    for method, path, headers, data in MORE:
        found.append((f"{method} {path[:60]} {headers} {data[:80].decode('latin-1')}", (method, path, headers, data)))
    return found


class Asked(NamedTuple):
    """``path`` is as sent, with its query."""

    name: str
    method: str
    path: str
    answer: httpx.Response


async def ask(api: ApiClient) -> AsyncIterator[Asked]:
    """Send every request to a store with topics ``t`` and ``other``, groups ``g`` and ``other``, and an instance."""
    await api.create_topic("t", partitions=2, max_message_bytes="1000")
    await api.create_topic("other")
    await api.produce("t", [1, 2, 3])
    for group in ("g", "other"):
        offsets = [{"topic": "t", "partition": 0, "offset": 1}]
        assert (await api.post(f"/groups/{group}/offsets", json={"offsets": offsets})).status_code == 200
    assert (await api.post("/consumers/rest", json={"name": "reading"})).status_code == 200
    assigned = {"partitions": [{"topic": "t", "partition": 0}]}
    assert (await api.post(f"{READING}/assignments", json=assigned)).status_code == 204
    for name, (method, template, headers, data) in requests():
        path = template.replace("{cluster}", api.broker.cluster_id)
        yield Asked(name, method, path, await api.request(method, path, headers=headers, content=data))
