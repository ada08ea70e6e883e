"""llama-server's environment variables, each as the flag that it stands for; flags count before them.

Most are named by a flag's long name (`LLAMA_ARG_CTX_SIZE`). Knows names; who reads the environment is
`graphml.settings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from graphml.errors import UsageError
from graphml.server.command_line import BY_NAME, Parsed, parsed

PREFIX: Final = "LLAMA_ARG_"
NAMED_OTHERWISE: Final = {
    "LLAMA_ARG_BATCH": "--batch-size", "LLAMA_ARG_UBATCH": "--ubatch-size",
    "LLAMA_ARG_N_PARALLEL": "--parallel", "LLAMA_ARG_ROPE_SCALING_TYPE": "--rope-scaling",
    "LLAMA_ARG_SPEC_DRAFT_HF_REPO": "--spec-draft-hf", "LLAMA_ARG_THINK": "--reasoning-format",
    "LLAMA_ARG_THINK_BUDGET": "--reasoning-budget",
    "LLAMA_ARG_ENDPOINT_METRICS": "--metrics", "LLAMA_ARG_ENDPOINT_PROPS": "--props",
    "LLAMA_ARG_ENDPOINT_SLOTS": "--slots", "LLAMA_API_KEY": "--api-key",
    "LLAMA_ARG_NO_ENDPOINT_SLOTS": "--no-slots",
}  # fmt: skip
ON: Final = ("on", "enabled", "true", "1")
OFF: Final = ("off", "disabled", "false", "0")
WHICH_MODEL: Final = ("model", "hf", "hf_file", "model_url", "docker_repo")
SAME_MATTER: Final = (
    WHICH_MODEL, ("template", "template_file"), ("rope_scale", "rope_freq_scale"),
    ("reasoning", "reasoning_budget"),
)  # fmt: skip
"""Values of which a flag says one, so that no variable says another."""


def with_variables(given: Parsed, variables: Mapping[str, str]) -> Parsed:
    """A command line with what variables say besides. UsageError for a value that the flag would refuse."""
    found = Parsed(dict(given.values), given.model, list(given.ignored))
    said = {*given.values, *(() if given.model is None else ("model",))}
    said |= {name for group in SAME_MATTER if said.intersection(group) for name in group}
    for variable, text in sorted(variables.items()):
        name = NAMED_OTHERWISE.get(variable, "--" + variable.removeprefix(PREFIX).lower().replace("_", "-"))
        flag = BY_NAME.get(name)
        if flag is None:
            found.ignored.append(variable)
        elif flag.into not in said:
            found.values[flag.into] = _value(variable, name, text)
    return found


def _value(variable: str, name: str, text: str) -> object:
    flag = BY_NAME[name]
    if flag.read is None:
        # llama-server takes any text of a negative one.
        if not name.startswith("--no-") and text not in ON + OFF:
            raise UsageError(f"{variable}: wanted {', '.join(ON + OFF)}; got {text!r:.40}")
        return flag.value if name.startswith("--no-") or text in ON else not flag.value
    try:
        return parsed([name, text]).values[flag.into]
    except UsageError as error:
        raise UsageError(f"{variable}: {error}") from None
