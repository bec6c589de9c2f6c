"""Consumer groups: what they have committed, kept in the internal topic ``__consumer_offsets``.

``offset_log`` (the topic and its latest records in memory) under ``group_coordinator`` (what a group may do). Above the
broker, whose interface is all that is used of it; below HTTP, of which nothing is known here. Installed with
``logstore``; needs its extra ``server``. Clients reach groups through ``logstore.Consumer`` and ``logstore.Admin``.
"""
