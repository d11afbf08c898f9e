"""Which torch device to compute on."""

from toolkit.errors import ToolkitError


def choose_device(requested: str | None) -> str:
    """Return the device given by `--device`; by default "cuda" if torch finds a GPU, else "cpu".

    Raises:
      ToolkitError: a GPU is requested on a machine that has none.
    """
    import torch

    available = torch.cuda.is_available()
    if requested is None:
        return "cuda" if available else "cpu"
    if requested.startswith("cuda") and not available:
        raise ToolkitError(f"--device {requested}: torch finds no GPU; use --device cpu")
    return requested
