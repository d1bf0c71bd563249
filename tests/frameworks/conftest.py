"""Configure tests that need other frameworks; `make test-frameworks` installs and runs them."""

import pytest
import torch

_declared: list[torch.library.Library] = []


def pytest_configure(config: pytest.Config) -> None:
    """Turn only optgen's warnings into errors: frameworks emit many warnings."""
    config.addinivalue_line("filterwarnings", "ignore")
    config.addinivalue_line("filterwarnings", r"error:::optgen\..*")
    _import_torchvision()


def _import_torchvision() -> None:
    """Import torchvision for timm, also if it is one for CUDA beside a torch for the CPU.

    Not every index has a torchvision for the CPU. That for CUDA cannot load its operators here, and
    its import fails because it registers two of them all the same. No optimizer uses them, so they
    are declared. Other libraries import torchvision too, if it is installed.
    """
    try:
        import torchvision  # noqa: F401
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
