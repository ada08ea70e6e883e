"""`graphml tune`: tries out which parameters of the kernels suit this machine, and keeps them."""

from __future__ import annotations

from dataclasses import asdict, replace

from graphml.backend import TunableDevice, tuning_file
from graphml.cli.options import options
from graphml.cli.options.opening import whole
from graphml.cli.options.typer_options import grouped
from graphml.cli.terminal.console import Bars, write_json
from graphml.errors import UsageError


@grouped
def tune(
    opening: options.Header,
    model: options.Model = None,
    json: options.Json = False,
) -> None:
    """Autotune the kernels of a model on this machine and save the fastest parameters.

    Programs use them where GRAPHML_TUNED=1 or load(..., tuned=True) says so.
    """
    with Bars() as bars, whole(model, replace(opening, tuned=False), bars) as (path, executor):
        device = executor.device
        if not isinstance(device, TunableDevice):
            raise UsageError(f"backend {opening.backend!r} has nothing to tune")
        tuning_file.ready(tuning_file.path())
        graphs = [executor.compiled(tokens, 1).graph for tokens in dict.fromkeys((1, opening.n_batch))]
        tunings = device.tune(graphs, executor.weights, bars.report)
    if json:
        write_json(
            {"model": str(path), "backend": opening.backend, "tuned": [asdict(tuning) for tuning in tunings]}
        )
        return
    for tuning in tunings:
        kept = ", ".join(f"{name} {value}" for name, value in tuning.parameters.items()) or "as usual"
        times = f"{tuning.usual_s * 1e6:9.1f} us  {tuning.usual_s / tuning.tuned_s:5.2f} x"
        print(f"{tuning.kernel:20} {tuning.shape:40} {times}  {kept}")
    print(f"kept in {tuning_file.path()}; to use: GRAPHML_TUNED=1")
