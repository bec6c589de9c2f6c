"""The store beside a real Apache Kafka on one machine: ``make bench``. docs/benchmarks.md explains how and why."""
