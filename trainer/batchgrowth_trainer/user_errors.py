"""Errors of users' code and data: which may pass with a retry, and a paragraph about each with its line and remedy.

A loss or a gradient that is not finite, which stops the training, is one of them: `not_finite`.
"""

import logging
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from inspect import unwrap
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from batchgrowth.errors import BatchGrowthError, DataError, WorkloadError
from batchgrowth.plan import Step
from torch import nn

__all__ = [
    "FAULTS",
    "LIBRARIES",
    "DeviceFault",
    "ReadFault",
    "WorkerFault",
    "advice_for",
    "begin",
    "described",
    "doing",
    "gradient_lost",
    "is_of_the_device",
    "is_users",
    "not_finite",
    "reason",
    "reported_as_device_fault",
    "reported_as_workload_error",
    "seen_at",
    "workload_error",
]


# Advice: what helps against the exceptions that users' code raises most, if their text does not say it.

_PACKAGES = {
    "PIL": "pillow", "bs4": "beautifulsoup4", "cv2": "opencv-python", "dateutil": "python-dateutil", "git": "gitpython",
    "skimage": "scikit-image", "sklearn": "scikit-learn", "yaml": "pyyaml",
}  # fmt: skip
"""Modules whose package has another name at PyPI."""
_MISSING = re.compile(r"ModuleNotFoundError: No module named '(\w+)")

_ADVICE = {
    r"circular import|partially initialized module": "two modules import each other: move one import into the function "
    "that needs it; if a file of yours has the name of a package, rename it",
    r"context has already been set|signal only works in main thread": "a worker imports the file in a thread of a "
    'process that has its settings already: do this under `if __name__ == "__main__":`, or leave it out',
    r"^(Syntax|Indentation|Tab)Error": "correct that line; python -m py_compile FILE checks the file alone",
    r"^SystemExit": "raise an exception in its place, or return",
    r"^RecursionError": "the function there calls itself without an end",
    r"^PermissionError": "let the user that trains read it; in pods, that user is not root",
    r"^(FileNotFound|NotADirectory)Error": "give its whole path, since a relative one begins in the folder in which "
    "the process was started; docs/own-code.md says how data gets into pods",
    r"^(OutOfMemory|Memory)Error|out of memory|can't allocate memory": "give the workers more memory, or set a smaller "
    "batch.shard",
    r"same device|expected device|NVIDIA driver|not compiled with CUDA|No CUDA GPUs|invalid device": "leave .cuda() "
    "and .to(device) out, because the trainer moves the model and each batch to its device; create new tensors with "
    "device=inputs.device",
    r"shapes cannot be multiplied|size of tensor a|expected input\[|Given groups=|normalized_shape|should contain \d+ "
    r"elements|invalid for input of size": "give the layer the size of what it gets, or change what an example holds",
    r"target with class prob|multi-target not supported": "give one class per example, shape (N,), for outputs of "
    "shape (N, classes), or the probabilities of the classes as float32",
    r"target dtype to be Long|scalar type Long|nll_loss\w*\W+not implemented": "give classes as int64, a tensor by "
    ".long()",
    r"argument #1 'indices'": "give tokens as int64, a tensor by .long()",
    r"cast to the desired output type": "give the targets of this loss as float32, a tensor by .float()",
    r"same dtype|expected m1 and m2|scalar type|Input type .* and \w+ type": "give the inputs as float32, a tensor by "
    ".float(), an array by .astype('float32')",
    r"device-side assert": "number classes from 0 to one below the outputs of the last layer, and tokens to one below "
    "the number of embeddings; the log has what the GPU refused, and a run with workload.device: CPU names the line",
    r"Target -?\d+ is out of bounds|index out of range in self|Class values must": "number classes from 0 to one below "
    "the outputs of the last layer, and tokens to one below the number of embeddings",
    r"not have a deterministic implementation": "use another operation there, or set deterministic: false, with which "
    "the weights differ from run to run",
    r"call numpy\(\) on Tensor that requires grad|convert cuda\S* device type tensor to numpy": "compute it with "
    "torch's functions, so that it has a gradient; in a metric, call detach() first, and on a GPU cpu()",
    r"modified by an inplace operation": "write x = x + y in the place of x += y, and relu(x) in the place of relu_(x)",
    r"backward through the graph a second time": "each shard is computed by itself: keep nothing from one call of the "
    "model to the next, or nothing but what detach() returns, in a buffer",
    r"leaf Variable that requires grad": "leave parameters to the optimizer; what the model changes by itself belongs "
    "into a buffer, by register_buffer",
    r"^TypeError: .*(positional argument|keyword argument)": "the trainer calls model(input), loss(output, target), "
    "each metric(output, target), augment(inputs), collate(examples) and step(model, inputs, target)",
    r"[Cc]an('t|not) (pickle|get local)|PicklingError": "define at the top of a module what must be pickled; a "
    "lambda, a local function or class and an open file cannot be",
}
"""Regular expression to search for in `TYPE: TEXT` -> what helps; the first match counts."""


