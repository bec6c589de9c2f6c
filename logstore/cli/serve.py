"""``logstore serve``."""

import gc
import os
from pathlib import Path
from typing import Annotated, Literal

import typer

EXAMPLES = """\b
Examples:
  logstore serve
  logstore serve --data /srv/log --port 9092
  logstore serve --config conf/logstore.toml --host 0.0.0.0
  logstore serve --log-level debug
  logstore serve --jobs
"""


def serve(
    data: Annotated[
        Path | None, typer.Option(help="Directory of topics and journals. [default: data]", show_default=False)
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="HTTP port; 0 takes a free one. [default: 8082]", show_default=False)
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]", show_default=False)
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Settings file (TOML). [default: conf/logstore.toml, if it is there]", show_default=False, exists=True
        ),
    ] = None,
    jobs: Annotated[
        bool,
        typer.Option("--jobs", help="Run retention, key compaction and vacuum beside the store, on a schedule."),
    ] = False,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        typer.Option("--log-level", help="Log events from this level on. [default: info]", show_default=False),
    ] = None,
) -> None:
    """Run a store in this terminal until Ctrl-C.

    Options win over LOGSTORE_* variables, these over the settings file. 'listening on URL' is printed when the store
    is ready. SIGTERM and Ctrl-C stop it cleanly: requests end, records are put into Delta as far as there is time.
    """
    from logstore.process_memory import tune_allocators

    tune_allocators()  # before pyarrow is imported
    # Nearly all that is imported stays for good: the garbage collector would look at it again and again, for a tenth of
    # the whole start.
    gc.disable()
    from logstore.node import serve as run_node
    from logstore.settings import load_settings

    gc.enable()

    if config is not None:
        os.environ["LOGSTORE_CONFIG"] = str(config)
    settings = load_settings(data=data, port=port, host=host, log_level=log_level, jobs_enable=jobs or None)
    raise typer.Exit(run_node(settings))
