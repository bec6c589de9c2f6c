"""``logstore topic reassign ...``: a plan moves partitions to other brokers, as with ``kafka-reassign-partitions``."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.output import counted, print_json, print_json_line, print_table
from logstore.cli.topic_listing import ids_text, leader_text
from logstore.command_line.command_group import FAILED, fail
from logstore.command_line.options import JsonOption, UrlOption, admin_of, complete_topics, given_path

if TYPE_CHECKING:
    from logstore.client.admin import Admin
    from logstore.client.metadata import TopicPartition
    from logstore.client.reassignment import ReassignmentPlan
    from logstore.protocol.messages.cluster import PartitionReplicas

app = typer.Typer(
    no_args_is_help=True,
    help="Move partitions to other brokers, or change how many replicas they have.",
    rich_markup_mode=None,
)

PlanArgument = Annotated[
    str, typer.Argument(metavar="PLAN", help="A file as generate prints it, or - for standard input.")
]


@app.command(
    epilog="""\b
Examples:
  logstore topic reassign generate --broker-list 1,2,3,4 > plan.json          broker 4 is new
  logstore topic reassign generate --broker-list 1,2,4 > plan.json            broker 3 is to go for good
  logstore topic reassign generate --broker-list 1,2,3 --topic events --replication-factor 3 > plan.json
"""
)
def generate(
    ctx: typer.Context,
    broker_list: Annotated[
        str, typer.Option("--broker-list", metavar="ID,ID", help="The brokers that get the partitions.")
    ],
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="NAME",
            help="Only of this topic; may be repeated. [default: all, internal ones too]",
            autocompletion=complete_topics,
            show_default=False,
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option("--replication-factor", "-r", min=1, help="Replicas of each partition. [default: as many as now]"),
    ] = None,
    url: UrlOption = None,
) -> None:
    """Print a plan that spreads partitions over brokers. Nothing is moved.

    Replicas on other brokers go to those that have the fewest, on as many racks as there are replicas; then replicas
    and preferred leaders are evened out. As few replicas as possible are moved. Partitions that stay are not in the
    plan.
    """
    from logstore.client.reassignment import generate as generated

    wanted = _broker_ids(broker_list)
    with admin_of(ctx, url) as admin:
        racks = {one.broker_id: one.rack for one in admin.describe_cluster().brokers}
        if missing := sorted(wanted - racks.keys()):
            fail(f"brokers {missing} are not running, only {sorted(racks)}: start them, or correct --broker-list")
        states = admin.partition_replicas()
    plan = generated(states, topics, {broker: racks[broker] for broker in wanted}, replication_factor)
    print_json(plan)
    if not plan.partitions:
        typer.echo("The partitions are spread over these brokers already.", err=True)


@app.command(
    epilog="""\b
Examples:
  logstore topic reassign execute plan.json
  logstore topic reassign execute plan.json --json | jq .former > way-back.json
"""
)
def execute(ctx: typer.Context, plan: PlanArgument, json: JsonOption = False, url: UrlOption = None) -> None:
    """Begin the moves of a plan.

    New replicas copy their partition; once all of them are in sync, the former ones go. The plan is checked whole
    before the first move. The output has the plan to undo the moves: keep it.
    """
    from logstore.client.metadata import TopicPartition
    from logstore.client.reassignment import Progress, plan_of, progress, require_possible
    from logstore.errors import LogStoreError

    asked = _read(plan)
    with admin_of(ctx, url) as admin:
        states = _states(admin)
        require_possible(asked, states.values(), {one.broker_id for one in admin.describe_cluster().brokers})
        found = [(one, states[TopicPartition(one.topic, one.partition)]) for one in asked.partitions]
        wanted = [(one, state) for one, state in found if progress(one, state) is Progress.ELSEWHERE]
        former = plan_of(state for _, state in wanted)
        for begun, (one, _) in enumerate(wanted):
            try:
                admin.reassign_partition(one.topic, one.partition, one.replicas)
            except LogStoreError as error:
                fail(
                    f"{one.topic}-{one.partition}: {error.message.rstrip('.')}; {begun} of {len(wanted)} moves have "
                    "begun: execute the plan again, or cancel it"
                )
    for one, state in wanted:
        if state.leader < 0:
            typer.echo(
                f"{one.topic}-{one.partition} has no leader, and cannot be copied before it has one: start a "
                f"broker of {ids_text(state.in_sync_replicas)}.",
                err=True,
            )
    if json:
        print_json({"begun": len(wanted), "former": former})
        return
    print(f"Began to move {counted(len(wanted), 'partition')}")
    if wanted:
        print("The plan to undo the moves:")
        print_json_line(former)


@app.command(
    epilog="""\b
