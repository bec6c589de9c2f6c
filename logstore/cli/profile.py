"""``logstore profile ...``: names for stores."""

from typing import Annotated

import typer

from logstore.cli.output import print_json, print_table
from logstore.cli.record_writers import parse_format
from logstore.command_line.options import JsonOption, complete_profiles, named_store
from logstore.command_line.profiles import KEYS, check_key, load_profiles, profiles_file, save_profiles

app = typer.Typer(no_args_is_help=True, help="Name stores, and choose one.", rich_markup_mode=None)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The profile.", autocompletion=complete_profiles)]


@app.command(
    "list",
    epilog="""\b
Examples:
  logstore profile list
""",
)
def list_profiles(json: JsonOption = False) -> None:
    """List the profiles; the one in use has a star."""
    profiles = load_profiles()
    rows = sorted(profiles.by_name.items())
    if json:
        print_json([{"profile": name, "in_use": name == profiles.in_use, **values} for name, values in rows])
    elif rows:
        print_table(
            ["", "profile", *KEYS],
            [
                ("*" if name == profiles.in_use else "", name, *(values.get(key, "-") for key in KEYS))
                for name, values in rows
            ],
        )
    else:
        typer.echo("No profiles yet. Make one with: logstore profile set NAME url=URL", err=True)


@app.command(
    "set",
    epilog="""\b
Examples:
  logstore profile set staging url=http://10.0.0.5:8082
  logstore profile set staging format=json client-id=ada
  logstore profile set staging format=                       takes it out
""",
)
def set_profile(
    name: NameArgument,
    values: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help=f"Of {', '.join(KEYS)}.")],
) -> None:
    """Make or change a profile."""
    profiles = load_profiles()
    profile = dict(profiles.by_name.get(name, {}))
    for text in values:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise typer.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="KEY=VALUE")
        check_key(key)
        if value:
            _check_value(key, value)
        profile[key] = value
    profiles.by_name[name] = {key: value for key, value in profile.items() if value}
    save_profiles(profiles)
    print(f"Set profile {name} in {profiles_file()}")


@app.command(
    epilog="""\b
Examples:
  logstore profile use staging
  logstore profile use --none
"""
)
def use(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The profile.", autocompletion=complete_profiles)
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Use no profile.")] = False,
) -> None:
    """Use a profile from now on, in every terminal."""
    if (name is None) != none:
        raise typer.BadParameter("give the name of a profile, or --none")
    profiles = load_profiles()
    if name is not None:
        profiles.named(name)
    profiles.in_use = name
    save_profiles(profiles)
    print("Using no profile" if name is None else f"Using profile {name}")


@app.command(
    epilog="""\b
Examples:
  logstore profile show
  logstore --profile staging profile show
"""
)
def show(ctx: typer.Context, json: JsonOption = False) -> None:
    """Show the store that commands go to, and why."""
    url, source = named_store(ctx, None)
    if json:
        print_json({"url": url, "source": source})
    else:
        print(f"{url} ({source})")


@app.command(
    epilog="""\b
Examples:
  logstore profile delete staging
"""
)
def delete(name: NameArgument) -> None:
    """Delete a profile."""
    profiles = load_profiles()
    profiles.named(name)
    del profiles.by_name[name]
    if profiles.in_use == name:
        profiles.in_use = None
    save_profiles(profiles)
    print(f"Deleted profile {name}")


def _check_value(key: str, value: str) -> None:
    """Check the value as the command that uses it does."""
    from logstore.client.addresses import parse_bootstrap

    if key == "url":
        parse_bootstrap(value)
    elif key == "format":
        try:
            parse_format(value)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="format") from None
