"""A Llama-style block in plain torch.nn, and its training: the Python half of test_llama_block.py."""

import torch
from torch import nn
from torch.nn import functional as F

# B batch, S sequence, D width, H heads, K width of a head.
BATCH, SEQUENCE, WIDTH, HEADS, HIDDEN = 2, 8, 16, 4, 48
HEAD = WIDTH // HEADS


def rotated(x_BHSK):
    frequency = torch.pow(10000.0, -torch.arange(0, HEAD, 2, dtype=torch.double) / HEAD)
    angle_SK = torch.outer(torch.arange(SEQUENCE, dtype=torch.double), frequency).repeat(1, 2)
    first, second = x_BHSK.chunk(2, -1)
    return x_BHSK * angle_SK.cos() + torch.cat([-second, first], -1) * angle_SK.sin()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x_BSD):
        def heads(t):
            return t.view(t.size(0), t.size(1), -1, HEAD).transpose(1, 2)

        y_BHSK = F.scaled_dot_product_attention(
            rotated(heads(self.wq(x_BSD))), rotated(heads(self.wk(x_BSD))), heads(self.wv(x_BSD)), is_causal=True
        )
        return self.wo(y_BHSK.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.w2 = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.w3 = nn.Linear(WIDTH, HIDDEN, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.attention = Attention()
        self.feed_forward_norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.feed_forward = FeedForward()

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


def wave(shape, phase):
    """Numbers that both languages can make."""
    count = torch.Size(shape).numel()
    return torch.sin(torch.arange(count, dtype=torch.double) * 0.37 + phase).view(shape)


def train(steps, parallelize=lambda block: block):
    """The losses of the block, made parallel by `parallelize` or not."""
    block = Block().double()
    with torch.no_grad():
        for phase, p in enumerate(block.parameters()):
            p.copy_(1 + 0.1 * wave(p.shape, phase) if p.ndim == 1 else 0.3 * wave(p.shape, phase))
    parallelize(block)
    optimizer = torch.optim.AdamW(block.parameters(), lr=1e-2)
    x, target = wave((BATCH, SEQUENCE, WIDTH), 0.5), wave((BATCH, SEQUENCE, WIDTH), 2.5)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.mse_loss(block(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
