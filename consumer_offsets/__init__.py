"""Consumer groups and their committed offsets, which are kept in the internal topic ``__consumer_offsets``.

``group_coordinator`` takes the requests of groups. Below it a ``coordinator_shard`` loads, appends and responds for one
partition of the internal topic. Its state machine is ``groups_machine``, which keeps offsets in ``committed_offsets``.
The package uses the broker's interface and knows no HTTP. It is installed with ``logstore`` and needs its extra
``server``. Clients reach groups through ``logstore.Consumer`` and ``logstore.Admin``.
"""
