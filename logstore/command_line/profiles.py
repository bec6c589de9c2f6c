"""Profiles: names for stores with the defaults of commands there, in one file of the user's.

It is ``$XDG_CONFIG_HOME/logstore/profiles.toml`` (``~/.config`` without the variable): ``profile`` names the one in
use, ``[profiles.NAME]`` holds its values. The file is written as a whole, which loses comments in it.
"""

import json
import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logstore.errors import InvalidConfigError

VARIABLE = "LOGSTORE_PROFILE"
#: Settings of a profile, and the options of commands whose default they are.
KEYS: dict[str, tuple[tuple[str, str], ...]] = {
    "url": (),
    "client-id": (("produce", "client_id"), ("consume", "client_id")),
    "format": (("consume", "format"),),
}


@dataclass(slots=True)
class Profiles:
    in_use: str | None = None
    by_name: dict[str, dict[str, str]] = field(default_factory=dict)

    def named(self, name: str) -> dict[str, str]:
        """Return the profile of that name. Raises InvalidConfigError if there is none."""
        if name not in self.by_name:
            known = f"there are {', '.join(sorted(self.by_name))}" if self.by_name else "there are none yet"
            raise InvalidConfigError(
                f"no profile '{name}': {known}; make one with: logstore profile set {name} url=URL"
            )
        return self.by_name[name]


def profiles_file() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "logstore" / "profiles.toml"


def load_profiles() -> Profiles:
    """Read the profiles. Raises InvalidConfigError for a file that cannot be read, or that contains something else."""
    path = profiles_file()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Profiles()
    except OSError as error:
        raise InvalidConfigError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise InvalidConfigError(f"cannot read {path}: {error}") from None
    profiles = Profiles(document.pop("profile", None))
    tables = document.pop("profiles", {})
    if document or not isinstance(tables, dict) or not isinstance(profiles.in_use, str | None):
        raise InvalidConfigError(f'{path}: it takes profile = "NAME" and tables [profiles.NAME]')
    for name, values in tables.items():
        profiles.by_name[name] = _checked(path, name, values)
    if profiles.in_use is not None:
        profiles.named(profiles.in_use)
    return profiles


def save_profiles(profiles: Profiles) -> None:
    from logstore.filesystem import local_filesystem

    lines = [] if profiles.in_use is None else [f"profile = {_text(profiles.in_use)}"]
    for name, values in sorted(profiles.by_name.items()):
        lines += ["", f"[profiles.{_text(name)}]", *(f"{key} = {_text(value)}" for key, value in values.items())]
    path = profiles_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    local_filesystem().write_atomically(path, "\n".join([*lines, ""]).encode())


def chosen_profile(option: str | None) -> dict[str, str]:
    """Return the values of ``chosen_name``; empty if there is none."""
    name = chosen_name(option)
    return {} if name is None else load_profiles().named(name)


def chosen_name(option: str | None) -> str | None:
    """Return the profile that ``--profile`` names, else LOGSTORE_PROFILE, else the one in use."""
    return option or os.environ.get(VARIABLE) or load_profiles().in_use


def option_defaults(profile: dict[str, str]) -> dict[str, Any]:
    """Return defaults by command and option, for click."""
    defaults: dict[str, dict[str, str]] = {}
    for key, value in profile.items():
        for command, option in KEYS[key]:
            defaults.setdefault(command, {})[option] = value
    return defaults


def check_key(key: str) -> None:
    """Raise InvalidConfigError for a setting that profiles do not have."""
    if key not in KEYS:
        raise InvalidConfigError(f"a profile has no '{key}': it holds {', '.join(KEYS)}")


def _checked(path: Path, name: str, values: object) -> dict[str, str]:
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise InvalidConfigError(f"{path}: [profiles.{name}] takes {', '.join(KEYS)}, all of them texts")
    for key in values:
        check_key(key)
    return values


def _text(value: str) -> str:
    # A JSON text is a TOML text, except for this one character.
    return json.dumps(value).replace("\x7f", "\\u007f")
