"""``logstore topic ...``: administration of topics over HTTP."""

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.cli.output import bytes_text, counted, print_json, print_problems, print_table
from logstore.cli.topic_columns import lines_of
from logstore.cli.topic_listing import ids_text, known_text, leader_text, listing, print_listing, print_partitions
from logstore.command_line.command_group import FAILED, confirm
from logstore.command_line.options import ConfigOption, JsonOption, UrlOption, admin_of, complete_topics, parse_configs

if TYPE_CHECKING:
    from logstore.client.admin import Admin, ListedPartitions
    from logstore.protocol.messages.administration import TopicConfigEntry
    from logstore.protocol.messages.topics import KeylessPartition, Topic

app = typer.Typer(no_args_is_help=True, help="Create, look at, change and delete topics.", rich_markup_mode=None)

NewNameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The topic.")]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The topic.", autocompletion=complete_topics)]


class Election(StrEnum):
    PREFERRED = "preferred"
    UNCLEAN = "unclean"


_HEARD_OF_S = 10.0
#: Names for people for Kafka's layers.
_SOURCES = {"DYNAMIC_TOPIC_CONFIG": "topic", "STATIC_BROKER_CONFIG": "store", "DEFAULT_CONFIG": "default"}


@app.command(
    epilog="""\b
Examples:
  logstore topic create events
  logstore topic create events --partitions 4 --config retention.ms=7d
  logstore topic create users -c cleanup.policy=compact -c min.cleanable.dirty.ratio=0.2
  logstore topic create payments --replication-factor 3 -c min.insync.replicas=2
"""
)
def create(
    ctx: typer.Context,
    name: NewNameArgument,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", help="Number of partitions. [default: the store's num.partitions]"),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor", "-r", help="Replicas of each partition. [default: default.replication.factor]"
        ),
    ] = None,
    config: ConfigOption = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Succeed if the topic exists.")] = False,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Create a topic: an empty Delta table."""
    from logstore.errors import TopicExistsError

    configs = parse_configs(config)
    with admin_of(ctx, url) as admin:
        created = True
        try:
            admin.create_topic(name, partitions=partitions, replication_factor=replication_factor, configs=configs)
        except TopicExistsError:
            if not if_not_exists:
                raise
            created = False
        topic = _described(admin, name)
    if created:
        _warn_of_too_few_replicas(topic)
    if json:
        print_json({"topic": name, "partitions": len(topic.partitions), "created": created, "location": topic.location})
    else:
        verb = "Created" if created else "There is"
        print(f"{verb} topic {name} with {counted(len(topic.partitions), 'partition')} at {topic.location}")


def _warn_of_too_few_replicas(topic: "Topic") -> None:
    wanted, replicas = int(topic.configs["min.insync.replicas"]), len(topic.partitions[0].replicas)
    if wanted > replicas:
        typer.echo(
            f"min.insync.replicas is {wanted}, and each partition has {counted(replicas, 'replica')}: it counts as "
            f"{replicas}. To add replicas: logstore topic reassign",
            err=True,
        )


def _described(admin: "Admin", name: str) -> "Topic":
    """Describe a new topic: brokers other than the controller learn of it a moment later."""
    from logstore.errors import LeaderNotAvailableError, UnknownTopicError

    deadline = time.monotonic() + _HEARD_OF_S
    while True:
        try:
            return admin.describe_topic(name)
        except (UnknownTopicError, LeaderNotAvailableError):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


