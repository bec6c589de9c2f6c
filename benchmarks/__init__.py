"""The store beside a real Apache Kafka on one machine: ``make bench``. How and why: docs/benchmarks.md."""
