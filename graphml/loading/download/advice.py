"""Error texts of downloads, with advice for the user; shared by all kinds of downloads."""

from __future__ import annotations


def unreachable(host: str, reason: str, mirror: str) -> str:
    """The text for a server that does not answer; `mirror`: the variable that names another one."""
    return (
        f"{host} cannot be reached ({reason}). What is here can be used: a file, or a model that "
        "`graphml models` lists (with --offline no server is asked). Behind a proxy set HTTPS_PROXY; "
        f"{mirror} names another server"
    )


def forbidden() -> str:
    """The text for a model that is not on this machine and must not be downloaded."""
    return (
        "it is not on this machine, and --offline, GRAPHML_OFFLINE or HF_HUB_OFFLINE forbids to download it; "
        "`graphml models` lists what is here"
    )


def reason_of(error: Exception) -> str:
    """The type of an error of another library, and its first line that is not empty."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
