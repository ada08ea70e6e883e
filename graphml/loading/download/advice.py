"""What errors of downloads say, and what a user can do; the same for whatever is downloaded."""

from __future__ import annotations


def unreachable(host: str, reason: str, mirror: str) -> str:
    """Of a server that does not answer; `mirror`: which variable names another one."""
    return (
        f"{host} cannot be reached ({reason}). What is here can be used: a file, or a model that "
        "`graphml models` lists (with --offline no server is asked). Behind a proxy set HTTPS_PROXY; "
        f"{mirror} names another server"
    )


def forbidden() -> str:
    """Of a model that is not here and must not be downloaded."""
    return (
        "it is not on this machine, and --offline, GRAPHML_OFFLINE or HF_HUB_OFFLINE forbids to download it; "
        "`graphml models` lists what is here"
    )


def reason_of(error: Exception) -> str:
    """The kind of an error of another library, and the first line that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
