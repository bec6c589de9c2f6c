"""The processes of a cluster on one machine: brokers, and a ZooKeeper if none is named, started and stopped together.

``running_cluster`` runs all of them, ``broker_process`` and ``zookeeper_process`` run one. ``record`` is the state kept
in the data directory. Through ``control`` another command asks for the start of a process.
"""