def advice_for(error: BaseException) -> str | None:
    """Return advice about this exception, or None if the exception's own text is all there is to say."""
    text = f"{type(error).__name__}: {error}"
    if missing := _MISSING.match(text):
        package = _PACKAGES.get(missing[1], missing[1])
        return (
            f"if it is a package, pip install {package}, and in pods use an image that has it (docs/own-code.md); if "
            "it is a file of yours, put it beside the manifest"
        )
    for pattern, advice in _ADVICE.items():
        if re.search(pattern, text):
            return advice
    return None


# Faults: an error that may pass, by itself or on another worker, is no reason to end a job.

FAULTS = (Exception, SystemExit)
"""What counts as a fault of the workload if its code raises it; a SystemExit would end the trainer with success."""

_DEVICE_KINDS = (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError)
_DEVICE_WORDS = (
    "CUDA error", "CUDA out of memory", "CUBLAS_STATUS_", "CUDNN_STATUS_", "cuDNN error", "NCCL error", "ECC error",
    "DefaultCPUAllocator: can't allocate memory",
)  # fmt: skip
_ASSERTED = "device-side assert"


class WorkerFault(BatchGrowthError):
    """An error that another worker may not have. If it recurs, the job ends with the error's exit code.

    `what` names the fault: two workers that raise the same at the same update have a common cause.
    """

    def __init__(self, text: str, what: str = "") -> None:
        super().__init__(text)
        self.what = what or text


class ReadFault(WorkerFault, DataError):
    """Data cannot be read at the moment, or on this worker."""


class DeviceFault(WorkerFault, WorkloadError):
    """The device or the memory of a worker failed."""


def is_of_the_device(error: BaseException | None) -> bool:
    """Return whether the error reports that a device failed or memory ran out."""
    if isinstance(error, _DEVICE_KINDS):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _DEVICE_WORDS)


def is_asserted(error: BaseException) -> bool:
    """Return whether a GPU kernel refused its input, such as a class that is out of range.

    Every other worker's GPU would refuse that input too. The process cannot use its GPU afterwards.
    """
    return isinstance(error, RuntimeError) and _ASSERTED in str(error)


# Paragraphs: what raised, its file and line, and what would help.

_LOG = logging.getLogger(__name__)
_IMPORTS = "<frozen importlib._bootstrap>"
_OURS = Path(__file__).parent
_BY_DEFAULT = "call the model, then the loss, with a few examples in Python to see the whole traceback"
_CALLS = ("forward", "_call_impl")  # not __init__: the module must be whole
_LONGEST_LAYER = 100  # characters
_FOR_OTHERS = re.compile(r"\nSearch for `cuda|, but you set 'torch.use_deterministic")
"""Start of torch's advice for people who write kernels, or who set what the trainer sets."""
_begun: list[str] = []
"""The place of the workload's function that this process loaded last; empty before."""


@contextmanager
def reported_as_workload_error(what: str, remedy: str | None = None) -> Iterator[None]:
    """Turn exceptions that the workload raises inside the block into WorkloadErrors, or DeviceFaults.

    Our own errors pass unchanged, and so do exceptions outside FAULTS, such as KeyboardInterrupt.
    `remedy` ends the message; its default is the advice for the exception.
    """
    try:
        yield
    except BatchGrowthError:
        raise
    except FAULTS as error:
        raise workload_error(what, error, remedy) from error


@contextmanager
def reported_as_device_fault(what: str | Callable[[], str]) -> Iterator[None]:
    """Turn device errors that the block raises into a DeviceFault or a WorkloadError; other errors pass.

    `what` names what raised them, or returns its name at that time.
    """
    try:
        yield
    except Exception as error:
        if not is_of_the_device(error):
            raise
        raise workload_error(what if isinstance(what, str) else what(), error) from error


def not_finite(step: Step, learning_rate: float, loss: float, norm: float) -> WorkloadError:
    """Return the error for an update whose summed loss or gradient norm is not finite.

    It names the update but no shard, because only the total is tested.
    """
    return WorkloadError(
        f"update {step.position.update + 1} (epoch {step.position.epoch + 1}, batch {step.batch_size}, learning rate "
        f"{learning_rate:g}) is not finite: loss {loss / step.examples:g}, gradient norm {norm:g}. "
        "The weights are unchanged; lower learningRate.initial, warm up, or look for a log or a division by zero "
        "in the loss."
    )


def gradient_lost(name: str, function: Any) -> WorkloadError:
    """Return the error for code that removes or replaces the gradient tensor of the parameter `name`."""
    return WorkloadError(
        f"the gradient of the parameter {name} is removed or replaced while a shard is computed, so the trainer would "
        "lose it; leave out zero_grad(), and in calls of backward() create_graph, since the trainer differentiates "
        f"the losses; torch.autograd.grad returns gradients and leaves those of parameters alone{seen_at(function)}"
    )