@app.command(
    "list",
    epilog="""\b
Examples:
  logstore topic list
  logstore topic list --json | jq -r '.[].topic'
  logstore topic list --under-replicated-partitions
""",
)
def list_topics(
    ctx: typer.Context,
    internal: Annotated[bool, typer.Option("--internal", help="The store's own topics, too.")] = False,
    under_replicated: Annotated[
        bool,
        typer.Option(
            "--under-replicated-partitions", help="Instead: partitions with fewer replicas in sync than they have."
        ),
    ] = False,
    unavailable: Annotated[
        bool, typer.Option("--unavailable-partitions", help="Instead: partitions without a leader.")
    ] = False,
    under_min_isr: Annotated[
        bool,
        typer.Option(
            "--under-min-isr-partitions",
            help="Instead: partitions with fewer replicas in sync than min.insync.replicas.",
        ),
    ] = False,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """List the topics.

    With partitions, records, bytes (in Delta and in the journal), the age of the newest record, and problems. Lists of
    partitions also have those of internal topics.
    """
    lists: tuple[tuple[ListedPartitions, bool], ...] = (
        ("under-replicated", under_replicated),
        ("unavailable", unavailable),
        ("under-min-isr", under_min_isr),
    )
    wanted = [state for state, is_asked in lists if is_asked]
    if len(wanted) > 1:
        raise typer.BadParameter("give one of the three lists of partitions")
    if wanted:
        with admin_of(ctx, url) as admin:
            print_partitions(admin.partition_replicas(state=wanted[0]), wanted[0], as_json=json)
        return
    with admin_of(ctx, url) as admin:
        found = admin.status()
    if json:
        print_json(listing(found, internal=internal))
    elif found.problems or any(internal or not topic.is_internal for topic in found.topics):
        print_listing(found, internal=internal)
    else:
        typer.echo("No topics yet. Create one with: logstore topic create NAME", err=True)


@app.command(
    epilog="""\b
Examples:
  logstore topic describe events
  logstore topic describe events --json | jq '.topic.partitions[].high_watermark'
"""
)
def describe(
    ctx: typer.Context,
    name: NameArgument,
    all_configs: Annotated[
        bool, typer.Option("--all-configs", help="A table of every key: value, default, source.")
    ] = False,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Show leaders, replicas, offsets, sizes and configuration.

    Per partition: its leader, the brokers of its replicas and of those in sync (ISR); start (log start
    offset), end (log end offset), high watermark (readers see the records below it), sealed (the records below it are
    in Delta), segments (Parquet files), bytes (their size), unsealed (bytes in the journal only); - where the leader
    does not report it.
    """
    with admin_of(ctx, url) as admin:
        topic = admin.describe_topic(name)
        configs = admin.topic_configs(name)
        problems = [found for found in admin.status().problems if found.topic == name]
        # A store of an earlier release has no columns.
        has_columns = any(entry.name == "table.columns.mode" for entry in configs)
        columns = admin.columns(name) if has_columns else None
    if json:
        shown = {"topic": topic, "config_entries": [*map(_shown, configs)], "problems": problems}
        print_json({**shown, "columns": columns} if columns is not None and columns.columns else shown)
        return
    offsets = sum(found.high_watermark - found.log_start_offset for found in topic.partitions)
    print(f"{topic.name}: {counted(len(topic.partitions), 'partition')}, {counted(offsets, 'offset')}")
    print(f"Delta table: {topic.location}")
    changed = [entry for entry in configs if not entry.is_default]
    if all_configs:
        print()
        print_table(
            ["key", "value", "default", "source"],
            [(entry.name, entry.value, _default(entry), _SOURCES.get(entry.source, entry.source)) for entry in configs],
        )
    elif changed:
        print(f"Configuration: {', '.join(f'{entry.name}={entry.value}' for entry in changed)}")
    if columns is not None and columns.columns:
        print(f"Columns: {columns.ddl or 'all are retired'}")
        print("\n".join(lines_of(columns)))
    print()
    print_table(
        [
            "partition",
            "leader",
            "replicas",
            "isr",
            "start",
            "end",
            "high watermark",
            "sealed",
            "segments",
            "bytes",
            "unsealed",
        ],
        [
            (
                found.partition,
                leader_text(found.leader),
                ids_text(replica.broker for replica in found.replicas),
                ids_text(replica.broker for replica in found.replicas if replica.in_sync),
                *map(
                    known_text,
                    (found.log_start_offset, found.log_end_offset, found.high_watermark, found.sealed_offset),
                ),
                found.segments,
                bytes_text(found.size_bytes),
                bytes_text(found.unsealed_bytes) if found.unsealed_bytes >= 0 else "-",
            )
            for found in topic.partitions
        ],
    )
    print_problems(problems)


def _shown(entry: "TopicConfigEntry") -> dict[str, Any]:
    layers = [{"value": layer.value, "source": layer.source} for layer in entry.synonyms]
    return {
        "name": entry.name,
        "value": entry.value,
        "is_default": entry.is_default,
        "source": entry.source,
        "synonyms": layers,
    }


def _default(entry: "TopicConfigEntry") -> str:
    return entry.synonyms[-1].value if entry.synonyms else "-"


@app.command(
    epilog="""\b
Examples:
  logstore topic alter events --config segment.ms=5000
  logstore topic alter events --delete-config segment.ms --partitions 8
"""
)
def alter(
    ctx: typer.Context,
    name: NameArgument,
    config: ConfigOption = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", "-d", metavar="KEY", help="Set this key back to its default; may be repeated."),
    ] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", help="Grow to this many; later keys may go to other partitions.")
    ] = None,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Change configuration, or add partitions.

    Partitions are never removed. A change takes effect at once. With cleanup.policy=compact the records without a key
    are named, which compaction removes: they are rolled and counted first.
    """
    configs: dict[str, str | None] = {**parse_configs(config)}
    for key in delete_config or ():
        if key in configs:
            raise typer.BadParameter(f"{key} is both set and deleted", param_hint="--delete-config")
        configs[key] = None
    if not configs and partitions is None:
        raise typer.BadParameter("nothing to change: give --config, --delete-config or --partitions")
    with admin_of(ctx, url) as admin:
        if configs:
            admin.alter_configs(name, configs)
        if partitions is not None:
            admin.add_partitions(name, partitions)
        topic = admin.describe_topic(name)
        entries = [entry for entry in admin.topic_configs(name) if entry.name in configs]
        keyless: tuple[KeylessPartition, ...] = ()
        if any(entry.name == "cleanup.policy" and "compact" in entry.value for entry in entries):
            admin.roll(name)
            keyless = admin.keyless_records(name)
    if json:
        told = {"keyless_records": keyless} if keyless else {}
        print_json(
            {"topic": name, "partitions": len(topic.partitions), "config_entries": [*map(_shown, entries)], **told}
        )
    else:
        changes = [f"{entry.name}={entry.value}" for entry in entries]
        changes += [] if partitions is None else [counted(len(topic.partitions), "partition")]
        print(f"Altered topic {name}: {', '.join(changes)}")
    if keyless:
        places = ", ".join(
            f"{counted(one.records, 'record')} of {name}-{one.partition} from offset {one.first_offset:,} on"
            for one in keyless
        )
        typer.echo(f"Compaction will remove records without a key: {places}.", err=True)


@app.command(
    epilog="""\b
Examples:
  logstore topic delete events
  logstore topic delete events --yes
"""
)
def delete(
    ctx: typer.Context,
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Delete a topic and its data. Asks first; without a terminal it needs --yes."""
    with admin_of(ctx, url) as admin:
        topic = admin.describe_topic(name)
        if not yes:
            records = sum(found.high_watermark - found.log_start_offset for found in topic.partitions)
            confirm(f"Delete topic {name} and its {counted(records, 'record')}?", otherwise="Nothing was deleted.")
        admin.delete_topic(name)
    if json:
        print_json({"topic": name, "deleted": True})
    else:
        print(f"Deleted topic {name}")


@app.command(
    epilog="""\b
Examples:
  logstore topic roll events        then every Delta reader sees all records
"""
)
def roll(ctx: typer.Context, name: NameArgument, json: JsonOption = False, url: UrlOption = None) -> None:
    """Put all acknowledged records into the Delta table now."""
    with admin_of(ctx, url) as admin:
        rolled = admin.roll(name)
    if json:
        print_json({"topic": name, "version": rolled.version, "sealed_offsets": rolled.sealed_offsets})
    else:
        print(f"Rolled topic {name}: Delta version {rolled.version}")
        print_table(
            ["partition", "sealed"], [(entry.partition, entry.sealed_offset) for entry in rolled.sealed_offsets]
        )


@app.command(
    epilog="""\b
Examples:
  logstore topic drop-foreign-files events
"""
)
def drop_foreign_files(ctx: typer.Context, name: NameArgument, json: JsonOption = False, url: UrlOption = None) -> None:
    """Take foreign files out of a table.

    They are files of other writers with offsets that are taken, or were never given out: nobody is served their rows.
    """
    with admin_of(ctx, url) as admin:
        files = admin.drop_foreign_files(name)
    if json:
        print_json({"topic": name, "files": files})
    elif files:
        print(f"Took {counted(len(files), 'file')} out of the table of topic {name}, to be deleted by a vacuum:")
        print("\n".join(files))
    else:
        print(f"The table of topic {name} has no files of other writers that are not served")


@app.command(
    epilog="""\b
Examples:
  logstore topic delete-records events --partition 0 --before-offset 1000
  logstore topic delete-records events --partition 0 --before-offset -1     all records
"""
)
def delete_records(
    ctx: typer.Context,
    name: NameArgument,
    partition: Annotated[int, typer.Option("--partition", min=0, help="The partition.")],
    before_offset: Annotated[
        int, typer.Option("--before-offset", min=-1, help="The new log start offset; -1: the high watermark.")
    ],
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Delete the first records of a partition.

    The log start moves forward, and readers no longer see the records before it.
    """
    with admin_of(ctx, url) as admin:
        log_start_offset = admin.delete_records(name, partition, before_offset)
    if json:
        print_json({"topic": name, "partition": partition, "log_start_offset": log_start_offset})
    else:
        print(f"Partition {partition} of topic {name} now starts at offset {log_start_offset}")


@app.command(
    epilog="""\b
Examples:
  logstore topic elect-leaders --election-type preferred
  logstore topic elect-leaders --election-type preferred --topic events --partition 3
  logstore topic elect-leaders --election-type unclean --topic events --partition 3 --yes
"""
)
def elect_leaders(
    ctx: typer.Context,
    election_type: Annotated[
        Election,
        typer.Option(
            "--election-type",
            help="preferred: the first replica leads again, if it is in sync. unclean: a replica leads that may lack "
            "acknowledged records, where no other one can.",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option("--topic", metavar="NAME", help="Only of this topic.", autocompletion=complete_topics),
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="Only this partition of --topic.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before unclean elections.")] = False,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Elect leaders of partitions: of all that need it, or of those named.

    Unclean elections lose records: the command asks first, and without a terminal it needs --yes. The exit code is 1 if
    a partition did not get its leader.
    """
    from logstore.errors import ElectionNotNeededError
    from logstore.protocol.error_codes import code_of

    if partition is not None and name is None:
        raise typer.BadParameter("--partition needs --topic")
    with admin_of(ctx, url) as admin:
        asked = None
        if name is not None:
            numbers = [found.partition for found in admin.describe_topic(name).partitions]
            asked = [(name, number) for number in (numbers if partition is None else [partition])]
        if election_type is Election.UNCLEAN and not yes:
            confirm("Elect leaders that may lack acknowledged records?", otherwise="No leader was elected.")
        elected = admin.elect_leaders(election_type.value, asked)
    needed = {where: how for where, how in elected.items() if not isinstance(how, ElectionNotNeededError)}
    failed = [how for how in needed.values() if not isinstance(how, int)]
    if json:
        print_json(
            [
                {
                    "topic": where.topic,
                    "partition": where.partition,
                    "leader": how if isinstance(how, int) else None,
                    "error_code": None if isinstance(how, int) else code_of(how),
                    "error": None if isinstance(how, int) else how.message,
                }
                for where, how in elected.items()
            ]
        )
    elif not needed:
        print("No election was needed")
    else:
        for where, how in needed.items():
            outcome = f"broker {how} leads now" if isinstance(how, int) else how.message
            print(f"{where.topic}-{where.partition}: {outcome}")
    if failed:
        raise typer.Exit(FAILED)
