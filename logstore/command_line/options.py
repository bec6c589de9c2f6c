"""Options shared by several commands, and the meaning of their combinations."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.client.addresses import DEFAULT_URL, URL_VARIABLE, environment_url
from logstore.command_line import profiles
from logstore.errors import DataDirectoryError
from logstore.local_path import local_path

if TYPE_CHECKING:
    from logstore.client.admin import Admin

# A user waits for the Tab key.
_COMPLETION_MS = 1_000


def complete_topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return names of the topics of the command's store; none if it does not respond at once."""
    return _complete(
        ctx, incomplete, lambda admin: (topic.name for topic in admin.status().topics if not topic.is_internal)
    )


def complete_groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return names of groups, like ``complete_topics``."""
    return _complete(ctx, incomplete, lambda admin: admin.groups())


def complete_profiles(incomplete: str) -> list[str]:
    from logstore.errors import LogStoreError

    try:
        return [name for name in sorted(profiles.load_profiles().by_name) if name.startswith(incomplete)]
    except LogStoreError:
        return []


def _complete(ctx: typer.Context, incomplete: str, names: Callable[["Admin"], Iterable[str]]) -> list[str]:
    from logstore.client.admin import Admin
    from logstore.errors import LogStoreError

    try:
        url = store_url(ctx, ctx.params.get("url"))
        with Admin(url, client_id=CLIENT_ID, request_timeout_ms=_COMPLETION_MS, default_api_timeout_ms=0) as admin:
            return [name for name in names(admin) if name.startswith(incomplete)]
    except LogStoreError:
        return []


UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The store: http(s)://host:port or host:port, several separated by commas. "
        f"[env var: {URL_VARIABLE}; default: {DEFAULT_URL}]",
        show_default=False,
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help=f"Before the command: the store and the defaults of this profile. [env var: {profiles.VARIABLE}; default: "
        "that of logstore profile use]",
        show_default=False,
        autocompletion=complete_profiles,
    ),
]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=complete_topics)]
GroupArgument = Annotated[
    str, typer.Argument(metavar="GROUP", help="The consumer group.", autocompletion=complete_groups)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs, in the shapes of docs/cli.md.")]
_BY_DEFAULT = "default"
CLIENT_ID = "logstore-cli"
ClientIdOption = Annotated[
    str, typer.Option("--client-id", metavar="NAME", help="Names this client in the store's metrics and logs.")
]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="KEY=VALUE", help="Topic configuration; may be repeated."),
]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", metavar="KEY", help="Only records with this key, whether it is stored as text or as JSON."),
]
WhereOption = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="EXPRESSION",
        help="Only records that this selects: fields of JSON values as $.user or $.items[0].id, key, timestamp; "
        "== != < <= > >=; and, or, not, ( ).",
    ),
]


def store_url(ctx: typer.Context, given: str | None) -> str:
    """Return ``--url`` after the command, else before it, else ``--profile``, else LOGSTORE_URL, else the profile that
    LOGSTORE_PROFILE names or that is in use, else the default.
    """
    return named_store(ctx, given)[0]


def given_url(ctx: typer.Context, given: str | None) -> str | None:
    """Return ``store_url``, or None if no store was named."""
    url, source = named_store(ctx, given)
    return None if source == _BY_DEFAULT else url


def named_store(ctx: typer.Context, given: str | None) -> tuple[str, str]:
    """Return ``store_url`` and where it was named.

    Raises InvalidConfigError for a profile that does not exist or has no url.
    """
    before_the_command = ctx.find_root().params
    if url := given or before_the_command.get("url"):
        return url, "--url"
    if name := before_the_command.get("profile"):
        return _url_of(name), f"--profile {name}"
    if url := environment_url():
        return url, URL_VARIABLE
    if name := os.environ.get(profiles.VARIABLE):
        return _url_of(name), f"{profiles.VARIABLE}={name}"
    if name := profiles.load_profiles().in_use:
        return _url_of(name), f"profile {name}, in use"
    return DEFAULT_URL, _BY_DEFAULT


def _url_of(profile: str) -> str:
    from logstore.client.addresses import parse_bootstrap
    from logstore.errors import InvalidConfigError, LogStoreError

    url = profiles.load_profiles().named(profile).get("url")
    if url is None:
        raise InvalidConfigError(f"profile '{profile}' has no url: logstore profile set {profile} url=URL")
    try:
        parse_bootstrap(url)
    except LogStoreError as error:
        raise InvalidConfigError(f"profile '{profile}': {error.message}") from None
    return url


@contextmanager
def admin_of(ctx: typer.Context, url: str | None) -> Iterator["Admin"]:
    """Yield an Admin without retries, because a user is waiting."""
    from logstore.client.admin import Admin

    with Admin(store_url(ctx, url), client_id=CLIENT_ID, default_api_timeout_ms=0) as admin:
        yield admin


def reachable_url(ctx: typer.Context, given: str | None) -> str:
    """Return ``store_url`` after checking that a store responds.

    Raises StoreUnreachableError at once, not after the time that a producer or consumer would keep trying.
    """
    from logstore.client.admin import Admin

    url = store_url(ctx, given)
    with Admin(url, client_id=CLIENT_ID, default_api_timeout_ms=0) as admin:
        _ = admin.cluster_id
    return url


def given_path(text: str) -> Path:
    """Return the path of an option or argument, for ``parser=``. Raises a usage error for a URI that is not local."""
    try:
        return local_path(text)
    except DataDirectoryError as error:
        raise typer.BadParameter(f"{text}: {error.message}") from None


def existing_path(text: str) -> Path:
    """Return ``given_path``; raise a usage error if it does not exist."""
    path = given_path(text)
    if not path.exists():
        raise typer.BadParameter(f"Path '{path}' does not exist.")
    return path


def read_text(path: Path, option: str) -> str:
    """Return the text of the file that ``option`` names, or of stdin for ``-``; raise a usage error if it cannot be
    read.
    """
    try:
        content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        return content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read {path}: {error}", param_hint=option) from None


def parse_configs(given: Sequence[str] | None) -> dict[str, str]:
    """Parse ``KEY=VALUE`` pairs; raise a usage error for one without ``=`` or a key given twice."""
    configs: dict[str, str] = {}
    for text in given or ():
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--config")
        if key in configs:
            raise typer.BadParameter(f"{key} is given twice", param_hint="--config")
        configs[key] = value
    return configs


def selection(key: str | None, where: str | None) -> str | None:
    """Return the expression of --key and --where together; raise a usage error for one that cannot be read."""
    if key is None and where is None:
        return None
    from logstore.errors import InvalidWhereError
    from logstore.records.where.expression import both, key_equals, text_of
    from logstore.records.where.parser import parse_where

    try:
        node = both(None if key is None else key_equals(key), None if where is None else parse_where(where))
    except InvalidWhereError as error:
        raise typer.BadParameter(error.message, param_hint="--where") from None
    return None if node is None else text_of(node)


def time_ms(text: str | None, option: str) -> int | None:
    """Return a time as ``logstore.quantities`` parses it; raise a usage error for anything else."""
    from logstore.clock import SystemClock
    from logstore.quantities import timestamp_ms

    if text is None:
        return None
    try:
        return timestamp_ms(text, SystemClock().now_ms())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
