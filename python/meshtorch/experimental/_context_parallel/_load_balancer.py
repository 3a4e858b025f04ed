"""Orders of a sequence in which the parts of all ranks are equal work for attention."""

from abc import ABC, abstractmethod

import torch


class _LoadBalancer(ABC):
    """A user's own derives from this."""

    @abstractmethod
    def _generate_indices(self, restore=False):
        """(1, length), or (batch, length) where samples differ: the position that comes at each place of the new order.

        With `restore` the inverse: the place in the new order of each position.
        """


def _head_and_tail(begin, length, ranks, device):
    """The positions of one run, by rank: each has a piece from its front and one from its back, both of one length."""
    if length % (2 * ranks):
        raise ValueError(
            f"meshtorch: a sequence in balanced order must be a multiple of twice the ranks long\n  length: {length}, "
            f"ranks: {ranks}\n  do: pad it, or use no load balancer"
        )
    pieces = torch.arange(begin, begin + length, device=device).view(2 * ranks, -1)
    return torch.stack([pieces[:ranks], pieces[ranks:].flip(0)], dim=1).flatten()


def _restoring(indices, restore):
    return indices.argsort(dim=1) if restore else indices


class _HeadTailLoadBalancer(_LoadBalancer):
    """The order of a causal sequence that context_parallel and scaled_dot_product_attention know."""

    def __init__(self, seq_length, world_size, device):
        self.seq_length, self.world_size, self.device = seq_length, world_size, device

    def _generate_indices(self, restore=False):
        return _restoring(_head_and_tail(0, self.seq_length, self.world_size, self.device)[None], restore)


class _PerDocumentHeadTailLoadBalancer(_LoadBalancer):
    """The pieces of each document from its front and its back are neighbours; lengths are listed for each sample."""

    def __init__(self, seq_length_per_doc, world_size, device):
        self.seq_length_per_doc, self.world_size, self.device = seq_length_per_doc, world_size, device

    def _generate_indices(self, restore=False):
        samples = []
        for lengths in self.seq_length_per_doc:
            begins = [sum(lengths[:number]) for number in range(len(lengths))]
            runs = [_head_and_tail(*run, self.world_size, self.device) for run in zip(begins, lengths)]
            samples.append(torch.cat(runs))
        return _restoring(torch.stack(samples), restore)


class _PTRRLoadBalancer(_LoadBalancer):
    """Blocks of queries, sorted by how many blocks of keys they see, are dealt to the ranks, there and back in turn."""

    def __init__(self, block_mask, world_size):
        self.block_mask, self.world_size = block_mask, world_size

    @staticmethod
    def ptrr_scheduling(process_time, group_size):
        """For each of group_size ranks the tasks that it gets, of tasks that take these times."""
        if len(process_time) % group_size:
            raise NotImplementedError(
                f"meshtorch: {len(process_time)} blocks cannot be dealt to {group_size} ranks evenly"
                "\n  do: pad the sequence"
            )
        rounds = process_time.argsort(descending=True, stable=True).view(-1, group_size)
        dealt = torch.cat([row.flip(0)[None] if number % 2 else row[None] for number, row in enumerate(rounds)])
        return dealt.t().sort(dim=1).values

    def _generate_indices(self, restore=False):
        mask = self.block_mask
        of_queries, of_keys = mask.BLOCK_SIZE
        seen = mask.kv_num_blocks
        if mask.full_kv_num_blocks is not None:
            seen = seen + mask.full_kv_num_blocks
        if of_queries != of_keys or seen.size(1) != 1:
            raise ValueError(
                "meshtorch: this balancer needs a block mask that is the same for all heads, of square blocks\n  heads: "
                f"{seen.size(1)}, blocks of {of_queries} queries and {of_keys} keys\n  do: create it with H=1 or None"
            )
        samples = []
        for times in seen[:, 0]:
            blocks = self.ptrr_scheduling(times, self.world_size).flatten()
            samples.append((blocks[:, None] * of_queries + torch.arange(of_queries, device=blocks.device)).flatten())
        return _restoring(torch.stack(samples), restore)
