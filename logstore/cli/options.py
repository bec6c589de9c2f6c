"""Options that several commands have, and what they mean together."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.client.addresses import DEFAULT_URL, URL_VARIABLE, environment_url

if TYPE_CHECKING:
    from logstore.client.admin import Admin

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
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs, in the shapes of docs/cli.md.")]
CLIENT_ID = "logstore-cli"
ClientIdOption = Annotated[
    str, typer.Option("--client-id", metavar="NAME", help="Names this client in the store's metrics and logs.")
]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="KEY=VALUE", help="Topic configuration; may be repeated."),
]


def store_url(ctx: typer.Context, given: str | None) -> str:
    """``--url`` after the command, else before it, else the variable, else the default."""
    return given_url(ctx, given) or DEFAULT_URL


def given_url(ctx: typer.Context, given: str | None) -> str | None:
    """As ``store_url``; None if nobody named a store."""
    before_the_command: str | None = ctx.find_root().params.get("url")
    return given or before_the_command or environment_url()


@contextmanager
def admin_of(ctx: typer.Context, url: str | None) -> Iterator["Admin"]:
    """An Admin that answers at once: a person is waiting."""
    from logstore.client.admin import Admin

    with Admin(store_url(ctx, url), client_id=CLIENT_ID, default_api_timeout_ms=0) as admin:
        yield admin


def reachable_url(ctx: typer.Context, given: str | None) -> str:
    """``store_url``, after a look whether a store answers: else StoreUnreachableError at once, not after the time
    that a producer or consumer would keep trying.
    """
    from logstore.client.admin import Admin

    url = store_url(ctx, given)
    with Admin(url, client_id=CLIENT_ID, default_api_timeout_ms=0) as admin:
        _ = admin.cluster_id
    return url


def parse_configs(given: Sequence[str] | None) -> dict[str, str]:
    """``KEY=VALUE`` pairs; a usage error for one without ``=`` or a key given twice."""
    configs: dict[str, str] = {}
    for text in given or ():
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--config")
        if key in configs:
            raise typer.BadParameter(f"{key} is given twice", param_hint="--config")
        configs[key] = value
    return configs
