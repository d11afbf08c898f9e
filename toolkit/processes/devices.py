"""Which torch device to compute on."""

from toolkit.errors import ToolkitError


def chosen_device(wanted: str | None) -> str:
    """Return what `--device` asks for; without it "cuda" when there is one, or "cpu".

    Raises:
      ToolkitError: a GPU is asked for where there is none.
    """
    import torch

    available = torch.cuda.is_available()
    if wanted is None:
        return "cuda" if available else "cpu"
    if wanted.startswith("cuda") and not available:
        raise ToolkitError(f"--device {wanted}: torch finds no GPU; use --device cpu")
    return wanted
