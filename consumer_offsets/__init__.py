"""Consumer groups: their committed offsets, kept in the internal topic ``__consumer_offsets``.

``offset_log`` (the topic and its latest records in memory) under ``group_coordinator`` (requests of groups). The
package stands on the broker's interface, and knows no HTTP. Installed with ``logstore``; needs its extra ``server``.
Clients reach groups through ``logstore.Consumer`` and ``logstore.Admin``.
"""
