"""Consumer groups: their committed offsets, kept in the internal topic ``__consumer_offsets``.

``group_coordinator`` (requests of groups) over ``coordinator_shard`` (what loads, appends and answers for one partition
of an internal topic), in which ``offsets_machine`` lives, whose data are ``committed_offsets``. The package stands on
the broker's interface, and knows no HTTP. Installed with ``logstore``; needs its extra ``server``. Clients reach groups
through ``logstore.Consumer`` and ``logstore.Admin``.
"""
