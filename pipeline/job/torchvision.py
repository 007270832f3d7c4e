"""Lets torchvision's wheel of the package index be imported next to a CPU build of torch.

    python -m ouroboros.pipeline.job.torchvision

That wheel may be built for CUDA. Without CUDA its operators do not load, and its import stops at two whose schemas only
they have: these are defined in the installed package. CPU builds, which have their operators, stay as they are.
"""

import importlib.util
from pathlib import Path

from ouroboros.pipeline.job.devices import torch_has_cuda

SCHEMAS = '''

if not _has_ops():  # added by ouroboros.pipeline.job.torchvision
    _schemas = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _schemas.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
'''


def unmended() -> Path | None:
    """Returns the file of an installed torchvision that loads its operators, if it lacks the schemas and needs them."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:  # no origin: a directory that an uninstall left
        return None
    file = Path(found.origin).with_name("extension.py")
    of_cuda = "+cu" in file.with_name("version.py").read_text(encoding="utf-8")  # which the wheel's own name leaves out
    mended = SCHEMAS in file.read_text(encoding="utf-8")
    return file if of_cuda and not mended and not torch_has_cuda() else None


if __name__ == "__main__" and (file := unmended()):
    mended = file.read_text(encoding="utf-8") + SCHEMAS
    file.unlink()  # other environments may share it
    file.write_text(mended, encoding="utf-8")