def workload_error(what: str, error: BaseException, remedy: str | None = None) -> WorkloadError:
    """Return the WorkloadError for an exception of `what`, or a DeviceFault if it may be the device's."""
    text = described(what, error, remedy)
    # A kernel that refused its input would do so on every other worker, too.
    if is_of_the_device(error) and not is_asserted(error):
        return DeviceFault(text, type(error).__name__)
    return WorkloadError(text)


def described(what: str, error: BaseException, remedy: str | None = None) -> str:
    """Return one paragraph: what ran, the exception, the innermost line of the user's own code, and the remedy.

    If no line is the user's and no remedy is given, the paragraph names the line of the workload's function.
    """
    text = f"{what} raised {reason(error)}; {remedy or advice_for(error) or _BY_DEFAULT}"
    users = _line_of_syntax(error) or any(
        is_users(frame.filename) for frame in traceback.extract_tb(error.__traceback__)
    )
    if users or remedy:
        return text
    return text + seen_at(None)


def reason(error: BaseException) -> str:
    """Return the exception and the place that raised it: a line of the user's file, or a layer of the model."""
    _LOG.debug("an error of the workload", exc_info=error)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    lines = [line for _, line in traceback.walk_tb(error.__traceback__)]
    users = [at for at, frame in enumerate(frames) if is_users(frame.f_code.co_filename)]
    last = users[-1] if users else -1
    parts = [_line_of_syntax(error)]
    if users and not parts[0]:
        parts.append(f"{frames[last].f_code.co_filename}:{lines[last]}, in {frames[last].f_code.co_name}")
    parts.append(_layer(frames, last))
    at = "; ".join(filter(None, parts))
    text = error.msg if isinstance(error, SyntaxError) and parts[0] else _FOR_OTHERS.split(str(error))[0]
    return " ".join(f"{type(error).__name__}: {text}{at and f' ({at})'}".split())


def seen_at(function: Any) -> str:
    """Return `; see FILE:LINE, in NAME` for a user's function, else for the workload's function; "" if unknown."""
    while isinstance(function, partial):
        function = function.func
    if isinstance(function, nn.Module):
        function = getattr(type(function), "forward", None)  # a scripted module's is no function of its class
    code = getattr(unwrap(function), "__code__", None) if callable(function) else None
    if code is None or not is_users(code.co_filename):
        return "".join(_begun)
    return f"; see {code.co_filename}:{code.co_firstlineno}, in {code.co_name}"


def doing(frame: FrameType | None) -> str:
    """Return what the thread in this frame does, as a clause: `importing numpy, at FILE:LINE, in NAME`.

    The line is the innermost one of the user's code, if there is one.
    """
    importing = ""
    called = ""
    at = ""
    while frame is not None and not at:
        code = frame.f_code
        if code.co_filename == _IMPORTS:
            importing = importing or str(frame.f_locals.get("name") or "")
        elif is_users(code.co_filename):
            at = f"at {code.co_filename}:{frame.f_lineno}, in {code.co_name}"
        elif not called:
            called = f"in {code.co_name} of {frame.f_globals.get('__name__')}"
        frame = frame.f_back
    return ", ".join(filter(None, (importing and f"importing {importing}", at or called)))


def begin(function: Any) -> None:
    """Remember the workload's function, which errors name if they have no line of the user's code."""
    _begun.clear()
    _begun[:] = [seen_at(function)]


def _line_of_syntax(error: BaseException) -> str:
    """Return FILE:LINE of a file that Python cannot parse, since no frame has that line; "" for other errors."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    return ""


def _layer(frames: list[FrameType], after: int) -> str:
    """Return the class and name of the innermost layer that the user's innermost frame called; "" if it called none."""
    modules = [(at, frame.f_locals.get("self")) for at, frame in enumerate(frames) if frame.f_code.co_name in _CALLS]
    called = [(at, module) for at, module in modules if isinstance(module, nn.Module)]
    if not called or called[-1][0] <= after:
        return ""
    layer = called[-1][1]
    names = [name for _, outer in called for name, module in outer.named_modules() if module is layer and name]
    if names:
        return f"in layer {names[0]}: {layer!r:.{_LONGEST_LAYER}}"
    return f"in {layer!r:.{_LONGEST_LAYER}}"


LIBRARIES = {"site-packages", "dist-packages"}
"""Folders in which packages are installed; the second is Debian's."""


@lru_cache(maxsize=4096)
def is_users(filename: str) -> bool:
    """Return whether a file is of the user's own code: of no library, and not of this package."""
    path = Path(filename)
    is_installed = not LIBRARIES.isdisjoint(path.parts) or filename.startswith(("<", sysconfig.get_path("stdlib")))
    return not is_installed and _OURS not in path.parents
