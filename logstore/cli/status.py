"""``logstore status`` shows the state of a running store."""

import typer

from logstore.cli.output import bytes_text, counted, duration_text, print_json, print_problems
from logstore.command_line.options import JsonOption, UrlOption, admin_of

EXAMPLES = """\b
Examples:
  logstore status
  logstore status --json | jq .not_ready_reason
"""


def status(ctx: typer.Context, json: JsonOption = False, url: UrlOption = None) -> None:
    """Show the state of a running store.

    Whether it is ready, its topics, how full its journal is, and its problems. Topics, records and bytes are those of
    topic list, without internal topics.
    """
    with admin_of(ctx, url) as admin:
        found = admin.status()
        address = ", ".join(admin.urls)
    if json:
        print_json(found)
        return
    topics = [topic for topic in found.topics if not topic.is_internal]
    unsealed = sum(topic.unsealed_records for topic in topics)
    unsealed_bytes = sum(topic.unsealed_bytes for topic in topics)
    journal, in_flight = found.journal, found.in_flight
    ready = "ready" if found.not_ready_reason is None else f"not ready: {found.not_ready_reason}"
    print(f"Store at {address}: {ready}")
    print()
    for name, text in (
        ("version", found.version),
        ("cluster id", found.cluster_id),
        ("broker id", found.broker_id),
        ("up for", duration_text(found.uptime_ms)),
        ("topics", f"{len(topics):,} ({counted(sum(topic.partitions for topic in topics), 'partition')})"),
        ("records", f"{sum(topic.records for topic in topics):,}"),
        ("bytes", f"{bytes_text(sum(topic.size_bytes for topic in topics))} in Delta"),
        ("un-sealed", f"{counted(unsealed, 'record')} ({bytes_text(unsealed_bytes)})"),
        ("journal", f"{bytes_text(journal.needed_bytes)} of {bytes_text(journal.max_bytes)}"),
        ("in flight", f"{bytes_text(in_flight.request_bytes)} of {bytes_text(in_flight.max_bytes)}"),
        ("answers", f"{bytes_text(in_flight.answer_bytes)} of {bytes_text(in_flight.max_bytes)}"),
        ("problems", len(found.problems) or "none"),
    ):
        print(f"{name:12}{text}")
    print_problems(found.problems)
