"""Options that several commands have, and what they mean together."""

from typing import Annotated

import typer

from logstore.client.addresses import DEFAULT_URL

URL_VARIABLE = "LOGSTORE_URL"

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar=URL_VARIABLE,
        help=f"The store: http(s)://host:port or host:port, several separated by commas. [default: {DEFAULT_URL}]",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs, in the shapes of docs/cli.md.")]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="KEY=VALUE", help="A topic configuration key; may be repeated."),
]


def store_url(ctx: typer.Context, given: str | None) -> str:
    """``--url`` after the command, else before it, else the variable, else the default."""
    root = ctx.find_root().params.get("url")
    if ctx.get_parameter_source("url") is not None and ctx.get_parameter_source("url").name == "COMMANDLINE" and given:
        return given
    return root or given or DEFAULT_URL


def parse_configs(given: list[str] | None) -> dict[str, str]:
    """``KEY=VALUE`` pairs; a usage error for one without ``=`` or a key given twice."""
    configs: dict[str, str] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--config")
        if key.strip() in configs:
            raise typer.BadParameter(f"{key.strip()} is given twice", param_hint="--config")
        configs[key.strip()] = value.strip()
    return configs
