"""Describes a world with an anomaly so that a person can follow it."""

from typing import Any

from tests.simulation.world import Outcome

_SHOWN = 40


def story(outcome: Outcome) -> str:
    """Return what struck the world and when, and its anomalies."""
    lines = [f"The world {outcome.seed} with {len(outcome.struck)} faults: {sorted(outcome.struck)}"]
    lines += [f"{event['t'] / 1e9:10.6f} s  {told}" for event in outcome.history if (told := _told(event))]
    if len(lines) > 2 * _SHOWN:
        lines[_SHOWN:-_SHOWN] = [f"... {len(lines) - 2 * _SHOWN} more"]
    return "\n".join([*lines, "What is wrong:", *outcome.anomalies])


def _told(event: dict[str, Any]) -> str:
    details = {k: v for k, v in event.items() if k not in {"t", "process", "op", "phase", "id", "kind", "configs"}}
    text = " ".join(f"{name}={value}" for name, value in details.items())
    match event["op"]:
        case "fault":
            return f"fault: {event['kind']} {text}".rstrip()
        case "start" | "heal":
            return f"{event['op']} {text}".rstrip()
        case "topic":
            return f"topic {event['topic']} with {event['partitions']} partitions"
        case _:
            return ""
