"""Optional parts of the contract: what a backend's states, programs and devices may do besides.

Each is a protocol that the framework looks for (`isinstance`); an object without it works all the same.
Knows nothing of models, files or tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from graphml.backend.contract import Backend, Device, Progress, State
from graphml.ir.dtype import DType
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Array


@runtime_checkable
class RowsState(Protocol):
    """Optional part of a state: one in a device's memory, of which some rows are copied without the others.

    runs: (first row, count) of consecutive rows of the first dimension.
    """

    def read_rows(self, names: Sequence[str], runs: Sequence[tuple[int, int]]) -> dict[str, Array]:
        """Name -> the rows of all runs, one after the other; the caller's own."""

    def write_rows(self, runs: Sequence[tuple[int, int]], values: Mapping[str, Array]) -> None:
        """Write values by name into the rows of all runs, one after the other."""

    def copy_rows(self, names: Sequence[str], copies: Sequence[tuple[int, int, int]]) -> None:
        """Copy rows within each state: (source, target, count) each, no target a source of another."""


class RowCopies(Protocol):
    """Memory beside a state for copies of rows of some of its arrays."""

    def keep(self, row: int, at: int) -> None:
        """Copy a row of each array to place `at`, after the steps so far."""

    def restore(self, at: int, row: int) -> None:
        """Copy place `at` to a row of each array, before the next step."""

    def read(self, at: int) -> dict[str, Array]:
        """Name -> the row in place `at`; the caller's own."""

    def write(self, at: int, rows: Mapping[str, Array]) -> None:
        """Have place `at` be a row of each array."""


@runtime_checkable
class CopyingState(Protocol):
    """Optional part of a state: one that copies rows where they are, and not by way of `array`."""

    def row_copies(self, names: Sequence[str], count: int) -> RowCopies:
        """Memory for `count` copies of a row, along the first dimension, of each of these arrays."""


@runtime_checkable
class RestartingState(Protocol):
    """Optional part of a state: one on a device that may end, and whose steps then raise StatesLostError."""

    def restart(self) -> None:
        """Have zeroed arrays again, of a device that starts anew if it must; BackendError if it cannot."""


@dataclass(frozen=True)
class StepTime:
    """How long one piece of a run took: a kernel call, or a node worked out by one thread alone.

    node: what it worked at; a node may take several. begin_s: when each thread began, by `time.perf_counter`.
    work_s, wait_s: seconds of each thread within it and in waiting for the others after it. What the caller's
    thread does alone has one entry. replicated: every thread did all of it for itself. barrier: the threads
    waited for each other after it.
    """

    node: Node
    begin_s: tuple[float, ...]
    work_s: tuple[float, ...]
    wait_s: tuple[float, ...]
    replicated: bool = False
    barrier: bool = False


TakeTimes = Callable[[Mapping[str, int], Callable[[], Sequence[StepTime]]], None]
"""Called after a run with its dims and a function that gives the times of its steps, in order.

The function may be called later, when nothing is measured any more.
"""


@runtime_checkable
class TimedProgram(Protocol):
    """Optional part of a program: one that can report the time of its steps."""

    def time_steps(self, take: TakeTimes | None) -> None:
        """From the next run on, time every step and give the times to `take`; None: no longer.

        A run that is not timed costs what it would cost if there were no timing.
        """


@runtime_checkable
class EncodingProgram(Protocol):
    """Optional part of a program: one whose steps are submitted to a device, which then works alone."""

    @property
    def encode_s(self) -> float:
        """Processor seconds of the calling thread to submit the last step that was not timed."""


@runtime_checkable
class AheadProgram(Protocol):
    """Optional part of a program: one that takes a step before it has done the one before."""

    @property
    def runs_ahead(self) -> bool:
        """Whether `begin` spares any waiting; where not, it is not used."""

    def begin(
        self, dims: Mapping[str, int], state: State, fed: Mapping[str, str], outputs: Sequence[str]
    ) -> Callable[[], Mapping[str, Array]]:
        """Submit a step as `run` does; the function that is returned waits for `outputs`.

        They are the caller's own, whatever runs in between, and need not be asked for. fed: name of an input
        -> output of this program's step before, whose leading elements it is; both of one dtype.
        """


class SubmittedStep(Protocol):
    """A step that a program has been asked for and may not have done yet."""

    def outputs(self) -> Mapping[str, Array]:
        """Wait for its outputs, without those that other programs alone read."""


@runtime_checkable
class PassingProgram(Protocol):
    """Optional part of a program: one elsewhere, which reads values of such programs that are under way.

    Steps are run in the order in which they were submitted, with the calls of its device's states in between.
    """

    def submit_part(
        self, dims: Mapping[str, int], state: State, before: Sequence[SubmittedStep]
    ) -> SubmittedStep:
        """Submit a step as `run` does; before: steps of other programs that have some of its inputs."""


@runtime_checkable
class StagedProgram(Protocol):
    """Optional part of a program: one of stages, which work at different steps at the same time."""

    @property
    def n_stages(self) -> int:
        """How many steps are worth submitting; 1: as well `run`."""

    def submit(self, dims: Mapping[str, int], state: State) -> Callable[[], Mapping[str, Array]]:
        """Submit a step as `run` does; what waits for its outputs, which are the caller's own."""