Examples:
  logstore topic reassign verify plan.json
  until logstore topic reassign verify plan.json > /dev/null; do sleep 5; done
"""
)
def verify(ctx: typer.Context, plan: PlanArgument, json: JsonOption = False, url: UrlOption = None) -> None:
    """Show how far the moves of a plan are. The exit code is 1 until all of them are complete."""
    from logstore.client.metadata import TopicPartition
    from logstore.client.reassignment import Progress, progress

    asked = _read(plan)
    with admin_of(ctx, url) as admin:
        states = _states(admin)
    found = [(one, progress(one, states.get(TopicPartition(one.topic, one.partition)))) for one in asked.partitions]
    if json:
        print_json([{"topic": one.topic, "partition": one.partition, "state": state.value} for one, state in found])
    else:
        left = [(one.topic, one.partition, ids_text(one.replicas), state) for one, state in found]
        if left := [row for row in left if row[3] is not Progress.COMPLETE]:
            print_table(["topic", "partition", "planned", "state"], left)
            print()
        print(f"{len(found) - len(left):,} of {counted(len(found), 'partition')} are where the plan has them")
    if any(state is not Progress.COMPLETE for _, state in found):
        raise typer.Exit(FAILED)


@app.command(
    epilog="""\b
Examples:
  logstore topic reassign cancel plan.json
"""
)
def cancel(ctx: typer.Context, plan: PlanArgument, json: JsonOption = False, url: UrlOption = None) -> None:
    """Take back the moves of a plan that are not complete. Complete ones stay."""
    from logstore.client.metadata import TopicPartition
    from logstore.client.reassignment import Progress, progress
    from logstore.errors import NoReassignmentInProgressError

    asked = _read(plan)
    cancelled = []
    with admin_of(ctx, url) as admin:
        states = _states(admin)
        for one in asked.partitions:
            if progress(one, states.get(TopicPartition(one.topic, one.partition))) is not Progress.IN_PROGRESS:
                continue
            try:
                admin.cancel_reassignment(one.topic, one.partition)
            except NoReassignmentInProgressError:
                continue  # it was completed in this moment
            cancelled.append({"topic": one.topic, "partition": one.partition})
    if json:
        print_json(cancelled)
    else:
        others = len(asked.partitions) - len(cancelled)
        print(f"Took {counted(len(cancelled), 'move')} back; {others:,} were not under way")


@app.command(
    "list",
    epilog="""\b
Examples:
  logstore topic reassign list
""",
)
def list_reassignments(ctx: typer.Context, json: JsonOption = False, url: UrlOption = None) -> None:
    """List the moves that are under way, of any plan."""
    with admin_of(ctx, url) as admin:
        found = [one for one in admin.partition_replicas() if one.adding_replicas or one.removing_replicas]
    if json:
        print_json(found)
    elif not found:
        print("No partition is being moved")
    else:
        print_table(
            ["topic", "partition", "leader", "isr", "adding", "removing"],
            [
                (
                    one.topic,
                    one.partition,
                    leader_text(one.leader),
                    ids_text(one.in_sync_replicas),
                    ids_text(one.adding_replicas),
                    ids_text(one.removing_replicas),
                )
                for one in found
            ],
        )


def _broker_ids(text: str) -> set[int]:
    try:
        return {int(one) for one in text.split(",")}
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of ids, as 1,2,3", param_hint="--broker-list") from None


def _read(plan: str) -> "ReassignmentPlan":
    from logstore.client.reassignment import read_plan

    return read_plan(sys.stdin.buffer.read() if plan == "-" else given_path(plan).read_bytes())


def _states(admin: "Admin") -> "dict[TopicPartition, PartitionReplicas]":
    from logstore.client.metadata import TopicPartition

    return {TopicPartition(one.topic, one.partition): one for one in admin.partition_replicas()}
