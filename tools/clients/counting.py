"""CommDebugMode for programs on whose modules PyTorch's fails: it counts collectives and nothing else."""

from torch.distributed.tensor.debug import CommDebugMode


class NoModules:
    """In the place of what PyTorch's mode knows of modules."""

    name, is_bw, activation_checkpointing, module_parents_dict = "Global", False, False, {"Global": ()}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def counting():
    comm = CommDebugMode()
    if hasattr(comm, "advanced_module_tracker"):
        comm.advanced_module_tracker = NoModules()
    return comm