@dataclass(frozen=True)
class Tuned:
    """What a search found for one kernel and shape.

    kernel: its name; shape: as one reads it. parameters: those that are kept, by name; none where the usual
    ones are as good. usual_s, tuned_s: seconds of one call with the usual parameters and with these.
    """

    kernel: str
    shape: str
    parameters: Mapping[str, int]
    usual_s: float
    tuned_s: float


@runtime_checkable
class TunableDevice(Protocol):
    """Optional part of a device: one that can try out which parameters of its kernels suit this machine."""

    def use_tuning(self, enabled: bool) -> None:
        """Whether programs lowered from now on use what earlier searches found."""

    def tune(
        self, graphs: Sequence[Graph], weights: Mapping[str, Array], progress: Progress
    ) -> Sequence[Tuned]:
        """Search for the kernels of some graphs, and keep what was found for later processes."""


@runtime_checkable
class DeterministicDevice(Protocol):
    """Optional part of a device: one that can compute a row the same way whatever is beside it."""

    deterministic: bool

    @property
    def order_of_sums(self) -> str:
        """What besides the program decides the bits of its values: an instruction set."""

    def make_deterministic(self) -> None:
        """From now on programs add up a row in an order of its own.

        A row's values are then the same bits for any number of rows, chunks of its sequence, other sequences
        and threads.
        """


@runtime_checkable
class TopRowsDevice(Protocol):
    """Optional part of a device that computes in the host's memory: the top k of many rows, for samplers."""

    def prepare_top_rows(self) -> None:
        """Compile what `top_rows` needs, so that no step waits for it."""

    def top_rows(
        self, rows: Array, k: int, masks: Mapping[int, Array] | None = None
    ) -> tuple[Array, Array, Array]:
        """Of rows, float32 [r, n], the k largest each: ids int32 and values float32 [r, k], largest first.

        Equal ones by id. And bool [r]: whether a row has a NaN, whose ids mean nothing. masks: row -> uint8,
        element i's bit i % 8 of byte i // 8; an element without a bit counts as -inf.
        """


@runtime_checkable
class ExplainingDevice(Protocol):
    """Optional part of a device: one that says what it calls for a node."""

    def called_kernels(self, node: Node) -> list[str]:
        """A line for each kernel call of a node; where its rows select a loop, which one and why."""


@runtime_checkable
class RowCheckingDevice(Protocol):
    """Optional part of a device: one that can run kernels of ops of one's own row by row, under guard."""

    def outside_its_rows(self, node: Node, operands: Mapping[Node, Array], dims: Mapping[str, int]) -> str:
        """What the node's kernel reads or writes outside of the rows that it is given; "" for nothing."""


@runtime_checkable
class PinnableDevice(Protocol):
    """Optional part of a device: one with worker threads that can stay on cores of their own."""

    def pin_threads(self) -> None:
        """Keep each worker on one core; BackendError where the system has no such thing."""


@runtime_checkable
class MemoryDevice(Protocol):
    """Optional part of a device: one that has memory of its own, which not every model fits in."""

    @property
    def memory_bytes(self) -> int | None:
        """How much it has; None where that is not known or does not matter."""


@runtime_checkable
class RemoteDevice(Protocol):
    """Optional part of a device: one on another machine; models are divided among such ones by memory."""

    @property
    def machine(self) -> str:
        """Which machine, as errors name it."""

    @property
    def memory_bytes(self) -> int:
        """Bytes that were free there when it was opened: its share, where others are on the same machine."""


@runtime_checkable
class AllocatingDevice(Protocol):
    """Optional part of a device: one that counts what it has allocated."""

    @property
    def allocated_bytes(self) -> int:
        """Bytes of its memory that are in use now."""


@runtime_checkable
class LazyStateDevice(Protocol):
    """Optional part of a device: one whose states take memory only as they are touched."""

    lazy_states: bool


@runtime_checkable
class FilledStateDevice(Protocol):
    """Optional part of a device: one that has other memory for states of which all is used in time."""

    def filled_state(self, graph: Graph, dims: Mapping[str, int]) -> State:
        """As `Device.state`, for an engine: many sequences, whose rows are read from all over it."""


@runtime_checkable
class NamedDevice(Protocol):
    """Optional part of a device: one that is not simply the host's processor, and says what it is."""

    @property
    def name(self) -> str:
        """What its library calls it."""

    @property
    def driver(self) -> str:
        """Name and version of what drives it."""

    @property
    def kind(self) -> str:
        """A GPU, "discrete" or "integrated", a "processor" that is driven as a GPU is, or "other"."""

    def bandwidth(self) -> float:
        """Bytes per second that the device reads of its own memory now; 0: it cannot be measured."""


@runtime_checkable
class RereadingDevice(Protocol):
    """Optional part of a device: one whose kernels read more than a node's operands."""

    def also_reads(self, graph: Graph) -> Mapping[Node, Sequence[Node]]:
        """What the kernels of nodes read beside their operands: values that must stay until then."""


@runtime_checkable
class LimitedDevice(Protocol):
    """Optional part of a device: one that decides for itself what it can do of what its backend can."""

    def refuses(self, node: Node) -> str | None:
        """As `Backend.refuses`, of this device; refuses what the backend refuses, and more."""

    def activation(self, weight: DType) -> DType | None:
        """As `Backend.activation`."""


def on_device(backend: Backend, device: Device) -> Backend:
    """The backend as its device is."""
    if not isinstance(device, LimitedDevice):
        return backend
    return replace(backend, refuses=device.refuses, activation=device.activation)
