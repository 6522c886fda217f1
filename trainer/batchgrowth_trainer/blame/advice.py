"""What helps against the exceptions that users' code raises most, where their text does not say it."""

import re

_PACKAGES = {
    "PIL": "pillow", "bs4": "beautifulsoup4", "cv2": "opencv-python", "dateutil": "python-dateutil", "git": "gitpython",
    "skimage": "scikit-image", "sklearn": "scikit-learn", "yaml": "pyyaml",
}  # fmt: skip
"""Packages whose name at PyPI differs from that of their module."""
_MISSING = re.compile(r"ModuleNotFoundError: No module named '(\w+)")

_ADVICE = {
    r"circular import|partially initialized module": "two modules import each other: move one import into the function "
    "that needs it; if a file of yours has the name of a package, rename it",
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
    r"target dtype to be Long|scalar type Long|nll_loss\w*\W+not implemented|target with class prob": "give classes as "
    "int64, a tensor by .long()",
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
    r"leaf Variable that requires grad": "leave parameters to the optimizer; what the model changes by itself belongs "
    "into a buffer, by register_buffer",
    r"^TypeError: .*(positional argument|keyword argument)": "the trainer calls model(input), loss(output, target), "
    "each metric(output, target), augment(inputs), collate(examples) and step(model, inputs, target)",
    r"[Cc]an('t|not) (pickle|get local)|PicklingError": "define at the top of a module what must be pickled; a "
    "lambda, a local function or class and an open file cannot be",
}
"""Regular expression of what is found in `TYPE: TEXT` -> what helps; the first that fits counts."""


def advice_for(error: BaseException) -> str | None:
    """What helps against this exception, None if its own text must do."""
    text = f"{type(error).__name__}: {error}"
    if missing := _MISSING.match(text):
        package = _PACKAGES.get(missing[1], missing[1])
        return (
            f"if it is a package, pip install {package}, and in pods use an image that has it (docs/own-code.md); if "
            "it is a file of yours, put it beside the manifest"
        )
    return next((advice for pattern, advice in _ADVICE.items() if re.search(pattern, text)), None)
