"""The commands that make a system a service: serve, mcp, keys."""

import argparse
import contextlib
import importlib.util
import ipaddress
import signal
import socket
from pathlib import Path

from pbr_jax.base import terminal
from pbr_jax.base.types import UserError
from pbr_jax.cli import flags
from pbr_jax.experiment.opening import open
from pbr_jax.serving.app import application
from pbr_jax.serving.guard import Limits
from pbr_jax.serving.keys import Keys
from pbr_jax.system import System

_LOCAL = ("localhost", "127.0.0.1", "::1")


def serve(options: argparse.Namespace, rest: list[str]) -> None:
    """Serves a run or a config over HTTP until it is interrupted."""
    _require("serve", "fastapi", "uvicorn")
    import uvicorn

    local, keys = _is_local(options.host), None if options.keys is None else Keys(options.keys)
    if keys is None and not local:
        raise UserError(
            f"--host {options.host} can be reached from other machines, and without keys every caller may be "
            "anybody; give --keys FILE (pbr-jax keys add makes keys), or serve on 127.0.0.1"
        )
    if keys is not None and not keys.users:
        raise UserError(f"{options.keys} has no keys; pbr-jax keys add --file {options.keys} --user NAME")
    system, name = _opened(options.what, rest)
    limits = Limits(queue=options.queue, seconds=options.seconds, body=options.body)
    app = application(system, name=name, keys=keys, limits=limits, hosts=_LOCAL if local else ())
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    with socket.create_server((options.host, options.port), family=family, backlog=256) as listening:
        host = f"[{options.host}]" if family == socket.AF_INET6 else options.host
        terminal.err(f"serving {name} on http://{host}:{listening.getsockname()[1]}/")
        config = uvicorn.Config(
            app, log_config=None, log_level="critical", access_log=False, server_header=False,
            timeout_graceful_shutdown=5,
        )  # fmt: skip
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # uvicorn's own handler ends it, and raises it again
        uvicorn.Server(config).run(sockets=[listening])
    terminal.err("stopped")


def _opened(what: str, rest: list[str]) -> tuple[System, str]:
    """The system of a run's folder or of a config, and its name."""
    if Path(what).is_dir():
        if rest:
            raise UserError(f"unknown argument {rest[0]!r}; a run's folder has all its options")
        system, name = open(what), Path(what).resolve().name
    else:
        config = flags.config([what, *rest], flags.RUN)[1]
        system, name = open(config), config.system
    with contextlib.suppress(UserError):  # of a method to whose documents nothing can be added
        system.start_copy()
    return system, "-".join(name.split())


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _require(extra: str, *names: str) -> None:
    """Raises UserError if a package of an extra is not installed."""
    if missing := [name for name in names if importlib.util.find_spec(name) is None]:
        raise UserError(f"this needs the package {missing[0]}; pip install 'pbr-jax[{extra}]'")


def mcp(options: argparse.Namespace, rest: list[str]) -> None:
    """Serves a user's memory to an agent, over stdin and stdout."""
    _require("mcp", "mcp")
    from pbr_jax.serving.mcp import tools

    server = tools(_opened(options.what, rest)[0], options.user)
    with contextlib.suppress(KeyboardInterrupt):  # there is nothing that another call could continue
        server.run()


def keys(options: argparse.Namespace) -> None:
    """Makes a key and prints it, the only time that it is shown; lists whose keys there are; deletes keys."""
    known = Keys(options.file)
    if options.action == "list":
        for user in known.users:
            terminal.out("trusted" if user is None else f"user {user}")
        return
    if (options.user is None) != options.trusted:
        raise UserError("want --user NAME for a user's key, or --trusted for a program that names users")
    made = options.action == "add"
    terminal.out(known.add(options.user) if made else f"keys deleted: {known.remove(options.user)}")
