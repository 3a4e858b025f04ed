"""Whether the torch that is there is the one that the package was built for: LibTorch's C++ interface changes with each release."""

import torch


def check():
    from ._built_for import torch as built_for

    present = torch.__version__.split("+")[0]
    if present != built_for:
        raise ImportError(
            f"meshtorch was built for torch {built_for}, and this is torch {torch.__version__}\n"
            f"  in: {torch.__path__[0]}\n"
            f"  do: pip install torch=={built_for}, or build meshtorch for this torch: in its sources, "
            "pip install --no-build-isolation --force-reinstall --no-deps ."
        )
