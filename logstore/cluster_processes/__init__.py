"""The processes of a cluster on one machine: a ZooKeeper, if none is named, and brokers, started and stopped together.

``running_cluster`` keeps them, ``broker_process`` and ``zookeeper_process`` are one of them, ``record`` is what is
written of them into the data directory, ``control`` how another command asks for one of them.
"""
