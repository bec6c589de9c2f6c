"""A cluster of brokers in one thread, without a clock, a disk or a network: for random schedules of replication.

Real: partition logs with their state and roles, fetch sessions, fetchers, roles of brokers, the journal's view with its
group commit and files, recovery, rolls, the controller's decisions, ISR changes. Modelled: the event loop's time and
order (``step_loop``), the bytes of disks (``memory_journal``), ZooKeeper's nodes and watches (``zookeeper``), the Delta
table (``table``), connections and clients (``cluster``). A schedule is a function of its seed.
"""
